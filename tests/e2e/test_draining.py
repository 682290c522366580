"""A pool that finishes all its jobs works on meanwhile as an open one does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncpool import CloseSummary, Pool, PoolClosedError, RollResult, WorkerLimits
from asyncpool.events import Retiring
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, next_of

pytestmark = BOTH_LOOPS


async def leaving(pool: Pool) -> asyncio.Task[None]:
    """Return a task that has begun to leave the context of *pool*."""
    task = asyncio.create_task(pool.__aexit__(None, None, None))
    await asyncio.sleep(0)
    assert pool.stats().state == "closing"
    return task


async def test_who_leaves_the_context_waits_without_a_limit() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitor = await gate.visitor()
        left = await leaving(pool)
        core = pool._running()._core
        assert (core.closing.due, core.next_deadline()) == (None, None)
        visitor.release()
        (await gate.visitor(nth=2)).release()
        await left
        assert [job.result() for job in work] == ["go", "go"]


async def test_a_context_may_have_a_limit() -> None:
    async with patience(), Gate() as gate:
        async with Pool(1, close_timeout=0.1) as pool:
            job = pool.submit(jobs.sleep, gate.path, "")
            visitor = await gate.visitor()
        await visitor.gone()
        with pytest.raises(PoolClosedError):
            await job


async def test_a_close_has_no_limit_unless_one_is_given() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1, close_timeout=0.1).__aenter__()
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        close = await closing(pool)
        assert pool._running()._core.next_deadline() is None
        visitor.release()
        assert await close == CloseSummary(finished=1, failed=0, killed=0)
        assert await job == "go"


async def test_it_replaces_workers() -> None:
    limits = WorkerLimits(max_jobs=1, jitter=0.0)
    async with patience(), Gate() as gate:
        pool = await Pool(1, limits=limits).__aenter__()
        events = pool.events()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(4)]
        close = await closing(pool)
        pids: list[int] = []
        for nth in range(1, 5):
            visitor = await gate.visitor(nth=nth)
            pids.append(visitor.pid)
            if nth == 2:  # its replacement is ready before the third begins
                assert (await next_of(events, Retiring)).reason == "max_jobs"
            visitor.release()
        assert await asyncio.gather(*work) == ["go"] * 4
        assert (await close).finished == 4
    assert pids[0] != pids[2]
    assert pool.stats().crashes == 0


async def test_it_grows() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool((1, 3)).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(5)]
        close = await closing(pool)
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2, 3)]
        assert len({visitor.pid for visitor in visitors}) == 3
        for visitor in visitors:
            visitor.release()
        for nth in (4, 5):
            (await gate.visitor(nth=nth)).release()
        assert await asyncio.gather(*work) == ["go"] * 5
        assert (await close).finished == 5


async def test_a_roll_and_a_resize_go_on() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(4)]
        first = await gate.visitor()
        roll = asyncio.create_task(pool.roll())
        resize = asyncio.create_task(pool.resize(2))
        close = await closing(pool)
        visitors = [first, *[await gate.visitor(nth=nth) for nth in (2, 3)]]
        assert visitors[0].pid not in {visitor.pid for visitor in visitors[1:]}
        first.release()
        assert await roll == RollResult(replaced=1, trouble="", crash=None)
        await resize
        visitors[1].release()
        visitors[2].release()
        (await gate.visitor(nth=4)).release()
        assert await asyncio.gather(*work) == ["go"] * 4
        assert (await close).finished == 4


async def test_a_roll_ends_when_no_job_waits_any_more() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        await idle(pool)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        roll = asyncio.create_task(pool.roll())
        await asyncio.sleep(0)
        close = await closing(pool)
        assert (await roll).trouble == "the pool was closed"
        visitor.release()
        assert await job == "go"
        await close


async def test_it_starts_for_the_jobs_that_came_before_the_close() -> None:
    async with patience():
        pool = Pool(1)
        start = asyncio.create_task(pool.start())
        outcomes: list[Any] = []

        async def use() -> None:
            job = pool.submit(jobs.square, 3)
            await pool.close()
            outcomes.append(await job)

        # Both run before the supervisor does for the first time.
        user = asyncio.create_task(use())
        await asyncio.gather(start, user, return_exceptions=True)
        assert outcomes == [9]
