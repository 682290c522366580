"""Pools that grow when jobs wait, shrink when workers idle, and are resized."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, Pool, RestartPolicy
from asyncpool.errors import PoolBrokenError, PoolClosedError, ResizeError
from asyncpool.events import Parked, Resized, Retiring
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import broken_by, closing, idle, next_of, until

pytestmark = BOTH_LOOPS


async def test_a_pool_grows_until_nobody_waits_and_shrinks_when_all_idle() -> None:
    async with patience(), Gate() as gate, Pool((1, 4), idle_timeout=0.2) as pool:
        assert pool.stats().workers == 1
        events = pool.events()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(3)]
        visitors = [await gate.visitor(nth=n) for n in (1, 2, 3)]
        assert len({visitor.pid for visitor in visitors}) == 3
        assert pool.stats().workers == 3, "no more than there are jobs"
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(*work)
        await until(pool, lambda stats: stats.idle == len(stats.slots) == 1)
        assert await pool.submit(jobs.square, 3) == 9
    seen: list[Any] = [event async for event in events]
    sizes = [event.workers for event in seen if isinstance(event, Resized)]
    assert sizes == [2, 3, 2, 1]
    reasons = [event.reason for event in seen if isinstance(event, Retiring)]
    assert reasons == ["idle", "idle"]


async def test_a_fixed_pool_can_become_elastic_and_never_grows_beyond_its_bound() -> (
    None
):
    async with patience(), Gate() as gate, Pool(1) as pool:
        await pool.resize((1, 2))
        work: list[Job[Any]] = [pool.submit(jobs.wait_at, gate.path)]
        first = await gate.visitor()
        work.append(pool.submit(jobs.wait_with, gate.path, bytes(10_000_000)))
        second = await gate.visitor("baggage")
        assert first.pid != second.pid
        work += [pool.submit(jobs.wait_at, gate.path) for _ in range(18)]
        first.release()
        second.release()
        for nth in range(2, 20):
            (await gate.visitor(nth=nth)).release()
        await asyncio.gather(*work)
        stats = pool.stats()
    assert (stats.workers, stats.spawned) == (2, 2)


async def test_work_stays_with_those_who_are_warm() -> None:
    async with patience(), Pool(4, ready="all") as pool:
        assert len({await pool.submit(jobs.pid) for _ in range(50)}) == 1


async def test_a_pool_is_resized_while_it_works() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(3)]
        await gate.visitor()
        await pool.resize(3)
        visitors = [await gate.visitor(nth=n) for n in (1, 2, 3)]
        assert pool.stats().busy == 3
        resize = asyncio.create_task(pool.resize(1))
        events = pool.events()
        for _ in range(2):  # both at once, though none has finished its job
            retiring = await next_of(events, Retiring)
            assert retiring.reason == "resize"
        assert pool.stats().workers == 1
        assert not resize.done(), "they have jobs to finish"
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*work) == ["go"] * 3
        await resize
        stats = pool.stats()
        assert (stats.workers, stats.idle, len(stats.slots)) == (1, 1, 1)
        assert stats.crashes == 0


@pytest.mark.logs("resize-failed")
async def test_a_resize_says_that_a_worker_does_not_start(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    async with patience(), Pool(1, **broken_by(poison)) as pool:
        poison.touch()
        with pytest.raises(ResizeError) as caught:
            await pool.resize(3)
        crash = caught.value.crash
        assert (crash.kind, crash.slot) in {("failed start", 1), ("failed start", 2)}
        assert f"LookupError: {poison}" in str(caught.value)
        # There is one worker too few for this size as well, and nobody knows for how long.
        starts = pool.stats().spawned
        with pytest.raises(ResizeError, match="LookupError") as again:
            await pool.resize(2)
        assert again.value.crash is not crash
        assert pool.stats().spawned > starts, "it has tried"
        assert await pool.submit(jobs.square, 3) == 9
        await pool.resize(1)
        poison.unlink()
        await pool.resize(2)
        assert pool.stats().idle == 2


@pytest.mark.logs("resize-failed")
async def test_a_resize_succeeds_once_workers_start_again(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    seldom = RestartPolicy(initial_delay=1800.0, max_delay=3600.0, max_failed_starts=1)
    async with patience(), Pool(1, restart_policy=seldom, **broken_by(poison)) as pool:
        poison.touch()
        with pytest.raises(ResizeError, match="LookupError"):
            await pool.resize(3)
        poison.unlink()
        await pool.resize(3)
        assert pool.stats().idle == 3


def begin_as_told(gate: str) -> None:
    answer = jobs.wait_at(gate)
    if answer != "go":
        raise LookupError(answer)


@pytest.mark.logs("resize-failed")
async def test_a_resize_is_not_failed_by_a_start_that_began_before_it() -> None:
    seldom = RestartPolicy(initial_delay=1800.0, max_delay=3600.0, max_failed_starts=1)
    async with patience(), Gate() as gate:
        pool = Pool(
            1, restart_policy=seldom, initializer=begin_as_told, initargs=(gate.path,)
        )
        start = asyncio.create_task(pool.start())
        (await gate.visitor(nth=1)).release()
        await start
        async with pool:
            resize = asyncio.create_task(pool.resize(2))
            (await gate.visitor(nth=2)).release("the database is down")
            with pytest.raises(ResizeError, match="the database is down"):
                await resize
            resize = asyncio.create_task(pool.resize(2))
            early = await gate.visitor(nth=3)
            again = asyncio.create_task(pool.resize(2))
            await asyncio.sleep(0)
            early.release("it was down")
            with pytest.raises(ResizeError, match="it was down"):
                await resize
            (await gate.visitor(nth=4)).release()
            await again
            assert pool.stats().idle == 2


async def test_a_caller_who_leaves_does_not_undo_a_resize() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitors = [await gate.visitor(nth=n) for n in (1, 2)]
        resizes = [asyncio.create_task(pool.resize(1)) for _ in range(3)]
        await asyncio.sleep(0)
        for resize in resizes[:2]:
            resize.cancel()
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(*work)
        left = await asyncio.gather(*resizes, return_exceptions=True)
        assert [type(it) for it in left] == [asyncio.CancelledError] * 2 + [type(None)]
        assert pool.stats().workers == 1


@pytest.mark.logs("resize-failed")
async def test_a_resize_ends_when_workers_die_until_the_pool_gives_up() -> None:
    once = RestartPolicy.limited(max_restarts=1, period=60.0)
    async with patience(), Gate() as gate:
        pool = Pool(
            2, restart_policy=once, initializer=begin_as_told, initargs=(gate.path,)
        )
        start = asyncio.create_task(pool.start())
        for nth in (1, 2):
            (await gate.visitor(nth=nth)).release()
        await start
        async with pool:
            stats = await idle(pool)
            resize = asyncio.create_task(pool.resize(3))
            slow = await gate.visitor(nth=3)
            for slot in stats.slots:
                assert slot.pid is not None
                os.kill(slot.pid, signal.SIGKILL)
            with pytest.raises(ResizeError, match="was killed by SIGKILL"):
                await resize
            with pytest.raises(PoolBrokenError):
                await pool.resize(3)
            slow.release()


async def test_a_resize_ends_when_the_pool_gives_up(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    once = RestartPolicy.limited(max_restarts=1, period=60.0)
    async with patience(), Pool(1, restart_policy=once, **broken_by(poison)) as pool:
        poison.touch()
        with pytest.raises(ResizeError, match="LookupError"):
            await pool.resize(3)
        with pytest.raises(PoolBrokenError):
            await pool.resize(1)


async def test_a_resize_outlasts_a_start_that_fails(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    often = RestartPolicy(max_failed_starts=1000)
    async with patience(), Pool(1, restart_policy=often, **broken_by(poison)) as pool:
        events = pool.events()
        poison.touch()
        resize = asyncio.create_task(pool.resize(2))
        await next_of(events, Parked)
        poison.unlink()
        await resize
        assert pool.stats().idle == 2


async def test_a_close_ends_the_wait_for_a_size() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitors = [await gate.visitor(nth=n) for n in (1, 2)]
        resize = asyncio.create_task(pool.resize(1))
        await asyncio.sleep(0)
        close = await closing(pool, finish="none")
        with pytest.raises(PoolClosedError):
            await resize
        with pytest.raises(PoolClosedError):
            await pool.resize(2)
        await asyncio.gather(*work, return_exceptions=True)
        await close
        for visitor in visitors:
            await visitor.gone()
