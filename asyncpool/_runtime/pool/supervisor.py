"""The supervisor of a pool: it makes the parts, runs until all is over, and closes them.

It carries out what the core decides, hears what workers send, and passes each thing to the part
that it is for; ``crash_report.py`` does what the end of a worker requires.  All of this runs in the
loop's thread and does not wait in between, so there are no locks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import anyio

from asyncpool import events
from asyncpool._core.base.deadlines import PingLedger
from asyncpool._core.slots.slots import UP
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.core import Core
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._core.wire.stacks import are_whole
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.event_loop import check_home
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.channel import READ_SIZE
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.outcomes import unreadable
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.options import SupervisorConfig
from asyncpool._runtime.output.log_records import WorkerLogs, explicit_levels
from asyncpool._runtime.pool.profiles import Profiles
from asyncpool._runtime.pool.replacement import WorkerReplacement
from asyncpool._runtime.pool.sessions import Sessions
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.crash_report import WorkerExit
from asyncpool._runtime.state.draining import Draining
from asyncpool._runtime.state.job_errors import broken_errors, closed_error, expire
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.state.stats import pool_stats
from asyncpool._runtime.traffic.broadcasts import Broadcaster
from asyncpool._runtime.traffic.large_jobs import load_item
from asyncpool._runtime.traffic.stack_dump import StackDumps
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import SlotState
from asyncpool.errors import (
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    ProtocolError,
)
from asyncpool.stats import PoolStats

if TYPE_CHECKING:  # few pools have a sandbox
    from asyncpool._runtime.sandbox.confinement import Confinement
    from asyncpool._runtime.sandbox.places import Places


# Fail many jobs at once: when their pool closes or breaks, or when their time is over.

# How many jobs fail in one turn of the loop.  Each takes some microseconds, and a queue may have a
# million of them.
_FAILED_A_TURN = 500


class BulkFailure:
    """Fails the jobs that the core has given up.

    Args:
        state: The pool's state.
        tasks: The pool's task group, for which it waits.
    """

    def __init__(
        self,
        state: PoolState,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._state = state
        self._tasks = tasks

    def fail(
        self, numbers: tuple[int, ...], why: Literal["closed", "broken", "expired"]
    ) -> None:
        """Fail jobs: some at once, and if there are more, some in each turn of the loop."""
        jobs = deque(self._state.registry.jobs[number] for number in numbers)
        error_for: Callable[[Job[Any]], Exception]
        match why:
            case "closed":
                error_for = self._closed_error
            case "broken":
                error_for = broken_errors(self._state)
            case "expired":
                error_for = self._expire
        self._fail_some(jobs, error_for)
        if jobs:
            self._tasks.create_task(
                self._fail_rest(jobs, error_for), name="asyncpool: fail queued jobs"
            )

    async def _fail_rest(
        self, jobs: deque[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> None:
        while jobs:
            self._fail_some(jobs, error_for)
            await asyncio.sleep(0)

    def _fail_some(
        self, jobs: deque[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> None:
        for _ in range(min(len(jobs), _FAILED_A_TURN)):
            job = jobs.popleft()
            self._state.registry.fail(job, error_for(job))

    def _expire(self, job: Job[Any]) -> JobTimeoutError:
        return expire(job, self._state.loop.time())

    def _closed_error(self, job: Job[Any]) -> PoolClosedError:
        handle = None if job._slot is None else self._state.handles[job._slot]
        return closed_error(job, handle)


# Ask workers for the stacks of their threads, all at once.

# Seconds that a worker's control thread has to write the stacks, before a signal makes a handler
# in C write them; and seconds that the pool then waits for that handler.
_PATIENCE = 1.0
_LOOKS = 80
_NEXT_LOOK = 0.01


class Stacks:
    """The questions for stacks that have no answer yet."""

    def __init__(self) -> None:
        self._asked: dict[WorkerHandle, asyncio.Event] = {}
        self._lock = asyncio.Lock()  # since reading a page's stacks erases them

    def written(self, handle: WorkerHandle) -> None:
        """Note that a worker has written its stacks."""
        if handle in self._asked:
            self._asked[handle].set()

    async def ask(self, handles: Iterable[WorkerHandle]) -> dict[int, str]:
        """Return the stacks of all threads of these workers, by slot.

        Cancellation:
            Safe.
        """
        alive = [handle for handle in handles if handle.pid is not None]
        async with self._lock, asyncio.TaskGroup() as group:
            asked = [
                group.create_task(
                    self._ask(handle), name=f"asyncpool stacks of slot {handle.slot}"
                )
                for handle in alive
            ]
        texts = [task.result() for task in asked]
        return {
            handle.slot: text for handle, text in zip(alive, texts, strict=True) if text
        }

    async def _ask(self, handle: WorkerHandle) -> str:
        handle.page.read_stacks()  # erases an older dump
        answered = self._asked[handle] = asyncio.Event()
        handle.ask_for_stacks()
        try:
            async with asyncio.timeout(_PATIENCE):
                await answered.wait()
        except TimeoutError:
            handle.demand_stacks()
            await self._watch(handle)
        finally:
            del self._asked[handle]
        return handle.page.read_stacks()

    async def _watch(self, handle: WorkerHandle) -> None:
        """Wait until the worker writes no more; the handler in C gives no notice."""
        before = b""
        for _ in range(_LOOKS):
            await asyncio.sleep(_NEXT_LOOK)
            written = handle.page.written_stacks
            if are_whole(written, before):
                return
            before = written


# The status of a pool, for callers that wait until it is ready, or until it has ended.


class PoolStatus:
    """Whether a pool works, has ended, or has failed.

    Args:
        state: The pool's state.

    Attributes:
        ready: Done when the first worker is ready, or all are, as the options say; failed if
            the pool broke before.
        ended: Done when nothing of the pool is left.
        outcome: Done when nothing of the pool is left; failed when the pool gives up for good, or
            when its supervisor fails.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self.ready: asyncio.Future[None] = state.loop.create_future()
        self.ended: asyncio.Future[None] = state.loop.create_future()
        self.outcome: asyncio.Future[None] = state.loop.create_future()

    @property
    def was_ready(self) -> bool:
        """Whether the pool has been ready."""
        return self.ready.done() and self.ready.exception() is None

    @property
    def cannot_start(self) -> bool:
        """Whether the pool was never ready and cannot become ready, so that it ends."""
        if self.ready.done():
            return self.ready.exception() is not None
        core = self._state.core
        breaks_pool = self._state.config.wait_for_all and core.failure is not None
        return breaks_pool or core.broken is not None

    def worker_ready(self) -> None:
        """Note that a worker is ready."""
        if self._state.config.wait_for_all:
            self.check_all_ready()
        elif not self.ready.done():
            self.ready.set_result(None)

    def check_all_ready(self) -> None:
        """End the wait for all workers, if they are ready, or if some have failed to start."""
        core = self._state.core
        if self.ready.done() or not self._state.config.wait_for_all:
            return
        if core.minimum_ready:
            self.ready.set_result(None)
        elif core.failure is not None:
            reason = f"{core.failure}, and not all workers are ready"
            crashes = tuple(self._state.crashes)
            self._fail_waiters(
                PoolBrokenError(reason=reason, crashes=crashes, retry_after=None)
            )

    def note_broken(self, error: PoolBrokenError) -> None:
        """Note that the pool is broken; for good, if it was never ready."""
        if error.retry_after is not None and not self.ready.done():
            error = PoolBrokenError(
                reason=error.reason, crashes=error.crashes, retry_after=None
            )
        self._state.log.broken(error.reason, error.retry_after)
        self._state.hub.publish(events.Broken(error.reason, error.crashes))
        if error.retry_after is None:
            self._fail_waiters(error)

    def note_recovered(self, slot: int) -> None:
        """Note that starts succeed again, since the worker in *slot* is ready."""
        self._state.log.recovered(slot)
        self._state.hub.publish(events.Recovered(slot))

    def note_failure(self, error: Exception) -> PoolClosedError:
        """Note that the supervisor has failed; return the error for open jobs."""
        self._state.log.failed(error)
        text = f"the supervisor failed: {error!r}"
        crashes = tuple(self._state.crashes)
        self._fail_waiters(
            PoolBrokenError(reason=text, crashes=crashes, retry_after=None)
        )
        return PoolClosedError(text)

    def note_ended(self) -> None:
        """Note that nothing of the pool is left."""
        for future in (self.ready, self.outcome, self.ended):
            if not future.done():
                future.set_result(None)

    def _fail_waiters(self, error: PoolBrokenError) -> None:
        for future in (self.ready, self.outcome):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, since nobody may wait for it


# Ping the workers of a pool, and have those killed that do not answer.
#
# The worker's control thread answers, whatever its job does.  So an answer shows that the process
# runs, and that its threads get the GIL.  In a worker that serves, the event loop answers, since
# without its event loop it serves nobody.


class Pings:
    """The pings of one pool.

    Args:
        state: The pool's state.
        stack_dumps: Ends workers that are silent.
        timeout: Seconds for which a worker may be silent.
    """

    def __init__(
        self, state: PoolState, stack_dumps: StackDumps, timeout: float
    ) -> None:
        self._state = state
        self._stack_dumps = stack_dumps
        self._timeout = timeout
        self._ledger: PingLedger[WorkerHandle] = PingLedger(timeout, state.loop.time())
        self._alarm = Alarm(state.loop, self._look)
        self._alarm.set_at(self._ledger.due)

    def answered(self, handle: WorkerHandle) -> None:
        """Note that a worker has answered a ping.

        Raises:
            ProtocolError: If there was no ping.
        """
        self._ledger.answered(handle)

    def stop(self) -> None:
        """Send no more pings."""
        self._alarm.cancel()

    @decision
    def _look(self, now: float) -> None:
        state = self._state
        for handle in self._ledger.suspects(now):
            handle.catch_up()
            self._ledger.heard(handle, handle.heard_at)
        up = [
            state.handles[slot.index]
            for slot in state.core.slots
            if slot.state in UP and not slot.hung
        ]
        silent, asked = self._ledger.tick(up, now)
        self._alarm.set_at(self._ledger.due)
        for handle in asked:
            handle.ask(FrameKind.PING)
        for handle in silent:
            text = f"no answer to pings for {self._timeout:g} s"
            self._stack_dumps.hang(handle, text)


# The effects that are methods of the handle of a worker.
_OF_WORKERS = {"revoke", "interrupt", "stop", "terminate", "kill", "abandon"}

_ALIVE = UP | {SlotState.STARTING, SlotState.STOPPING}


class Supervisor:
    """Everything that lives as long as a pool.

    Args:
        config: What the user wants.
        hub: Where its events go.

    Attributes:
        hub: As above.
        state: What all parts share.
        threads: Pickle and copy large objects.
        serving: What workers do instead of jobs, if they serve.
        status: Whether the pool is ready, broken or over.
        admission: Checks whether the pool takes a job.
        draining: Keeps the pool open while it drains.
        traffic: Brings jobs to workers and back.
        leases: The holders of leases; submits jobs that have one.
        figures: What it counts.
        replacement: Retires, replaces and kills workers.
        sessions: Gives workers to sessions.
        broadcasts: Has every worker make a call.
        stacks: Asks workers for their stacks.
        profiles: Has workers sample their stacks.
        tasks: The tasks that the pool waits for before it ends: one for each worker, and
            others that take more than a turn of the loop.
        segments: The shared memory.
        launcher: Starts the processes.
        places: Where workers in a sandbox are.
        worker_logs: Passes on the records of workers.
        buffer: Where the channels read into.
    """

    is_remote = False

    def __init__(self, config: SupervisorConfig, hub: PoolHub) -> None:
        loop, worker = asyncio.get_running_loop(), _first_config(config)
        self.hub = hub
        state = self.state = self._state = PoolState(
            loop=loop, config=config, core=_core_of(config), hub=hub
        )
        state.performer = self
        self.threads = Threads(loop)
        self.serving = None if config.serving is None else config.serving(state, worker)
        self.status = PoolStatus(state)
        self.admission = Admission(state)
        self.draining = Draining(state)
        self.traffic = Traffic(state, self.admission, self.threads)
        self.leases, self.figures = state.registry.leases, state.registry.figures
        self.replacement = WorkerReplacement(state, self.threads)
        self.sessions = Sessions(state, self.admission, self.draining, self.traffic)
        self.broadcasts = Broadcaster(
            state, self.admission, self.traffic, self.threads, worker
        )
        self.stacks = Stacks()
        self.profiles = Profiles(state)
        timeout = config.ping_timeout
        self._pings = (
            None if timeout is None else Pings(state, self.traffic.stack_dumps, timeout)
        )
        # Not a task group of anyio's, which needs a current task: workers are also started in
        # timers and readers, where there is none.
        self.tasks = asyncio.TaskGroup()
        self.segments = Segments(loop, config.max_shared_memory, self.threads)
        env, sandbox = config.worker_env, config.confinement
        self.launcher = Launcher(
            loop,
            fork=config.fork,
            preload=config.preload if config.launcher_imports else (),
            confinement=sandbox,
            variables=() if env is None else env.common,
            imports=config.launcher_imports,
        )
        self.places = None if sandbox is None else _places(sandbox, self.threads)
        self.worker_logs = WorkerLogs(loop, config.name)
        self.buffer = memoryview(bytearray(READ_SIZE))
        self._worker_exit = WorkerExit(self)
        self._bulk_failure = BulkFailure(state, self.tasks)
        self._alarm = Alarm(loop, self._on_alarm)
        self._finished = asyncio.Event()
        self._effects = self._table_of_effects()

    # The life of the workers.

    async def run(self) -> None:
        """Keep the pool alive until it is closed.

        Cancellation:
            Costs everything: workers are killed, open jobs fail.
        """
        reason = PoolClosedError("the pool was closed before the job was done")
        try:
            async with self.tasks:
                state = self._state
                sandbox = state.config.confinement
                if sandbox is not None and sandbox.missing:
                    state.log.sandbox_incomplete(sandbox.missing)
                state.core.start(state.loop.time())
                self.act()
                try:
                    await self._finished.wait()
                except asyncio.CancelledError:
                    # At once: the session of another task that is cancelled now would else have
                    # its worker replaced, by a task that this group takes no more.
                    state.core.closing.abandon()
                    raise
            await self._worker_exit.finish()
            await self.worker_logs.finish()
        except Exception as error:  # noqa: BLE001 - callers wait
            reason = self.status.note_failure(error)
        finally:
            await self._end(reason)

    async def _end(self, reason: PoolClosedError) -> None:
        """Close everything and report the end, even if this task is cancelled meanwhile.

        asyncio.run() cancels all tasks of a loop that ends, and no shield of anyio's prevents
        that.
        """
        try:
            self._stop(reason)
            with anyio.CancelScope(shield=True):
                try:
                    await self.threads.close()
                finally:
                    await self.launcher.close()
                    if self.places is not None:
                        await self.places.close()
        finally:
            self.leases.close()
            if (handover := self._state.config.handover) is not None:
                handover.close()
            if self.serving is not None:
                self.serving.close()
            self.admission.wake_all()
            try:
                await self._state.hub.close_companions()
            finally:
                self._state.hub.end()
                if self.status.was_ready:
                    self._state.log.closed(self.summary())
                self.status.note_ended()

    def _stop(self, reason: PoolClosedError) -> None:
        self._alarm.cancel()
        self.traffic.stack_dumps.stop()
        self.traffic.stop()
        self._state.loop_lag.stop()
        self.replacement.stop()
        self.profiles.stop()
        if self._pings is not None:
            self._pings.stop()
        self._state.core.closing.abandon()
        self.sessions.refuse()
        self._state.registry.fail_all(reason)
        self.draining.stop()
        # Also what workers had whose end was not handled.
        self.worker_logs.close()
        self.segments.close()
        for handle in self._state.handles.values():
            handle.page.close()

    def _start_worker(self, slot: int, generation: int) -> None:
        rank = self._state.core.slots[slot].rank
        handle = WorkerHandle(self, slot, generation, rank)
        self._state.handles[slot] = handle
        self.broadcasts.on_spawn(slot)
        self.tasks.create_task(
            self._run_worker(handle),
            name=f"asyncpool worker in slot {slot} of {self._state.config.name}",
            context=contextvars.Context(),  # not that of the caller that happens to be here
        )

    async def _run_worker(self, handle: WorkerHandle) -> None:
        try:
            await handle.run()
        except OSError as error:
            handle.detail = str(error)
        except LaunchError as error:
            why = error
            if handle.killed and not self._state.core.slots[handle.slot].exit_planned:
                why = await self.launcher.on_start_timeout(error)
            handle.detail, handle.traceback = str(why), why.trace
            handle.final, handle.status = why.final, why.status
        self._worker_exit.handle_exit(handle)
        self.status.check_all_ready()

    # What workers say.

    # Their life.

    def config_for(self, handle: WorkerHandle) -> bytes:
        """Return what a worker is told that is being started, packed."""
        if self.serving is not None:
            return self.serving.config(handle)
        return self.broadcasts.config()

    def on_spawned(self, handle: WorkerHandle) -> None:
        """Count a worker that has a process, and tell the listeners."""
        state = self._state
        state.registry.figures.spawned += 1
        self._worker_exit.on_spawned()
        assert handle.pid is not None
        state.hub.publish(events.Spawned(handle.slot, handle.generation, handle.pid))
        state.log.worker_started(handle)

    @decision
    def on_ready(self, handle: WorkerHandle) -> None:
        """Have a worker that is ready get its first jobs, or serve."""
        state, now = self._state, self._state.loop.time()
        assert handle.pid is not None
        took = now - handle.began_at
        state.registry.figures.starts.note(took)
        handle.since = monotonic()
        state.hub.publish(
            events.Ready(handle.slot, handle.generation, handle.pid, took)
        )
        state.log.worker_ready(handle, took)
        state.core.ready(handle.slot, now)
        state.performer.act()
        if self.serving is not None:
            self.serving.ready(handle)
        state.performer.rearm()  # it grows old from now on
        self.replacement.resize_waits.check()
        self.status.worker_ready()
        self.profiles.join(handle)

    @decision
    def on_fault(self, handle: WorkerHandle) -> None:
        """Have a worker replaced that has lost a thread."""
        core, now = self._state.core, self._state.loop.time()
        core.replace_faulty(handle.slot, now)
        self._state.performer.act()

    def on_exit(self, handle: WorkerHandle) -> None:
        """Settle the jobs whose outcomes a dead worker has noted, and not sent."""
        self.traffic.on_exit(handle)
        self.profiles.lose(handle)

    # Their jobs.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Settle jobs, and give their worker the next ones."""
        state = self._state
        # As @decision does, whose call costs 0.4 us.
        before, state.deciding = state.deciding, True
        try:
            self.traffic.on_outcomes(handle, frames)
        finally:
            state.deciding = before

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hand over what streams have yielded."""
        self.traffic.job_control.on_items(handle, frames)

    def on_revoked(self, handle: WorkerHandle, sequences: tuple[int, ...]) -> None:
        """Give jobs to others that a worker will not begin."""
        self.traffic.job_control.on_revoked(handle, sequences)

    def on_heartbeat(self, handle: WorkerHandle) -> None:
        """Look for heartbeats on a worker's page."""
        self.traffic.heartbeats.on_notice(handle)

    def on_last_beat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hear the last heartbeat of a job."""
        self.traffic.heartbeats.on_last_heartbeat(handle, frame)

    # What they ask for, and answer.

    def on_retire(self, handle: WorkerHandle, reason: str) -> None:
        """Have a worker end after the job that asks for it."""
        self.replacement.retire(handle, reason)

    def on_worn(self, handle: WorkerHandle, reason: str) -> None:
        """Have a worker replaced that asks for it."""
        self.replacement.replace(handle, reason)

    @decision
    def on_stacks(self, handle: WorkerHandle, job: int | None) -> None:
        """Read where a worker's threads are, which may be what its end waits for."""
        core, now = self._state.core, self._state.loop.time()
        self.stacks.written(handle)
        core.endings.stacks_written(handle.slot, now, job)
        self._state.performer.act()
        self._state.performer.rearm()  # it may have to give back other jobs first

    def on_samples(self, handle: WorkerHandle, frame: Frame) -> None:
        """Count what a worker's sampler has found."""
        self.profiles.hear(handle, frame)

    def on_where(self, handle: WorkerHandle, job: int, payload: bytes) -> None:
        """Tell those who have asked where a worker's jobs are."""
        self.traffic.live_stacks.answered(handle, job, payload)

    def on_pong(self, handle: WorkerHandle) -> None:
        """Take a worker for healthy that has answered a ping."""
        if self._pings is None:
            raise ProtocolError("it answered a ping, and nobody sends any")
        try:
            self._pings.answered(handle)
        except ProtocolError:
            if not self._state.core.slots[
                handle.slot
            ].hung:  # or else it is only too late
                raise

    # What the core has decided is carried out here, and nowhere else.

    def act(self) -> None:
        """Carry out what the core has decided, in its order."""
        todo = self._state.core.todo
        if todo:
            # What is decided meanwhile is carried out by whoever has asked for it.
            effects, lifecycle = todo.copy(), False
            todo.clear()
            for effect in effects:
                name = effect[0]
                if name == "assign":
                    jobs = self._state.registry.jobs
                    self.traffic.send(effect[1], [jobs[n] for n in effect[2]])
                    continue
                lifecycle = True
                if name in _OF_WORKERS:
                    getattr(self._state.handles[effect[1]], name)(*effect[2:])
                else:
                    self._effects[name](*effect[1:])
            if lifecycle:
                self.rearm()
        # Checked here, since only effects take jobs out of the queue.
        if self.admission.saturated:
            self.admission.update_saturated()

    def rearm(self) -> None:
        """Set the pool's timer to the core's next deadline."""
        self._alarm.set_at(self._state.core.next_deadline())
        self.traffic.stack_dumps.rearm()

    @decision
    def _on_alarm(self, now: float) -> None:
        self._state.core.on_timer(now)
        self.act()
        self.rearm()

    def _table_of_effects(self) -> dict[str, Callable[..., object]]:
        """Return what does each effect that is not one worker's alone."""
        publish = self.hub.publish
        return {
            "spawn": self._start_worker,
            "unassign": self._take_back,
            "drop_pinned": self.broadcasts.on_dropped,
            "offer": self.sessions.offer,
            "end_session": self.sessions.end,
            "refuse_sessions": self.sessions.refuse,
            "write_stacks": self._write_stacks,
            "fail_jobs": self._bulk_failure.fail,
            "restarting": lambda *told: publish(events.Restarting(*told)),
            "parked": self._parked,
            "retiring": self.replacement.retiring,
            "resized": self.replacement.resized,
            "roll_ended": self.replacement.rolled,
            "left_empty": lambda *_: self.replacement.resize_waits.check(),
            "broken": lambda *_: self.status.note_broken(
                broken_errors(self._state)(None)
            ),
            "recovered": self.status.note_recovered,
            "finished": self._finished.set,
        }

    def _write_stacks(self, slot: int, number: int | None) -> None:
        job = self._state.registry.jobs.get(number or 0)
        attempt = 0 if job is None else job.attempt
        self._state.handles[slot].ask_for_stacks(number or 0, attempt)

    def _parked(self, slot: int, reason: str, probe_in: float | None) -> None:
        if self.status.cannot_start:
            probe_in = None
        self.hub.publish(events.Parked(slot, reason, probe_in))

    def _take_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            job = self._state.registry.take_back(number)
            if job is not None:
                self.traffic.timers.wait_again(job)

    # What others ask.

    @property
    def closing(self) -> bool:
        """Whether it closes, or has ended."""
        return self._state.core.closing.finish is not None

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return self._state.core.exits.sizing.most

    @property
    def concurrency(self) -> int:
        """How many jobs each worker runs at once."""
        return self._state.config.worker.concurrency

    @property
    def unserved(self) -> int:
        """How many jobs wait that more workers could serve."""
        return self._state.core.dispatcher.unserved

    @property
    def counts_jobs(self) -> bool:
        """Whether no worker may begin more than so many jobs."""
        return self._state.config.worker_limits.exact

    @property
    def fresh(self) -> bool:
        """Whether each job has a new worker."""
        return self._state.config.fresh

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell that no engine brings arguments."""
        del items, star
        return False

    @property
    def max_payload(self) -> int:
        """The most bytes that an outcome may have."""
        return self._state.config.worker.max_payload

    def check_home(self) -> None:
        """Check that this is the pool's event loop.

        Raises:
            RuntimeError: If it is not.
        """
        check_home(self._state.loop, self._state.config.title)

    async def load(self, job: Job[Any], frame: Frame) -> Any:
        """Return the item of a stream that is in *frame*.

        Raises:
            JobNotPicklableError: If it cannot be unpickled here.
        """
        try:
            return await load_item(self.threads, job, frame)
        except ProtocolError as broken:
            if job._slot is not None:
                self._state.handles[job._slot].distrust(str(broken))
            raise unreadable(broken) from broken

    @decision
    def close(self, finish: Finish, timeout: float | None) -> None:
        """Begin to close, or close faster than was asked before."""
        if not self._state.core.closing.over and not self.status.ended.done():
            now = self._state.loop.time()
            if self.serving is not None:
                self.serving.stop()
            else:
                self.draining.begin()
            if self.status.was_ready and not self.closing:
                jobs = len(self._state.registry.jobs)
                self._state.log.closing(jobs, finish.name.lower(), timeout)
            self._state.registry.mark_close(self._state.core.lifecycle.kills)
            deadline = None if timeout is None else now + timeout
            self._state.core.close(finish, deadline, now)
            self.act()
            self.rearm()  # nothing may happen before the deadline of the close

    def drop(self) -> None:
        """Begin to close, since nobody has the pool any more."""
        if not self.closing:
            self._state.log.dropped()
            self.close(Finish.ALL, None)

    def give_up(self) -> None:
        """Fail all jobs, and have those that run end as if they were cancelled.

        A job is killed if it still runs after the longest *cancel_grace*, or must not be
        interrupted.
        """
        if self.serving is not None:
            self.close(Finish.NONE, 0.0)
            return
        self.close(Finish.RUNNING, None)
        self._give_up_running()
        self.close(Finish.RUNNING, self._state.core.endings.grace)

    @decision
    def _give_up_running(self) -> None:
        for job in list(self._state.registry.jobs.values()):
            if (slot := job._slot) is not None:
                self._bulk_failure.fail((job.id,), "closed")
                self.traffic.job_control.take_out(job, slot)

    def tell_start(self, began: float) -> None:
        """Log that the pool is ready, which was started at *began*."""
        state = self._state
        ready = sum(slot.state in UP for slot in state.core.slots)
        size = state.core.exits.sizing.size
        state.log.started(ready, size, state.loop.time() - began)
        if state.config.fresh and self.launcher.shared:
            state.log.memory_shared(self.launcher.shared)

    # Figures.

    @property
    def queued(self) -> int:
        """How many jobs are with no worker."""
        return self._state.core.dispatcher.waiting

    def limit_ahead(self) -> None:
        """Do nothing: its workers never have more jobs than they can begin soon."""

    async def where(self) -> dict[int, str]:
        """Return where the threads of all workers are, by slot."""
        slots = [slot for slot in self._state.core.slots if slot.state in _ALIVE]
        return await self.stacks.ask(self._state.handles[s.index] for s in slots)

    def stats(self) -> PoolStats:
        """Return the pool as it stands."""
        return pool_stats(self._state, shared_memory=self.segments.total)

    def job(self, number: int) -> Job[Any] | None:
        """Return an open job."""
        return self._state.registry.jobs.get(number)

    def summary(self) -> events.CloseSummary:
        """Return what the close did."""
        return self._state.registry.summary(self._state.core.lifecycle.kills)


def _first_config(config: SupervisorConfig) -> WorkerConfig:
    """Return the configuration of workers that are started before any broadcast."""
    levels, disabled = explicit_levels()
    return config.worker._replace(
        levels=levels, disabled=disabled, preload=config.preload
    )


def _core_of(config: SupervisorConfig) -> Core:
    """Return the core of a pool with these options."""
    return Core(
        workers=config.workers,
        policy=config.restart_policy,
        start_timeout=config.start_timeout,
        limits=config.worker_limits,
        idle_timeout=config.idle_timeout,
        concurrency=config.worker.concurrency,
        max_surge=config.max_surge,
        max_unavailable=config.max_unavailable,
        stop_grace=config.stop_grace,
        end_grace=config.end_grace,
        serving=config.serving is not None,
    )


def _places(confinement: Confinement, threads: Threads) -> Places:
    from asyncpool._runtime.sandbox.places import Places  # noqa: PLC0415 - few have a sandbox

    return Places(confinement, threads)
