"""The options of a broadcast limit it in a remote pool as in a local one, down to the error's text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    BroadcastError,
    JobTimeoutError,
    Pool,
    PoolFullError,
    WorkerHungError,
)
from asyncpool.boundpool import BoundPool
from asyncpool.sharedpool import connect
from tests.helpers import jobs
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import only_job_of, run_out
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import two_nodes
from tests.helpers.patience import patience
from tests.helpers.pools import idle
from tests.helpers.shared_pools import pool_and_client, shared

pytestmark = BOTH_LOOPS

Options = dict[str, Any]


def options_of(limit: str, seconds: float) -> Options:
    """Return the option that sets *limit*; a deadline is in so many seconds."""
    now = asyncio.get_running_loop().time() if limit == "deadline" else 0.0
    return {limit: now + seconds}


async def failure(call: Awaitable[Any]) -> BroadcastError:
    with pytest.raises(BroadcastError) as caught:
        await call
    return caught.value


async def failures(
    tmp_path: Path, fail: Callable[[Any, Pool, Gate], Awaitable[BroadcastError]]
) -> tuple[BroadcastError, BroadcastError]:
    """Return the error in a local pool, and that in a remote one; both have one worker."""
    async with patience(), Gate() as gate, Pool(1) as pool:
        await idle(pool)
        local = await fail(pool, pool, gate)
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (pool, client),
    ):
        await idle(pool)
        return local, await fail(client, pool, gate)


def assert_alike(one: BaseException, other: BaseException, *unlike: str) -> None:
    """Check that two errors are of one type, with one text and the same attributes."""
    assert type(one) is type(other)
    # The other lines are a stack, which says where in its wait the call was.
    assert str(one).partition("\n")[0] == str(other).partition("\n")[0]
    leave = {*unlike, "errors", "stack", "crashes"}
    here, there = (
        {n: v for n, v in vars(e).items() if n not in leave} for e in (one, other)
    )
    assert here == there
    if isinstance(one, BroadcastError) and isinstance(other, BroadcastError):
        assert one.errors.keys() == other.errors.keys()
        for slot, error in one.errors.items():
            assert_alike(error, other.errors[slot], *unlike)
        assert type(one.__cause__) is type(other.__cause__)


@pytest.mark.parametrize("limit", ["timeout", "deadline"])
async def test_a_call_that_takes_too_long_ends_as_in_a_local_pool(
    tmp_path: Path, limit: str
) -> None:
    used: list[Options] = []

    async def fail(caller: Any, pool: Pool, gate: Gate) -> BroadcastError:
        used.append(options_of(limit, 3600.0))
        call = caller.options(**used[-1]).broadcast(jobs.wait_at, gate.path)
        task = asyncio.create_task(call)
        await gate.visitor()
        run_out(pool, only_job_of(pool))
        return await failure(task)

    local, remote = await failures(tmp_path, fail)
    assert_alike(local, remote, "seconds")
    [error] = remote.errors.values()
    assert isinstance(error, JobTimeoutError)
    assert error is remote.__cause__
    assert (error.limit, error.attempt) == (limit, 1)
    assert error.seconds == used[-1][limit], "it is that of the caller's clock"
    assert "wait_at" in error.stack


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("queue_timeout", 0.05), ("deadline", 0.05), ("deadline", -5.0)],
)
async def test_a_call_that_cannot_begin_in_time_ends_as_in_a_local_pool(
    tmp_path: Path, limit: str, seconds: float
) -> None:
    used: list[Options] = []

    async def fail(caller: Any, _: Pool, gate: Gate) -> BroadcastError:
        held = caller.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        used.append(options_of(limit, seconds))
        error = await failure(caller.options(**used[-1]).broadcast(jobs.configure, 1))
        visitor.release()
        await held
        assert (await caller.submit(jobs.history))[1] == []
        return error

    local, remote = await failures(tmp_path, fail)
    assert_alike(local, remote, "seconds")
    [error] = remote.errors.values()
    assert isinstance(error, JobTimeoutError)
    assert (error.limit, error.attempt, error.stack) == (limit, 0, "")
    assert error.seconds == used[-1][limit]


async def test_a_call_without_heartbeats_ends_as_in_a_local_pool(
    tmp_path: Path,
) -> None:
    async def fail(caller: Any, _: Pool, gate: Gate) -> BroadcastError:
        view = caller.options(heartbeat_timeout=0.05)
        return await failure(view.broadcast(jobs.wait_at, gate.path))

    local, remote = await failures(tmp_path, fail)
    [here], [there] = local.errors.values(), remote.errors.values()
    assert isinstance(here, WorkerHungError)
    assert isinstance(there, WorkerHungError)
    assert there.kind == here.kind
    assert there.crashes[0].detail == here.crashes[0].detail


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
