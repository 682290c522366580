"""Stores that are full and write nothing to disk: what they do not take goes another way."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import pytest_asyncio

from asyncpool.errors import JobNotPicklableError
from asyncpool.ray import Pool
from tests.helpers.jobs import square
from tests.helpers.patience import patience
from tests.helpers.ray_clusters import LocalNodes, local_nodes

pytestmark = pytest.mark.asyncio

STORE_HAS_NO_ROOM = 120_000_000


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalNodes]:
    with local_nodes(spills=False) as nodes:
        yield nodes


@pytest_asyncio.fixture
async def pool(cluster: LocalNodes) -> AsyncGenerator[Pool]:
    """Yield a pool on one node, whose agent must be the same at the end."""
    options: dict[str, Any] = {"nodes": 1, "workers_per_node": 2, "resources": {}}
    async with Pool(cluster.address, **options) as pool:
        before = [*await pool.nodes()]
        yield pool
        assert [*await pool.nodes()] == before


@pytest.fixture
def full() -> Generator[None]:
    """Have objects in the store that leave room for next to nothing."""
    import ray

    held: list[Any] = [ray.put(os.urandom(20_000_000)) for _ in range(4)]
    with pytest.raises(ray.exceptions.OutOfDiskError):
        ray.put(bytes(9_000_000))
    yield
    del held


async def test_what_is_larger_than_the_store_is_done_beside_other_jobs(
    pool: Pool,
) -> None:
    data = os.urandom(1000) * (STORE_HAS_NO_ROOM // 1000)
    async with patience(4):
        large = pool.submit(zlib.crc32, data), pool.submit(bytes, STORE_HAS_NO_ROOM)
        others = [pool.submit(square, number) for number in range(200)]
        assert await asyncio.gather(*others) == [n * n for n in range(200)]
        assert await large[0] == zlib.crc32(data)
        assert await large[1] == bytes(STORE_HAS_NO_ROOM)


@pytest.mark.usefixtures("full")
async def test_a_pool_goes_on_when_others_fill_the_store(pool: Pool) -> None:
    # None of these is large, but the batches that have many are.
    middle = [bytes([number]) * 20_000 for number in range(200)]
    async with patience(4):
        assert await pool.map(bytes, middle) == middle
        data = os.urandom(9_000_000)
        assert await pool.submit(bytes, data) == data
        async with pool.worker() as worker:
            calls = worker.submit(bytes, data), worker.submit(square, 3)
            assert await calls[0] == data
            assert await calls[1] == 9
        assert {*(await pool.broadcast(len, data)).values()} == {len(data)}


async def test_an_object_that_has_no_room_on_its_node_costs_its_job_alone(
    cluster: LocalNodes, pool: Pool
) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = cluster.add()
    there = NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)

    @ray.remote(num_cpus=0, scheduling_strategy=there)  # type: ignore[untyped-decorator]
    def makes() -> bytes:
        return bytes(60_000_000)

    reference: Any = makes.remote()
    async with patience(4):
        await asyncio.to_thread(ray.wait, [reference], fetch_local=False)
        held: list[Any] = [ray.put(os.urandom(20_000_000)) for _ in range(2)]
        jobs = [pool.submit(len, reference), pool.submit(len, ray.put([1, 2]))]
        with pytest.raises(JobNotPicklableError) as caught:
            await jobs[0]
        [name] = await pool.nodes()
        assert str(caught.value) == (
            "an argument of builtins.len is in Ray's store and cannot be had on the node "
            f"{name.rpartition('/')[0]}: a store on its way is full, and writes nothing to disk"
        )
        assert caught.value.direction == "arguments"
        assert await jobs[1] == 2
        del held
        assert await pool.submit(square, 3) == 9
