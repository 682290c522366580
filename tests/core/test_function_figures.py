"""Figures by function: each job counts once, and the names are bounded."""

from __future__ import annotations

import pytest

from asyncpool._core.figures.function_figures import (
    MOST_NAMES,
    OTHER,
    FunctionTotals,
)
from asyncpool.enums import JobOutcome


def test_nothing_is_told_of_functions_of_which_no_job_has_ended() -> None:
    totals = FunctionTotals()
    totals.of("shop.resize", "submit").ran(5, 100_000)
    assert totals.stats() == ()


def test_jobs_are_counted_by_function_way_and_outcome() -> None:
    totals = FunctionTotals()
    totals.of("shop.resize", "submit").ok += 2
    totals.of("shop.resize", "submit").ended(JobOutcome.CRASHED)
    totals.of("shop.resize", "map").ended(JobOutcome.TIMEOUT)
    totals.of("shop.resize", "map").ended(JobOutcome.TIMEOUT)
    called, mapped = totals.stats()
    assert (called.function, called.via) == ("shop.resize", "submit")
    assert {kind: count for kind, count in called.jobs.items() if count} == {
        "ok": 2,
        "crashed": 1,
    }
    assert (mapped.function, mapped.via) == ("shop.resize", "map")
    assert mapped.jobs[JobOutcome.TIMEOUT] == 2
    assert set(mapped.jobs) == set(JobOutcome), "those that never were are 0"


def test_run_and_wait_are_apart() -> None:
    totals = FunctionTotals()
    figures = totals.of("shop.resize", "submit")
    figures.ran(1500, 250_000)
    figures.ran(1500, -1000)  # its clock is another one
    figures.ok += 2
    [stats] = totals.stats()
    assert (stats.run.bounds, stats.run.counts) == ((0.002048,), (2,))
    assert stats.run.total == pytest.approx(0.003)
    assert stats.wait.count == 2
    assert stats.wait.total == pytest.approx(0.25)


def test_later_functions_share_their_figures() -> None:
    totals = FunctionTotals(most=2)
    for name in ("a", "b", "c", "d"):
        totals.of(name, "submit").ok += 1
    totals.of("e", "map").ok += 1
    totals.of("a", "submit").ok += 1
    told = {(one.function, one.via): one.jobs[JobOutcome.OK] for one in totals.stats()}
    assert told == {
        ("a", "submit"): 2,
        ("b", "submit"): 1,
        (OTHER, "submit"): 2,
        (OTHER, "map"): 1,
    }


def test_a_pool_keeps_as_many_names_as_it_says() -> None:
    totals = FunctionTotals()
    for number in range(MOST_NAMES + 50):
        totals.of(f"module.function_{number}", "submit").ok += 1
    told = totals.stats()
    assert len(told) == MOST_NAMES + 1
    assert told[-1].function == OTHER
    assert told[-1].jobs[JobOutcome.OK] == 50
