"""What has happened between two lines of a program, also of one that has started anew."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.history.history import (
    Snapshot,
    outcome_group,
    point_between,
    snapshot_of,
)
from asyncpool.enums import JobOutcome
from tests.helpers.told_lines import BEGIN, cluster_status, function, pool_status, slot

times = st.floats(0, 1e6)
counts = st.integers(0, 10**9)


def snapshot(at: float, ok: float, pid: int = 1, cpu: float = 0.0) -> Snapshot:
    return Snapshot(
        at=at,
        pid=pid,
        counts={"ok": ok},
        gauges={"queued": 0},
        cpu={(0, 1): cpu},
        memory={0: 100},
    )


@given(history=st.lists(counts, min_size=2, max_size=20))
def test_rates_add_up_to_what_has_grown(history: list[int]) -> None:
    grown = sorted(history)
    taken = [snapshot(float(at), ok) for at, ok in enumerate(grown)]
    points = [point_between(*pair) for pair in itertools.pairwise(taken)]
    assert sum(point["ok"] for point in points) == grown[-1] - grown[0]


@given(
    begin=times,
    end=times,
    before=counts,
    after=counts,
    pids=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_no_rate_is_below_zero(
    begin: float, end: float, before: int, after: int, pids: tuple[int, int]
) -> None:
    first = snapshot(begin, before, pids[0], cpu=before / 1e3)
    second = snapshot(end, after, pids[1], cpu=after / 1e3)
    point = point_between(first, second)
    assert point["ok"] >= 0
    assert point["cpu"][0] >= 0


def test_a_new_process_has_begun_at_zero() -> None:
    point = point_between(snapshot(0.0, 1000, pid=1), snapshot(2.0, 40, pid=2))
    assert point["ok"] == 20.0


def test_a_point_of_a_pool() -> None:
    status = pool_status(
        functions=[
            function("resize", ok=10, raised=2, cancelled=1),
            function("mail", ok=5, crashed=1, timeout=1, aborted=3),
        ],
        slots=[slot(0, cpu=1.0), slot(1, cpu=2.0), slot(2, pid=None)],
        queued=4,
        oldest_queued=0.25,
        busy=1,
    )
    before = Snapshot(BEGIN, 400, {}, {}, cpu={(0, 1): 0.5, (1, 9): 50.0})
    assert point_between(before, snapshot_of(BEGIN + 2, status)) == {
        "at": BEGIN + 2,
        "ok": 7.5,
        "failed": 2.0,
        "other": 2.0,
        "queued": 4,
        "oldest_queued": 0.25,
        "busy": 1,
        "workers": 3,
        "cpu": {0: 0.25, 1: 1.0},
        "memory": {0: 12_000_000, 1: 12_000_000},
    }


def test_a_point_of_a_server() -> None:
    before = snapshot_of(BEGIN, cluster_status(handed=10))
    after = snapshot_of(BEGIN + 2, cluster_status(handed=30, connections=3))
    assert point_between(before, after) == {
        "at": BEGIN + 2,
        "handed": 10.0,
        "connections": 3,
        "ready": 1,
        "workers": 1,
        "cpu": {0: 0.0},
        "memory": {0: 12_000_000},
    }


def test_each_outcome_is_in_a_group() -> None:
    groups = {outcome: outcome_group(outcome) for outcome in JobOutcome}
    assert groups == {
        "ok": "ok",
        "raised": "failed",
        "crashed": "failed",
        "timeout": "failed",
        "cancelled": "other",
        "refused": "other",
        "aborted": "other",
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [({"slots": None}, TypeError), ({"queued": "4"}, TypeError)],
)
def test_a_status_that_makes_no_sense_is_an_error(
    change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        snapshot_of(BEGIN, pool_status() | change)
    with pytest.raises(KeyError):
        snapshot_of(BEGIN, {"slots": []})
