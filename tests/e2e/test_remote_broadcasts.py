"""Broadcasts of remote pools: their limits, their order, their end, and nodes that come and go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool
from asyncpool.errors import (
    BroadcastError,
    JobTimeoutError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
    WorkerHungError,
)
from asyncpool.pool import BoundPool
from asyncpool.sharedpool import connect
from tests.helpers import jobs
from tests.helpers.clusters import come_true
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import client_of, only_job_of, run_out
from tests.helpers.logs import Kept, handled_by
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import NodesPool, nodes_pool, two_nodes
from tests.helpers.patience import patience
from tests.helpers.pools import idle
from tests.helpers.shared_pools import pool_and_client, shared
from tests.helpers.values import Slow

pytestmark = BOTH_LOOPS


def options_of(limit: str, seconds: float) -> dict[str, Any]:
    """Return the option that sets *limit*; a deadline is in so many seconds."""
    now = asyncio.get_running_loop().time() if limit == "deadline" else 0.0
    return {limit: now + seconds}


def broadcast(pool: Any, function: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(pool.broadcast(function, *args))


async def failure(call: Awaitable[Any]) -> BroadcastError:
    with pytest.raises(BroadcastError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("limit", ["timeout", "deadline"])
async def test_a_call_that_takes_too_long_ends(faced: Faced, limit: str) -> None:
    options = options_of(limit, 3600.0)
    async with patience(), Gate() as gate, faced() as (caller, pool):
        view = caller.options(**options)
        task = broadcast(view, jobs.wait_at, gate.path)
        await gate.visitor()
        run_out(pool, only_job_of(pool))
        failed = await failure(task)
        [error] = failed.errors.values()
        assert isinstance(error, JobTimeoutError)
        assert error is failed.__cause__
        assert (error.limit, error.attempt, error.job_id) == (limit, 1, 1)
        if caller is not pool:  # in which run_out() has moved it
            assert error.seconds == options[limit], "it is that of the caller's clock"
        assert "wait_at" in error.stack
        hung = broadcast(
            caller.options(heartbeat_timeout=0.05), jobs.wait_at, gate.path
        )
        [silent] = (await failure(hung)).errors.values()
        assert isinstance(silent, WorkerHungError)
        assert silent.crashes[0].detail == "no heartbeat for 0.05 s"


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("queue_timeout", 0.05), ("deadline", 0.05), ("deadline", -5.0)],
)
async def test_a_call_that_cannot_begin_in_time_ends(
    faced: Faced, limit: str, seconds: float
) -> None:
    async with patience(), Gate() as gate, faced() as (caller, _):
        held = caller.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        options = options_of(limit, seconds)
        task = broadcast(caller.options(**options), jobs.configure, 1)
        [error] = (await failure(task)).errors.values()
        visitor.release()
        await held
        assert (await caller.submit(jobs.history))[1] == []
    assert isinstance(error, JobTimeoutError)
    told = (error.limit, error.seconds, error.attempt, error.stack)
    assert told == (limit, options[limit], 0, "")


async def test_the_workers_in_time_have_their_results(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, pool_and_client(tmp_path) as (pool, client):
        await idle(pool)
        held = client.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        view = client.options(queue_timeout=1.0)
        error = await failure(view.broadcast(jobs.configure, "a"))
        [late] = error.errors
        assert error.results == {1 - late: error.results[1 - late]}
        assert error.results != {late: visitor.pid}
        visitor.release()
        await held
        assert len(await client.options(timeout=60.0).broadcast(jobs.pid)) == 2


async def test_a_call_knows_its_limits(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        deadline = asyncio.get_running_loop().time() + 60.0
        await pool.options(deadline=deadline).broadcast(jobs.configure_as_a_job, "a")
        _, history = await pool.submit(jobs.history)
        assert history == [("a", 1, pytest.approx(deadline, abs=30.0), None, ("a",))]


async def test_whoever_stops_waiting_may_let_the_calls_run_on(faced: Faced) -> None:
    async with patience(), Gate() as gate, faced() as (caller, pool):
        view: BoundPool = caller.options(on_cancel="wait")
        call = view.broadcast(jobs.configure_where_told, gate.path, "a")
        task = asyncio.create_task(call)
        visitor = await gate.visitor("configure")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if caller is not pool:
            await caller.stats()  # the agent has heard of it
        visitor.release()
        assert await caller.submit(jobs.history) == (visitor.pid, ["a"])


async def test_a_deadline_holds_at_nodes_with_other_clocks() -> None:
    async with patience(), Gate() as gate, two_nodes(ahead=1000) as (pool, one, two):
        for each in (one, two):
            await idle(each)
        deadline = asyncio.get_running_loop().time() + 0.2
        view = pool.options(deadline=deadline)
        error = await failure(view.broadcast(jobs.wait_at, gate.path))
        assert len(error.errors) == 2
        for late in error.errors.values():
            assert isinstance(late, JobTimeoutError)
            assert (late.limit, late.seconds) == ("deadline", deadline)


async def test_a_full_queue_refuses_no_broadcast(tmp_path: Path) -> None:
    async with (
        patience(),
        Gate() as gate,
        shared(tmp_path, workers=1),
        connect(f"unix:{tmp_path}/pool.sock", max_queued=1) as pool,
    ):
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        # As many as the agent takes, and one that waits.
        many = [pool.submit(jobs.square, 2) for _ in range(1023 + 1)]
        with pytest.raises(PoolFullError):
            pool.submit(jobs.square, 2)
        task = asyncio.create_task(pool.broadcast(jobs.square, 3))
        await pool.stats()
        visitor.release()
        assert await task == {0: 9}
        await asyncio.gather(held, *many)


async def history_of(pool: Pool) -> list[object]:
    """Return what the only worker of a node was told."""
    return (await pool.submit(jobs.history))[1]


@pytest.mark.parametrize("gives_up", [False, True])
async def test_they_come_in_their_order_though_the_first_takes_longer_to_be_pickled(
    *, gives_up: bool
) -> None:
    async with patience(), two_nodes() as (pool, one, two):
        slow = Slow("a")
        tasks = [broadcast(pool, jobs.configure, value) for value in (slow, "b", "c")]
        await come_true(slow.begun.is_set)
        for _ in range(1000):  # the others would overtake it now
            await asyncio.sleep(0)
        await pool.stats()
        assert await history_of(one) == await history_of(two) == []
        if gives_up:
            tasks[1].cancel()
            await asyncio.wait(tasks[1:2])
        slow.go_on.set()
        await asyncio.wait(tasks)
        expected = ["a", "c"] if gives_up else ["a", "b", "c"]
        assert await history_of(one) == await history_of(two) == expected


async def test_whoever_leaves_waits_for_it(tmp_path: Path) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (_, client),
    ):
        task = broadcast(client, jobs.configure, "a", gate.path)
        visitor = await gate.visitor("configure")
        closing = asyncio.create_task(client.close())
        for _ in range(1000):  # else it would be closed now
            await asyncio.sleep(0)
        with pytest.raises(PoolClosedError):
            client.submit(jobs.pid)
        assert not closing.done()
        visitor.release()
        assert await task == {0: visitor.pid}
        await closing


@pytest.mark.parametrize("finish", ["running", "none"])
async def test_whoever_does_not_finish_all_does_not_wait_for_it(
    tmp_path: Path, finish: Any
) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (pool, client),
    ):
        task = broadcast(client, jobs.configure_where_told, gate.path, "a")
        visitor = await gate.visitor("configure")
        await client.close(finish=finish)
        with pytest.raises(PoolClosedError):
            await task
        visitor.release()
        await pool.submit(jobs.pid)


async def test_one_that_is_not_pickled_when_the_pool_closes_is_refused(
    tmp_path: Path,
) -> None:
    async with patience(), pool_and_client(tmp_path, workers=1) as (pool, client):
        slow = Slow("a")
        task = broadcast(client, jobs.configure, slow)
        await come_true(slow.begun.is_set)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        with pytest.raises(PoolClosedError):
            client.submit(jobs.pid)
        slow.go_on.set()
        await closing
        with pytest.raises(PoolClosedError):
            await task
        assert await history_of(pool) == []


async def test_errors_have_the_numbers_of_the_client() -> None:
    async with patience(), two_nodes() as (pool, one, two):
        for each in (one, two):  # so that their own numbers are others
            await asyncio.gather(*(each.submit(int) for _ in range(40)))
        job = pool.submit(int)
        await job
        died = await failure(broadcast(pool, os._exit, 3))
        assert died.errors.keys() == {0, 10_000}
        numbers = [job.id]
        for slot, error in died.errors.items():
            assert isinstance(error, WorkerCrashedError)
            numbers.append(error.job_id)
            assert (error.slot, error.exit_code) == (slot, 3)
            [crash] = error.crashes
            assert (crash.slot, crash.job_id) == (slot, error.job_id)
            assert f"during attempt 1 of job {error.job_id} (" in str(error)
        view = pool.options(deadline=asyncio.get_running_loop().time() - 5.0)
        for error in (await failure(broadcast(view, jobs.pid))).errors.values():
            assert isinstance(error, JobTimeoutError)
            numbers.append(error.job_id)
        assert numbers == [*range(job.id, job.id + 5)]


# Nodes that come and go.


async def test_the_workers_of_a_node_that_comes_later_make_the_call_before_any_job() -> (
    None
):
    async with (
        patience(),
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one) as pool,
        Gate() as gate,
    ):
        for value in ("a", "b"):
            await pool.broadcast(jobs.configure, value)
        await pool.broadcast(jobs.configure_too, "c")
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = [pool.submit(jobs.history) for _ in range(5)]  # the first are ahead
        async with pool.with_another(two):
            # Only the last one of each function.
            there = await two.submit(jobs.pid)
            assert await queued[-1] == (there, ["b", "c"])
            visitor.release()
            for pid, history in await asyncio.gather(*queued):
                assert pid != there or history == ["b", "c"]
            await held


async def test_a_node_that_comes_meanwhile_makes_the_call_too() -> None:
    async with (
        patience(),
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one) as pool,
        Gate() as gate,
    ):
        task = broadcast(pool, jobs.configure, "a", gate.path)
        first = await gate.visitor("configure")
        async with pool.with_another(two):
            second = await gate.visitor("configure", 2)
            queued = pool.submit(jobs.history)
            first.release()
            assert await queued == (first.pid, ["a"])
            assert not task.done()
            second.release()
            assert await task == {0: first.pid, 10_000: second.pid}
            assert await history_of(two) == ["a"]


async def fails_on(pool: NodesPool, node: Pool) -> None:
    """Have *node* come to the pool, and be refused."""
    async with pool.with_another(node):
        await come_true(lambda: len([*client_of(pool).nodes]) == 1)


@pytest.mark.logs("node-lost")
async def test_a_node_that_comes_later_and_cannot_make_the_call_gets_no_job(
    tmp_path: Path,
) -> None:
    path, kept = tmp_path / "here", Kept()
    async with (
        patience(),
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one) as pool,
        Gate() as gate,
    ):
        await pool.broadcast(jobs.configure_unless, str(path), "a")
        path.touch()
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = pool.submit(jobs.history)
        with handled_by(kept, "asyncpool"):
            await fails_on(pool, two)
        [record] = [r for r in kept.records if "node" in vars(r)]
        assert record.getMessage().endswith(
            " has lost the agent node-1: the broadcast of "
            "tests.helpers.jobs.configure_unless has failed in 1 of 1 workers; in slot "
            "10000: LookupError: there is 'a'; it had 0 jobs (none), 0 of them begun"
        )
        visitor.release()
        await held
        assert await queued == (visitor.pid, ["a"])


async def test_a_node_that_is_lost_meanwhile_is_left_out() -> None:
    async with patience(), two_nodes() as (pool, *_), Gate() as gate:
        task = broadcast(pool, jobs.configure, "a", gate.path)
        visitors = [await gate.visitor("configure", n) for n in (1, 2)]
        pool.networks[1].parted = True
        await come_true(lambda: len([*client_of(pool).nodes]) == 1)
        assert not task.done()
        for visitor in visitors:
            visitor.release()
        assert [*await task] == [0]


async def test_one_whose_nodes_are_all_lost_fails() -> None:
    async with patience(), Pool(1) as one, nodes_pool(one) as pool, Gate() as gate:
        task = broadcast(pool, jobs.configure, "a", gate.path)
        visitor = await gate.visitor("configure")
        pool.networks[0].parted = True
        with pytest.raises(PoolClosedError, match=r"^the agent node-0 is gone$"):
            await task
        visitor.release()


async def test_a_node_is_lost_in_the_middle_of_its_first_calls() -> None:
    async with (
        patience(),
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one) as pool,
        Gate() as gate,
    ):
        task = broadcast(pool, jobs.configure, "a", gate.path)
        (await gate.visitor("configure")).release()
        await task
        async with pool.with_another(two):
            visitor = await gate.visitor("configure", 2)
            pool.networks[1].parted = True
            await come_true(lambda: len([*client_of(pool).nodes]) == 1)
            assert await pool.submit(jobs.square, 3) == 9
            visitor.release()
