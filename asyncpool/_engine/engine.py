"""The engine: the part of a pool in the service's process, which makes, connects and closes all others.

It carries out what the core decides, hears what workers send, and passes each thing to the part
that it is for; ``deaths.py`` does what the end of a worker requires.  All of this runs in the
loop's thread and does not wait in between, so there are no locks.

Whoever starts and ends a pool or a cluster does it by a :class:`PoolLife`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from threading import get_ident
from time import monotonic
from typing import Any, Literal

from asyncpool import events
from asyncpool._core import log_messages as say
from asyncpool._core.core import Core
from asyncpool._core.deadlines import earliest
from asyncpool._core.endings import Finish
from asyncpool._core.figures import Durations
from asyncpool._core.slots import UP
from asyncpool._engine import watch
from asyncpool._engine.admission import Admission, Holds
from asyncpool._engine.channel import READ_SIZE
from asyncpool._engine.deaths import Deaths
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import PoolJob, unreadable
from asyncpool._engine.large import LargeObjects, load_item
from asyncpool._engine.launcher import Launcher, LaunchError
from asyncpool._engine.life_log import LifeLog
from asyncpool._engine.loop import (
    Alarm,
    Threads,
    anyio_shield,
    check_loop,
    fail_quietly,
    outlast,
    shielded,
)
from asyncpool._engine.machine import check_not_imported
from asyncpool._engine.options import EngineConfig
from asyncpool._engine.output import WorkerLogs, explicit_levels
from asyncpool._engine.registry import (
    JobRegistry,
    broken_errors,
    closed_error,
    expired_error,
)
from asyncpool._engine.replacement import WorkerReplacement
from asyncpool._engine.segments import Segments
from asyncpool._engine.sessions import Broadcaster, Sessions
from asyncpool._engine.traffic import Traffic
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool.errors import PoolBrokenError, PoolClosedError, ProtocolError
from asyncpool.events import CloseSummary, Crash
from asyncpool.stats import PoolStats

# How many jobs fail in one iteration of the loop.  Each takes some microseconds, and a queue may have a
# million of them.
_FAILED_AT_ONCE = 500

_CRASHES_KEPT = 10

# Seconds from one measurement of how late the loop runs what is due to the next.  An idle pool
# measures nothing, so that the service may sleep.
PERIOD = 1.0


class Turn:
    """A step in which the core decides; afterwards, what it has decided is carried out.

    It is a context manager, whose value is the time.  There may be one inside another.  On Ctrl-C,
    asyncio's handler cancels tasks, and with them jobs, between any two bytecodes.  While the core
    decides about a job, the cancellation of that job waits for the end of the turn.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> float:
        self._engine.turn_depth += 1
        return self._engine.loop.time()

    def __exit__(self, *_: object) -> None:
        try:
            self._engine.act(turn_ends=True)
        finally:
            self._engine.turn_depth -= 1


# The status of a pool, for callers that wait until it is ready, or until it has ended.


class PoolStatus:
    """Whether a pool works, has ended, or has failed.

    Args:
        engine: The pool's engine.

    Attributes:
        ready: Done when the first worker is ready, or all are, as the options say; failed if
            the pool broke before.
        ended: Done when nothing of the pool is left.
        outcome: Done when nothing of the pool is left; failed when the pool gives up for good, or
            when its supervisor fails.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ready: asyncio.Future[None] = engine.loop.create_future()
        self.ended: asyncio.Future[None] = engine.loop.create_future()
        self.outcome: asyncio.Future[None] = engine.loop.create_future()

    @property
    def was_ready(self) -> bool:
        """Whether the pool has been ready."""
        return self.ready.done() and self.ready.exception() is None

    @property
    def cannot_start(self) -> bool:
        """Whether the pool was never ready and cannot become ready, so that it ends."""
        if self.ready.done():
            return self.ready.exception() is not None
        core = self._engine.core
        breaks_pool = self._engine.config.ready == "all" and core.failure is not None
        return breaks_pool or core.broken is not None

    def check_ready(self, *, one_is_ready: bool = False) -> None:
        """End the wait for the first worker, if *one_is_ready*, or for all; or give that up.

        Who waits for all hears of it if some have failed to start.
        """
        core, wants_all = self._engine.core, self._engine.config.ready == "all"
        if self.ready.done():
            return
        if core.minimum_ready if wants_all else one_is_ready:
            self.ready.set_result(None)
        elif wants_all and core.failure is not None:
            self.give_up(f"{core.failure}, and not all workers are ready")

    def note_broken(self, reason: str) -> None:
        """Note that the pool is broken; for good, if it was never ready."""
        engine, retry_after = self._engine, None
        if self.ready.done():
            retry_after = engine.core.lifecycle.retry_in(engine.loop.time())
        then = "giving up"
        if retry_after is not None:
            then = f"next try in {retry_after:.2g} s"
        # Logged in the next iteration, behind the records of the failed starts.
        extra = {"reason": reason, "retry_after": retry_after}
        engine.log.soon(say.POOL_BROKEN, extra, then=then)
        engine.hub.publish(events.Broken(reason, tuple(engine.crashes)))
        if retry_after is None:
            self.give_up(reason)

    def note_recovered(self, slot: int) -> None:
        """Note that starts succeed again, since the worker in *slot* is ready."""
        self._engine.log.now(say.POOL_RECOVERED, {"slot": slot})
        self._engine.hub.publish(events.Recovered(slot))

    def note_ended(self) -> None:
        """Note that nothing of the pool is left."""
        for future in (self.ready, self.outcome, self.ended):
            if not future.done():
                future.set_result(None)

    def give_up(self, reason: str) -> None:
        """Note that the pool works no more, and never will."""
        crashes = tuple(self._engine.crashes)
        error = PoolBrokenError(reason=reason, crashes=crashes, retry_after=None)
        for future in (self.ready, self.outcome):
            fail_quietly(future, error)


# The effects that are methods of the handle of a worker.
_HANDLE_EFFECTS = {"revoke", "interrupt", "stop", "terminate", "kill", "abandon"}


class Engine:
    """A pool's side of the service's process; it lives as long as the pool.

    Args:
        config: What the user wants.
        hub: Where its events go.

    Attributes:
        config: As above.
        hub: As above.
        loop: Its event loop.
        concurrency: How many jobs each worker runs at once.
        counts_jobs: Whether there is a *max_jobs*.
        fresh: Whether each job has a new worker.
        thread: The thread that made it; its loop runs there.
        core: The pure part, which decides what happens.
        registry: The open jobs.
        handles: The worker handles, by slot.
        crashes: The last crashes, oldest first.
        turn: In its context the core may be asked to decide.
        turn_depth: How many turns there are just now, one inside another.
        lag: How late the loop runs what is due, in seconds.
        lag_alarm: Set to the next measurement of that, if there is one.
        log: Logs the steps of its life.
        threads: Pickle and copy large objects.
        serving: What workers do instead of jobs, if they serve: a ``Service`` of
            ``_cluster/service.py``, of which the pool knows no more.
        status: Whether the pool is ready, broken or over.
        admission: Checks whether the pool takes a job.
        holds: What keeps the pool open while it drains.
        traffic: Brings jobs to workers and back.
        leases: The holders of leases; submits jobs that have one.
        figures: What it counts.
        replacement: Retires, replaces and kills workers.
        sessions: Gives workers to sessions.
        broadcasts: Has every worker make a call.
        stacks: Gets the stacks of workers.
        large: Pickles large arguments, and unpickles large results.
        heartbeats: Reads the heartbeats of jobs.
        timers: Watches the time limits of jobs.
        stalls: Looks at workers in which jobs wait.
        pings: Looks after workers that hang.
        profiles: Has workers sample their stacks.
        tasks: The tasks that the pool waits for before it ends: one for each worker, and
            others that take more than an iteration of the loop.
        segments: The shared memory.
        launcher: Starts the processes.
        worker_logs: Passes on the records of workers.
        buffer: Where the channels read into.
    """

    is_remote = False

    def __init__(self, config: EngineConfig, hub: PoolHub) -> None:
        loop = asyncio.get_running_loop()
        levels, disabled = explicit_levels()
        worker = config.worker._replace(
            levels=levels, disabled=disabled, preload=config.preload
        )
        self.loop, self.thread, self.config, self.hub = loop, get_ident(), config, hub
        self.core = Core(config)
        self.concurrency = config.worker.concurrency
        self.fresh = config.fresh
        self.counts_jobs = config.worker_limits.max_jobs is not None
        self.log = LifeLog(self)
        self.registry = JobRegistry(hub)
        self.leases, self.figures = self.registry.leases, self.registry.figures
        self.handles: dict[int, WorkerHandle] = {}
        self.crashes: deque[Crash] = deque(maxlen=_CRASHES_KEPT)
        self.turn, self.turn_depth = Turn(self), 0
        self._alarms: list[Alarm] = []
        self.lag, self.lag_alarm = Durations(), self.alarm(self._note_lag)
        self.threads = Threads(loop)
        self.serving = None if config.serving is None else config.serving(self, worker)
        self.status = PoolStatus(self)
        self.admission = Admission(self)
        self.holds = Holds(self)
        self.large = LargeObjects(self)
        self.heartbeats = watch.Heartbeats(self)
        self.timers = watch.JobTimers(self)
        self.stalls = watch.StallWatch(self)
        self.stacks = watch.Stacks(self)
        self.traffic = Traffic(self)
        self.replacement = WorkerReplacement(self)
        self.sessions = Sessions(self)
        self.broadcasts = Broadcaster(self, worker)
        self.profiles = watch.Profiles(self)
        self.pings = watch.Pings(self)
        # Not a task group of anyio's, which needs a current task: workers are also started in
        # timers and readers, where there is none.
        self.tasks = asyncio.TaskGroup()
        self.segments = Segments(loop, config.max_shared_memory, self.threads)
        self.launcher = Launcher(loop, config)
        self.worker_logs = WorkerLogs(loop, config.name)
        self.buffer = memoryview(bytearray(READ_SIZE))
        self._deaths = Deaths(self)
        self._alarm = self.alarm(self._on_alarm)
        self._finished = asyncio.Event()
        # The handlers of the effects that are no methods of WorkerHandle.
        self._effects: dict[str, Callable[..., object]] = {
            "spawn": self._start_worker,
            "unassign": self._unassign,
            "drop_pinned": self.broadcasts.on_dropped,
            "offer": self.sessions.offer,
            "end_session": self.sessions.end,
            "refuse_sessions": self.sessions.refuse,
            "write_stacks": self._write_stacks,
            "fail_jobs": self._fail_jobs,
            "restarting": lambda *told: hub.publish(events.Restarting(*told)),
            "parked": self._parked,
            "draining": self.replacement.on_draining,
            "resized": self.replacement.on_resized,
            "roll_ended": self.replacement.on_rolled,
            "left_empty": lambda *_: self.replacement.check_size(),
            "broken": self.status.note_broken,
            "recovered": self.status.note_recovered,
            "finished": self._finished.set,
        }

    def alarm(self, callback: Callable[[float], object]) -> Alarm:
        """Return an alarm that rings no more once the pool ends."""
        alarm = Alarm(self.loop, callback)
        self._alarms.append(alarm)
        return alarm

    def measure_lag(self) -> None:
        """Measure how late the loop runs what is due, as long as there is something to do."""
        self.lag_alarm.set_in(PERIOD)

    def _note_lag(self, now: float) -> None:
        self.lag.note(now - self.lag_alarm.due)
        if self.config.serving is not None or self.registry.jobs:
            self.measure_lag()

    # The life of the workers.

    async def run(self) -> None:
        """Keep the pool alive until it is closed.

        Cancellation:
            Costs everything: workers are killed, open jobs fail.
        """
        reason = PoolClosedError("the pool was closed before the job was done")
        try:
            async with self.tasks:
                sandbox = self.config.confinement
                if sandbox is not None and (lacks := sandbox.missing):
                    extra = {"settings": ", ".join(lacks)}
                    missing = "; ".join(lacks.values())
                    self.log.now(say.SANDBOX_INCOMPLETE, extra, missing=missing)
                if self.config.workers[0]:
                    self.launcher.begin()
                with self.turn as now:
                    self.core.start(now)
                try:
                    await self._finished.wait()
                except asyncio.CancelledError:
                    # At once.  Another task that is cancelled in this iteration of the loop may end its
                    # session; the worker would be replaced, and this group accepts no new tasks.
                    self.core.closing.abandon()
                    self.traffic.refresh_fast_path()
                    raise
            await self._deaths.finish()
            await self.worker_logs.finish()
        except Exception as error:  # noqa: BLE001 - callers wait
            self.log.now(say.SUPERVISOR_FAILED, error=error)
            text = f"the supervisor failed: {error!r}"
            self.status.give_up(text)
            reason = PoolClosedError(text)
        finally:
            await self._end(reason)

    async def _end(self, reason: PoolClosedError) -> None:
        """Close everything and report the end, even if this task is cancelled meanwhile.

        asyncio.run() cancels all tasks of a loop that ends.
        """
        try:
            self._stop(reason)
            try:
                await self.threads.close()
            finally:
                await self.launcher.close()
                if self.config.confinement is not None:
                    await self.config.confinement.close()
        finally:
            self.leases.worker_gone()
            if (handover := self.config.handover) is not None:
                handover.close()
            if self.serving is not None:
                self.serving.close()
            self.admission.wake_all()
            try:
                await self.hub.close_companions()
            finally:
                self.hub.end()
                if self.status.was_ready and self.serving is None:
                    self.log.now(say.POOL_CLOSED, asdict(self.summary()))
                self.status.note_ended()

    def _stop(self, reason: PoolClosedError) -> None:
        for alarm in self._alarms:
            alarm.cancel()
        for part in self.heartbeats, self.replacement, self.profiles:
            part.stop()
        self.core.closing.abandon()
        self.traffic.refresh_fast_path()
        self.sessions.refuse()
        self.registry.fail_all(reason)
        self.holds.stop()
        # A worker whose end was not handled still has log lines, segments and a page.
        self.worker_logs.close()
        self.segments.close()
        for handle in self.handles.values():
            handle.page.close()

    def _start_worker(self, slot: int, generation: int) -> None:
        rank = self.core.slots[slot].rank
        handle = WorkerHandle(self, slot, generation, rank)
        self.handles[slot] = handle
        self.broadcasts.on_spawn(slot)
        self.tasks.create_task(
            self._run_worker(handle),
            name=f"asyncpool worker in slot {slot} of {self.config.name}",
            context=contextvars.Context(),  # not that of the caller that happens to be here
        )

    async def _run_worker(self, handle: WorkerHandle) -> None:
        try:
            await handle.run()
        except OSError as error:
            handle.detail = str(error)
        except LaunchError as error:
            why = error
            if handle.killed and not self.core.slots[handle.slot].exit_planned:
                why = await self.launcher.on_start_timeout(error)
            handle.detail, handle.traceback = str(why), why.trace
            handle.final, handle.status = why.final, why.status
        self._deaths.ended(handle)
        self.status.check_ready()

    # What workers say.

    def on_spawned(self, handle: WorkerHandle) -> None:
        """Count a worker that has a process, and tell the listeners."""
        self.figures.spawned += 1
        self._deaths.poll_oom_kills(self.loop.time())
        assert handle.pid is not None
        self.hub.publish(events.Spawned(handle.slot, handle.generation, handle.pid))
        self.log.of_worker(say.WORKER_STARTED, handle)

    def on_ready(self, handle: WorkerHandle) -> None:
        """Have a worker that is ready get its first jobs, or serve."""
        assert handle.pid is not None
        with self.turn as now:
            took = now - handle.began_at
            self.figures.starts.note(took)
            handle.since = monotonic()
            worker = handle.slot, handle.generation, handle.pid
            self.hub.publish(events.Ready(*worker, took))
            self.log.of_worker(say.WORKER_READY, handle, {"seconds": round(took, 3)})
            self.core.ready(handle.slot, now)
        if self.serving is not None:
            self.serving.ready(handle)
        self.replacement.check_size()
        self.status.check_ready(one_is_ready=True)
        self.profiles.join(handle)

    # What the core has decided is carried out here, and nowhere else.

    def act(self, *, turn_ends: bool = False) -> None:
        """Carry out what the core has decided, in its order, and set the timer to what is due.

        A job that is queued, sent or settled changes no deadline, so code that does only that neither
        opens a turn nor sets the timer.
        """
        todo, set_timer = self.core.todo, turn_ends
        if todo:
            # An effect may lead to another decision, whose own act() carries it out.
            effects = todo.copy()
            todo.clear()
            for effect in effects:
                name = effect[0]
                if name == "assign":
                    jobs = self.registry.jobs
                    self.traffic.send(effect[1], [jobs[n] for n in effect[2]])
                    continue
                set_timer = True
                if name in _HANDLE_EFFECTS:
                    getattr(self.handles[effect[1]], name)(*effect[2:])
                else:
                    self._effects[name](*effect[1:])
        if set_timer:
            self.traffic.refresh_fast_path()
            due = earliest(self.core.next_deadline(), self.core.next_stack_request())
            self._alarm.set_at(due)
        # Checked here, since only effects take jobs out of the queue.
        if self.admission.saturated:
            self.admission.update_saturated()

    def _on_alarm(self, now: float) -> None:
        with self.turn:
            for slot, due in self.core.take_stack_requests(now):
                self.stacks.ask_late(slot, due)
            self.core.on_timer(now)

    def _fail_jobs(
        self, numbers: tuple[int, ...], why: Literal["closed", "broken", "expired"]
    ) -> None:
        """Fail jobs: some at once, and if there are more, some in each iteration of the loop."""
        jobs = deque(self.registry.jobs[number] for number in numbers)
        errors: dict[str, Callable[[PoolJob[Any]], Exception]] = {
            "closed": lambda job: closed_error(job, self.handles),
            "broken": broken_errors(self),
            "expired": lambda job: expired_error(job, self.loop.time()),
        }

        def fail_some() -> None:
            for _ in range(min(len(jobs), _FAILED_AT_ONCE)):
                job = jobs.popleft()
                self.registry.fail(job, errors[why](job))

        async def fail_rest() -> None:
            while jobs:
                fail_some()
                await asyncio.sleep(0)

        fail_some()
        if jobs:
            self.tasks.create_task(fail_rest(), name="asyncpool: fail queued jobs")

    def _write_stacks(self, slot: int, number: int | None) -> None:
        job = self.registry.jobs.get(number or 0)
        attempt = 0 if job is None else job.attempt
        self.handles[slot].send_control(FrameKind.STACKS, b"", number or 0, attempt)

    def _parked(self, slot: int, reason: str, probe_in: float | None) -> None:
        delay = None if self.status.cannot_start else probe_in
        self.hub.publish(events.Parked(slot, reason, delay))

    def _unassign(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            job = self.registry.jobs.get(number)
            if job is None:  # its caller has given it up
                self.leases.left_worker(number)
            else:
                self.registry.unassign(job)
                self.timers.watch_requeued(job)

    # What others ask.

    @property
    def closing(self) -> bool:
        """Whether it closes, or has ended."""
        return self.core.closing.finish is not None

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return self.core.lifecycle.sizing.most

    @property
    def unserved(self) -> int:
        """How many jobs wait that more workers could serve."""
        return self.core.dispatcher.unserved

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Return false: only the client of a Ray cluster has a store for arguments."""
        del items, star
        return False

    def check_loop(self) -> None:
        """Check that this is the pool's event loop.

        Raises:
            RuntimeError: If it is not.
        """
        check_loop(self.loop, self.config.title)

    async def load(self, job: PoolJob[Any], frame: Frame) -> Any:
        """Return the item of a stream that is in *frame*.

        Raises:
            JobNotPicklableError: If it cannot be unpickled here.
        """
        try:
            return await load_item(self.threads, job, frame)
        except ProtocolError as broken:
            if job.slot is not None:
                self.handles[job.slot].distrust(str(broken))
            raise unreadable(broken) from broken

    def close(self, finish: Finish, timeout: float | None) -> None:
        """Begin to close, or close faster than was asked before."""
        if self.core.closing.over or self.status.ended.done():
            return
        with self.turn as now:
            if self.serving is not None:
                self.serving.stop()
            else:
                self.holds.begin()
                if self.status.was_ready and not self.closing:
                    limit = "" if timeout is None else f", and have {timeout:g} s"
                    extra = {
                        "jobs": len(self.registry.jobs),
                        "finish": ("all", "running", "none")[finish],
                        "timeout": timeout,
                    }
                    self.log.now(say.POOL_CLOSING, extra, limit=limit)
            self.registry.mark_close(self.core.lifecycle.kills)
            deadline = None if timeout is None else now + timeout
            self.core.closing.begin(finish, deadline, now)

    def drop(self) -> None:
        """Begin to close, since nobody has the pool any more."""
        if not self.closing:
            self.log.now(say.POOL_DROPPED)
            self.close(Finish.ALL, None)

    def abort(self) -> None:
        """Fail all jobs, and have those that run end as if they were cancelled.

        A job is killed if it still runs after the longest *cancel_grace*, or must not be
        interrupted.
        """
        if self.serving is not None:
            self.close(Finish.NOTHING, 0.0)
            return
        self.close(Finish.RUNNING, None)
        with self.turn:
            for job in list(self.registry.jobs.values()):
                if (slot := job.slot) is not None:
                    self._fail_jobs((job.id,), "closed")
                    self.traffic.take_out(job, slot)
        self.close(Finish.RUNNING, self.core.endings.grace)

    def tell_start(self, began: float) -> None:
        """Log that the pool is ready, which was started at *began*."""
        if self.serving is None:  # a cluster says later where it serves
            ready = sum(slot.state in UP for slot in self.core.slots)
            size = self.core.lifecycle.sizing.size
            took = round(self.loop.time() - began, 3)
            extra = {"ready": ready, "workers": size, "seconds": took}
            self.log.now(say.POOL_STARTED, extra)
        if self.config.fresh and self.launcher.shared:
            self.log.now(say.MEMORY_SHARED, {"memory": self.launcher.shared})

    # Figures.

    @property
    def unassigned(self) -> int:
        """How many jobs are with no worker."""
        return self.core.dispatcher.unassigned

    def limit_ahead(self) -> None:
        """Do nothing: unlike an agent's, its workers never have more jobs than they can begin soon."""

    def stats(self) -> PoolStats:
        """Return the pool as it stands."""
        from asyncpool._engine.stats import pool_stats  # noqa: PLC0415 - not for a first job

        return pool_stats(self)

    def summary(self) -> CloseSummary:
        """Return what the close did."""
        return self.registry.summary(self.core.lifecycle.kills)


# Its start and its end, for the code that asks for them.


class PoolLife:
    """Starts and ends one engine, and says whether there is one.

    Args:
        what: What errors call it: ``"pool"``.
        name: Its name.

    Attributes:
        engine: What runs the pool, once it has been started.
        closed_unused: Whether it was closed before it was started.
    """

    def __init__(self, what: str, name: str) -> None:
        self.engine: Engine | None = None
        self.closed_unused = False
        self._what = what
        self._name = name
        # Made before the engine, since somebody may listen before the start.
        self.hub = PoolHub()
        self._task: asyncio.Task[None] | None = None
        self._process = os.getpid()
        self._making = asyncio.Lock()

    async def start(self, config: Callable[[], Awaitable[EngineConfig]]) -> Engine:
        """Start the engine, unless it runs; return when a worker is ready.

        Args:
            config: What makes the configuration.  If it is cancelled, it leaves nothing open.

        Raises:
            PoolBrokenError: If none can be started; it has the crashes.
            PoolClosedError: If it is closed or closes, or is closed meanwhile.
            RuntimeError: If it was started in another event loop, or by a script that a
                worker imports.

        Cancellation:
            Ends everything.
        """
        check_not_imported(self._what)
        self.check_loop()
        self._check_unclosed(closed=bool(self.engine and self.engine.closing))
        began = asyncio.get_running_loop().time()
        try:
            async with self._making:  # another call may be about to make it
                first = self.engine is None
                engine = self.engine or await self._make(config)
            await shielded(engine.status.ready)
        except BaseException as error:
            if self.engine is None and isinstance(error, asyncio.CancelledError):
                self._close_unused()
            await self.end_now()
            raise
        self._check_unclosed(closed=engine.status.ended.done())
        if first:
            engine.tell_start(began)
        return engine

    async def _make(self, config: Callable[[], Awaitable[EngineConfig]]) -> Engine:
        """Make the engine, and have it begin.

        Raises:
            PoolClosedError: If it is closed, or is meanwhile.

        Cancellation:
            Makes none.
        """
        self._check_unclosed()
        made = await config()
        try:
            self._check_unclosed()
        except PoolClosedError:
            await self.hub.close_companions()
            raise
        engine = self.engine = Engine(made, self.hub)
        self._task = asyncio.create_task(
            engine.run(),
            name=f"asyncpool supervisor of {self._name}",
            # An empty context, not that of a request or a notebook cell that starts the pool.
            context=contextvars.Context(),
        )
        return engine

    async def close(self, finish: Finish, timeout: float | None) -> CloseSummary:  # noqa: ASYNC109 - it bounds the jobs, not the wait
        """End everything, after what *finish* says, within so many seconds if not ``None``.

        Cancellation:
            Safe: the close goes on without the caller.
        """
        if self.engine is None:
            self._close_unused()
            return CloseSummary(finished=0, failed=0, killed=0)
        self.check_loop()
        self.engine.close(finish, timeout)
        await shielded(self.engine.status.ended)
        return self.engine.summary()

    def _close_unused(self) -> None:
        self.closed_unused = True
        self.hub.end()

    def _check_unclosed(self, *, closed: bool = False) -> None:
        if closed or self.closed_unused:
            raise PoolClosedError(f"the {self._what} is closed")

    async def exit_context(
        self,
        error: BaseException | None,
        close: Callable[[], Awaitable[object]],
    ) -> None:
        """Leave the context: *close*, or give everything up if an *error* leaves.

        Raises:
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Kills what is left, and returns when it is gone.
        """
        self.check_loop()
        try:
            if error is None:
                await close()
            elif self.engine is not None:
                self.engine.abort()
                # Running jobs have time to clean up.  A cancellation by a scope of anyio's, which
                # may be the reason for this call, has no effect here.
                with anyio_shield():
                    await shielded(self.engine.status.ended)
        except BaseException:
            await self.end_now()
            raise

    async def end_now(self) -> None:
        """Kill everything, and do not return before it is gone."""
        engine = self.engine
        if engine is None:
            return
        engine.close(Finish.NOTHING, 0.0)
        await outlast(engine.status.ended)

    def dropped(
        self, face: object, *, at_the_end: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Note that nobody has a reference to the *face* any more: the engine drains the pool, and ends it.

        The garbage collector calls this, in any thread and at any moment.  It may do so at the
        end of the interpreter, when module globals are gone and nothing can be done.
        """
        # A fork has only a copy of the pool, whose loop would write to the original's pipe.
        if at_the_end() or self._task is None or os.getpid() != self._process:
            return
        engine = self.running()
        if engine.closing:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop = self._task.get_loop()
            # It is logged there: the collector may have stopped the code of a log handler.
            loop.call_soon_threadsafe(engine.drop)
        warnings.warn(
            f"{self._what} {self._name} was dropped without being closed; it finishes "
            f"its jobs and ends: use 'async with' or 'await {self._what}.close()'",
            ResourceWarning,
            source=face,
            stacklevel=3,
        )

    def check_loop(self) -> None:
        """Check that it was started in the loop that runs.

        Raises:
            RuntimeError: If it was not.
        """
        if self._task is not None:
            check_loop(self._task.get_loop(), f"{self._what} {self._name}")

    def running(self) -> Engine:
        """Return the engine, which may have ended.

        Raises:
            PoolClosedError: If there never was one.
        """
        if self.engine is None:
            self._check_unclosed()
            what = self._what
            how = f"use 'async with {what}' or 'await {what}.start()'"
            raise PoolClosedError(f"the {what} was not started: {how}")
        return self.engine

    def running_here(self) -> Engine:
        """Return the engine, which may have ended, to code that runs in its loop.

        Raises:
            PoolClosedError: If there never was one.
            RuntimeError: If it was started in another event loop.
        """
        engine = self.running()
        self.check_loop()
        return engine

    def open_engine(self, *, retrying: bool = False) -> Engine:
        """Return the engine if it works, or with *retrying* if it tries to start workers.

        Raises:
            PoolClosedError: If it does not, since it was closed, or not started.
            PoolBrokenError: If no worker can be kept alive; with *retrying*, if it has given up.
            RuntimeError: If it was started in another event loop.
        """
        engine = self.running_here()
        engine.admission.check_open(retrying=retrying)
        return engine
