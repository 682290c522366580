"""Tests of asyncpool/_core/supervision/replacement.py; how those who are rolled are replaced is another matter."""

from __future__ import annotations

from asyncpool._core.slots.commands import RollEnded
from asyncpool._core.slots.slots import Slot
from asyncpool._core.supervision.replacement import ROLL, RollingRestart
from asyncpool.enums import SlotState


def rolled(*states: SlotState) -> tuple[RollingRestart, list[Slot]]:
    """Return a roll that has begun with slots in these states."""
    slots = [Slot(index, state) for index, state in enumerate(states)]
    roll = RollingRestart(slots)
    roll.begin()
    return roll, slots


def test_whoever_is_there_is_worn_when_it_is_up() -> None:
    roll, slots = rolled(SlotState.IDLE, SlotState.STARTING, SlotState.UNUSED)
    assert [roll.has(slot) for slot in slots] == [True, True, False]
    assert roll.go_on() == []
    assert [slot.replace_reason for slot in slots] == [ROLL, None, None]
    slots[1].state = SlotState.BUSY
    assert roll.go_on() == []
    assert [slot.replace_reason for slot in slots] == [ROLL, ROLL, None]


def test_who_is_worn_already_keeps_its_reason() -> None:
    roll, [slot] = rolled(SlotState.BUSY)
    slot.replace_reason = "max_jobs"
    assert roll.go_on() == []
    assert slot.replace_reason == "max_jobs"


def test_it_is_over_when_nobody_is_left() -> None:
    roll, slots = rolled(SlotState.IDLE, SlotState.IDLE)
    seen = [roll.under_way]
    slots[0].renew()  # another worker is there
    assert roll.go_on() == []
    assert not roll.has(slots[0])
    slots[1].state = SlotState.UNUSED
    assert roll.go_on() == [RollEnded(2, "")]
    seen.append(roll.under_way)
    assert seen == [True, False]
    assert roll.go_on() == roll.end("late") == []


def test_who_leaves_already_is_not_waited_for() -> None:
    slot = Slot(0, SlotState.BUSY, draining=True)
    roll = RollingRestart([slot])
    roll.begin()
    assert roll.go_on() == [RollEnded(0, "")]


def test_when_it_ends_early_those_stay_for_whom_nobody_comes() -> None:
    roll, slots = rolled(*[SlotState.IDLE] * 4)
    slots[0].replace_reason = "max_age"
    roll.go_on()
    slots[1].draining = True
    slots.append(Slot(4, SlotState.STARTING, replaces=2))
    assert roll.end("that was all") == [RollEnded(0, "that was all")]
    assert [slot.replace_reason for slot in slots[:4]] == ["max_age", ROLL, ROLL, None]
