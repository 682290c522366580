"""Tests of asyncpool/_core/base/job_traits.py."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base import job_traits as traits
from asyncpool._core.base.job_traits import (
    BUDGET,
    DEEPEST,
    LEAST,
    REFILL,
    STREAM_TRAITS,
    UNKNOWN,
    JobTraits,
    KeyedTraits,
)

# The least that a call counts for.
FLOOR = 125.0

durations = st.integers(0, 2**32 - 1)


def after(*durations: float) -> float:
    traits = JobTraits()
    for duration in durations:
        traits.note(duration)
    return traits.cost


def test_the_figures() -> None:
    assert (BUDGET, REFILL, DEEPEST, UNKNOWN) == (16000.0, 8000.0, 128, 1e9)
    assert set(traits.__all__) == {
        "STREAM_TRAITS",
        "BUDGET",
        "DEEPEST",
        "PINNED",
        "LEAST",
        "LOADING_TRAITS",
        "REFILL",
        "UNKNOWN",
        "KeyedTraits",
        "JobTraits",
    }


def test_what_was_never_called_is_unknown_and_fits_behind_nothing() -> None:
    assert after() == UNKNOWN
    assert UNKNOWN > 1_000 * BUDGET


def test_what_is_to_be_alone_costs_as_much_as_what_is_unknown() -> None:
    assert type(STREAM_TRAITS) is JobTraits
    assert STREAM_TRAITS.cost == UNKNOWN


def test_the_first_call_is_taken_at_its_word() -> None:
    assert after(300) == 300.0
    assert after(4_000_000_000) == 4_000_000_000.0


@pytest.mark.parametrize(
    ("calls", "cost"),
    [
        ((160, 320), 180.0),
        ((320, 160), 300.0),
        ((800, 0), 715.625),
        ((128, 256, 128, 256), 156.25),
        ((500, 500, 500), 500.0),
        ((160, 160, 20160), 2660.0),
        ((1_000_000, 160), 875_020.0),
    ],
)
def test_each_further_call_counts_for_an_eighth(
    calls: tuple[float, ...], cost: float
) -> None:
    assert after(*calls) == cost


@pytest.mark.parametrize("duration", [0, 1, 7, 62, 62.5])
def test_a_call_of_no_time_counts_for_the_least(duration: float) -> None:
    assert after(duration) == FLOOR
    assert after(duration, duration) == FLOOR
    assert after(FLOOR + 8, duration) == FLOOR + 7


def test_a_call_just_above_the_least_counts_for_itself() -> None:
    assert after(126) == 126.0


def test_as_many_calls_as_a_worker_may_hold_are_a_budget() -> None:
    assert FLOOR == LEAST
    assert LEAST * DEEPEST == BUDGET


@given(st.lists(durations, min_size=1, max_size=30))
def test_the_average_lies_between_its_extremes(calls: list[int]) -> None:
    counted = [max(duration, FLOOR) for duration in calls]
    assert FLOOR <= min(counted) <= after(*calls) <= max(counted)


@given(st.lists(durations, min_size=1, max_size=30), durations)
def test_the_average_moves_towards_each_call(calls: list[int], last: int) -> None:
    before, cost = after(*calls), after(*calls, last)
    counted = max(last, FLOOR)
    if before != UNKNOWN:
        assert min(before, counted) <= cost <= max(before, counted)
        assert (cost == before) is (counted == before)


def test_one_long_call_among_short_ones_is_noticed_at_once_and_forgotten() -> None:
    traits = JobTraits()
    for _ in range(100):
        traits.note(200)
    assert traits.cost == 200.0
    traits.note(160_200)
    assert traits.cost == 20_200.0, "nothing travels ahead for a while"
    costs = []
    for _ in range(60):
        costs.append(traits.cost)
        traits.note(200)
    assert costs == sorted(costs, reverse=True)
    assert sum(cost > BUDGET for cost in costs) == 2
    assert sum(cost > REFILL for cost in costs) == 8
    assert sum(cost > 202 for cost in costs) == 60
    assert traits.cost < 210


@given(st.integers(126, 300), st.integers(64_000, 2**32 - 1))
def test_any_long_call_keeps_others_from_waiting_behind_the_next(
    short: int, long: int
) -> None:
    cost = after(*[short] * 20, long)
    assert cost > REFILL
    assert cost == short + (long - short) / 8


def test_functions_are_known_one_by_one() -> None:
    first, second = JobTraits(), JobTraits()
    first.note(500)
    assert (first.cost, second.cost) == (500.0, UNKNOWN)


def test_a_job_with_a_key_costs_what_its_function_does_by_now() -> None:
    function = JobTraits()
    first, second = KeyedTraits(function, 7), KeyedTraits(function, 8)
    assert (first.key, second.key, function.key) == (7, 8, None)
    assert first.cost == UNKNOWN
    function.note(250)
    assert (first.cost, second.cost) == (250, 250)
    first.note(1050)
    assert function.cost == second.cost == 350
