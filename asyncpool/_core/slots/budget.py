"""How many workers there are, and how many more may come, or go, before another one is ready.

Who is neither about to leave nor to replace somebody *counts*: as many as count make the
size of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.slots.sizing import Sizing
from asyncpool._core.slots.slots import UP, Slot, SlotState

_NOT_NEEDED = frozenset({SlotState.SPARE, SlotState.RETIRED})


class Budget:
    """What a pool can afford.

    Args:
        slots: The slots; there may be more later.
        sizing: How many workers there are to be.
        surge: How many there may be beyond that.
        unavailable: How many may be missing.
        serving: Workers serve: those that are down are missed, whatever is to be done, and
            one that fails is followed before it has finished.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        sizing: Sizing,
        *,
        surge: int,
        unavailable: int,
        serving: bool,
    ) -> None:
        self._slots = slots
        self._sizing = sizing
        self._surge = surge
        self._unavailable = unavailable
        self._serving = serving

    # Who is there.

    @property
    def missing(self) -> int:
        """How many are to come; below zero, how many are too many."""
        return self._sizing.size - sum(map(counts, self._slots))

    @property
    def coming(self) -> int:
        """How many are being started."""
        return sum(slot.state is SlotState.STARTING for slot in self._slots)

    def needs(self, slot: Slot) -> bool:
        """Tell whether a worker is to come into an empty *slot*."""
        return self.missing + counts(slot) > 0

    @property
    def settled(self) -> bool:
        """Whether nobody comes or goes because of the pool's size.

        Where jobs wait in a queue, a worker that comes back later is there all the same.
        """
        if self._serving and any(
            counts(slot) and slot.state not in UP for slot in self._slots
        ):
            return False
        return not self.missing and not any(
            slot.leaving or slot.state is SlotState.STARTING for slot in self._slots
        )

    @property
    def stuck(self) -> bool:
        """Whether a slot is parked since starts fail: nobody knows when it will serve."""
        parked = (slot.state is SlotState.PARKED for slot in self._slots)
        return self._serving and any(parked)

    def misses(self, index: int) -> bool:
        """Tell whether one is missing who serves, if the worker of a slot is gone."""
        return self._serving and self._slots[index].state not in _NOT_NEEDED

    # What it can afford.

    @property
    def free(self) -> int:
        """How many more workers there may be; those that fail take up nothing."""
        seats = sum(slot.state not in _NOT_NEEDED for slot in self._slots)
        return self._sizing.size + self._surge - seats + self._failing

    @property
    def can_replace(self) -> bool:
        """Whether another worker may come before one goes."""
        return self.free > 0 and self._surge > 0

    @property
    def can_miss(self) -> bool:
        """Whether one may go before another one comes."""
        taking = sum(slot.state in UP and not slot.leaving for slot in self._slots)
        return self._sizing.size - taking < self._unavailable

    @property
    def can_fail(self) -> bool:
        """Whether one that fails may be followed before it has finished."""
        return self._failing < self._sizing.size + self._surge

    def seats(self, most: int) -> int:
        """Return how many slots it takes for so many workers."""
        return most + self._surge

    @property
    def _failing(self) -> int:
        """How many have failed, and are followed before they have finished."""
        if not self._serving:
            return 0
        return sum(it.faulty and it.leaving and not it.planned for it in self._slots)


def counts(slot: Slot) -> bool:
    """Tell whether *slot* is one of those that make the size of the pool."""
    return slot.state not in _NOT_NEEDED and not slot.leaving and slot.replaces is None
