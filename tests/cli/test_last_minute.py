"""What a terminal shows of the last minute: rates, latencies, CPU, crashes."""

from __future__ import annotations

import dataclasses
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from asyncpool._cli.live.status_command import LastMinute, quantile, sparkline
from asyncpool._cli.live.status_view import brief, status_view
from asyncpool.stats import SlotStats
from tests.helpers.told_lines import (
    BEGIN,
    cluster_status,
    crashed,
    function,
    job,
    line,
    pool_status,
    slot,
)
from tests.helpers.told_pool import NODE


def told(at: float, ok: int = 0, *slots: SlotStats, **more: Any) -> dict[str, Any]:
    """Return a line of a pool that has done *ok* jobs so far."""
    return line(at, pool_status(functions=[function("f", ok)], slots=slots), **more)


def test_rates_and_latencies() -> None:
    minute = LastMinute()
    minute.add(told(0.0, 5, slot(0, cpu=1.0)))
    jobs = [job(number, 0.5, run=number / 100 - 0.01) for number in range(1, 101)]
    minute.add(told(0.5, 205, slot(0, cpu=1.25), jobs=jobs))
    minute.add(told(1.5, 205, slot(0, cpu=1.75)))
    first, second = minute.moments
    assert first.rate == 400.0
    assert (first.median, first.slowest) == pytest.approx((0.5, 0.99))
    assert (second.rate, second.median, second.slowest) == (0.0, None, None)
    assert minute.cpu == {0: 50.0}


def test_jobs_count_however_they_end() -> None:
    minute = LastMinute()
    minute.add(line(0.0, pool_status()))
    functions = [function("f", ok=1, raised=2, cancelled=4), function("g", crashed=8)]
    minute.add(line(1.0, pool_status(functions=functions)))
    assert minute.moments[-1].rate == 15.0


def test_a_server_counts_connections() -> None:
    minute = LastMinute()
    for at, handed in ((1.0, 10), (2.0, 25)):
        minute.add(line(at, cluster_status(handed=handed)))
    assert minute.moments[-1].rate == 15.0


def test_only_the_last_minute_is_kept() -> None:
    minute = LastMinute()
    for at in range(200):
        minute.add(told(float(at)))
    kept = [minute.moments[0].at - BEGIN, minute.moments[-1].at - BEGIN]
    assert kept == [139.0, 199.0]


def test_a_new_worker_has_used_the_cpu_since_its_start_only() -> None:
    minute = LastMinute()
    minute.add(told(0.0, 0, slot(0, cpu=60.0)))
    minute.add(told(2.0, 0, slot(0, cpu=0.5, generation=2), slot(1, pid=None)))
    assert minute.cpu == {0: 25.0}


def test_the_last_crashes_are_kept() -> None:
    minute = LastMinute()
    for at in range(9):
        ready = {"type": "Ready", "at": float(at), "slot": at}
        minute.add(told(float(at), events=[crashed(at, slot=at), ready]))
    assert [crash["slot"] for _, crash in minute.crashes] == [4, 5, 6, 7, 8]


def test_nodes_are_rows_of_the_status() -> None:
    silent = dataclasses.replace(NODE, name="10.0.0.2", first_slot=10_000)
    nodes = (NODE, dataclasses.replace(silent, suspected=True, clock_error=None))
    console = Console(width=200, record=True, file=StringIO())
    console.print(status_view(pool_status(nodes=nodes, slots=[slot(0)])))
    lines = [" ".join(row.split()) for row in console.export_text().splitlines()]
    [head] = [row for row in lines if row.endswith(" node")]
    at = lines.index(head)
    assert lines[at + 1 : at + 3] == [
        "0+ ready 0.5 s 3 2 3/4 5 1:02 5 MB \N{PLUS-MINUS SIGN}1.5 ms 10.0.0.1",
        "10000+ silent 0.5 s 3 2 3/4 5 1:02 5 MB ? 10.0.0.2",
    ]
    console.print(status_view(pool_status(slots=[slot(0)])))
    assert "node" not in console.export_text()


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
