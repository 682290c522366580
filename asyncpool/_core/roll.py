"""A roll: every worker that was there when it began is worn, until none of them is left."""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.commands import Command, Rolled
from asyncpool._core.lives import EMPTY
from asyncpool._core.slots import UP, Slot, SlotState

__all__ = ["ROLL", "Roll"]

# Why those are worn that are rolled.
ROLL = "roll"

# Of a slot that was parked: the next start there, or the answer to it, is still to come;
# one that was told to end meanwhile answers by its end, and has failed.
_UNFILLED = {
    SlotState.PARKED,
    SlotState.VACANT,
    SlotState.STARTING,
    SlotState.STOPPING,
}


class Roll:
    """The rolls of a pool, one at a time.

    Args:
        slots: The slots; there may be more later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._left: list[tuple[Slot, int]] | None = None
        self._empty: list[Slot] = []
        self._replaced = self._filled = 0

    @property
    def under_way(self) -> bool:
        """Whether there is one that is not over."""
        return self._left is not None

    @property
    def fills(self) -> bool:
        """Whether it waits for a start in a slot whose starts have failed."""
        parked = any(slot.state is SlotState.PARKED for slot, _ in self._left or ())
        return parked or any(slot.state in _UNFILLED for slot in self._empty)

    def begin(self) -> None:
        """Roll every worker that is there now; :meth:`go_on` is next.

        One that is being started counts, too: it may have read what is old by now.  Slots
        that are parked are to be filled: what is new may be what they lack.
        """
        there = UP | {SlotState.STARTING}
        slots = [it for it in self._slots if it.state in there and not it.leaving]
        self._left = [(slot, slot.generation) for slot in slots]
        self._empty = [it for it in self._slots if it.state is SlotState.PARKED]
        self._replaced = self._filled = 0

    def has(self, slot: Slot) -> bool:
        """Tell whether the worker of *slot* is one of those that are left."""
        return any(slot is rolled for rolled, _ in self._left or ())

    def go_on(self) -> list[Command]:
        """Wear those that are left, and end it if there are none."""
        if self._left is None:
            return []
        there = [
            (slot, generation)
            for slot, generation in self._left
            if slot.generation == generation and slot.state not in EMPTY
        ]
        parked = [slot for slot, _ in self._left if slot.state is SlotState.PARKED]
        self._replaced += len(self._left) - len(there) - len(parked)
        self._empty += parked
        self._left = there
        for slot, _ in there:
            if slot.state in UP and slot.worn is None:
                slot.worn = ROLL
        self._filled += sum(slot.state in UP for slot in self._empty)
        self._empty = [slot for slot in self._empty if slot.state in _UNFILLED]
        return [] if there or self._empty else self.end("")

    def end(self, why: str) -> list[Command]:
        """End it, if there is one, for that reason, or since it is complete.

        Those stay whose replacement has not begun.
        """
        if self._left is None:
            return []
        self._left, self._empty = None, []
        coming = {slot.replaces for slot in self._slots}
        for slot in self._slots:
            if slot.worn == ROLL and not slot.leaving and slot.index not in coming:
                slot.worn = None
        return [Rolled(self._replaced, why, self._filled)]
