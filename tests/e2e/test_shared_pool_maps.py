"""Maps through a shared pool: items travel together, and each has its own outcome all the same."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Map, WorkerLimits
from asyncpool.enums import JobOutcome
from asyncpool.errors import (
    JobNotPicklableError,
    NodeLostError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.pool import Pool
from asyncpool.sharedpool import connect
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import check_for_stalls
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import nodes_pool
from tests.helpers.patience import patience
from tests.helpers.shared_pools import pool_and_client, server, shared
from tests.helpers.signing import Item, numbers_in, signing

pytestmark = BOTH_LOOPS


async def test_items_travel_together_and_come_in_order(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=2) as pool:
        count = 20_000
        found = await pool.map(jobs.square, range(count))
        assert found == [n * n for n in range(count)]
        done = (await pool.stats()).completed
        assert done < count / 10, "many items make a job"
        sums = pool.starmap(pow, [(n, 2) for n in range(300)], chunksize=100)
        assert await sums == [n * n for n in range(300)]


async def test_slow_items_travel_alone_until_they_are_short_again(
    tmp_path: Path,
) -> None:
    items: list[Item] = [("sleep", 0.003)] * 60 + [("return", 1)] * 20_000
    async with patience(), shared(tmp_path, workers=1) as pool:
        found = await pool.map(jobs.choose, items)
        assert found == [None] * 60 + [1] * 20_000
        ended = {one.via: one for one in (await pool.stats()).functions}
        assert 30 <= ended["submit"].jobs[JobOutcome.OK] < 10_000
        assert ended["map"].jobs[JobOutcome.OK] < 2000


async def test_each_function_has_its_own_figures_at_the_agent(tmp_path: Path) -> None:
    """All chunks are calls of one function, which stands for that of the map."""
    async with (
        patience(),
        pool_and_client(tmp_path, workers=1) as (pool, client),
    ):
        for function in (jobs.square, jobs.pid_for, jobs.square):
            await client.map(function, range(10), chunksize=5, buffersize=20)
        ended = {
            (one.function, one.via)
            for one in pool.stats().functions
            if any(one.jobs.values())
        }
        assert ended == {
            ("tests.helpers.jobs.square", "map"),
            ("tests.helpers.jobs.pid_for", "map"),
        }


async def test_only_the_client_unpickles_what_the_dead_have_noted(
    tmp_path: Path,
) -> None:
    """Both are in this process, so what the agent unpickles would be loaded twice."""
    loads = jobs.LOADS
    items: list[Item] = [
        ("return", jobs.Loaded()),
        ("raise", LookupError("kept")),
        ("die", None),
    ]
    async with patience(), shared(tmp_path, workers=1) as pool:
        loads.clear()
        choices = pool.map(jobs.choose, items, chunksize=3, buffersize=12)
        found = await choices.outcomes()
    assert loads == [os.getpid()]
    assert found[0].ok
    assert repr(found[1].error) == "LookupError('kept')"
    assert type(found[2].error) is WorkerCrashedError


async def test_items_behind_one_that_takes_long_go_in_other_jobs(
    tmp_path: Path,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=2) as (pool, client),
    ):
        items: list[Item] = [("pid", None), ("wait", gate.path), *[("pid", None)] * 6]
        choices = client.map(jobs.choose, items, chunksize=8, buffersize=64)
        running = asyncio.ensure_future(choices.outcomes())
        visitor = await gate.visitor()
        for _ in range(2):
            check_for_stalls(pool)
        visitor.release()
        assert [one.result() for one in await running][1] == "go"
        assert pool.stats().completed > 1


async def test_what_cannot_be_pickled_is_the_error_of_its_item(tmp_path: Path) -> None:
    large = 3 << 20
    items: list[Item] = [("return", 1), ("unpicklable", None), ("make", large)]
    async with patience(), shared(tmp_path, workers=1) as pool:
        choices = pool.map(jobs.choose, items, chunksize=3, buffersize=12)
        found = await choices.outcomes()
        assert found[0].result() == 1
        assert isinstance(found[1].error, JobNotPicklableError)
        assert found[1].error.direction == "result"
        assert len(found[2].result()) == large
        # The arguments of a chunk are one message, and one of them cannot be in it.
        items = [("return", 1), ("return", threading.Lock()), ("return", 2)]
        choices = pool.map(jobs.choose, items, chunksize=3, buffersize=12)
        found = await choices.outcomes()
        assert [one.ok for one in found] == [True, False, True]
        assert isinstance(found[1].error, JobNotPicklableError)
        assert found[1].error.direction == "arguments"


async def test_each_item_has_a_worker_of_its_own_where_each_job_has(
    tmp_path: Path,
) -> None:
    async with patience(), shared(tmp_path, workers=2, fresh=True) as pool:
        with pytest.raises(ValueError, match="each item has a worker of its own"):
            await pool.map(jobs.pid_for, range(4), chunksize=2)
        assert len(set(await pool.map(jobs.pid_for, range(4)))) == 4


async def test_a_worker_begins_no_more_items_than_it_may(tmp_path: Path) -> None:
    limits = WorkerLimits(max_jobs=5, jitter=0.0, exact=True)
    async with patience(), shared(tmp_path, workers=1, worker_limits=limits) as pool:
        pids = await pool.map(jobs.pid_for, range(20))
    # On a busy machine the next worker may take over what one has not begun that ends.
    begun = Counter(pids).values()
    assert max(begun) == 5
    assert sum(begun) == 20


async def test_each_item_is_accounted_for_when_the_agent_is_killed(
    tmp_path: Path,
) -> None:
    path, count = tmp_path / "signed", 4000
    fates, some = Counter[str](), asyncio.Event()

    async def take(choices: Map[Any]) -> None:
        async for one in choices.outcomes():
            if one.ok:
                fates["done"] += 1
            elif isinstance(one.error, NodeLostError):
                fates[one.error.delivery.value] += 1
            else:
                assert isinstance(one.error, PoolClosedError)
                fates["too late"] += 1
            if one.index == 100:
                some.set()

    with server(tmp_path / "pool.sock", workers=2) as process:
        async with (
            patience(2),
            Gate() as gate,
            connect(f"unix:{tmp_path}/pool.sock") as pool,
        ):
            items = signing(path, count)
            items[230] = ("wait", gate.path)
            taken = asyncio.ensure_future(
                take(pool.map(jobs.choose, items, chunksize=50))
            )
            await gate.visitor()
            await some.wait()
            process.kill()
            await taken
    assert fates.total() == count
    assert fates["done"] > 100
    assert fates["started"]
    began = numbers_in(path)
    assert set(began.values()) == {1}, "nothing twice"
    # The one at the gate has left no line.
    assert fates["done"] <= len(began) < fates["done"] + fates["started"]


async def test_the_items_of_a_lost_node_go_to_another_one(tmp_path: Path) -> None:
    path, count = tmp_path / "signed", 2000
    async with (
        patience(),
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one, two) as pool,
    ):
        view = pool.options(max_attempts=2)
        running = view.map(jobs.choose, signing(path, count), chunksize=20)
        found: list[int] = []
        async for number in running:
            found.append(number)
            if len(found) == 100:
                pool.networks[0].parted = True
    assert found == list(range(count))
    assert max(numbers_in(path).values()) <= 2
    assert len(numbers_in(path)) == count
