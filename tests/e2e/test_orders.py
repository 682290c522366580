"""Workers that somebody retires, or kills, one by one."""

from __future__ import annotations

import asyncio
import functools
import re

import pytest

from asyncpool import (
    Cluster,
    Crash,
    NoWorkerError,
    Pool,
    PoolClosedError,
    RestartPolicy,
    WorkerCrashedError,
)
from asyncpool.events import Crashed, Exited, Ready, Retiring, TakenOver
from tests.helpers import jobs, serves
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.inside import crashes_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle, next_of

pytestmark = BOTH_LOOPS

KILLED = "killed since kill() was called"

# A policy that counts each death.
STRICT = RestartPolicy.limited(1, 3600.0)


async def test_a_retired_worker_finishes_its_job_when_another_one_is_ready() -> None:
    async with patience(), Gate() as gate, Pool(1, restart_policy=STRICT) as pool:
        events = pool.events()
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        for _ in range(3):
            pool.retire(0)  # more than once is as good as once
        retiring = await next_of(events, Retiring)
        assert retiring == Retiring(0, 1, "retire")
        assert await pool.submit(jobs.pid) != visitor.pid
        visitor.release("done")
        assert await job == "done"
        assert await next_of(events, Exited) == Exited(
            0, 1, visitor.pid, 0, reason="retire"
        )
        assert pool.stats().crashes == 0
        assert [slot.slot for slot in (await idle(pool)).slots if slot.pid] == [1]
    rest = [event async for event in events]
    assert not [event for event in rest if isinstance(event, Crashed | Retiring)]


async def test_a_kill_is_no_crash_and_its_job_fails() -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(1, restart_policy=STRICT, on_crash=crashes.append) as pool,
    ):
        events = pool.events()
        for generation in range(1, 4):
            job = pool.submit(jobs.wait_at, gate.path, f"{generation}")
            visitor = await gate.visitor(f"{generation}")
            pool.kill(0)
            with pytest.raises(WorkerCrashedError, match=re.escape(KILLED)) as caught:
                await job
            assert caught.value.delivery == "started"
            [crash] = caught.value.crashes
            assert (crash.pid, crash.kind, crash.signal, crash.detail) == (
                visitor.pid,
                "crash",
                "SIGKILL",
                KILLED,
            )
            exited = await next_of(events, Exited)
            assert exited == Exited(
                0,
                generation,
                visitor.pid,
                signal="SIGKILL",
                detail=KILLED,
                reason="kill",
            )
        await assert_serves(pool)
        stats = pool.stats()
    assert (stats.crashes, stats.restarts, stats.failed) == (0, 3, 3)
    assert crashes == []
    assert not [event async for event in events if isinstance(event, Crashed)]


async def test_the_job_of_a_killed_worker_is_taken_over_if_it_may_be() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        events = pool.events()
        job = pool.options(max_attempts=2).submit(jobs.wait_at, gate.path)
        behind = pool.submit(jobs.square, 3)
        await gate.visitor()
        pool.kill(0)
        assert await next_of(events, TakenOver) == TakenOver(job.id, 1)
        (await gate.visitor(nth=2)).release("again")
        assert (await job, await behind) == ("again", 9)
        [crash] = crashes_of(job)
        assert crash.detail == KILLED


async def test_an_order_for_a_slot_without_a_worker_names_the_others() -> None:
    async with patience(), Pool(2) as pool:
        await idle(pool)
        for order in (pool.retire, pool.kill):
            text = "there is no worker in slot 7 that is ready; slots with one: 0, 1"
            with pytest.raises(NoWorkerError, match=rf"^{text}$") as caught:
                order(7)
            assert (caught.value.worker, caught.value.there) == (7, (0, 1))
            with pytest.raises(NoWorkerError):
                order(2)  # which is there, for replacements
            with pytest.raises(TypeError, match=r"^slot must be an int, not '0'$"):
                order("0")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="slot must be"):
                order(-1)
    with pytest.raises(PoolClosedError):
        pool.retire(0)
    with pytest.raises(NoWorkerError, match=r"slots with one: none$"):
        pool.kill(0)


async def test_who_is_starting_is_not_killed() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, initializer=jobs.wait_at, initargs=(gate.path,))
        start = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        with pytest.raises(NoWorkerError, match=r"slots with one: none$"):
            pool.kill(0)
        visitor.release()
        await start
        pool.kill(0)
        (await gate.visitor(nth=2)).release()
        await pool.close()
        assert pool.stats().crashes == 0


# Clusters.


async def test_a_retired_worker_of_a_cluster_drains() -> None:
    async with patience(), cluster_of(workers=2, restart_policy=STRICT) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        async with Client(cluster) as client:
            slot, _, pid = await client.who()
            cluster.retire(slot)
            assert await client.ask("wait") == "draining"
            assert await next_of(events, Retiring) == Retiring(slot, 1, "retire")
            assert (await client.who())[2] == pid
        exited = await next_of(events, Exited)
        assert exited == Exited(slot, 1, pid, 0, reason="retire")
        assert (await all_ready(cluster)).crashes == 0


async def test_a_killed_worker_of_a_cluster_is_no_crash() -> None:
    async with patience(), cluster_of(workers=2, restart_policy=STRICT) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        for _ in range(3):
            async with Client(cluster) as client:
                slot, generation, pid = await client.who()
                cluster.kill(slot)
                assert await client.ask("who") == ""
            exited = await next_of(events, Exited)
            assert exited == Exited(
                slot, generation, pid, signal="SIGKILL", detail=KILLED, reason="kill"
            )
            assert (await all_ready(cluster)).crashes == 0


async def test_orders_for_nobody_in_a_cluster() -> None:
    cluster = Cluster(serves.talk, workers=1)
    for order in (cluster.retire, cluster.kill):
        with pytest.raises(PoolClosedError, match="was not started"):
            order(0)
    async with patience(), cluster:
        for order in (cluster.retire, cluster.kill):
            with pytest.raises(NoWorkerError, match=r"slots with one: 0$"):
                order(3)


async def test_a_cluster_may_be_waited_for_until_all_are_ready() -> None:
    async with patience(), Gate() as gate:
        target = functools.partial(serves.answer_behind, gate.path)
        cluster = cluster_of(target, bind=(), workers=2, ready="all")
        events = cluster.events()
        start = asyncio.create_task(cluster.start())
        for slot in range(2):
            assert not start.done()
            (await gate.visitor(f"{slot}")).release()
            await next_of(events, Ready)
        await start
        assert [slot.ready for slot in cluster.stats().slots if slot.pid] == [
            True,
            True,
        ]
        await cluster.close()
