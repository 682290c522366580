"""Who hears what of a pool; and its trace, on a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncpool._core.options import JobOptions
from asyncpool._engine.hub import PoolHub
from asyncpool._observe.trace import Trace, TraceFile
from asyncpool._observe.traces import HEAD
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool.enums import JobOutcome, RunState
from asyncpool.events import Event, JobEnded, JobEvent, JobStarted, Recovered
from asyncpool.stats import PoolStats
from tests.helpers.inside import join_writer, wait_for_disk
from tests.helpers.patience import patience
from tests.helpers.told_pool import SLOT
from tests.helpers.traces import read_trace

pytestmark = pytest.mark.asyncio

SOME = Recovered(0)
OF_A_JOB = JobStarted(job_id=1, function="f", attempt=1, slot=0, at=0.0)
END = JobEnded(
    job_id=1,
    function="f",
    outcome=JobOutcome.OK,
    attempts=1,
    slot=0,
    wait=0.0,
    run=0.0,
    at=0.0,
)


async def test_a_cancelled_wait_loses_no_event() -> None:
    hub = PoolHub()
    stream = hub.listen(10)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    # Both in the same turn, and the event first.
    hub.publish(SOME)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with patience():
        assert await anext(stream) == SOME


async def test_jobs_are_watched_as_long_as_somebody_listens() -> None:
    hub = PoolHub()
    watched = [hub.job_listeners]
    stream = hub.listen_to_jobs(10)
    hub.publish_job(OF_A_JOB)
    watched.append(hub.job_listeners)
    del stream
    gc.collect()
    hub.publish_job(OF_A_JOB)
    watched.append(hub.job_listeners)
    hub.add_job_listener(repr)
    watched.append(hub.job_listeners)
    assert hub.remove_listener(repr) == 1
    hub.publish(SOME)
    watched.append(hub.job_listeners)
    assert watched == [False, True, False, True, False]


@pytest.mark.logs("listener-failed")
async def test_a_listener_may_fail_or_remove_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub, heard, calls = PoolHub(), list[Event](), list[Event]()

    def once(event: Event) -> None:
        calls.append(event)
        assert hub.remove_listener(once) == 1
        raise ZeroDivisionError

    hub.add_listener(once)
    hub.add_listener(heard.append)
    hub.publish(SOME)
    hub.publish(SOME)
    assert (heard, calls) == ([SOME, SOME], [SOME])
    assert hub.remove_listener(once) == 0
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "failed at Recovered(slot=0)" in record.getMessage()


async def test_who_listens_to_ends_hears_of_nothing_else() -> None:
    hub, ends, all_of_it = PoolHub(), list[JobEnded](), list[Event | JobEvent]()
    job: Any = QuickJob(2)
    hub.add_end_listener(ends.append)
    hub.running([job], 0, 1.0)
    assert (hub.job_listeners, hub.step_listeners) == (True, False)
    hub.publish(SOME)
    hub.publish_end(END)
    hub.add_job_listener(all_of_it.append)
    assert hub.step_listeners
    hub.publish_end(END)
    assert hub.remove_listener(ends.append) == 1
    assert hub._attempts
    hub.publish_end(END)
    assert ends == all_of_it == [END, END]
    # Nobody hears of the end of that job, so nothing is kept of it.
    hub.remove_listener(all_of_it.append)
    assert not hub._attempts


# The trace.

START = f'{HEAD}"pid":7000,"args":{{"name":"pool shop","service":7}}}},\n'


def figures() -> PoolStats:
    return PoolStats(state=RunState.RUNNING, workers=2, queued=5, busy=2)


def trace_of(
    path: Path,
    hub: PoolHub,
    stats: Callable[[], PoolStats] = figures,
    most: int | None = None,
) -> Trace:
    about = {"trace": str(path), "title": "pool shop", "max_traced": most}
    config: Any = SimpleNamespace(**about, worker=SimpleNamespace(concurrency=1))
    return Trace(config, hub, stats)


@dataclass
class QuickJob:
    """What is read of a job that returns."""

    id: int
    attempt: int = 1
    title: str = "f"
    queued_at: float = 1.0
    options: JobOptions = field(default_factory=JobOptions)


def end_job(hub: PoolHub, job: Any, microseconds: int, now: float) -> None:
    hub.ran(job, 0, Frame(FrameKind.VALUE, job.id, 1, microseconds, b""), now)
    hub.job_ended(job, JobOutcome.OK)


def run_jobs(hub: PoolHub, first: int, count: int) -> None:
    for number in range(first, first + count):
        job: Any = QuickJob(number)
        if hub.announces_jobs:
            hub.queued(job)
        if hub.job_listeners or hub.tracers:
            end_job(hub, job, 500_000, 2.5)


async def test_what_runs_for_long_is_shown_although_there_are_too_many_jobs(
    tmp_path: Path,
) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()
    slots = [SLOT]
    trace = trace_of(path, hub, lambda: replace(figures(), slots=tuple(slots)), 1)
    trace.limit.next_at = math.inf
    job: Any = QuickJob(815, title="shop.resize")
    assert hub.announces_jobs
    hub.queued(job)
    trace._write_all()
    trace._write_all()
    slots.clear()
    end_job(hub, job, 3_000_000, time.monotonic())
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
    trace._write_all()
    wait_for_disk(trace, 100 << 20)
    run_jobs(hub, 1, 10)
    trace._write_all()
    wait_for_disk(trace, 0)
    run_jobs(hub, 11, 10)
    trace._write_all()
    hub.end()
    found = read_trace(path)
    assert [slice_.args["job"] for slice_ in found.slices] == list(range(11, 21))
    (missing,) = [i for i in found.instants if i["name"] == "lines are missing"]
    assert missing["args"]["lines"] == 20 + 2  # two events of each, and the slot's name


@pytest.mark.logs("trace-ended")
async def test_nobody_is_told_of_jobs_behind_the_end_of_a_disk() -> None:
    hub = PoolHub()
    trace = trace_of(Path("/dev/full"), hub)
    trace._hand_over()
    join_writer(trace)
    watched = [bool(hub.tracers)]
    trace._write_all()
    run_jobs(hub, 1, 1)
    watched.append(bool(hub.tracers))
    assert watched == [True, False]
    hub.end()


@pytest.mark.logs("reader-failed")
async def test_figures_that_cannot_be_had_cost_only_themselves(tmp_path: Path) -> None:
    path, hub = tmp_path / "trace.json", PoolHub()

    def broken() -> PoolStats:
        raise OSError(errno.EMFILE, "too many open files")

    trace_of(path, hub, broken)
    run_jobs(hub, 1, 3)
    hub.end()
    trace = read_trace(path)
    assert trace.whole
    assert len(trace.slices) == 3


def refusal(path: Path) -> OSError:
    """Return the error of a trace that cannot be written."""
    with pytest.raises(OSError, match="pool shop cannot write its trace") as caught:
        TraceFile(str(path), "pool shop")
    error = caught.value
    assert error.filename == str(path)
    assert "name another file by trace, or leave trace out" in str(error)
    return error


async def test_only_a_trace_is_replaced_and_only_by_one_pool(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in (f"{START}{{}},\n" * 3, START, START[:20], ""):
        path.write_text(text)
        file = TraceFile(str(path), "pool shop")
        assert "another pool or cluster writes it" in str(refusal(path))
        file.put([START])
        file.close()
        assert path.read_text() == START
    other = tmp_path / "orders.json"
    other.write_text('[\n{"order":1}]')
    assert "there is a file that is no trace" in str(refusal(other))
    assert other.read_text() == '[\n{"order":1}]'
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe).errno == errno.EINVAL, "nobody reads it, so it would wait"
    assert type(refusal(tmp_path / "nowhere" / "t.json")) is FileNotFoundError
    assert type(refusal(tmp_path)) is IsADirectoryError
