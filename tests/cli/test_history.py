"""What a terminal shows of the last minute: rates, latencies, CPU, crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._cli.live.history import History, quantile, sparkline
from asyncpool._cli.live.live_view import brief


def line(at: float, **changes: Any) -> dict[str, Any]:
    status = {"kind": "pool", "slots": [{"slot": 0, "pid": 7, "cpu": at / 2}]}
    return {"at": at, "status": status, "events": [], "jobs": [], "ended": 0, **changes}


def row(wait: float, run: float) -> list[Any]:
    return [1, "f", 0, 0, 0.0, wait, run, "ok", 1]


def test_rates_and_latencies() -> None:
    history = History()
    history.add(line(100.0, ended=5))
    jobs = [row(0.0, number / 100) for number in range(1, 101)]
    history.add(line(100.5, ended=200, jobs=jobs))
    history.add(line(101.5))
    first, second = history.moments
    assert (first.rate, first.median, first.slowest) == (400.0, 0.5, 0.99)
    assert (second.rate, second.median, second.slowest) == (0.0, None, None)
    assert history.cpu == {0: 50.0}


def test_a_server_counts_connections() -> None:
    history = History()
    for at, handed in ((1.0, 10), (2.0, 25)):
        status = {"kind": "cluster", "handed": handed, "slots": []}
        history.add(line(at, status=status))
    assert history.moments[-1].rate == 15.0


def test_only_the_last_minute_is_kept() -> None:
    history = History()
    for at in range(200):
        history.add(line(float(at)))
    assert [history.moments[0].at, history.moments[-1].at] == [139.0, 199.0]


def test_a_new_worker_has_no_cpu_use_yet() -> None:
    history = History()
    history.add(line(1.0))
    slots = [{"slot": 0, "pid": 8, "cpu": 0.1}, {"slot": 1, "pid": None, "cpu": 0.0}]
    history.add(line(2.0, status={"kind": "pool", "slots": slots}))
    assert history.cpu == {}


def test_the_last_crashes_are_kept() -> None:
    history = History()
    for at in range(9):
        crashed = {"type": "Crashed", "at": float(at), "crash": {"slot": at}}
        other = {"type": "Ready", "at": float(at), "slot": at}
        history.add(line(float(at), events=[crashed, other]))
    assert [crash["slot"] for _, crash in history.crashes] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 3, "   "),
        ([0.0, 0.0], 3, " ▁▁"),
        ([0.0, 4.0, 8.0], 3, "▁▅█"),
        ([8.0, None, 4.0], 4, " █ ▅"),
        ([9.0, 1.0, 2.0], 2, "▅█"),
    ],
)
def test_sparklines(values: list[float | None], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown


@given(st.lists(st.none() | st.floats(0, 1e300), max_size=80), st.integers(1, 60))
def test_a_sparkline_has_its_width(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width)) == width


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_quantiles(share: float, found: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == found
    assert quantile([], share) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (8.2e-05, "82 µs"),
        (0.01234, "12.3 ms"),
        (1.5, "1.5 s"),
        (4000.0, "4,000 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert brief(seconds) == text
