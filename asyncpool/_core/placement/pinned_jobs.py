"""Pinned jobs: jobs for one worker alone, which it begins before any other.

They wait with their slot and not in the queue, and never go there: when the worker goes
before it has begun one, that is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.run_times import PINNED
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.commands import Assign, Command, DropPinnedJobs
from asyncpool._core.slots.slots import Slot
from asyncpool.enums import SlotState


class PinnedJobs:
    """The pinned jobs of a pool that have not begun.

    Args:
        slots: The slots; there may be more later.
        dispatcher: Which gives no job to a worker that has a pinned job before it.
    """

    def __init__(self, slots: Sequence[Slot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(slot.pinned for slot in self._slots)

    def add(self, slot: Slot, job: int) -> list[Command]:
        """Have *job* begin when nothing is in the hands of *slot*'s worker any more."""
        slot.pinned.append(job)
        if slot.state is SlotState.IDLE and slot.hung:
            return []
        self._dispatcher.worker_gone(slot.index)
        return self.begin(slot) if slot.state is SlotState.IDLE else []

    def begin(self, slot: Slot) -> list[Command]:
        """Begin with the next one of *slot*, if nothing is in its worker's hands."""
        if slot.in_flight.jobs:
            return []
        job = slot.pinned.popleft()
        slot.in_flight.add(job, PINNED)
        # It does not count towards a limit: each replacement would have one, too, and go again.
        slot.recycle_limits = slot.recycle_limits._replace(
            jobs=slot.recycle_limits.jobs + 1
        )
        slot.in_flight.most += 1
        slot.assign()
        return [Assign(slot.index, (job,))]

    def discard(self, job: int) -> Slot | None:
        """Forget *job* if it is one, or a session's call, and return whose it was."""
        for slot in self._slots:
            for jobs in (slot.pinned, slot.calls):
                if job in jobs:
                    jobs.remove(job)
                    return slot
        return None

    @staticmethod
    def drop(slot: Slot) -> list[Command]:
        """Forget those of *slot*, since its worker goes."""
        pinned_jobs = tuple(slot.pinned)
        slot.pinned.clear()
        return [DropPinnedJobs(pinned_jobs)] if pinned_jobs else []

    def take_all(self) -> dict[int, Slot]:
        """Forget every one, and every call; return them, each with whose it was."""
        jobs: dict[int, Slot] = {}
        for slot in self._slots:
            jobs |= dict.fromkeys((*slot.pinned, *slot.calls), slot)
            slot.pinned.clear()
            slot.calls.clear()
        return jobs
