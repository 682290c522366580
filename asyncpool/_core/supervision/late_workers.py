"""Workers that are about to be killed since they have not ended in time.

Each of them is asked where it is before its time is over, so that the answer costs no time of
its own: a worker that ends after all has lost nothing by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.slots.slots import Slot, StopStage
from asyncpool._core.supervision.closing import Closing
from asyncpool._core.supervision.termination import STACK_GRACE
from asyncpool.enums import SlotState


class LateWorkers:
    """Which workers are to be asked where they are, and when.

    Args:
        slots: The slots of the pool.
        closing: The end of the pool, whose time may be limited.
    """

    def __init__(self, slots: Sequence[Slot], closing: Closing) -> None:
        self._slots = slots
        self._closing = closing

    def next_deadline(self) -> float | None:
        """When to call :meth:`take`; ``None`` if nobody has to end."""
        due = earliest(*map(self._due, self._slots))
        return None if due is None else due - STACK_GRACE

    def take(self, now: float) -> list[tuple[int, float]]:
        """Return the slots of those to ask now, each with the end of its worker's time."""
        found: list[tuple[int, float]] = []
        for slot in self._slots:
            due = self._due(slot)
            if due is not None and due - STACK_GRACE <= now:
                slot.is_late = True
                found.append((slot.index, due))
        return found

    def _due(self, slot: Slot) -> float | None:
        """Return when the worker of *slot* is made to end, unless it was asked already."""
        if slot.is_late:
            return None
        if slot.state is SlotState.BUSY:
            jobs = slot.in_flight.jobs
            # A job that was cancelled has had its time to end, and nobody asks why it took it.
            if jobs and not any(map(slot.job_endings.is_wanted, jobs)):
                return None
            return earliest(slot.drain_deadline, self._closing.due)
        if slot.state is SlotState.STOPPING and slot.stop_stage is not StopStage.KILLED:
            return earliest(slot.due, self._closing.due)
        return None
