"""Nodes of Ray that come, go and die under load."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from asyncpool import Job
from asyncpool.enums import Delivery
from asyncpool.errors import NodeLostError, PoolClosedError
from asyncpool.ray import Pool
from tests.helpers.jobs import configure, history, sign, square
from tests.helpers.patience import patience
from tests.helpers.ray_clusters import LocalNodes, agents, local_nodes, until

pytestmark = pytest.mark.asyncio

KILLS = 10


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalNodes]:
    with local_nodes(more=1) as nodes:
        yield nodes


def sign_and_wait(path: str, number: int) -> int:
    """Say that a job has begun, and take a while, so that some are running at any time."""
    sign(path, number)
    for _ in range(20_000):
        os.getpid()
    return number


async def test_nodes_come_and_go(cluster: LocalNodes) -> None:
    async with Pool(cluster.address, workers_per_node=1, resources={}) as pool:
        await agents(pool, 2)
        await pool.broadcast(configure, "a")
        node = cluster.add()
        names = await agents(pool, 3)
        assert len(set(names)) == 3
        told = await pool.broadcast(history)
        assert [slot // 10_000 for slot in sorted(told)] == [0, 1, 2]
        assert [values for _, values in told.values()] == [["a"]] * 3
        cluster.kill(node)
        await agents(pool, 2)
        jobs = [pool.submit(square, n) for n in range(100)]
        assert await asyncio.gather(*jobs) == [n * n for n in range(100)]


async def test_each_job_has_its_fate_when_agents_are_killed_under_load(
    cluster: LocalNodes, tmp_path: Path
) -> None:
    signed = str(tmp_path / "signed")
    killed, jobs = 0, list[Job[int]]()
    async with Pool(cluster.address, workers_per_node=1, resources={}) as pool:
        twice = pool.options(max_attempts=2)
        while killed < KILLS:
            names = await agents(pool, 2)
            more = [
                twice.submit(sign_and_wait, signed, len(jobs) + n) for n in range(200)
            ]
            jobs += more
            await more[0]
            agent = psutil.Process(int(names[killed % 2].rpartition("/")[2]))
            workers = agent.children(recursive=True)
            agent.kill()
            killed += 1
            await until(workers)  # nothing of ours outlives an agent
        done = await asyncio.gather(*jobs, return_exceptions=True)
    lost = {n: fate for n, fate in enumerate(done) if isinstance(fate, BaseException)}
    for fate in lost.values():
        assert isinstance(fate, NodeLostError)
        assert fate.delivery in {Delivery.STARTED, Delivery.UNKNOWN}
    assert [fate for n, fate in enumerate(done) if n not in lost] == [
        n for n in range(len(jobs)) if n not in lost
    ]
    starts = Counter(map(int, Path(signed).read_text().split()))
    assert max(starts.values()) <= 2
    assert all(starts[n] for n in range(len(jobs)) if n not in lost)
    assert len(lost) < len(jobs) / 10


async def test_nothing_is_left_on_a_node_when_its_client_is_gone(
    cluster: LocalNodes,
) -> None:
    async with (
        patience(),
        Pool(cluster.address, workers_per_node=1, resources={}) as pool,
    ):
        names = await agents(pool, 2)
        ours: list[psutil.Process] = []
        for name in names:
            agent = psutil.Process(int(name.rpartition("/")[2]))
            ours += [agent, *agent.children(recursive=True)]
    await until(ours)


async def test_an_address_where_nobody_is() -> None:
    with pytest.raises(ValueError, match="ray://"):
        Pool("ray://127.0.0.1:10001")
    with pytest.raises(TypeError, match="timeout: each job has its own"):
        Pool(timeout=3)


async def test_who_comes_too_late_is_refused(cluster: LocalNodes) -> None:
    pool = Pool(cluster.address, workers_per_node=1, resources={})
    with pytest.raises(PoolClosedError, match="the Ray pool was not started"):
        pool.submit(square, 1)
    async with pool:
        pass
    with pytest.raises(PoolClosedError):
        pool.submit(square, 1)
