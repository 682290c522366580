"""Which worker a job gets: with a key always the same, and in a fresh pool a new one."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import pytest

import asyncpool
from asyncpool import BoundPool, Pool, events
from asyncpool.errors import (
    JobTimeoutError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from asyncpool.events import Resized
from tests.helpers import jobs, streams
from tests.helpers.gate import Gate, Visitor
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle, next_of

pytestmark = ONE_LOOP

KEYS = [f"user-{number}" for number in range(60)]


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
    async with patience(), Pool(3, ready="all") as pool:
        owned = await owners(pool)
        assert set(owned.values()) == {slot.pid for slot in pool.stats().slots}
        for _ in range(3):
            assert await owners(pool) == owned
        for equal in [(("a", 7), ("a", 7.0)), (b"xy", bytes([120, 121])), (1, True)]:
            views = [pool.options(key=key) for key in equal]
            assert len({await view.submit(jobs.pid) for view in views}) == 1
            pids = await views[0].map(jobs.pid_for, range(300))
            assert set(pids) == {await views[1].submit(jobs.pid)}
        result = await pool.roll()
        assert (result.replaced, result.reason) == (3, "")
        rolled = await owners(pool)
        assert not set(rolled.values()) & set(owned.values())
        assert groups(rolled) == groups(owned)


async def test_a_key_waits_for_its_worker_while_others_work(
    pair: Pool, gate: Gate
) -> None:
    mine, other = await one_each(pair)
    held, visitor = await hold(mine, gate)
    waiting = [mine.submit(jobs.pid_for, n) for n in (0, 1, bytearray(1 << 22), 3)]
    late = mine.options(queue_timeout=0.01).submit(jobs.square, 1)
    assert await other.submit(jobs.square, 3) == 9
    assert await pair.submit(jobs.square, 4) == 16
    assert await mine.options(key=None).submit(jobs.pid) != visitor.pid
    with pytest.raises(JobTimeoutError) as caught:
        await late
    assert caught.value.limit == "queue_timeout"
    assert [job.state for job in waiting] == ["queued"] * 4
    stats = pair.stats()
    assert (stats.queued, stats.idle, stats.busy) == (4, 1, 1)
    dropped = waiting.pop(1)
    assert dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    assert pair.stats().queued == 3
    visitor.release()
    assert await asyncio.gather(*waiting) == [visitor.pid] * 3
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


async def test_after_a_crash_the_replacement_has_the_keys() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        for nth, attempts in ((1, 1), (2, 2)):
            before = await owners(pool)
            mine, _ = await one_each(pool)
            view = mine.options(max_attempts=attempts)
            doomed = view.submit(jobs.wait_in_every_attempt, gate.path)
            visitor = await gate.visitor("attempt 1", nth)
            slot = slot_of(pool, visitor.pid)
            waiting = [mine.submit(jobs.pid) for _ in range(3)]
            visitor.release("die")
            if attempts == 1:
                with pytest.raises(WorkerCrashedError):
                    await doomed
            else:
                second = await gate.visitor("attempt 2")
                assert slot_of(pool, second.pid) == slot
                second.release("done")
                assert await doomed == "done"
            [pid] = set(await asyncio.gather(*waiting))
            assert pid != visitor.pid
            assert slot_of(pool, pid) == slot
            moved = {visitor.pid: pid}
            after = {key: moved.get(pid, pid) for key, pid in before.items()}
            assert await owners(pool) == after


async def test_what_waits_inside_a_worker_that_dies_stays_with_its_key() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
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


async def test_a_worker_that_retires_leaves_its_keys_to_the_next() -> None:
    async with patience(), Pool(3, ready="all") as pool:
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
    async with patience(), Pool(2, ready="all") as pool:
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


@pytest.mark.parametrize("most", [0, 2])
async def test_jobs_that_wait_for_one_worker_fill_the_queue(most: int) -> None:
    async with patience(), Gate() as gate, Pool(2, max_queued=most) as pool:
        await idle(pool)
        mine, other = await one_each(pool)
        held, visitor = await hold(mine, gate)
        waiting = [mine.submit(jobs.square, number) for number in range(most)]
        with pytest.raises(PoolFullError) as caught:
            mine.submit(jobs.square, 2)
        assert (caught.value.waiting, caught.value.max_queued) == (most, most)
        # Who need not wait is welcome.
        assert await other.submit(jobs.square, 3) == 9
        assert await pool.submit(jobs.square, 4) == 16
        visitor.release()
        assert await asyncio.gather(held, *waiting) == ["go", 0, 1][: most + 1]


@pytest.mark.parametrize("finish", ["all", "running"])
async def test_a_pool_that_closes_finishes_them_or_fails_them(
    finish: Literal["all", "running"],
) -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
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


async def test_what_is_no_key_is_refused_at_once() -> None:
    pool = Pool(1)
    with pytest.raises(TypeError, match=r"key must be hashable, .* not \[1, 2\]"):
        pool.options(key=[1, 2])  # type: ignore[arg-type] # that is the point
    with pytest.raises(TypeError, match="object has a hash by identity only"):
        pool.options(key=object())


# A worker for each job: nothing of one job is left for the next one.
async def test_each_job_has_a_worker_that_has_run_nothing() -> None:
    async with patience(), Pool(2, initializer=jobs.fill_state, fresh=True) as pool:
        assert [await pool.submit(jobs.count_state) for _ in range(3)] == [1, 1, 1]
        pids = await asyncio.gather(*(pool.submit(jobs.pid) for _ in range(20)))
        assert len(set(pids)) == 20
        pids = [pid async for pid in pool.map(jobs.pid_for, range(20))]
        assert len(set(pids)) == 20
        # One that fails, one that dies and a stream leave nothing either.
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        assert [n async for n in pool.stream(streams.numbers, 3)] == [0, 1, 2]
        assert await pool.submit(jobs.count_state) == 1
        stats = await idle(pool)
        assert stats.crashes == 1


async def test_the_calls_of_a_session_share_a_worker_that_no_job_has_had() -> None:
    async with patience(), Pool(1, initializer=jobs.fill_state, fresh=True) as pool:
        async with pool.worker(fresh=False) as worker:
            assert [await worker.submit(jobs.count_state) for _ in "ab"] == [1, 2]
        assert await pool.submit(jobs.count_state) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is shared")
@pytest.mark.logs("memory-shared")
async def test_memory_that_a_preload_has_all_workers_share_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ap_table.py").write_text("import mmap\nTABLE = mmap.mmap(-1, 8192)\n")
    monkeypatch.syspath_prepend(tmp_path)
    quiet: list[dict[str, Any]] = [
        {"preload": ["ap_table"], "fresh": False},
        {"preload": ["ap_table"], "launcher": "spawn"},
        {"preload": ["ctypes", "multiprocessing.sharedctypes"]},
    ]
    for options in ({"preload": ["ap_table"]}, *quiet):
        async with patience(), Pool(1, **{"fresh": True, **options}) as pool:
            assert await pool.submit(jobs.square, 3) == 9
    [told] = [
        it for it in caplog.records if vars(it).get("message_id") == "memory-shared"
    ]
    assert vars(told)["memory"] == "8192 bytes of /dev/zero (deleted) (module ap_table)"


async def test_items_cannot_share_a_worker() -> None:
    async with patience(), Pool(1, fresh=True) as pool:
        text = "chunksize is 2, and in a pool with fresh=True each item has a worker of its own"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            _ = [item async for item in pool.map(abs, [1, 2], chunksize=2)]
        assert [item async for item in pool.map(abs, [1, -2], chunksize=1)] == [1, 2]
