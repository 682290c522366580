"""A pool that finishes all its jobs works on meanwhile as an open one does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncpool import CloseSummary, Map, Pool, PoolClosedError, RollResult, WorkerLimits
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import core_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import closing, collect, idle

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
        core = core_of(pool)
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
        assert core_of(pool).next_deadline() is None
        visitor.release()
        assert await close == CloseSummary(finished=1, failed=0, killed=0)
        assert await job == "go"


async def test_it_replaces_workers() -> None:
    limits = WorkerLimits(max_jobs=1, jitter=0.0)
    async with patience(), Gate() as gate:
        pool = await Pool(1, worker_limits=limits).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(4)]
        close = await closing(pool)
        first = await gate.visitor()
        first.release()
        second = await gate.visitor(nth=2)
        if second.pid == first.pid:
            # It goes on until its replacement is ready, which then takes the third.
            assert (await gate.visitor(nth=3)).pid != first.pid
        second.release()
        for nth in (3, 4):
            (await gate.visitor(nth=nth)).release()
        assert await asyncio.gather(*work) == ["go"] * 4
        assert (await close).finished == 4
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
        assert await roll == RollResult(replaced=1, reason="", crash=None)
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
        assert (await roll).reason == "the pool was closed"
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


async def numbers(gate: str, count: int) -> AsyncIterator[str]:
    """Yield a gate so many times, each when it is asked for."""
    for _ in range(count):
        yield gate


@pytest.mark.parametrize("inputs", [numbers, lambda gate, n: [gate] * n])
async def test_a_map_draws_all_of_its_items(
    inputs: Callable[[str, int], Any],
) -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        results = asyncio.ensure_future(
            _all(pool.map(jobs.wait_at, inputs(gate.path, 5), buffersize=1))
        )
        visitor = await gate.visitor()
        close = await closing(pool)
        with pytest.raises(PoolClosedError):
            await pool.map(jobs.square, [1])
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        visitor.release()
        for nth in range(2, 6):
            (await gate.visitor(nth=nth)).release()
        assert await results == ["go"] * 5
        assert await close == CloseSummary(finished=5, failed=0, killed=0)


async def _all(results: Map[Any]) -> list[Any]:
    return await results


async def test_many_short_items_are_finished() -> None:
    async with patience():
        pool = await Pool(2).__aenter__()
        found: list[int] = []
        results = pool.map(jobs.square, range(20_000))
        reader = asyncio.create_task(collect(results, found))
        while not found:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        summary = await pool.close()
        await reader
        assert found == [n * n for n in range(20_000)]
        assert (summary.failed, pool.stats().failed) == (0, 0)


async def test_a_map_that_nobody_has_any_more_lets_go() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        results = pool.map(jobs.square, itertools.count(), buffersize=1)
        assert await anext(results) == 0
        close = await closing(pool)
        for _ in range(3):  # it is held open
            assert await anext(results) > 0
        assert not close.done()
        del results
        await close


async def test_a_map_whose_results_nobody_takes_needs_the_pool_until_they_are_there() -> (
    None
):
    async with patience():
        pool = await Pool(1).__aenter__()
        results = pool.map(jobs.square, range(5), buffersize=10)
        assert await anext(results) == 0
        await pool.close()
        assert [result async for result in results] == [1, 4, 9, 16]


async def test_the_time_of_a_close_ends_a_map_that_holds_it_up() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        results = pool.map(jobs.square, itertools.count(), buffersize=1)
        assert await anext(results) == 0
        await pool.close(timeout=0.1)
        with pytest.raises(PoolClosedError):
            await _all_of(results)


async def _all_of(results: Map[int]) -> None:
    async for _ in results:
        pass


async def test_a_stream_is_finished() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        stream = pool.options(prefetch=1).stream(range, 50)
        assert await anext(stream) == 0
        close = await closing(pool)
        late = pool.stream(range, 3)
        with pytest.raises(PoolClosedError):
            await anext(late)
        assert [item async for item in stream] == [*range(1, 50)]
        assert await close == CloseSummary(finished=1, failed=0, killed=0)


async def test_a_stream_that_nobody_has_any_more_lets_go() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        stream = pool.options(prefetch=1).stream(itertools.count)
        assert await anext(stream) == 0
        close = await closing(pool)
        assert await anext(stream) == 1
        assert not close.done()
        del stream
        await close
