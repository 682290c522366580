"""How the work is spread: which jobs wait, and which workers have enough to do.

A job may wait in the queue, or in a worker behind other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.job_traits import REFILL
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.capacity import Sizing
from asyncpool._core.slots.slots import Slot


class Balance:
    """What the workers of a pool have in flight, compared to the jobs that wait.

    Args:
        slots: The slots; there may be more later.
        dispatcher: The jobs that have no worker.
        sizing: How many workers the pool should have.
    """

    def __init__(
        self, slots: Sequence[Slot], dispatcher: Dispatcher, sizing: Sizing
    ) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._sizing = sizing

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        ahead = sum(
            max(0, len(slot.in_flight.jobs) - slot.concurrency) for slot in self._slots
        )
        return self._dispatcher.waiting + ahead

    @property
    def pipelining(self) -> bool:
        """Whether a job waits inside a worker for its turn."""
        return any(len(slot.in_flight.jobs) > slot.concurrency for slot in self._slots)

    @property
    def unbalanced(self) -> bool:
        """Whether a worker is idle while jobs wait in other workers, and were not asked back."""
        return self._dispatcher.idle > 0 and any(
            len(slot.in_flight.jobs) > slot.concurrency and not slot.in_flight.revoking
            for slot in self._slots
        )

    def may_rest(self, index: int) -> bool:
        """Tell whether the pool may leave the worker in slot *index* alone for a round.

        The worker has enough to do until then.  Where so many jobs wait, a small delay
        does no harm.
        """
        in_flight = self._slots[index].in_flight
        if in_flight.backlog <= REFILL or in_flight.least_work <= REFILL:
            return False
        waiting = self._dispatcher.waiting_for(index)
        return waiting >= len(in_flight.jobs) * self._sizing.size
