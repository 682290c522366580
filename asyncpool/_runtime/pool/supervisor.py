"""The supervisor of a pool: it makes the parts, runs until all is over, and closes them.

``performer.py`` carries out what the core decides.  What workers send gets to the parts through
``pool_worker_events.py``, and the end of a worker through ``worker_exit.py``.  All of this runs in
the loop's thread and does not wait in between, so there are no locks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio

from asyncpool import events
from asyncpool._core.slots.slots import UP
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.event_loop import check_home
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.outcomes import unreadable
from asyncpool._runtime.pool.parts import assemble
from asyncpool._runtime.pool.performer import CommandPerformer
from asyncpool._runtime.pool.pool_worker_events import PoolWorkerEvents
from asyncpool._runtime.pool.worker_exit import WorkerExit
from asyncpool._runtime.pool.workers import Workers
from asyncpool._runtime.state.bulk_failure import BulkFailure
from asyncpool._runtime.state.config import SupervisorConfig
from asyncpool._runtime.state.pool_state import decision
from asyncpool._runtime.state.stats import pool_stats
from asyncpool._runtime.traffic.large_jobs import load_item
from asyncpool.enums import SlotState
from asyncpool.errors import PoolClosedError, ProtocolError
from asyncpool.stats import PoolStats

_ALIVE = UP | {SlotState.STARTING, SlotState.STOPPING}


class Supervisor:
    """Everything that lives as long as a pool.

    Args:
        config: What the user wants.
        hub: Where its events go.

    Attributes:
        hub: As above.
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
    """

    is_remote = False

    def __init__(self, config: SupervisorConfig, hub: PoolHub) -> None:
        parts = assemble(config, hub)
        state = self._state = parts.state
        self.hub = hub
        self.status = parts.status
        self.admission = parts.admission
        self.draining = parts.draining
        self.traffic = parts.traffic
        self.leases, self.figures = state.registry.leases, state.registry.figures
        self.replacement = parts.replacement
        self.sessions = parts.sessions
        self.broadcasts = parts.broadcasts
        self.stacks = parts.stacks
        self.profiles = parts.profiles
        self._pings = parts.pings
        self._serving = parts.serving
        self._threads = parts.threads
        worker_exit = WorkerExit(parts)
        self._workers = Workers(
            parts, PoolWorkerEvents(parts, worker_exit), worker_exit
        )
        self._bulk_failure = BulkFailure(state, self._workers.tasks)
        self._performer = CommandPerformer(parts, self._workers, self._bulk_failure)
        state.performer = self._performer

    # The life of the workers.

    async def run(self) -> None:
        """Keep the pool alive until it is closed.

        Cancellation:
            Costs everything: workers are killed, open jobs fail.
        """
        reason = PoolClosedError("the pool was closed before the job was done")
        try:
            async with self._workers.tasks:
                state, performer = self._state, self._performer
                sandbox = state.config.confinement
                if sandbox is not None and sandbox.missing:
                    state.log.sandbox_incomplete(sandbox.missing)
                performer.perform(state.core.workers.start(state.loop.time()))
                try:
                    await performer.finished.wait()
                except asyncio.CancelledError:
                    # At once: the session of another task that is cancelled now would else have
                    # its worker replaced, by a task that this group takes no more.
                    state.core.closing.abandon()
                    raise
            await self._workers.finish()
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
                    await self._threads.close()
                finally:
                    await self._workers.close()
        finally:
            self.leases.close()
            if (handover := self._state.config.handover) is not None:
                handover.close()
            if self._serving is not None:
                self._serving.close()
            self.admission.wake_all()
            try:
                await self._state.hub.close_companions()
            finally:
                self._state.hub.end()
                if self.status.was_ready:
                    self._state.log.closed(self.summary())
                self.status.note_ended()

    def _stop(self, reason: PoolClosedError) -> None:
        self._performer.stop()
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
        self._workers.stop()

    @property
    def closing(self) -> bool:
        """Whether it closes, or has ended."""
        return self._state.core.closing.finish is not None

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return self._state.core.replacements.sizing.most

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
            return await load_item(self._threads, job, frame)
        except ProtocolError as broken:
            if job._slot is not None:
                self._state.handles[job._slot].distrust(str(broken))
            raise unreadable(broken) from broken

    @decision
    def close(self, finish: Finish, timeout: float | None) -> None:
        """Begin to close, or close faster than was asked before."""
        if not self._state.core.closing.over and not self.status.ended.done():
            now = self._state.loop.time()
            if self._serving is not None:
                self._serving.stop()
            else:
                self.draining.begin()
            if self.status.was_ready and not self.closing:
                jobs = len(self._state.registry.jobs)
                self._state.log.closing(jobs, finish.name.lower(), timeout)
            self._state.registry.mark_close(self._state.core.kills)
            deadline = None if timeout is None else now + timeout
            self._performer.perform(self._state.core.close(finish, deadline, now))
            self._performer.rearm()  # nothing may happen before the deadline of the close

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
        if self._serving is not None:
            self.close(Finish.NONE, 0.0)
            return
        self.close(Finish.RUNNING, None)
        self._give_up_running()
        self.close(Finish.RUNNING, self._state.core.termination.grace)

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
        size = state.core.replacements.sizing.size
        state.log.started(ready, size, state.loop.time() - began)

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
        return pool_stats(self._state, shared_memory=self._workers.segments.total)

    def job(self, number: int) -> Job[Any] | None:
        """Return an open job."""
        return self._state.registry.jobs.get(number)

    def summary(self) -> events.CloseSummary:
        """Return what the close did."""
        return self._state.registry.summary(self._state.core.kills)
