"""What happens to jobs under way, beside their end: they are given up, or yield items.

Their callers do not wait until they are done to look at them, cancel them or take what
they yield, and their workers give back what they have not begun.
"""

from __future__ import annotations

from typing import Any

from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.job.job import Job, StreamJob
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.large_jobs import LargeObjects
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.errors import ProtocolError


class JobControl:
    """The jobs of one pool, for their callers.

    Args:
        state: The pool.
        large: Those that are with no worker, and are not in the queue either.
    """

    def __init__(
        self,
        state: PoolState,
        large: LargeObjects,
    ) -> None:
        self._state = state
        self._large = large

    def is_running(self, job: Job[Any]) -> bool:
        """Tell whether *job* is one that its worker runs, or has run."""
        if job._slot is None:
            return self._large.is_unpacking(job)
        return self._state.core.jobs.runs(job._slot, job.id)

    # They are given up.

    def on_cancel(self, job: Job[Any]) -> None:
        """Take a job out of the queue, or out of its worker's hands."""
        state, slot = self._state, job._slot
        if state.deciding:
            state.loop.call_soon(self.on_cancel, job)
        elif state.registry.cancelled(job):
            self.take_out(job, slot)

    def take_out(self, job: Job[Any], slot: int | None) -> None:
        """Have a job, which is settled, take up no place any more."""
        state, now = self._state, self._state.loop.time()
        if slot is None:
            self._state.performer.perform(state.core.jobs.drop(job.id, now))
            self._state.performer.perform(state.core.jobs.landed(job.id, now))
            self._large.go_on()
        elif (
            state.core.jobs.last(slot) == job.id
            and state.handles[slot].outbox.withdraw()
        ):
            self._state.performer.perform(state.core.jobs.withdraw(slot, job.id, now))
        else:
            self._state.performer.perform(
                state.core.jobs.cancel(
                    job.id,
                    now,
                    index=slot,
                    begun=state.handles[slot].page.begun(job.id, job.attempt),
                    press=job._limits.cancel_mode,
                )
            )

    @decision
    def on_revoked(self, handle: WorkerHandle, places: tuple[int, ...]) -> None:
        """Hear which jobs a worker will not begin."""
        now = self._state.loop.time()
        try:
            commands = self._state.core.jobs.revoked(handle.slot, places, now)
        except ProtocolError as error:
            handle.accuse(str(error))
        else:
            self._state.performer.perform(commands)

    # They yield items.

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hand over what a stream has yielded."""
        for frame in frames:
            try:
                self._on_item(handle, frame)
            except ProtocolError as error:
                handle.accuse(str(error))
                return

    def _on_item(self, handle: WorkerHandle, frame: Frame) -> None:
        if frame.job not in self._state.core.slots[handle.slot].in_flight.jobs:
            raise ProtocolError(f"it sent an item of job {frame.job}, which it has not")
        job = self._state.registry.jobs.get(frame.job)
        if job is None:
            return  # its caller has given it up
        if not isinstance(job, StreamJob) or job.attempt != frame.attempt:
            raise ProtocolError(
                f"it sent an item of attempt {frame.attempt} of {job!r}"
            )
        job.receive(frame)

    def give_credit(self, job: StreamJob) -> None:
        """Tell its worker how many items it may send in all."""
        if job._slot is not None:
            handle = self._state.handles[job._slot]
            handle.requests.give_credit(job.id, job.attempt, job._credit)
