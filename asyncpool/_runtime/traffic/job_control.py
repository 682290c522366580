"""What can happen to a job before its end: its caller cancels it, or it yields items.

A caller may look at a job, cancel it and take its items while it runs.  A worker gives back
jobs that it has not begun when the pool revokes them.
"""

from __future__ import annotations

from typing import Any

from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.traffic.large_jobs import LargeObjects
from asyncpool._runtime.traffic.stack_dump import LiveStacks
from asyncpool._runtime.worker.handle import CancelledJob, WorkerHandle
from asyncpool.errors import ProtocolError

# Seconds that a worker has to say whether it has begun a job that was cancelled.  An idle
# machine needs 0.1 ms.
_ANSWER_GRACE = 0.1


class JobControl:
    """What callers do with the jobs of one pool.

    Args:
        state: The pool's state.
        large: Knows the jobs that are neither in the queue nor with a worker.
        live_stacks: Asks workers where their jobs are.
    """

    def __init__(
        self,
        state: PoolState,
        large: LargeObjects,
        live_stacks: LiveStacks,
    ) -> None:
        self._state = state
        self._large = large
        self._live_stacks = live_stacks
        self._alarm = Alarm(state.loop, self._look_again)
        # Jobs that were cancelled, and that their workers may have begun, with those workers.
        self._asked_back: list[tuple[WorkerHandle, Job[Any]]] = []

    def stop(self) -> None:
        """Watch for no more answers."""
        self._alarm.cancel()
        self._asked_back.clear()

    def is_running(self, job: Job[Any]) -> bool:
        """Return whether the worker of *job* runs it, or has run it."""
        if job._slot is None:
            return self._large.is_unpacking(job)
        return self._state.core.slots[job._slot].in_flight.runs(job.id)

    async def stack_of(self, job: Job[Any]) -> str:
        """Return where a job is that its worker runs; empty if it runs nowhere.

        Cancellation:
            Safe.
        """
        return await self._live_stacks.of_job(job)

    # Jobs that are cancelled or revoked.

    def on_cancel(self, job: Job[Any]) -> None:
        """Take a job, which its caller has cancelled, out of the queue or off its worker."""
        state, slot = self._state, job._slot
        if state.deciding:
            state.loop.call_soon(self.on_cancel, job)
            return
        if job.id in state.hub.traced and slot is not None and self.is_running(job):
            since = state.handles[slot].since
            state.registry.watch.lost(job, state.core.slots[slot], since)
        if state.registry.cancelled(job):
            self.take_out(job, slot)

    def take_out(self, job: Job[Any], slot: int | None) -> None:
        """Free the place of a job, which is settled, in the queue or in its worker."""
        state = self._state
        if slot is None:
            now = state.loop.time()
            state.core.drop(job.id, now)
            state.core.outcome_unpacked(job.id, now)
            state.performer.act()  # no turn: what leaves the queue changes no deadline
            self._large.go_on()
        elif (
            state.core.slots[slot].in_flight.last == job.id
            and state.handles[slot].outbox.withdraw()
        ):
            with state.turn as now:
                state.core.withdraw(slot, job.id, now)
        else:
            handle = state.handles[slot]
            begun = handle.page.begun(job.id, job.attempt)
            function = job._function.name
            handle.cancelled.append(CancelledJob(job.id, job.attempt, function))
            self._end(handle, job, begun=begun)
            if not begun:
                self._asked_back.append((handle, job))
                if not self._alarm.is_set:
                    self._alarm.set_in(_ANSWER_GRACE)

    def _end(self, handle: WorkerHandle, job: Job[Any], *, begun: bool) -> None:
        """End a job that its worker has begun, or ask the worker for it."""
        slot, mode = handle.slot, job._limits.cancel_mode
        with self._state.turn as now:
            self._state.core.cancel(job.id, now, index=slot, begun=begun, mode=mode)

    def _look_again(self, _: float) -> None:
        """End the jobs that their workers have begun meanwhile, without an answer to the pool.

        A worker answers late if its job holds the GIL, and never if the job has stopped the
        process, or holds the GIL for ever.
        """
        asked_back, self._asked_back = self._asked_back, []
        for handle, job in asked_back:
            if not self._is_unanswered(handle, job):
                continue
            if handle.page.begun(job.id, job.attempt):
                self._end(handle, job, begun=True)
            else:
                self._asked_back.append((handle, job))
        if self._asked_back:
            self._alarm.set_in(_ANSWER_GRACE)

    def _is_unanswered(self, handle: WorkerHandle, job: Job[Any]) -> bool:
        state, slot = self._state, handle.slot
        same = state.handles.get(slot) is handle
        return same and state.core.endings.unanswered(job.id, slot)

    def on_revoked(self, handle: WorkerHandle, sequences: tuple[int, ...]) -> None:
        """Note which jobs a worker will not begin."""
        try:
            with self._state.turn as now:
                self._state.core.revoked(handle.slot, sequences, now)
        except ProtocolError as error:
            handle.distrust(str(error))

    # Streams that yield items.

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hand the items of streams to their jobs."""
        for frame in frames:
            try:
                self._on_item(handle, frame)
            except ProtocolError as error:
                handle.distrust(str(error))
                return

    def _on_item(self, handle: WorkerHandle, frame: Frame) -> None:
        if frame.job not in self._state.core.slots[handle.slot].in_flight.jobs:
            raise ProtocolError(
                f"it sent an item of job {frame.job}, which it does not have"
            )
        job = self._state.registry.jobs.get(frame.job)
        if job is None:
            return  # its caller has given the job up
        if not isinstance(job, StreamJob) or job.attempt != frame.attempt:
            raise ProtocolError(
                f"it sent an item of attempt {frame.attempt} of {job!r}"
            )
        job.receive(frame)

    def give_credit(self, job: StreamJob) -> None:
        """Tell the job's worker how many items it may send in all."""
        if job._slot is not None:
            handle = self._state.handles[job._slot]
            handle.ask(FrameKind.CREDIT, b"", job.id, job.attempt, job._credit)
