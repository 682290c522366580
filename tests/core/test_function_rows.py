"""The rows of functions: what has happened since, or all of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.history.history import function_rows
from asyncpool.stats import FunctionStats
from tests.helpers.told_lines import as_read, durations, function


def told(*functions: FunctionStats) -> list[dict[str, Any]]:
    return [as_read(asdict(each)) for each in functions]


def test_a_row_is_about_what_has_happened_since() -> None:
    slow = durations(100, 0, 0, 20, total=0.2)
    before = told(function("resize", ok=100, run=durations(100, total=0.1)))
    now = told(function("resize", ok=110, raised=10, run=slow))
    [row] = function_rows(now, before, 10.0)
    assert row == {
        "name": "resize",
        "via": "submit",
        "recent": True,
        "jobs": 120,
        "failed": 10,
        "failures": {"raised": 10},
        "rate": 2.0,
        "busy": 0.01,
        # All 20 are in the bucket from 4.096 to 8.192 ms.
        "run": pytest.approx([0.006144, 0.0079872, 0.00815104]),
        "wait": pytest.approx([0.006144, 0.0079872, 0.00815104]),
    }


def test_an_idle_function_shows_all_its_jobs() -> None:
    now = told(function("resize", ok=100))
    [row] = function_rows(now, now, 10.0)
    assert (row["recent"], row["rate"], row["busy"]) == (False, 0.0, 0.0)
    assert row["run"][0] == pytest.approx(0.000768)


def test_those_that_took_most_time_come_first_and_idle_ones_last() -> None:
    idle = function("a_idle", ok=5)
    now = told(idle, function("quick", ok=9), function("busy", ok=900))
    rows = function_rows(now, told(idle), 10.0)
    assert [row["name"] for row in rows] == ["busy", "quick", "a_idle"]


@given(
    before=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    now=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    seconds=st.floats(0, 100),
)
def test_whatever_two_looks_say_percentiles_are_in_order(
    before: list[int], now: list[int], seconds: float
) -> None:
    """Also if the pool has started anew in between."""
    first = function("resize", ok=sum(before), run=durations(*before, total=1.0))
    second = function("resize", ok=sum(now), run=durations(*now, total=0.5))
    [row] = function_rows(told(second), told(first), seconds)
    assert row["run"] == sorted(row["run"])
    assert min(row["rate"], row["busy"], *row["run"]) >= 0
