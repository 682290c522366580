"""A roll: every worker that was there when it began is due for recycling, until none of them is left.

A start that had begun before it may run, or fail of, what is old.  So one that was to replace
somebody, and is *early*, says nothing about the roll if it fails; if it comes up it replaces
that worker, and is replaced itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.slots.commands import Command, RollEnded
from asyncpool._core.slots.lifecycle import EMPTY
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

# Why those are due for recycling that are rolled.
ROLL = "roll"

# Of a slot that was parked: the next start there, or the answer to it, is still to come;
# one that was told to end meanwhile answers by its end, and has failed.
_UNFILLED = {
    SlotState.PARKED,
    SlotState.VACANT,
    SlotState.STARTING,
    SlotState.STOPPING,
}


class RollingRestart:
    """The rolls of a pool, one at a time.

    Args:
        slots: The slots; there may be more later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._left: list[tuple[Slot, int]] | None = None
        self._empty: list[Slot] = []
        self._early: list[Slot] = []
        self._going: list[tuple[Slot, int]] = []
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
        self._early = [it for it in self._slots if it.replaces is not None]
        self._left = [
            (it, it.generation)
            for it in self._slots
            if it.state in UP or may_fail_to_start(it)
            if not it.draining and it.replaces is None
        ]
        self._empty = [it for it in self._slots if it.state is SlotState.PARKED]
        self._replaced = self._filled = 0

    def has(self, slot: Slot) -> bool:
        """Tell whether the worker of *slot* is one of those that are left."""
        return any(slot is rolled for rolled, _ in self._left or ())

    def is_early(self, slot: Slot) -> bool:
        """Tell whether the start in *slot*, to replace somebody, had begun before the roll."""
        return any(slot is early for early in self._early)

    def inherit(self, successor: Slot, old: Slot) -> None:
        """Take note that the worker of *successor* is there now instead of that of *old*."""
        if self._left is None or not self.is_early(successor):
            return
        # One worker is to be replaced, and that is the successor from now on; but both are to go.
        self._going += [rolled for rolled in self._left if rolled[0] is old]
        self._left = [rolled for rolled in self._left if rolled[0] is not old]
        self._left.append((successor, successor.generation))

    def go_on(self) -> list[Command]:
        """Replace those that are left, and end it if there are none."""
        if self._left is None:
            return []
        there = _there(self._left)
        parked = [slot for slot, _ in self._left if slot.state is SlotState.PARKED]
        self._replaced += len(self._left) - len(there) - len(parked)
        self._empty += parked
        self._left = there
        for slot, _ in there:
            if slot.state in UP and slot.replace_reason is None:
                slot.replace_reason = ROLL
        self._filled += sum(slot.state in UP for slot in self._empty)
        self._empty = [slot for slot in self._empty if slot.state in _UNFILLED]
        self._early = [slot for slot in self._early if slot.replaces is not None]
        self._going = _there(self._going)
        waits = there or self._empty or self._early or self._going
        return [] if waits else self.end("")

    def end(self, why: str) -> list[Command]:
        """End it, if there is one, for that reason, or since it is complete.

        Those stay whose replacement has not begun.
        """
        if self._left is None:
            return []
        self._left = None
        self._empty, self._early, self._going = [], [], []
        coming = {slot.replaces for slot in self._slots}
        for slot in self._slots:
            if (
                slot.replace_reason == ROLL
                and not slot.draining
                and slot.index not in coming
            ):
                slot.replace_reason = None
        return [RollEnded(self._replaced, why, self._filled)]


def _there(rolled: list[tuple[Slot, int]]) -> list[tuple[Slot, int]]:
    """Return those of whom the worker is there yet."""
    return [
        (slot, generation)
        for slot, generation in rolled
        if slot.generation == generation and slot.state not in EMPTY
    ]


def may_fail_to_start(slot: Slot) -> bool:
    """Tell whether a start in *slot* is under way, which may have been broken off."""
    begun = slot.state in {SlotState.STARTING, SlotState.STOPPING}
    return begun and slot.ready_at is None and not slot.planned
