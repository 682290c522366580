"""Parts of a pool that was never started: what its end says, and how jobs are lost.

All parts are real, the core too: what a test wants to see, it has the core come to.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool import Pool
from asyncpool._core.functions import JobTraits
from asyncpool._core.lifecycle import Aftermath
from asyncpool._core.options import JobOptions
from asyncpool._core.slots import Slot
from asyncpool._engine import deaths
from asyncpool._engine.batches import MapHold
from asyncpool._engine.engine import PERIOD, Engine
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import ChunkJob, PoolJob, StreamJob
from asyncpool._engine.registry import crash_error, delivery_of
from asyncpool._engine.worker import WorkerHandle
from asyncpool.enums import CrashKind, Delivery, NextStep
from asyncpool.errors import PoolClosedError, WorkerCrashedError
from asyncpool.events import Crash
from tests.helpers import virtual_time
from tests.helpers.crashes import crash_with
from tests.helpers.functions import known_function
from tests.helpers.inside import config_of, supervisor_of
from tests.helpers.owner import Owner
from tests.helpers.patience import patience

pytestmark = pytest.mark.asyncio

ANYBODY = JobOptions()


class Parts:
    """The parts of the pool *x*; what they have to carry out stays undone."""

    def __init__(self) -> None:
        engine: Any = Engine(
            config_of(Pool(ping_timeout=None, start_timeout=30, name="x")), PoolHub()
        )
        engine.act = lambda **_: engine.core.todo.clear()
        self.engine, self.core = engine, engine.core
        self.registry = engine.registry
        self.holds = engine.holds
        self.deaths: deaths.Deaths = engine._deaths

    def queue(self, count: int) -> None:
        """Have so many more jobs wait, since there is no worker."""
        jobs = range(1_000_000, 1_000_000 + count)
        assert all(self.core.submit(job, JobTraits()) is None for job in jobs)

    def add(self, kind: type[PoolJob[Any]] = PoolJob, name: str = "f") -> PoolJob[Any]:
        """Return one more job, which is open."""
        loop, number = asyncio.get_running_loop(), self.registry.next_id()
        job = kind(number, known_function(name), ANYBODY, Owner(), loop)
        self.registry.enter(job)
        return job


async def pass_by(seconds: float) -> None:
    """Let so much of virtual time pass."""
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, over.set_result, None)
    await over


# What its end says.


@pytest.mark.logs("close-is-slow")
async def test_every_ten_seconds_it_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        parts = Parts()
        hold = MapHold("app.each")
        hold.under_way = 12
        parts.holds.hold(hold)
        for kind, name in ((PoolJob, "work"), (ChunkJob, "each"), (StreamJob, "read")):
            parts.add(kind, f"app.{name}")
        parts.add(StreamJob, "app.left").credit = 0
        parts.queue(2)
        await pass_by(30)
        assert caplog.messages == []
        parts.holds.begin()
        parts.holds.begin()
        await pass_by(15)
        parts.registry.jobs.clear()
        parts.holds.release(hold)
        await pass_by(10)
        parts.holds.stop()
        await pass_by(30)

    await asyncio.to_thread(virtual_time.run, main())
    assert caplog.messages == [
        (
            "pool x has been closing for 10 s: waiting for 4 jobs, 2 of them in the queue "
            "(1 x app.work, 1 x app.each, 1 x app.read (a stream), "
            "1 x app.left (a stream that nobody reads)); a map of app.each, 12 items under way"
        ),
        "pool x has been closing for 20 s: waiting for its workers to end",
    ]


@pytest.mark.logs("jobs-unheard")
async def test_jobs_that_end_with_the_pool_are_told_of_if_nobody_waits_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts()
    jobs = [parts.add(name=name) for name in ("f", "f", "g", "g", "h")]
    jobs[0].add_done_callback(lambda _: None)
    parts.registry.fail(jobs[4], ZeroDivisionError())
    assert isinstance(jobs[4].exception(), ZeroDivisionError)
    parts.registry.fail_all(PoolClosedError())
    parts.holds.stop()
    [message] = caplog.messages
    assert message == (
        "pool x was closed before 3 of its jobs were done, and nobody waited for them "
        "(2 x g, 1 x f)"
    )


async def test_the_lag_is_how_late_the_loop_is_while_jobs_are_open() -> None:
    async def main() -> Parts:
        loop, parts = asyncio.get_running_loop(), Parts()
        assert isinstance(loop, virtual_time.VirtualLoop)
        parts.add()
        engine = parts.engine
        engine.measure_lag()
        await pass_by(PERIOD / 2)
        loop.stall(PERIOD)  # half of it late
        await pass_by(2 * PERIOD)
        parts.registry.jobs.clear()
        await pass_by(5 * PERIOD)
        assert not engine.lag_alarm.is_set
        return parts

    parts = await asyncio.to_thread(virtual_time.run, main())
    histogram = parts.engine.lag.histogram()
    assert histogram.count == 4
    assert histogram.total == pytest.approx(PERIOD / 2, abs=0.01)


# How jobs are lost.


class DeadWorker:
    """One that has begun nothing."""

    loading = killed = broke_protocol = lacked_memory = final = False
    status = -9
    detail = traceback = silence = late_stacks = ""
    slot = generation = pid = 1
    began_at = 0.0
    stderr_tail = ()

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)


def report_of(dead: DeadWorker, kind: CrashKind | None, *, planned: bool) -> Crash:
    """Return what is told of its end; without a *kind* it is that of a worker that was ready."""
    worker, reporter = cast("WorkerHandle", dead), Parts().deaths
    kind = kind or reporter.kind_of(worker, Slot(0, ready_at=1.0), 1.0)
    after = Aftermath(NextStep.CLOSE)
    return reporter.report(worker, kind, [], None, 2.0, after, planned=planned)


@pytest.mark.parametrize(("taken", "told"), [(99, "never sent"), (100, "sent")])
async def test_half_a_frame_is_of_no_use_to_a_worker(taken: int, told: str) -> None:
    job = Parts().add()
    job.attempt, job.frame_end = 1, 100
    page = SimpleNamespace(begun=lambda *_: False)
    worker: Any = SimpleNamespace(page=page, outbox=SimpleNamespace(sent_bytes=taken))
    assert delivery_of(job, worker) == told


async def test_an_earlier_attempt_may_have_had_effects_too() -> None:
    parts = Parts()
    job = parts.add()
    job.crashes = (crash_with(),)
    assert crash_error(job, Delivery.SENT).delivery == "sent"
    parts.registry.end_attempt(job)
    assert crash_error(job, Delivery.SENT).delivery == "started"


async def test_whom_the_kernel_has_killed_lacked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int | None] = [3]
    kernel = SimpleNamespace(count=lambda: counted[0])
    monkeypatch.setattr(deaths, "OomKills", lambda: kernel)
    reporter, slot = Parts().deaths, Slot(0, ready_at=1.0)

    def kind(now: float, *, slot: Slot = slot, **worker: Any) -> str:
        dead = cast("WorkerHandle", DeadWorker(**worker))
        return reporter.kind_of(dead, slot, now)

    assert kind(7.0) == "crash", "somebody else has killed it"
    assert kind(7.0, lacked_memory=True) == "out of memory", "its own cgroup says so"
    # Several may lack memory together, and one that the pool has killed is none of them.
    counted[0] = 6
    assert kind(7.1) == "out of memory"
    reporter.poll_oom_kills(7.1)  # its successor is there
    assert kind(7.2, slot=Slot(1)) == "failed start"
    assert kind(7.2, killed=True) == kind(7.2, status=3) == "crash"
    assert [kind(7.3), kind(7.3)] == ["out of memory", "crash"]


@pytest.mark.parametrize(
    ("count", "detail"),
    [(3, ""), (None, "not by the pool; perhaps there was no memory left")],
)
async def test_where_nobody_counts_it_may_have_been_memory(
    count: int | None, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = SimpleNamespace(count=lambda: count)
    monkeypatch.setattr(deaths, "OomKills", lambda: kernel)
    crash = report_of(DeadWorker(), None, planned=False)
    assert (crash.kind, crash.detail, crash.signal) == ("crash", detail, "SIGKILL")


async def test_a_start_has_taken_too_long_unless_it_was_called_off() -> None:
    text = "killed since it was not ready within 30 s (start_timeout)"
    for planned, detail in ((False, text), (True, "")):
        dead = DeadWorker(killed=True)
        crash = report_of(dead, CrashKind.FAILED_START, planned=planned)
        assert crash.detail == detail


async def test_a_worker_that_has_ended_did_not_break_its_word_by_being_late() -> None:
    """The alarm may be due before the end of the process has been looked at."""
    async with patience(), Pool(1) as pool:
        await pool.start()
        [handle] = supervisor_of(pool).handles.values()
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        handle._on_overdue(0.0)
        assert not handle.broke_protocol
