"""Jobs with a key: the same key, the same worker."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import defaultdict
from typing import Any, Literal

import pytest

import asyncpool
from asyncpool import (
    BoundPool,
    JobTimeoutError,
    Pool,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
    events,
)
from asyncpool.events import Resized, TakenOver
from tests.helpers import jobs
from tests.helpers.gate import Gate, Visitor
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle, next_of

pytestmark = ONE_LOOP

KEYS = [f"user-{number}" for number in range(60)]

Launcher = Literal["forkserver", "spawn"]
LAUNCHERS: tuple[Launcher, ...] = ("forkserver", "spawn")


async def owners(pool: Pool) -> dict[str, int]:
    """Return the pid of the worker that each key has."""
    found = [pool.options(key=key).submit(jobs.pid) for key in KEYS]
    return dict(zip(KEYS, await asyncio.gather(*found), strict=True))


def groups(owned: dict[str, int]) -> set[frozenset[str]]:
    """Return which keys are together, whoever has them."""
    together = defaultdict(set)
    for key, pid in owned.items():
        together[pid].add(key)
    return {frozenset(keys) for keys in together.values()}


def slot_of(pool: Pool, pid: int) -> int:
    [slot] = [slot.slot for slot in pool.stats().slots if slot.pid == pid]
    return slot


async def one_each(pool: Pool) -> tuple[BoundPool, BoundPool]:
    """Return two views whose keys belong to two workers."""
    views = [pool.options(key=key) for key in KEYS]
    first = await views[0].submit(jobs.pid)
    for view in views:
        if await view.submit(jobs.pid) != first:
            return views[0], view
    raise AssertionError("all keys are with one worker")


async def hold(view: BoundPool, gate: Gate) -> tuple[asyncpool.Job[Any], Visitor]:
    """Keep the worker busy that the view's key belongs to."""
    job = view.submit(jobs.wait_at, gate.path, "held")
    return job, await gate.visitor("held")


async def test_the_same_key_has_the_same_worker_and_all_workers_have_some() -> None:
    async with patience(), Pool(3) as pool:
        await idle(pool)
        owned = await owners(pool)
        assert set(owned.values()) == {slot.pid for slot in pool.stats().slots}
        for _ in range(3):
            assert await owners(pool) == owned


async def test_equal_keys_are_the_same_whatever_made_them() -> None:
    async with patience(), Pool(3) as pool:
        for one, other in [
            (("a", 7), ("a", 7.0)),
            (b"xy", bytes([120, 121])),
            (1, True),
        ]:
            pids = {
                await pool.options(key=key).submit(jobs.pid) for key in (one, other)
            }
            assert len(pids) == 1


async def test_a_key_waits_for_its_worker_while_others_work(
    pair: Pool, gate: Gate
) -> None:
    await idle(pair)
    mine, other = await one_each(pair)
    held, visitor = await hold(mine, gate)
    waiting = [mine.submit(jobs.pid) for _ in range(5)]
    assert await other.submit(jobs.square, 3) == 9
    assert await pair.submit(jobs.square, 4) == 16
    assert [job.state for job in waiting] == ["queued"] * 5
    stats = pair.stats()
    assert (stats.queued, stats.idle, stats.busy) == (5, 1, 1)
    visitor.release()
    assert await asyncio.gather(*waiting) == [visitor.pid] * 5
    await held


async def test_jobs_without_a_key_and_with_one_begin_in_their_order(
    pool: Pool, gate: Gate
) -> None:
    order: list[str] = []
    keyed = pool.options(key="k")
    held, visitor = await hold(keyed, gate)
    urgent = pool.options(key="k", priority=-1)
    given: list[tuple[Pool | BoundPool, str]] = [
        (pool, "a"),
        (keyed, "b"),
        (pool, "c"),
        (urgent, "U"),
        (keyed, "d"),
    ]
    waiting = []
    for view, name in given:
        job = view.submit(jobs.square, 1)
        job.add_done_callback(
            functools.partial(lambda name, _: order.append(name), name)
        )
        waiting.append(job)
    visitor.release()
    await asyncio.gather(held, *waiting)
    await asyncio.sleep(0)
    assert "".join(order) == "Uabcd"


@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_after_a_crash_the_replacement_has_the_keys(launcher: Launcher) -> None:
    async with patience(), Gate() as gate, Pool(2, launcher=launcher) as pool:
        await idle(pool)
        before = await owners(pool)
        mine, _ = await one_each(pool)
        doomed = mine.submit(jobs.wait_in_every_attempt, gate.path)
        visitor = await gate.visitor("attempt 1")
        slot = slot_of(pool, visitor.pid)
        waiting = [mine.submit(jobs.pid) for _ in range(3)]
        visitor.release("die")
        with pytest.raises(WorkerCrashedError):
            await doomed
        [pid] = set(await asyncio.gather(*waiting))
        assert pid != visitor.pid
        assert slot_of(pool, pid) == slot
        moved = {visitor.pid: pid}
        after = {key: moved.get(pid, pid) for key, pid in before.items()}
        assert await owners(pool) == after


async def test_another_attempt_is_where_the_key_belongs() -> None:
    async with patience(), Gate() as gate, Pool(3) as pool:
        await idle(pool)
        news = pool.events()
        mine, _ = await one_each(pool)
        job = mine.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        first = await gate.visitor("attempt 1")
        slot = slot_of(pool, first.pid)
        first.release("die")
        await next_of(news, TakenOver)
        second = await gate.visitor("attempt 2")
        assert slot_of(pool, second.pid) == slot
        second.release("done")
        assert await job == "done"


async def test_what_waits_inside_a_worker_that_dies_stays_with_its_key() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        await idle(pool)
        mine, _ = await one_each(pool)
        for _ in range(20):  # known to be short, so that several are sent ahead
            await mine.submit(jobs.perhaps_wait)
        held = mine.submit(jobs.perhaps_wait, gate.path)
        visitor = await gate.visitor()
        slot = slot_of(pool, visitor.pid)
        behind = [mine.submit(jobs.perhaps_wait) for _ in range(10)]
        os.kill(visitor.pid, 9)
        [pid] = set(await asyncio.gather(*behind))
        assert slot_of(pool, pid) == slot
        with pytest.raises(WorkerCrashedError):
            await held


async def test_a_roll_leaves_the_keys_together() -> None:
    async with patience(), Pool(3) as pool:
        await idle(pool)
        before = await owners(pool)
        result = await pool.roll()
        assert (result.replaced, result.reason) == (3, "")
        after = await owners(pool)
        assert not set(after.values()) & set(before.values())
        assert groups(after) == groups(before)


async def test_a_worker_that_retires_leaves_its_keys_to_the_next() -> None:
    async with patience(), Pool(3) as pool:
        await idle(pool)
        before = await owners(pool)
        news = pool.events()
        gone = await pool.options(key=KEYS[0]).submit(jobs.retire_at)
        await next_of(news, events.Ready)
        after = await owners(pool)
        assert groups(after) == groups(before)
        stayed = {key: pid for key, pid in before.items() if pid != gone}
        assert {key: after[key] for key in stayed} == stayed
        assert gone not in after.values()


async def test_one_worker_more_takes_its_share_and_one_less_leaves_it() -> None:
    async with patience(), Pool(2) as pool:
        await idle(pool)
        two = await owners(pool)
        await pool.resize(3)
        three = await owners(pool)
        moved = {key for key in KEYS if three[key] != two[key]}
        assert moved
        [new] = {three[key] for key in moved}
        assert new not in two.values()
        await pool.resize(2)
        again = await owners(pool)
        [gone] = set(three.values()) - set(again.values())
        assert all(again[key] == three[key] for key in KEYS if three[key] != gone)
        await assert_serves(pool)


async def test_jobs_that_wait_follow_their_keys_to_a_worker_that_comes() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        held, visitor = await hold(pool.options(key=0), gate)
        waiting = [pool.options(key=key).submit(jobs.pid) for key in KEYS]
        await pool.resize(2)
        done, _ = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
        assert visitor.pid not in {job.result() for job in done}
        visitor.release()
        pids = await asyncio.gather(*waiting)
        assert len(set(pids)) == 2
        assert dict(zip(KEYS, pids, strict=True)) == await owners(pool)
        await held


async def test_a_crowd_with_many_keys_makes_a_pool_grow() -> None:
    async with patience(), Gate() as gate, Pool((1, 2)) as pool:
        news = pool.events()
        held, visitor = await hold(pool.options(key=0), gate)
        waiting = [pool.options(key=key).submit(jobs.pid) for key in KEYS]
        assert await next_of(news, Resized) == Resized(2)
        await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
        visitor.release()
        assert len(set(await asyncio.gather(*waiting))) == 2
        await held


async def test_a_job_that_waits_for_its_worker_can_be_cancelled(
    pair: Pool, gate: Gate
) -> None:
    await idle(pair)
    mine, _ = await one_each(pair)
    held, visitor = await hold(mine, gate)
    waiting = [mine.submit(jobs.square, number) for number in range(5)]
    assert waiting[2].cancel()
    assert pair.stats().queued == 4
    with pytest.raises(asyncio.CancelledError):
        await waiting[2]
    visitor.release()
    del waiting[2]
    assert await asyncio.gather(*waiting) == [0, 1, 9, 16]
    await held


async def test_its_time_in_the_queue_is_limited_though_others_are_idle(
    pair: Pool,
    gate: Gate,
) -> None:
    await idle(pair)
    mine, _ = await one_each(pair)
    held, visitor = await hold(mine, gate)
    job = mine.options(queue_timeout=0.01).submit(jobs.square, 1)
    with pytest.raises(JobTimeoutError) as caught:
        await job
    assert caught.value.limit == "queue_timeout"
    assert pair.stats().queued == 0
    visitor.release()
    await held


async def test_jobs_that_wait_for_one_worker_fill_the_queue() -> None:
    async with patience(), Gate() as gate, Pool(2, max_queued=2) as pool:
        await idle(pool)
        mine, other = await one_each(pool)
        held, visitor = await hold(mine, gate)
        waiting = [mine.submit(jobs.square, number) for number in range(2)]
        with pytest.raises(PoolFullError) as caught:
            mine.submit(jobs.square, 2)
        assert (caught.value.waiting, caught.value.max_queued) == (2, 2)
        # Who need not wait is welcome.
        assert await other.submit(jobs.square, 3) == 9
        assert await pool.submit(jobs.square, 4) == 16
        visitor.release()
        assert await asyncio.gather(*waiting) == [0, 1]
        await held


async def test_a_pool_that_takes_no_waiting_jobs_takes_those_that_need_not() -> None:
    async with patience(), Gate() as gate, Pool(2, max_queued=0) as pool:
        await idle(pool)
        mine, other = await one_each(pool)
        held, visitor = await hold(mine, gate)
        with pytest.raises(PoolFullError):
            mine.submit(jobs.square, 1)
        assert await other.submit(jobs.square, 3) == 9
        visitor.release()
        await held


@pytest.mark.parametrize("finish", ["all", "running"])
async def test_a_pool_that_closes_finishes_them_or_fails_them(
    finish: Literal["all", "running"],
) -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        await idle(pool)
        mine, _ = await one_each(pool)
        held, visitor = await hold(mine, gate)
        waiting = [mine.submit(jobs.square, number) for number in range(3)]
        closing = asyncio.create_task(pool.close(finish=finish))
        await asyncio.sleep(0)
        visitor.release()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        if finish == "all":
            assert results == [0, 1, 4]
        else:
            assert [type(error) for error in results] == [PoolClosedError] * 3
        await held
        summary = await closing
        assert summary.failed == (0 if finish == "all" else 3)


async def test_a_map_with_a_key_runs_in_one_worker() -> None:
    async with patience(), Pool(3) as pool:
        await idle(pool)
        view = pool.options(key="model-7")
        items = list(range(300))
        pids = await view.map(jobs.pid_for, items)
        assert set(pids) == {await view.submit(jobs.pid)}


async def test_large_arguments_go_where_the_key_belongs(pair: Pool, gate: Gate) -> None:
    await idle(pair)
    mine, _ = await one_each(pair)
    held, visitor = await hold(mine, gate)
    job = mine.submit(jobs.pid_for, bytearray(1 << 22))
    visitor.release()
    assert await job == visitor.pid
    await held


async def test_no_key_is_no_key(pair: Pool, gate: Gate) -> None:
    await idle(pair)
    mine, _ = await one_each(pair)
    held, visitor = await hold(mine, gate)
    assert await mine.options(key=None).submit(jobs.pid) != visitor.pid
    visitor.release()
    await held


async def test_what_is_no_key_is_refused_at_once() -> None:
    pool = Pool(1)
    with pytest.raises(TypeError, match=r"key must be hashable, .* not \[1, 2\]"):
        pool.options(key=[1, 2])  # type: ignore[arg-type] # that is the point
    with pytest.raises(TypeError, match="object has a hash by identity only"):
        pool.options(key=object())
