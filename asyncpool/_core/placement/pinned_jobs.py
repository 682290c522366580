"""Pinned jobs: jobs for one given worker, which begins them before any other.

They wait at their slot, never in the queue.  If the worker goes before it has begun
such a job, the pool drops the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.job_traits import PINNED
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.commands import Assign, Command, DropPinnedJobs
from asyncpool._core.slots.slots import Slot
from asyncpool.enums import SlotState


class PinnedJobs:
    """The pinned jobs of a pool that have not begun.

    Args:
        slots: The slots; there may be more later.
        dispatcher: What decides which worker runs which job.  It gives no job to a
            worker that has a pinned job before it.
    """

    def __init__(self, slots: Sequence[Slot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher

    @property
    def any(self) -> bool:
        """Whether there is a pinned job that has not begun."""
        return any(slot.pinned for slot in self._slots)

    def add(self, slot: Slot, job: int) -> list[Command]:
        """Let *job* begin as soon as the worker of *slot* has nothing in flight."""
        slot.pinned.append(job)
        if slot.state is SlotState.IDLE and slot.hung:
            return []
        self._dispatcher.exclude(slot.index)
        return self.begin(slot) if slot.state is SlotState.IDLE else []

    def begin(self, slot: Slot) -> list[Command]:
        """Begin the next pinned job of *slot*, if its worker has nothing in flight."""
        if slot.in_flight.jobs:
            return []
        job = slot.pinned.popleft()
        slot.in_flight.add(job, PINNED)
        # It does not count towards max_jobs: each replacement would also have one, and
        # go again.
        slot.recycle_limits = slot.recycle_limits._replace(
            jobs=slot.recycle_limits.jobs + 1
        )
        slot.in_flight.most += 1
        slot.assign()
        return [Assign(slot.index, (job,))]

    def discard(self, job: int) -> Slot | None:
        """Forget *job* if it is a pinned job or a session's call, and return its slot."""
        for slot in self._slots:
            for jobs in (slot.pinned, slot.calls):
                if job in jobs:
                    jobs.remove(job)
                    return slot
        return None

    @staticmethod
    def drop(slot: Slot) -> list[Command]:
        """Drop the pinned jobs of *slot*, since its worker goes."""
        pinned_jobs = tuple(slot.pinned)
        slot.pinned.clear()
        return [DropPinnedJobs(pinned_jobs)] if pinned_jobs else []

    def take_all(self) -> dict[int, Slot]:
        """Forget all pinned jobs, and all calls of sessions; return them, each with its slot."""
        jobs: dict[int, Slot] = {}
        for slot in self._slots:
            jobs |= dict.fromkeys((*slot.pinned, *slot.calls), slot)
            slot.pinned.clear()
            slot.calls.clear()
        return jobs
