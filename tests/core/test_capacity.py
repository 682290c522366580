"""Tests of asyncpool/_core/slots/capacity.py."""

from __future__ import annotations

import pytest

from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.slots import Slot
from asyncpool.enums import SlotState

S = SlotState


def budget_of(
    slots: list[Slot],
    size: int,
    *,
    max_surge: int = 1,
    max_unavailable: int = 0,
    serving: bool = False,
) -> Budget:
    return Budget(
        slots,
        Sizing(size, size, 60.0),
        max_surge=max_surge,
        max_unavailable=max_unavailable,
        serving=serving,
    )


def seats(*states: SlotState) -> list[Slot]:
    return [Slot(index, state) for index, state in enumerate(states)]


@pytest.mark.parametrize("state", list(SlotState))
def test_who_is_needed_counts_unless_it_goes_or_replaces(state: SlotState) -> None:
    needed = state not in {S.UNUSED, S.RETIRED}
    other = Slot(1, S.BUSY)
    slot = Slot(0, state)
    budget = budget_of([slot, other], 2)
    assert budget.counts(slot) == needed
    slot.replaces = 1
    assert not budget.counts(slot)
    other.draining = True
    assert budget.counts(slot) == needed, "that one has to go anyway"
    slot.draining = True
    assert not budget.counts(slot)


@pytest.mark.parametrize(("size", "missing"), [(4, 1), (3, 0), (2, -1)])
def test_who_is_missing_and_where_somebody_is_to_come(size: int, missing: int) -> None:
    slots = seats(S.IDLE, S.VACANT, S.STARTING, S.UNUSED)
    budget = budget_of(slots, size)
    assert (budget.missing, budget.coming) == (missing, 1)
    found = [budget.needs(slot) for slot in slots]
    # Who counts is needed unless there are enough others.
    assert found == [missing >= 0] * 3 + [missing > 0]


@pytest.mark.parametrize(
    ("states", "settled"),
    [
        ((S.IDLE, S.BUSY), True),
        ((S.IDLE, S.BUSY, S.UNUSED), True),
        ((S.IDLE, S.VACANT), False),
        ((S.IDLE, S.PARKED), False),
        ((S.IDLE, S.STARTING), False),
        ((S.IDLE, S.STOPPING), False),
        ((S.IDLE,), False),
        ((S.IDLE, S.IDLE, S.IDLE), False),
    ],
)
def test_a_pool_has_its_size(states: tuple[SlotState, ...], *, settled: bool) -> None:
    assert budget_of(seats(*states), 2).settled is settled


def test_a_pool_has_not_its_size_while_somebody_leaves() -> None:
    slots = [*seats(S.IDLE, S.IDLE), Slot(2, S.BUSY, draining=True)]
    assert not budget_of(slots, 2).settled


def test_who_is_not_needed_is_not_missed() -> None:
    slots = seats(S.IDLE, S.UNUSED, S.PARKED)
    budget = budget_of(slots, 2)
    assert [budget.misses(index) for index in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    ("surge", "unavailable", "can"),
    [(0, 0, (False, False)), (1, 0, (True, False)), (0, 1, (False, True))],
)
def test_what_may_come_or_go_before_another_one_is_ready(
    surge: int, unavailable: int, can: tuple[bool, bool]
) -> None:
    slots = seats(S.BUSY, S.IDLE, S.UNUSED)
    budget = budget_of(slots, 2, max_surge=surge, max_unavailable=unavailable)
    assert (budget.can_replace, budget.can_miss) == can
    assert (budget.free, budget.slots_for(5)) == (surge, 5 + surge)
    slots[2].state, slots[0].draining = S.STARTING, True  # that was all
    assert (budget.can_replace, budget.can_miss) == (False, False)


def test_a_seat_for_nobody_is_no_leave_to_replace() -> None:
    assert not budget_of(seats(S.BUSY), 2, max_surge=0).can_replace


def test_those_who_fail_while_they_serve_take_up_nothing_but_not_without_end() -> None:
    slots = [
        Slot(0, S.IDLE, faulty=True, draining=True),
        Slot(1, S.IDLE, faulty=True, draining=True, exit_planned=True),
        Slot(2, S.IDLE, faulty=True),
        Slot(3, S.IDLE, draining=True),
    ]
    serving, jobs = budget_of(slots, 1, serving=True), budget_of(slots, 1)
    assert (serving.free, jobs.free) == (-1, -2)
    seen = [serving.can_fail, jobs.can_fail]
    slots[2].draining = True
    assert [*seen, serving.can_fail, jobs.can_fail] == [True, True, False, True]
