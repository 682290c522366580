"""Workers that are left alone for a round: their outcomes are read together."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    Crash,
    Pool,
    WorkerCrashedError,
    WorkerLimits,
    WorkerOutOfMemoryError,
)
from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool._runtime.worker.handle import WorkerHandle
from tests.helpers import faults, jobs
from tests.helpers.ahead import expect, never_look
from tests.helpers.gate import Gate
from tests.helpers.inside import check_for_stalls, watching
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, closing

pytestmark = BOTH_LOOPS


async def go_on(pool: Pool, last: asyncio.Future[Any]) -> None:
    """Make rounds, which nobody else makes, until a job is done."""
    while not last.done():
        check_for_stalls(pool)
        await asyncio.sleep(0)


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a worker is left alone."""
    event, rest = asyncio.Event(), WorkerHandle.pause_reading

    def note(self: WorkerHandle) -> None:
        event.set()
        rest(self)

    monkeypatch.setattr(WorkerHandle, "pause_reading", note)
    # What is expected stays so, however short the jobs really are.
    monkeypatch.setattr(JobTraits, "note", lambda *_: None)
    return event


async def test_outcomes_of_a_worker_that_has_enough_to_do_are_read_together(
    monkeypatch: pytest.MonkeyPatch, rested: asyncio.Event
) -> None:
    reads: list[int] = []
    on_outcomes = Traffic.on_outcomes

    def count(self: Traffic, handle: WorkerHandle, frames: list[Frame]) -> None:
        reads.append(len(frames))
        on_outcomes(self, handle, frames)

    monkeypatch.setattr(Traffic, "on_outcomes", count)
    async with patience(), Pool(1) as pool:
        await expect(pool, time.sleep, 1000.0)
        many = [pool.submit(time.sleep, 0.001) for _ in range(400)]
        await asyncio.gather(*many)
        assert rested.is_set()
        assert sum(reads) == 400
        assert len(reads) <= 200
        await assert_serves(pool)


async def test_what_a_worker_has_done_counts_though_it_dies_while_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, rested: asyncio.Event
) -> None:
    never_look(monkeypatch)  # but as told below
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        await expect(pool, jobs.perhaps_die, 1000.0)
        before = [pool.submit(jobs.perhaps_die, n) for n in range(4)]
        culprit = pool.submit(jobs.perhaps_die, 4, how="kill")
        behind = [pool.submit(jobs.perhaps_die, n) for n in range(5, 40)]
        await rested.wait()
        with pytest.raises(WorkerCrashedError) as caught:
            await culprit
        assert caught.value.delivery == "started"
        assert await asyncio.gather(*before) == [0, 1, 2, 3]
        await go_on(pool, behind[-1])
        assert await asyncio.gather(*behind) == list(range(5, 40))
        assert [job.attempt for job in (*before, *behind)] == [1] * 39
    assert [crash.job_id for crash in crashes] == [culprit.id]


async def test_what_it_has_done_is_not_done_again_though_the_pool_kills_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch, rested: asyncio.Event, tmp_path: Path
) -> None:
    never_look(monkeypatch)
    path = tmp_path / "signatures"
    limits = WorkerLimits(kill_memory=64_000_000)
    async with patience(), Gate() as gate, Pool(1, worker_limits=limits) as pool:
        await expect(pool, faults.sign, 1000.0)
        sign = functools.partial(pool.submit, faults.sign, str(path))
        held = [sign(n, jobs.wait_at, gate.path, f"job {n}") for n in range(2)]
        before = [sign(n) for n in range(2, 6)]
        culprit = sign(6, faults.grow, 100_000_000)
        behind = [sign(n) for n in range(7, 40)]
        (await gate.visitor("job 0")).release()
        await rested.wait()
        # From here on nothing is read, so all that they have to say is there at its end.
        (await gate.visitor("job 1")).release()
        with pytest.raises(WorkerOutOfMemoryError):
            await culprit
        await go_on(pool, behind[-1])
        assert await asyncio.gather(*held) == ["go", "go"]
        assert await asyncio.gather(*before, *behind) == [*range(2, 6), *range(7, 40)]
    numbers = [int(line.split()[0]) for line in path.read_text().splitlines()]
    assert sorted(numbers) == [*range(40)]


@pytest.mark.parametrize(
    ("limits", "count"), [({"timeout": 0.5}, 8), ({"queue_timeout": 0.5}, 16)]
)
async def test_what_a_worker_left_alone_has_done_is_heard_before_it_is_late(
    limits: dict[str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    rested: asyncio.Event,
) -> None:
    never_look(monkeypatch)
    async with patience(), Pool(1) as pool:
        await expect(pool, time.sleep, 1000.0)
        view = pool.options(**limits)
        timed = [view.submit(time.sleep, 0.001) for _ in range(count)]
        others = [pool.submit(time.sleep, 0.001) for _ in range(60)]
        await rested.wait()
        # Their outcomes are there, and it is only their limit that has them read.
        assert await asyncio.gather(*timed) == [None] * count
        await go_on(pool, others[-1])


async def test_a_job_that_turns_out_to_be_long_is_noticed_in_a_worker_left_alone(
    rested: asyncio.Event,
) -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        await expect(pool, jobs.perhaps_wait, 1000.0)
        before = [pool.submit(jobs.perhaps_wait) for _ in range(6)]
        long = pool.submit(jobs.perhaps_wait, gate.path)
        behind = [pool.submit(jobs.perhaps_wait) for _ in range(300)]
        visitor = await gate.visitor()
        await asyncio.gather(*before, *behind)
        assert rested.is_set()
        assert not long.done()
        visitor.release()
        assert isinstance(await long, int)
        assert pool.stats().spawned == 2


@pytest.mark.parametrize("finish", ["all", "running", "none"])
async def test_a_pool_may_be_closed_while_its_workers_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, rested: asyncio.Event, finish: Any
) -> None:
    if finish == "none":
        never_look(monkeypatch)
    async with patience():
        pool = Pool(2)
        await pool.start()
        await expect(pool, time.sleep, 1000.0)
        many = [pool.submit(time.sleep, 0.001) for _ in range(100)]
        await rested.wait()
        summary = await (await closing(pool, finish=finish))
        results = await asyncio.gather(*many, return_exceptions=True)
        failed = sum(isinstance(result, Exception) for result in results)
    assert failed == summary.failed
    assert (failed == 0) is (finish == "all")
    assert not watching(pool)
