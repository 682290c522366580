"""Client and agent over a carrier that loses, doubles, delays and parts: in one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncpool import Job
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.client.client import Client
from asyncpool.enums import Delivery
from asyncpool.errors import NodeLostError
from asyncpool.pool import Pool
from tests.helpers import jobs
from tests.helpers.carriers import Network
from tests.helpers.gate import Gate
from tests.helpers.inside import agent_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import join
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

LEASE = 0.5


@asynccontextmanager
async def client_of(
    *ways: tuple[Pool, Network], lease: float = LEASE
) -> AsyncGenerator[Client]:
    """Yield the client of an agent for each pool."""
    client = Client("the client", "client", lease * 1.5, None, None, PoolHub())
    agents = [agent_of(pool, f"node {n}", lease) for n, (pool, _) in enumerate(ways)]
    try:
        for agent, (_, network) in zip(agents, ways, strict=True):
            faults, network.faults = network.faults, 0.0
            await join(client, agent, network)
            network.faults = faults
        yield client
    finally:
        client.close()
        await client.close_threads()
        for agent in agents:
            agent.close()


def submit(client: Client, path: Path, number: int) -> Job[int]:
    options = JobOptions(attempts=AttemptPolicy(max_attempts=2))
    return client.traffic.submit(jobs.sign, (str(path), number), {}, options)


@pytest.mark.parametrize("seed", range(3))
async def test_every_job_runs_once_however_bad_the_network_is(
    tmp_path: Path, seed: int
) -> None:
    signed, network = tmp_path / "signed", Network(seed, 0.2)
    # The lease is longer than the network is likely to keep silent.
    async with (
        patience(2),
        Pool(1) as pool,
        client_of((pool, network), lease=2.0) as client,
    ):
        for wave in range(4):
            waves = [submit(client, signed, 50 * wave + n) for n in range(50)]
            await asyncio.gather(*waves)
    lines = Counter(map(int, signed.read_text().split()))
    assert lines == dict.fromkeys(range(200), 1)
    assert network.counts[1] > 0


async def test_a_partition_costs_what_had_begun_and_the_rest_goes_elsewhere(
    tmp_path: Path,
) -> None:
    signed = tmp_path / "signed"
    near, far = Network(0, 0.0), Network(1, 0.0)
    async with (
        patience(2),
        Gate() as gate,
        Pool(1) as one,
        Pool(1) as two,
        client_of((one, far), (two, near)) as client,
    ):
        # Both have a job that has begun, and others behind it.
        begun = [
            client.traffic.submit(jobs.wait_at, (gate.path, str(n)), {}, JobOptions())
            for n in range(2)
        ]
        visitors = [await gate.visitor(str(n)) for n in range(2)]
        waiting = [submit(client, signed, n) for n in range(100)]
        where = {client.nodes.of(job.id): job for job in begun}
        names = {node.name: job for node, job in where.items() if node is not None}
        far.parted = True
        with pytest.raises(NodeLostError) as lost:
            await names["node 0"]
        assert lost.value.node == "node 0"
        assert lost.value.delivery is Delivery.STARTED
        for visitor in visitors:
            visitor.release()
        assert await names["node 1"] == "go"
        done = await asyncio.gather(*waiting, return_exceptions=True)
        again = [job.attempt for job in waiting]
        assert done == list(range(100))
        assert set(again) <= {1, 2}
        assert again.count(2) <= 3  # what the lost pool may have had ahead
    assert max(Counter(signed.read_text().split()).values()) <= 2


async def test_a_job_of_which_its_client_heard_nothing_has_not_begun(
    tmp_path: Path,
) -> None:
    signed = tmp_path / "signed"
    near, far = Network(0, 0.0), Network(1, 0.0)
    async with (
        patience(2),
        Pool(1) as one,
        Pool(1) as two,
        client_of((one, far), (two, near)) as client,
    ):
        # The agent hears the client, and not the other way round.
        far.mute = far.ways[0][1]
        once = JobOptions(attempts=AttemptPolicy(max_attempts=1))
        given = [
            client.traffic.submit(jobs.sign, (str(signed), n), {}, once)
            for n in range(100)
        ]
        assert await asyncio.gather(*given) == [*range(100)]
        assert [node.name for node in client.nodes] == ["node 1"]
        assert (one.stats().completed, two.stats().completed) == (0, 100)
    assert Counter(map(int, signed.read_text().split())) == dict.fromkeys(range(100), 1)
