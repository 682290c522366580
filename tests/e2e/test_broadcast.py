"""Calls for every worker, those to come included."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
from pathlib import Path
from typing import Any, Literal

import pytest

import asyncpool
from asyncpool import Job, Pool, RestartPolicy, WorkerLimits
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.events import Crashed, Retiring
from tests.helpers import beats, jobs, values
from tests.helpers.clusters import come_true
from tests.helpers.gate import Gate
from tests.helpers.inside import MAX_BROADCASTS
from tests.helpers.logs import Kept, handled_by
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle, kill_worker, next_of, until
from tests.helpers.values import Slow

pytestmark = BOTH_LOOPS


async def histories(pool: Pool) -> list[list[Any]]:
    """Return what each worker was told, from a job in each."""
    stats = pool.stats()
    while [s.state for s in stats.slots if s.pid] != ["idle"] * stats.workers:
        await asyncio.sleep(0)  # there is no event of a job's end
        stats = pool.stats()
    pids = {slot.pid for slot in stats.slots if slot.pid is not None}
    found: dict[int, list[Any]] = {}
    # Keys find all workers soon.
    for key in range(1000):
        pid, history = await pool.options(key=key).submit(jobs.history)
        found[pid] = history
        if found.keys() >= pids:
            return [found[pid] for pid in found if pid in pids]
    raise AssertionError("not all workers were found")


async def submitted(pool: Pool, count: int) -> None:
    """Wait until a call is pickled, in a thread, and given to the workers."""
    while pool.stats().submitted < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_every_worker_runs_it_once_before_its_first_job(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    initializer = functools.partial(jobs.configure, "initializer")
    pool = Pool(2, launcher=launcher, initializer=initializer)
    async with patience(), pool:
        results = await pool.broadcast(jobs.configure, "a")
        assert results == {slot.slot: slot.pid for slot in pool.stats().slots}
        assert list(results) == [0, 1]
        await pool.broadcast(jobs.configure_too, "b")
        told = ["initializer", "a", "b"]
        assert await histories(pool) == [told] * 2
        await pool.resize(3)
        assert await histories(pool) == [told] * 3
        await pool.roll()
        assert await histories(pool) == [told] * 3
        for slot in pool.stats().slots:
            if slot.pid is not None:
                os.kill(slot.pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.crashes == 3)
        assert await histories(pool) == [told] * 3


async def test_of_the_same_function_the_last_one_counts() -> None:
    def tell(value: str) -> str:
        jobs.configure(value)
        return value.upper()

    array = bytearray(b"a" * (1 << 20))
    async with patience(), Pool(1) as pool:
        for value in range(3):
            await pool.broadcast(jobs.configure, value)
        await pool.broadcast(jobs.configure_too, array)
        await pool.broadcast(functools.partial(jobs.configure, 3))
        # What is known by value, and a copy of the worker that it makes and that ends with it.
        assert await pool.broadcast(tell, "a") == {0: "A"}
        await pool.broadcast(jobs.configure_by_a_copy, "b")
        large = pickle.PickleBuffer(array)
        assert await pool.broadcast(jobs.size, large) == {0: 1 << 20}
        assert await histories(pool) == [[0, 1, 2, array, 3, "a", "b"]]
        await pool.roll()
        assert await histories(pool) == [[array, 3, "a", "b"]]


async def test_a_busy_worker_runs_it_after_its_job_and_before_any_other() -> None:
    order: list[str] = []
    async with patience(), Gate() as gate, Pool(1) as pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = pool.submit(jobs.history)
        queued.add_done_callback(lambda _: order.append("queued"))
        urgent = pool.options(priority=-1).submit(jobs.history)
        broadcasts = [
            asyncio.create_task(pool.broadcast(jobs.configure, value))
            for value in ("a", "b")
        ]
        await submitted(pool, 5)
        assert not any(task.done() for task in broadcasts)
        visitor.release()
        assert (await urgent)[1] == (await queued)[1] == ["a", "b"]
        await asyncio.gather(held, *broadcasts)


@pytest.mark.parametrize("gives_up", [False, True])
async def test_they_come_in_their_order_though_the_first_takes_longer_to_be_pickled(
    *, gives_up: bool
) -> None:
    async with patience(), Pool(1, ready="all") as pool:
        slow, quick = Slow("a"), ["b", "c"]
        tasks = [
            asyncio.create_task(pool.broadcast(jobs.configure, value))
            for value in (slow, *quick)
        ]
        await come_true(slow.begun.is_set)
        for _ in range(1000):  # the others would overtake it now
            await asyncio.sleep(0)
        assert pool.stats().submitted == 0
        if gives_up:
            tasks[1].cancel()
            await asyncio.wait(tasks[1:2])
        slow.go_on.set()
        await asyncio.wait(tasks)
        expected = ["a", "c"] if gives_up else ["a", "b", "c"]
        assert await histories(pool) == [expected]


async def test_a_worker_that_starts_meanwhile_is_one_of_them() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a", gate.path))
        first = await gate.visitor("configure")
        resized = asyncio.create_task(pool.resize(2))
        second = await gate.visitor("configure", 2)
        first.release()
        job = pool.submit(jobs.history)
        assert await job == (first.pid, ["a"])
        assert not task.done()
        second.release()
        assert set((await task).values()) == {first.pid, second.pid}
        await resized
        assert await histories(pool) == [["a"]] * 2


@pytest.mark.parametrize("how", ["raise", "die"])
async def test_an_error_says_where_it_was_and_nobody_else_runs_it(how: str) -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        await pool.broadcast(jobs.configure, "before")
        task = asyncio.create_task(
            pool.broadcast(jobs.configure_where_told, gate.path, "a")
        )
        bad = await gate.visitor("configure", 1)
        good = await gate.visitor("configure", 2)
        slots = {slot.pid: slot.slot for slot in pool.stats().slots}
        bad.release(how)
        if how == "die":
            await until(pool, lambda stats: stats.crashes == 1)
        good.release("go")
        with pytest.raises(BroadcastError) as caught:
            await task
        [(where, error)] = caught.value.errors.items()
        assert where == slots[bad.pid]
        assert caught.value.results == {slots[good.pid]: "go"}
        assert caught.value.__cause__ is error
        if isinstance(error, WorkerCrashedError):
            assert how == "die"
            assert (error.delivery, error.exit_code) == ("started", 3)
        else:
            assert type(error) is LookupError
            assert str(caught.value) == (
                "the broadcast of tests.helpers.jobs.configure_where_told has failed in 1 "
                f"of 2 workers; in slot {where}: LookupError: no 'a' here"
            )
        await assert_serves(pool)
        assert gate.visits("configure") == 2, "a replacement does not try it"
        assert pool.stats().crashes == int(how == "die")
        await pool.roll()
        assert await histories(pool) == [["before"]] * 2


@pytest.mark.parametrize("in_hand", [False, True])
async def test_a_worker_that_dies_before_it_leaves_it_to_its_replacement(
    *, in_hand: bool
) -> None:
    """If the worker has it, and is stopped, it has not begun it either."""
    async with patience(), Gate() as gate, Pool(1) as pool:
        pid, news = await pool.submit(jobs.pid), pool.events()
        held: list[Job[str]] = []
        if in_hand:
            os.kill(pid, signal.SIGSTOP)
        else:
            held.append(pool.submit(jobs.wait_at, gate.path))
            await gate.visitor()
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a"))
        await submitted(pool, 2 + len(held))
        os.kill(pid, signal.SIGKILL)
        await next_of(news, Crashed)
        for job in held:
            with pytest.raises(WorkerCrashedError):
                await job
        [other] = (await task).values()
        assert other != pid
        assert await histories(pool) == [["a"]]
        stats = pool.stats()
        assert (stats.crashes, stats.takeovers, stats.cancelled) == (1, 0, 1)


async def test_a_worker_that_dies_after_it_has_a_replacement_that_runs_it() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a", gate.path))
        first = await gate.visitor("configure", 1)
        second = await gate.visitor("configure", 2)
        first.release()
        assert await pool.submit(jobs.history) == (first.pid, ["a"])
        os.kill(first.pid, signal.SIGKILL)
        third = await gate.visitor("configure", 3)
        third.release()
        second.release()
        assert set((await task).values()) == {second.pid, third.pid}


async def test_a_worker_that_leaves_need_not_run_it() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        held = pool.submit(jobs.retire_at, gate.path)
        visitor = await gate.visitor()
        await until(pool, lambda stats: stats.spawned == 2)
        results = await pool.broadcast(jobs.configure, "a")
        assert visitor.pid not in results.values()
        assert len(results) == 1
        visitor.release()
        assert await held == visitor.pid
        assert await histories(pool) == [["a"]]


async def test_a_roll_during_a_broadcast_ends_with_all_having_run_it() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        held = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitors = [await gate.visitor("", nth) for nth in (1, 2)]
        news = pool.events()
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a"))
        roll = asyncio.create_task(pool.roll())
        await next_of(news, Retiring)
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(*held)
        assert (await roll).replaced == 2
        await task
        assert await histories(pool) == [["a"]] * 2


async def test_a_worker_that_cannot_run_it_at_its_start_has_failed_to_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "there"
    policy = RestartPolicy(max_failed_starts=2)
    async with patience(), Pool(1, restart_policy=policy) as pool:
        await pool.broadcast(jobs.configure_unless, str(path), "a")
        path.touch()
        news = pool.events()
        [slot] = [slot for slot in pool.stats().slots if slot.pid]
        assert slot.pid is not None
        os.kill(slot.pid, signal.SIGKILL)
        await next_of(news, Crashed)
        crash = (await next_of(news, Crashed)).crash
        assert crash.kind == "failed start"
        assert crash.detail == (
            "broadcast of tests.helpers.jobs.configure_unless failed: "
            "LookupError: there is 'a'"
        )
        await until(pool, lambda stats: stats.state == "broken")
        with pytest.raises(PoolBrokenError):
            await pool.broadcast(jobs.configure, "b")


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_in_a_worker_that_comes_later_it_finds_what_a_job_finds(
    launcher: Literal["forkserver", "spawn"], concurrency: int
) -> None:
    told = [[("a", 1, None, None, ("a",)), ("b", 1, None, None, ("b",))]]
    pool = Pool(1, launcher=launcher, concurrency=concurrency)
    async with patience(), pool:
        await pool.broadcast(jobs.configure_as_a_job, "a")
        await pool.broadcast(jobs.configure_as_a_job_async, "b")
        assert await histories(pool) == told
        kept = Kept()
        with handled_by(kept, "asyncpool.job"):
            await kill_worker(pool)
            assert await histories(pool) == told
            await kept.until(lambda messages: messages == ["configured"] * 2)
        records = [vars(record) for record in kept.records]
        assert [(r["job_id"], r["attempt"]) for r in records] == [(0, 1)] * 2
        assert await pool.submit(jobs.all_seen) == ()
        job = pool.submit(beats.beat_value, 7)  # is heard again
        assert [details async for details in job.progress()] == [7]


async def test_no_new_worker_retires_because_of_it(tmp_path: Path) -> None:
    async with patience(), Pool(1) as pool:
        await pool.broadcast(jobs.retire_if_new, str(tmp_path / "there"))
        result = await pool.roll()
    assert result.crash is not None
    assert result.crash.detail == (
        "broadcast of tests.helpers.jobs.retire_if_new failed: RuntimeError: "
        "retire_worker() was called in a broadcast that a new worker makes up for; "
        "for fresh workers, await the roll() of the pool"
    )


async def test_whoever_stops_waiting_takes_it_back() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a", gate.path))
        running = await gate.visitor("configure")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await running.gone()  # it was interrupted
        visitor.release()
        await held
        assert sorted(await histories(pool)) == [[], ["a"]]
        assert pool.stats().crashes == 0
        await pool.roll()
        assert await histories(pool) == [[]] * 2


async def test_its_time_can_be_limited() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        view = pool.options(queue_timeout=0.05)
        with pytest.raises(BroadcastError) as caught:
            await view.broadcast(jobs.configure, "a")
        [error] = caught.value.errors.values()
        assert type(error) is JobTimeoutError
        assert error.limit == "queue_timeout"
        visitor.release()
        await held
        slow = pool.options(timeout=0.05)
        with pytest.raises(BroadcastError) as caught:
            await slow.broadcast(jobs.configure, "b", gate.path)
        assert {type(e) for e in caught.value.errors.values()} == {JobTimeoutError}
        assert len(caught.value.errors) == 2
        await assert_serves(pool)


@pytest.mark.parametrize("finish", ["all", "running", "none"])
async def test_a_pool_that_closes_runs_it_everywhere_or_ends_it(
    finish: Literal["all", "running", "none"],
) -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2)
        with pytest.raises(PoolClosedError, match="the pool was not started"):
            await pool.broadcast(jobs.configure, "a")
        await pool.start()
        await idle(pool)
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        task = asyncio.create_task(pool.broadcast(jobs.configure, "a"))
        await submitted(pool, 3)
        closing = asyncio.create_task(pool.close(finish=finish))
        if finish == "all":
            visitor.release()
            assert len(await task) == 2
        else:
            with pytest.raises(PoolClosedError):
                await task
            visitor.release()
        await closing
        if finish == "none":
            assert isinstance(held.exception(), PoolClosedError)
        else:
            assert await held == "go"
        with pytest.raises(PoolClosedError):
            await pool.broadcast(jobs.configure, "b")


async def test_it_is_a_job_of_each_worker_but_wears_none() -> None:
    async with patience(), Pool(2, worker_limits=WorkerLimits(max_jobs=1)) as pool:
        before = await pool.broadcast(jobs.pid)
        assert set((await pool.broadcast(jobs.pid)).values()) == set(before.values())
        assert await pool.submit(jobs.pid) in before.values()
        stats = await until(pool, lambda stats: stats.spawned == 3)
        assert stats.completed == 5


async def test_what_cannot_be_broadcast_is_refused() -> None:
    keeper = asyncpool.LeaseKeeper.__new__(asyncpool.LeaseKeeper)
    async with patience(), Pool(1) as pool:
        with pytest.raises(TypeError, match=r"broadcast\(\) takes a callable first"):
            await pool.broadcast(3)  # type: ignore[call-overload]
        for view in (pool.options(key=1), pool.options(lease=(keeper, 1))):
            with pytest.raises(ValueError, match="it has no key, no lease"):
                await view.broadcast(jobs.configure, "a")
        with pytest.raises(JobNotPicklableError) as caught:
            await pool.broadcast(jobs.configure, values.make_lock())
        assert caught.value.direction == "arguments"
        with pytest.raises(ValueError, match="which is the most, since every new"):
            await pool.broadcast(jobs.configure, bytes(MAX_BROADCASTS))
        half = bytes(MAX_BROADCASTS >> 1)
        assert await pool.broadcast(jobs.take, half) == {0: 1}
        with pytest.raises(ValueError, match="every new worker gets them"):
            await pool.broadcast(jobs.configure, half)
        assert await pool.broadcast(jobs.take, half, 1) == {0: 2}
        assert await pool.broadcast(jobs.take) == {0: 0}
        with pytest.raises(BroadcastError) as failed:
            await pool.broadcast(values.make_lock)
        assert type(failed.value.errors[0]) is JobNotPicklableError
        await pool.roll()
        assert await histories(pool) == [[]]
    async with patience(), Pool(1, max_message_size=2048) as pool:
        with pytest.raises(JobNotPicklableError) as too_large:
            await pool.broadcast(jobs.configure, "x" * 2048)
        assert "bytes when pickled, and max_message_size is 2048" in str(
            too_large.value
        )
        assert len(await pool.broadcast(jobs.configure, "x" * 1024)) == 1
        assert pool.stats().crashes == 0
