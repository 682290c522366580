"""What is known of a program, and what is new for each who shows it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._observe.history import History, crash_row, function_rows
from asyncpool.stats import FunctionStats
from tests.helpers.told_lines import (
    BEGIN,
    as_read,
    cluster_status,
    crashed,
    durations,
    function,
    job,
    line,
    pool_status,
    slot,
)


def told(*lines: dict[str, Any]) -> History:
    history = History()
    for each in lines:
        history.add(each)
    return history


def test_a_history_shows_figures_jobs_and_crashes() -> None:
    slots = [slot(0, running="shop.resize"), slot(1)]
    first = line(0.0, pool_status(slots=slots))
    second = line(
        0.5,
        pool_status(functions=[function("shop.mail", ok=4)], slots=slots, queued=3),
        jobs=[job(6, 0.3), job(7, 0.4, "shop.mail", "raised")],
        ended=4,
        events=[crashed(0.2), {"type": "Ready", "slot": 0}],
        lost=1,
    )
    shown = told(first, second).since(0)
    assert shown["cursor"] == 2
    assert shown["fresh"] is True
    assert shown["at"] == BEGIN + 0.5
    assert shown["program"]["queued"] == 3
    assert "functions" not in shown["program"]
    assert [point["ok"] for point in shown["points"]] == [8.0]
    assert shown["names"] == ["shop.resize", "shop.mail"]
    assert shown["jobs"] == [
        [6, 0, 0, 0, BEGIN + 0.2, BEGIN + 0.3, 0.01, "ok", 1],
        [7, 1, 0, 0, BEGIN + 0.3, BEGIN + 0.4, 0.01, "raised", 1],
    ]
    assert shown["sample"] == {"shown": 2, "ended": 4, "lost": 1}
    assert [row["index"] for row in shown["functions"]] == [1]
    assert [each["running"] for each in shown["slots"]] == [[[7, 0, 1, 0.5]], []]
    assert [crash["at"] for crash in shown["crashes"]] == [BEGIN + 0.2]


@given(asked=st.lists(st.booleans(), min_size=1, max_size=30))
def test_whenever_somebody_asks_nothing_is_missed_or_told_twice(
    asked: list[bool],
) -> None:
    history, cursor = History(), 0
    points, jobs, crashes, names = list[Any](), list[Any](), list[Any](), list[str]()
    for number, asks in enumerate([*asked, True]):
        name = f"shop.f{number % 7}"
        history.add(
            line(
                float(number),
                pool_status(slots=[slot(0, running=f"shop.g{number % 5}")]),
                jobs=[job(number, number, name)],
                events=[crashed(number)],
            )
        )
        if asks:
            shown = history.since(cursor)
            cursor = shown["cursor"]
            names = shown["names"] or names
            points += [point["at"] - BEGIN for point in shown["points"]]
            jobs += [(told[0], names[told[1]]) for told in shown["jobs"]]
            crashes += [crash["at"] - BEGIN for crash in shown["crashes"]]
            [running] = shown["slots"][0]["running"]
            assert names[running[1]] == f"shop.g{number % 5}"
    numbers = range(len(asked) + 1)
    assert points == [*numbers][1:]
    assert jobs == [(number, f"shop.f{number % 7}") for number in numbers]
    assert crashes == [*numbers]


def test_a_live_history_forgets_what_is_old() -> None:
    history = History()
    for number in range(650):
        history.add(
            line(
                number / 2,
                pool_status(),
                jobs=[job(number * 20 + each, number / 2) for each in range(20)],
                events=[crashed(number)] if number % 10 == 0 else [],
            )
        )
    shown = history.since(0)
    assert len(shown["points"]) == 600
    assert len(shown["jobs"]) == 12_000
    assert shown["jobs"][-1][0] == 12_999
    assert len(shown["crashes"]) == 50


def test_a_program_that_starts_anew_goes_on_in_the_same_history() -> None:
    def after(at: float, ok: int, pid: int) -> dict[str, Any]:
        status = pool_status(functions=[function("shop.resize", ok=ok)], pid=pid)
        return line(at, status)

    shown = told(after(0, 100, 1), after(1, 110, 1), after(2, 7, 2), after(3, 9, 2))
    assert [point["ok"] for point in shown.since(0)["points"]] == [10.0, 7.0, 2.0]
    [row] = shown.since(0)["functions"]
    assert row["rate"] == 2.0


def test_names_have_a_bound_and_the_rest_share_one() -> None:
    jobs = [job(number, 0.0, f"f{number}") for number in range(700)]
    shown = told(line(0.0, pool_status(), jobs=jobs)).since(0)
    assert len(shown["names"]) == 501
    assert shown["names"][-1] == "other"
    assert [told[1] for told in shown["jobs"][-2:]] == [500, 500]


def test_nothing_is_kept_of_a_line_that_makes_no_sense() -> None:
    history = told(line(0.0, pool_status()))
    changes: list[dict[str, Any]] = [
        {"jobs": [[1]]},
        {"events": [{"type": "Crashed"}]},
        {"status": {}},
    ]
    for change in changes:
        with pytest.raises((KeyError, TypeError, ValueError)):
            history.add(line(1.0, pool_status(), **change))
    assert history.cursor == 1
    assert history.since(1)["points"] == []


def as_told(*functions: FunctionStats) -> list[dict[str, Any]]:
    return [as_read(asdict(each)) for each in functions]


def test_a_row_is_about_what_has_happened_since() -> None:
    slow = durations(100, 0, 0, 20, total=0.2)
    before = as_told(function("resize", ok=100, run=durations(100, total=0.1)))
    now = as_told(function("resize", ok=110, raised=10, run=slow))
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
    [row] = function_rows(as_told(second), as_told(first), seconds)
    assert row["run"] == sorted(row["run"])
    assert min(row["rate"], row["busy"], *row["run"]) >= 0


def test_its_texts_are_cut() -> None:
    event = crashed(
        0.0, stack="s" * 50_000, stderr_tail=("e" * 5_000,) * 200, signal=None
    )
    row = crash_row(event["at"], event["crash"])
    assert row["signal"] == ""
    assert len(row["stack"]) == 20_000
    assert len(row["stderr"]) == 80
    assert {len(line) for line in row["stderr"]} == {500}


def test_the_requests_of_a_server_are_rates_by_class_and_a_share_of_their_times() -> (
    None
):
    def after(at: float, quick: int, failed: int) -> dict[str, Any]:
        responses = {
            "2xx": {"bounds": [0.001, 0.002], "counts": [quick, 0], "total": 1.0},
            "5xx": {"bounds": [4.0], "counts": [failed], "total": 3.0},
        }
        return line(at, cluster_status(responses=responses if quick else None))

    shown = told(after(0, 0, 0), after(1, 100, 0), after(2, 300, 100))
    first, second = shown.since(0)["points"]
    assert (first["2xx"], first["5xx"], second["2xx"], second["5xx"]) == (
        100.0,
        0.0,
        200.0,
        100.0,
    )
    assert (first["rate"], second["rate"]) == (100.0, 300.0)
    assert first["p99"] <= 0.001
    assert 2.0 < second["p99"] <= 4.0
