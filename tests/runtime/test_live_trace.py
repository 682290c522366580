"""The reader of a pool's events that writes its trace: what it hands to the disk, and when."""

from __future__ import annotations

import errno
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._observe.trace import Trace
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.monitoring.job_watch import JobWatch
from asyncpool.enums import JobOutcome, RunState
from asyncpool.events import Resized
from asyncpool.stats import PoolStats
from tests.helpers.inside import join_writer, wait_for_disk
from tests.helpers.told_pool import SLOT
from tests.helpers.traces import read_trace

pytestmark = pytest.mark.asyncio


def figures() -> PoolStats:
    return PoolStats(state=RunState.RUNNING, workers=2, queued=5, busy=2)


def trace_of(path: Path, hub: PoolHub) -> Trace:
    return Trace(
        str(path), name="shop", concurrency=1, hub=hub, stats=figures, most=None
    )


def run_jobs(hub: PoolHub, first: int, count: int) -> None:
    watch = JobWatch(hub)
    for number in range(first, first + count):
        job: Any = QuickJob(number)
        if hub.on_new is not None:
            hub.on_new(job)
        if hub.watched:
            watch.ran(job, 0, Frame(FrameKind.VALUE, number, 1, 500_000, b""), 2.5)
            watch.ended(job, JobOutcome.OK)


@dataclass
class QuickJob:
    """What is read of a job that returns."""

    id: int
    attempt: int = 1
    _title: str = "f"
    _queued_at: float = 1.0
    _options: JobOptions = field(default_factory=JobOptions)


async def test_the_trace_has_all_from_the_first_event_to_the_end(
    tmp_path: Path,
) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()
    trace_of(path, hub)
    run_jobs(hub, 1, 2000)
    hub.publish(Resized(3))
    hub.end()
    trace = read_trace(path)
    assert trace.whole
    assert [slice_.args["job"] for slice_ in trace.slices] == list(range(1, 2001))
    assert trace.counters["queued jobs"] == [5]
    assert [i["name"] for i in trace.instants][:1] == ["resized"]


async def test_what_runs_for_long_is_shown_although_there_are_too_many_jobs(
    tmp_path: Path,
) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()
    slots = [SLOT]
    trace = Trace(
        str(path),
        name="shop",
        concurrency=1,
        hub=hub,
        stats=lambda: replace(figures(), slots=tuple(slots)),
        most=1,
    )
    trace.jobs.limit.next_at = math.inf
    job: Any = QuickJob(815, _title="shop.resize")
    assert hub.on_new is not None
    hub.on_new(job)
    trace._look()
    trace._look()
    slots.clear()
    watch = JobWatch(hub)
    now = time.monotonic()
    watch.ran(job, 1, Frame(FrameKind.VALUE, 815, 1, 3_000_000, b""), now)
    watch.ended(job, JobOutcome.OK)
    hub.end()
    found = read_trace(path)
    (long,) = found.slices
    assert (long.name, long.args["outcome"]) == ("shop.resize", "ok")
    assert long.end is not None
    assert found.counters["jobs not shown"] == [0]
    assert hub.traced == set()


async def test_what_is_lost_is_counted_in_the_trace(tmp_path: Path) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()
    trace = trace_of(path, hub)
    trace._look()
    wait_for_disk(trace, 100 << 20)
    run_jobs(hub, 1, 10)
    trace._look()
    wait_for_disk(trace, 0)
    run_jobs(hub, 11, 10)
    trace._look()
    hub.end()
    found = read_trace(path)
    assert [slice_.args["job"] for slice_ in found.slices] == list(range(11, 21))
    (missing,) = [i for i in found.instants if i["name"] == "lines are missing"]
    assert missing["args"]["lines"] == 20 + 1  # two events of each, and the slot's name


async def test_nobody_is_told_of_jobs_behind_the_end_of_a_disk() -> None:
    hub = PoolHub()
    trace = trace_of(Path("/dev/full"), hub)
    trace._hand_over()
    join_writer(trace)
    watched = [hub.watched]
    trace._look()
    run_jobs(hub, 1, 1)
    watched.append(hub.watched)
    assert watched == [True, False]
    hub.end()


@pytest.mark.logs("reader-failed")
async def test_figures_that_cannot_be_had_cost_only_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()

    def broken() -> PoolStats:
        raise OSError(errno.EMFILE, "too many open files")

    Trace(str(path), name="shop", concurrency=1, hub=hub, stats=broken, most=None)
    run_jobs(hub, 1, 3)
    hub.end()
    trace = read_trace(path)
    assert trace.whole
    assert len(trace.slices) == 3
    (record,) = caplog.records
    assert record.getMessage().endswith("failed at the end of the pool")


async def test_pools_of_one_service_have_numbers_of_their_own(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        hub = PoolHub()
        trace_of(tmp_path / name, hub)
        hub.end()
        texts.append((tmp_path / name).read_text().splitlines()[1])
    assert texts[0] != texts[1]
