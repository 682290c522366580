"""The task that owns a pool's workers, and carries out what the core decides.

There is one place where commands become effects, :meth:`Supervisor._perform`, and
what comes of them returns through the ``_on_...`` methods, and in the end through
``worker_exit.py``.  All of it runs on the loop's thread and none of it waits in between, so
there are no locks.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from functools import partial
from typing import Any, assert_never

import anyio

from asyncpool import events
from asyncpool._core.pickling.calls import load_value
from asyncpool._core.pickling.out_of_band import is_heavy
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.slots import UP, SlotState
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision
from asyncpool._core.wire.frames import Frame
from asyncpool._core.wire.messages import WorkerConfig
from asyncpool._runtime.base.event_hub import EventHub
from asyncpool._runtime.base.loop_check import check_home
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.channel import READ_SIZE
from asyncpool._runtime.channel.large_buffers import Cargo
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.pool.pings import Health
from asyncpool._runtime.pool.replacement import Rotator
from asyncpool._runtime.pool.sessions import Sessions
from asyncpool._runtime.pool.worker_exit import Burial
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.bulk_failure import Failing, broken_errors
from asyncpool._runtime.state.config import SupervisorConfig
from asyncpool._runtime.state.draining import Draining, Hold
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.state.status import Standing
from asyncpool._runtime.traffic.broadcasts import Broadcaster
from asyncpool._runtime.traffic.heartbeats import Heartbeats
from asyncpool._runtime.traffic.stack_dump import LastWords
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool._runtime.worker.handle import WorkerHandle, WorkerSetup
from asyncpool._runtime.worker.identity import identity_of
from asyncpool._runtime.worker.log_records import Journal, explicit_levels
from asyncpool._runtime.worker.serving import Serving
from asyncpool._runtime.worker.stacks import Stacks
from asyncpool.errors import PoolClosedError, ProtocolError

__all__ = ["Supervisor"]

_LOGGER = logging.getLogger("asyncpool")

_ALIVE = UP | {SlotState.STARTING, SlotState.STOPPING}


class Supervisor:
    """Everything that lives as long as a pool.

    Args:
        config: What the user wants.
        hub: Where its events go.

    Attributes:
        standing: Whether the pool is up, broken or over.
        submit: The way in for jobs, see :meth:`Traffic.submit`.
        leases: The way in for those with leases.
        check_open: See :meth:`Admission.check_open`.
        check_trying: See :meth:`Admission.check_trying`.
        room: See :meth:`Admission.room`.
        rotator: The way to planned exits.
        broadcasts: The way to calls for every worker.
        stacks: The way to where workers are.
        sessions: The way to workers to oneself.
    """

    def __init__(  # noqa: PLR0915 - the parts
        self, config: SupervisorConfig, hub: EventHub[events.Event]
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._config = config
        self._core = Supervision(
            workers=config.workers,
            policy=config.restart,
            start_timeout=config.start_timeout,
            limits=config.limits,
            idle_timeout=config.idle_timeout,
            width=config.worker.concurrency,
            surge=config.surge,
            unavailable=config.unavailable,
            stop_grace=config.stop_grace,
            end_grace=config.end_grace,
            serving=config.serving is not None,
        )
        self._state = PoolState(loop=loop, config=config, core=self._core, hub=hub)
        self.standing = Standing(self._state)
        admission = self._admission = Admission(self._state, self._rearm)
        self.check_open, self.check_trying, self.room = (
            admission.check_open,
            admission.check_trying,
            admission.room,
        )
        self._draining = Draining(self._state, self._perform)
        self._threads = Threads(loop)
        self._heartbeats = Heartbeats(self._state)
        self._segments = Segments(loop, config.max_shared_memory, self._threads)
        self.rotator = Rotator(self._state, self._perform, self._rearm)
        self.stacks = Stacks()
        self._last_words = LastWords(self._state, self._perform)
        self._traffic = Traffic(
            self._state,
            self._perform,
            admission,
            threads=self._threads,
            heartbeats=self._heartbeats,
            last_words=self._last_words,
            on_crowd=self.rotator.crowded,
        )
        self._hub = hub
        self.submit = self._traffic.submit
        self.leases = self._state.book.leases
        # What a launcher has imported is lost when it starts a fresh interpreter.
        ahead, later = (config.preload, ()) if config.fork else ((), config.preload)
        self._launcher = Launcher(loop, fork=config.fork, preload=ahead)
        self._journal = Journal(loop)
        levels, disabled = explicit_levels()
        worker = config.worker._replace(levels=levels, disabled=disabled, preload=later)
        self._serving = self._make_serving(worker)
        self.sessions = Sessions(
            self._state,
            self._perform,
            admission,
            submit=self._traffic.submit,
            on_crowd=self.rotator.crowded,
            hold=self._draining.hold,
        )
        self.broadcasts = Broadcaster(
            self._state,
            self._traffic.send_errand,
            self._threads,
            worker,
            self.check_open,
        )
        self._setup = WorkerSetup(
            launcher=self._launcher,
            config=self._config_of,
            identity=partial(identity_of, config.name),
            handed=() if config.handover is None else config.handover.fds,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=config.worker.max_payload,
            concurrency=config.worker.concurrency,
            output=config.output,
            on_ready=self._on_ready,
            on_fault=self._on_fault,
            on_outcomes=self._traffic.on_outcomes,
            on_items=self._traffic.under_way.on_items,
            on_revoked=self._traffic.under_way.on_revoked,
            on_stacks=self._on_stacks,
            on_retire=self.rotator.retire,
            on_worn=self.rotator.replace,
            on_pong=self._on_pong,
            on_heartbeat=self._heartbeats.rung,
            on_last_beat=self._heartbeats.take,
            on_spawned=self._on_spawned,
            on_exit=self._traffic.on_exit,
            make_cargo=self._make_cargo,
            serving=self._serving,
            journal=self._journal,
        )
        self._health: Health | None = None
        if config.health_timeout is not None:
            timeout = config.health_timeout
            self._health = Health(self._state, self._last_words, timeout)
        self._burial = Burial(
            self._state,
            self._perform,
            self._heartbeats,
            self.rotator,
            serving=self._serving,
            sessions=self.sessions,
            standing=self.standing,
        )
        self._finished = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # Not anyio's: workers are started from timers and readers too, where there
        # is no current task, which anyio needs.
        self._workers = asyncio.TaskGroup()
        self._failing = Failing(
            self._state, self._workers.create_task, self._traffic.times.late_error
        )

    # The life of the workers.

    async def run(self) -> None:
        """Keep the pool alive until it is closed.

        Cancellation:
            Costs everything: workers are killed, open jobs fail.
        """
        reason = PoolClosedError("the pool was closed before the job was done")
        try:
            async with self._workers:
                self._perform(self._core.start(self._loop.time()))
                await self._finished.wait()
            await self._burial.finish()
            await self._journal.finish()
        except Exception as error:
            _LOGGER.exception("the supervisor of %s failed", self._config.title)
            reason = self.standing.fail(error)
        finally:
            await self._end(reason)

    async def _end(self, reason: PoolClosedError) -> None:
        """Let go of everything, and say so, also if this is cancelled on its way.

        asyncio.run() does that to all tasks of a loop that is to end; no shield of anyio's
        keeps it off.
        """
        try:
            self._stop(reason)
            with anyio.CancelScope(shield=True):
                try:
                    await self._threads.close()
                finally:
                    await self._launcher.close()
        finally:
            self._state.book.leases.close()
            if self._config.handover is not None:
                self._config.handover.close()
            if self._serving is not None:
                self._serving.close()
            self._admission.end()
            self._hub.end()
            self.standing.end()

    def _stop(self, reason: PoolClosedError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._last_words.stop()
        self._traffic.stop()
        self.rotator.stop()
        if self._health is not None:
            self._health.stop()
        self._heartbeats.stop()
        self._journal.close()
        self._core.closing.abandon()
        self.sessions.refuse()
        self._state.book.fail_all(reason)
        self._draining.stop()
        self._segments.close()
        for handle in self._state.handles.values():
            handle.page.close()  # in case that it was not buried

    @property
    def closing(self) -> bool:
        """Whether it closes, or has ended."""
        return self._core.closing.finish is not None

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return self._core.rotation.sizing.most

    @property
    def concurrency(self) -> int:
        """How many jobs each worker runs at once."""
        return self._config.worker.concurrency

    @property
    def counts_jobs(self) -> bool:
        """Whether no worker may begin more than so many jobs."""
        return self._config.limits.exact

    @property
    def max_payload(self) -> int:
        """The most bytes that an outcome may have."""
        return self._config.worker.max_payload

    def check_home(self) -> None:
        """Check that this is the pool's event loop.

        Raises:
            RuntimeError: If it is not.
        """
        check_home(self._loop, self._config.title)

    def hold(self, hold: Hold) -> None:
        """Have *hold* keep the pool open while it drains, see :class:`Draining`."""
        self._draining.hold(hold)

    async def load(self, job: Job[Any], frame: Frame) -> Any:
        """Return the item of a stream that is in *frame*.

        Raises:
            JobNotPicklableError: If it cannot be unpickled here.
        """
        if not is_heavy(frame.payload):
            return load_value(frame.payload)
        item = self._threads.pickle(load_value, frame.payload, unwanted=job.cancelled)
        try:
            return await item
        finally:
            item.cancel()  # if its reader was closed, which cancels nothing by itself

    @decision
    def close(self, finish: Finish, timeout: float | None) -> None:
        """Begin to close, or close faster than was asked before."""
        if not self._core.closing.over and not self.standing.done.done():
            now = self._loop.time()
            if self._serving is not None:
                self._serving.stop()
            else:
                self._draining.begin()
            self._state.book.mark_close(self._core.kills)
            deadline = None if timeout is None else now + timeout
            self._perform(self._core.close(finish, deadline, now))
            self._rearm()  # there may be nothing to do but to watch the deadline

    def give_up(self) -> None:
        """Fail all jobs, and have those that run end as if they were cancelled.

        What runs on behind the longest *cancel_grace*, or is not to be interrupted, is
        killed.
        """
        if self._serving is not None:
            self.close(Finish.NONE, 0.0)
            return
        self.close(Finish.RUNNING, None)
        self._give_up_running()
        self.close(Finish.RUNNING, self._core.grace)

    @decision
    def _give_up_running(self) -> None:
        for job in list(self._state.book.jobs.values()):
            if (slot := job.slot) is not None:
                self._failing.fail((job.id,), "closed")
                self._traffic.under_way.take_out(job, slot)

    async def _tend(self, handle: WorkerHandle) -> None:
        try:
            await handle.live()
        except OSError as error:
            handle.detail = str(error)
            self._launcher.drop_spare()  # descriptors may be what it lacks
        except LaunchError as error:
            handle.detail, handle.traceback = str(error), error.trace
            if handle.killed and not self._core.slots[handle.slot].planned:
                self._launcher.accuse()  # it has not answered for start_timeout
        self._burial.bury(handle)
        self.standing.look()

    def _make_serving(self, worker: WorkerConfig) -> Serving | None:
        make = self._config.serving
        return None if make is None else make(self._state, worker, self._perform)

    def _config_of(self, handle: WorkerHandle) -> bytes:
        if self._serving is not None:
            return self._serving.config(handle)
        return self.broadcasts.config()

    def _make_cargo(self) -> Cargo:
        return Cargo(
            spawn=self._workers.create_task,
            segments=self._segments,
            threads=self._threads,
            max_payload=self._config.worker.max_payload,
        )

    def _on_spawned(self, handle: WorkerHandle) -> None:
        self._state.book.spawned += 1
        self._burial.born()
        assert handle.pid is not None
        self._hub.publish(events.Spawned(handle.slot, handle.generation, handle.pid))

    @decision
    def _on_ready(self, handle: WorkerHandle) -> None:
        now = self._loop.time()
        assert handle.pid is not None
        self._hub.publish(
            events.Ready(
                handle.slot, handle.generation, handle.pid, now - handle.began_at
            )
        )
        self._perform(self._core.ready(handle.slot, now))
        if self._serving is not None:
            self._serving.ready(handle)
        self._rearm()  # it grows old from now on
        self.rotator.look()
        self.standing.begin()

    @decision
    def _on_fault(self, handle: WorkerHandle) -> None:
        self._perform(self._core.faulty(handle.slot, self._loop.time()))

    def _on_pong(self, handle: WorkerHandle) -> None:
        if self._health is None:
            raise ProtocolError("it answered a ping, and nobody sends any")
        try:
            self._health.answered(handle)
        except ProtocolError:
            if not self._core.slots[handle.slot].hung:  # or else it is only too late
                raise

    @decision
    def _on_stacks(self, handle: WorkerHandle, job: int | None) -> None:
        self.stacks.written(handle)
        self._perform(self._core.stacks_written(handle.slot, self._loop.time(), job))

    # Effects.

    def _perform(self, commands: list[cmd.Command]) -> None:
        lifecycle = False
        for command in commands:
            if isinstance(command, cmd.Assign):
                jobs = self._state.book.jobs
                self._traffic.send(command.slot, [jobs[n] for n in command.jobs])
            else:
                lifecycle = True
                self._carry_out(command)
        if lifecycle:
            self._rearm()
        # Here, since no job leaves the queue on any other way.
        if self._admission.saturated:
            self._admission.relax()

    def _carry_out(self, command: cmd.Command) -> None:  # noqa: C901, PLR0912, PLR0915 - a table
        match command:
            case cmd.Spawn(slot, generation):
                self._spawn(slot, generation)
            case cmd.Unassign(jobs):
                for number in jobs:
                    self._state.book.give_back(number)
            case cmd.DropErrands(jobs):
                self.broadcasts.on_dropped(jobs)
            case cmd.Offer(slot, session):
                self.sessions.offer(slot, session)
            case cmd.Rebuild(slot, session):
                self.sessions.rebuild(slot, session)
            case cmd.EndSession(session, jobs):
                self.sessions.end(session, jobs)
            case cmd.RefuseSessions():
                self.sessions.refuse()
            case cmd.Revoke(slot, places):
                self._state.handles[slot].revoke(places)
            case cmd.Interrupt(slot, place):
                self._state.handles[slot].interrupt(place)
            case cmd.WriteStacks(slot, number):
                job = self._state.book.jobs.get(number or 0)
                attempt = 0 if job is None else job.attempt
                self._state.handles[slot].ask_for_stacks(number or 0, attempt)
            case cmd.Stop(slot):
                self._state.handles[slot].stop()
            case cmd.Terminate(slot):
                self._state.handles[slot].terminate()
            case cmd.Kill(slot, reason):
                self._state.handles[slot].kill(reason)
            case cmd.Abandon(slot):
                self._state.handles[slot].abandon()
            case cmd.FailJobs(jobs, why):
                self._failing.fail(jobs, why)
            case cmd.ScheduleRestart(slot, delay):
                self._hub.publish(events.Restarting(slot, delay))
            case cmd.ParkSlot(slot, reason, probe_in):
                if self.standing.start_failed:
                    probe_in = None
                self._hub.publish(events.Parked(slot, reason, probe_in))
            case cmd.Retiring() | cmd.Resized() | cmd.Rolled():
                self.rotator.carry_out(command)
            case cmd.LeaveEmpty() | cmd.Keep():
                pass  # the crash report says so, if there is one
            case cmd.GiveUp():
                self.standing.give_up(broken_errors(self._state)(None))
            case cmd.Recover(slot):
                self.standing.recover(slot)
            case cmd.Finished():
                self._finished.set()
            case cmd.Assign():
                raise AssertionError("assignments take the short way")
            case _:
                assert_never(command)

    def _spawn(self, slot: int, generation: int) -> None:
        handle = WorkerHandle(self._loop, slot, generation, self._setup)
        self._state.handles[slot] = handle
        self.broadcasts.on_spawn(slot)
        self._workers.create_task(
            self._tend(handle),
            name=f"slot {slot}",
            context=contextvars.Context(),  # not that of a caller whose job is in the way
        )

    def _rearm(self) -> None:
        """Keep one timer, set to the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer, deadline)
        self._last_words.rearm()

    @decision
    def _on_timer(self, deadline: float) -> None:
        # A timer may fire a clock tick early, and the core must not see that.
        self._timer = None
        self._perform(self._core.on_timer(max(deadline, self._loop.time())))
        self._rearm()

    # Figures.

    @property
    def queued(self) -> int:
        """How many jobs are with no worker."""
        return self._core.dispatcher.waiting

    async def where(self) -> dict[int, str]:
        """Return where the threads of all workers are, by slot."""
        slots = [slot for slot in self._core.slots if slot.state in _ALIVE]
        return await self.stacks.ask(self._state.handles[s.index] for s in slots)

    def stats(self) -> events.PoolStats:
        """Return the pool as it stands."""
        return self._state.book.stats(
            self._core,
            self._state.handles,
            dropped_events=self._hub.dropped,
            shared_memory=self._segments.total,
        )

    def summary(self) -> events.CloseSummary:
        """Return what the close did."""
        return self._state.book.summary(self._core.kills)
