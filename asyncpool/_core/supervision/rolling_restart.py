"""A roll: the pool replaces every worker that was there when the roll began.

The roll is over when none of those workers is left.

A start that had begun before the roll is *early*.  Such a worker may already run old
code, or fail because of it.  If an early replacement fails to start, that says nothing
about the roll.  If it becomes ready, it replaces its worker as planned, and the roll
then replaces it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.slots.commands import Command, RollEnded
from asyncpool._core.slots.lifecycle import EMPTY
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

# The reason for recycling that a roll gives.
ROLL = "roll"

# The states in which a slot that was parked still has a start, or the result of one, to
# come.  A worker that was told to end before it was ready has failed; its end is that
# result.
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
        """Whether a roll is under way."""
        return self._left is not None

    @property
    def fills(self) -> bool:
        """Whether the roll waits for a start in a slot whose starts have failed."""
        parked = any(slot.state is SlotState.PARKED for slot, _ in self._left or ())
        return parked or any(slot.state in _UNFILLED for slot in self._empty)

    def begin(self) -> None:
        """Roll every worker that is there now; the caller then calls :meth:`go_on`.

        A worker that is being started counts, too, since it may already have read old
        code.  The roll also fills parked slots: the new code may be what their starts
        need.
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
        """Tell whether the roll still has to replace the worker of *slot*."""
        return any(slot is rolled for rolled, _ in self._left or ())

    def is_early(self, slot: Slot) -> bool:
        """Tell whether the replacement in *slot* was started before the roll began."""
        return any(slot is early for early in self._early)

    def inherit(self, successor: Slot, old: Slot) -> None:
        """Record that the worker of *successor* has replaced that of *old*."""
        if self._left is None or not self.is_early(successor):
            return
        # From now on the successor is the worker to replace.  But both of them have to
        # go.
        self._going += [rolled for rolled in self._left if rolled[0] is old]
        self._left = [rolled for rolled in self._left if rolled[0] is not old]
        self._left.append((successor, successor.generation))

    def go_on(self) -> list[Command]:
        """Replace the workers that are left, and end the roll if there are none."""
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
        # One that leaves, since it is surplus, may also have read old code.
        self._early = [
            slot for slot in self._early if slot.replaces is not None or slot.draining
        ]
        self._going = _there(self._going)
        waits = there or self._empty or self._early or self._going
        return [] if waits else self.end("")

    def end(self, why: str) -> list[Command]:
        """End the roll, if there is one: for the reason *why*, or because it is complete.

        Workers whose replacement has not begun stay.
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
    """Return those of *rolled* whose worker is still there."""
    return [
        (slot, generation)
        for slot, generation in rolled
        if slot.generation == generation and slot.state not in EMPTY
    ]


def may_fail_to_start(slot: Slot) -> bool:
    """Tell whether a start in *slot* is under way, which the pool may have broken off."""
    begun = slot.state in {SlotState.STARTING, SlotState.STOPPING}
    return begun and slot.ready_at is None and not slot.exit_planned
