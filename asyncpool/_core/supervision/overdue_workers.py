"""Workers that the pool is about to kill, since they are not ready, or have not ended, in time.

The pool asks each of them for its stacks shortly before its time is over.  So the
answer takes no extra time, and a worker that ends in time after all has lost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.slots.slots import Slot, StopStage
from asyncpool._core.supervision.closing import Closing
from asyncpool._core.supervision.termination import STACK_GRACE
from asyncpool.enums import SlotState


class OverdueWorkers:
    """Which workers the pool asks for their stacks, and when.

    Args:
        slots: The slots of the pool.
        closing: The end of the pool, whose time may be limited.
    """

    def __init__(self, slots: Sequence[Slot], closing: Closing) -> None:
        self._slots = slots
        self._closing = closing

    def next_deadline(self) -> float | None:
        """When to call :meth:`take`; ``None`` if no worker's time is limited."""
        due = earliest(*map(self._due, self._slots))
        return None if due is None else due - STACK_GRACE

    def take(self, now: float) -> list[tuple[int, float]]:
        """Return the slots of the workers to ask now, each with the end of the worker's time."""
        found: list[tuple[int, float]] = []
        for slot in self._slots:
            due = self._due(slot)
            if due is not None and due - STACK_GRACE <= now:
                slot.is_overdue = True
                found.append((slot.index, due))
        return found

    def _due(self, slot: Slot) -> float | None:
        """Return when the pool kills the worker of *slot*, unless it was asked already."""
        if slot.is_overdue:
            return None
        if slot.state is SlotState.BUSY:
            jobs = slot.in_flight.jobs
            # A cancelled job has had time to end.  Nobody needs to know why it did not.
            if jobs and not any(map(slot.job_endings.is_wanted, jobs)):
                return None
            return earliest(slot.drain_deadline, self._closing.due)
        if slot.state is SlotState.STARTING:
            return slot.due
        if slot.state is SlotState.STOPPING and slot.stop_stage is not StopStage.KILLED:
            return earliest(slot.due, self._closing.due)
        return None
