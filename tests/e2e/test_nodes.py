"""The nodes of a pool: what is seen of them, and what a bad network costs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from asyncpool import Job, Pool
from asyncpool._core.options import JobOptions
from asyncpool._engine.hub import PoolHub
from asyncpool._remote.client import Client
from asyncpool.enums import Delivery
from asyncpool.errors import NodeLostError, WorkerCrashedError
from asyncpool.events import Crashed, JobEnded, JobStarted, Ready
from asyncpool.prometheus import register, unregister
from tests.helpers import jobs
from tests.helpers.asking import ask
from tests.helpers.carriers import Network
from tests.helpers.gate import Gate
from tests.helpers.inside import agent_of, asked_by, figures_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import join, nodes_pool, two_nodes
from tests.helpers.patience import patience
from tests.helpers.pools import next_of
from tests.helpers.scraping import Figures

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize("ahead", [0, 7200, -1])
async def test_events_say_in_which_slot_of_which_node_a_job_ran_and_when(
    ahead: int,
) -> None:
    """Also where the nodes have another time, by hours."""
    async with patience(), two_nodes(ahead=ahead) as (pool, one, two):
        seen: list[object] = []
        pool.add_job_listener(seen.append)
        began = time.monotonic()
        pids = await asyncio.gather(
            *(pool.submit(jobs.pid_after, 0.05) for _ in range(20))
        )
        ended = time.monotonic()
        for node in (await pool.stats()).nodes:
            assert node.clock_error is not None
            assert abs(node.clock_ahead - ahead) <= node.clock_error < 10.0
        slots = {one.stats().slots[0].pid: 0, two.stats().slots[0].pid: 10_000}
    ends = sorted(
        (it for it in seen if isinstance(it, JobEnded)), key=lambda it: it.job_id
    )
    assert [it.slot for it in ends] == [slots[pid] for pid in pids]
    for it in ends:
        assert began <= it.at - it.run <= it.at <= ended
        assert it.wait >= 0
    # One after the other has waited for those before it.
    assert max(it.wait for it in ends) >= 0.4
    started = {it.job_id for it in seen if isinstance(it, JobStarted)}
    assert started == {*range(1, 21)}


async def test_a_crash_is_told_with_the_slot_as_the_client_counts() -> None:
    async with patience(), two_nodes() as (pool, _, two):
        events = pool.events()
        await pool.stats()  # the nodes have heard who listens
        pid = two.stats().slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        crash = (await next_of(events, Crashed)).crash
        assert (crash.slot, crash.pid, crash.job_id) == (10_000, pid, None)
        assert (await next_of(events, Ready)).slot == 10_000


async def test_the_figures_of_nodes_and_of_their_workers() -> None:
    async with (
        patience(),
        Gate() as gate,
        Pool(2) as one,
        Pool(2) as two,
        nodes_pool(one, two) as pool,
    ):
        waiting = [pool.submit(jobs.wait_at, gate.path, str(n)) for n in range(4)]
        visitors = [await gate.visitor(str(n)) for n in range(4)]
        stats = await pool.stats()
        assert [node.name for node in stats.nodes] == ["node-0", "node-1"]
        assert [node.first_slot for node in stats.nodes] == [0, 10_000]
        assert [node.workers for node in stats.nodes] == [2, 2]
        assert [node.busy for node in stats.nodes] == [2, 2]
        assert [node.jobs for node in stats.nodes] == [2, 2]
        assert not any(node.suspected for node in stats.nodes)
        assert all(node.memory > 0 for node in stats.nodes)
        assert all(node.age is not None and node.age < 10 for node in stats.nodes)
        assert (stats.workers, stats.busy, stats.submitted) == (4, 4, 4)
        # The numbers of jobs are those of the client, and not of each node's pool.
        running = {job.job_id for slot in stats.slots for job in slot.running}
        assert running == {job.id for job in waiting} == {1, 2, 3, 4}
        assert {slot.slot for slot in stats.slots} == {0, 1, 10_000, 10_001}
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(*waiting)
        # Those who have ended run no more, though no agent was asked since.
        latest = figures_of(pool).latest()
        assert not [job for slot in latest.slots for job in slot.running]
        assert latest.completed == 4
        assert [node.run.count for node in (await pool.stats()).nodes] == [2, 2]


async def test_counters_outlive_the_node_that_counted() -> None:
    async with patience(), two_nodes() as (pool, _, _):
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        before = await pool.stats()
        assert (before.crashes, len(before.nodes)) == (1, 2)
        guilty = next(node.name for node in before.nodes if node.crashes)
        pool.networks[int(guilty[-1])].parted = True
        after = await pool.stats()  # as soon as the agent is given up
        assert (after.crashes, after.restarts) == (1, before.restarts)
        assert (after.workers, after.submitted, after.failed) == (1, 1, 1)
        assert [slot.slot for slot in after.slots] in ([0], [10_000])
        assert await pool.submit(jobs.square, 3) == 9


async def test_figures_are_asked_for_while_somebody_looks() -> None:
    async with patience(), Pool(1) as one, nodes_pool(one) as pool:
        figures = figures_of(pool)
        [node] = figures.latest().nodes
        assert (node.age, node.workers) == (None, 1)  # so many lanes has it told
        await asked_by(figures)
        assert figures.latest().nodes[0].age is not None
        assert figures.latest().idle == 1
        # From a thread, as metrics are read.
        stats = await asyncio.to_thread(figures.latest)
        assert stats.nodes[0].name == "node-0"


async def test_commands_see_the_nodes_and_reach_their_workers(tmp_path: Path) -> None:
    path = tmp_path / "control"
    async with patience(), Gate() as gate, two_nodes(control=str(path)) as (pool, _, _):
        waiting = [pool.submit(jobs.wait_at, gate.path, str(n)) for n in range(2)]
        visitors = [await gate.visitor(str(n)) for n in range(2)]
        status = await ask(str(path), "status")
        assert status["kind"] == "pool"
        assert [node["name"] for node in status["nodes"]] == ["node-0", "node-1"]
        assert [node["busy"] for node in status["nodes"]] == [1, 1]
        stacks = await ask(str(path), "stacks")
        assert sorted(stacks["stacks"]) == ["0", "10000"]
        assert all("wait_at" in text for text in stacks["stacks"].values())
        found = await ask(str(path), "stacks", job=2)
        [(slot, text)] = found["stacks"].items()
        assert "wait_at" in text
        there = {s["slot"]: s["job_ids"] for s in status["slots"]}
        assert list(there[int(slot)]) == [2]
        answer = await ask(str(path), "kill", slot=int(slot))
        assert answer["text"] == f"the worker in slot {slot} was killed"
        with pytest.raises(WorkerCrashedError):
            await waiting[1]
        visitors[0].release()
        assert await waiting[0] == "go"
        answer = await ask(str(path), "resize", workers=2)
        assert answer["text"] == "2 workers on each node now, 2 on all before"
        answer = await ask(str(path), "recycle")
        assert answer["replaced"] == 4
    assert not path.exists()


async def test_metrics_have_the_nodes() -> None:
    registry = CollectorRegistry()
    async with (
        patience(),
        Pool(1) as one,
        Pool(2, ready="all") as two,
        nodes_pool(one, two) as pool,
    ):
        register(pool, registry)
        with pytest.raises(ValueError, match=r"^pool nodes is already registered in"):
            register(pool, registry)
        await pool.submit(jobs.square, 3)
        first = Figures((await asyncio.to_thread(generate_latest, registry)).decode())
        assert first.get("node_trusted", pool="nodes", node="node-1") == 1
        await pool.stats()  # has them told at once, and not in a second
        found = Figures((await asyncio.to_thread(generate_latest, registry)).decode())
        assert found.get("node_workers", node="node-1", state="idle") == 2
        assert found.get("jobs_submitted_total", pool="nodes") == 1
        assert found.get("workers", pool="nodes", state="idle") == 3
        assert found.get("node_clock_error_seconds", node="node-0") > 0
        unregister(pool, registry)
        assert b"node-0" not in generate_latest(registry)


async def test_no_jobs_wait_at_a_busy_node_while_another_one_has_nothing_to_do() -> (
    None
):
    async with patience(), Gate() as gate, two_nodes() as (pool, _, _):
        holder = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        squares = [pool.submit(jobs.square, n) for n in range(50)]
        # The node may have one more job than the one that it runs.
        while sum(job.done() for job in squares) < 49:
            waits = [job for job in squares if not job.done()]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert not holder.done()
        visitor.release()
        assert await asyncio.gather(*squares) == [n * n for n in range(50)]


@pytest.mark.parametrize("by_client", [True, False])
async def test_a_node_with_more_workers_gets_more_jobs(*, by_client: bool) -> None:
    async with patience(), Gate() as gate, two_nodes() as (pool, one, _):
        holders = [pool.submit(jobs.wait_at, gate.path) for _ in range(20)]
        if by_client:
            await pool.resize(3)
        else:
            await one.resize(5)
        visitors = [await gate.visitor(nth=nth) for nth in range(1, 7)]
        for job in holders:
            job.cancel()
        for visitor in visitors:
            visitor.release()


# Over a carrier that loses, doubles, delays and parts.

LEASE = 0.5


@asynccontextmanager
async def client_of(
    *ways: tuple[Pool, Network],
) -> AsyncGenerator[Client]:
    """Yield the client of an agent for each pool."""
    client = Client("the client", "client", None, None, PoolHub())
    agents = [agent_of(pool, f"node {n}") for n, (pool, _) in enumerate(ways)]
    try:
        for agent, (_, network) in zip(agents, ways, strict=True):
            join(client, agent, network)
        yield client
    finally:
        client.close()
        await client.threads.close()
        for agent in agents:
            agent.close()


def submit(client: Client, path: Path, number: int) -> Job[int]:
    options = JobOptions(max_attempts=2)
    return client.traffic.submit(jobs.sign, (str(path), number), {}, options)


@pytest.mark.parametrize("seed", range(3))
async def test_every_job_runs_once_however_bad_the_network_is(
    tmp_path: Path, seed: int
) -> None:
    # The lease is longer than the network is likely to keep silent.
    signed, network = tmp_path / "signed", Network(seed, 0.2, lease=5.0)
    async with patience(2), Pool(1) as pool, client_of((pool, network)) as client:
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
    near, far = Network(0, 0.0, LEASE), Network(1, 0.0, LEASE)
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
        where = {client.node_of(job.id): job for job in begun}
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


async def test_a_job_of_which_its_client_heard_nothing_may_have_begun(
    tmp_path: Path,
) -> None:
    signed = tmp_path / "signed"
    near, far = Network(0, 0.0, LEASE), Network(1, 0.0, LEASE)
    async with (
        patience(2),
        Pool(1) as one,
        Pool(1) as two,
        client_of((one, far), (two, near)) as client,
    ):
        far.mute = True  # the agent hears the client, and not the other way round
        once = JobOptions(max_attempts=1)
        given = [
            client.traffic.submit(jobs.sign, (str(signed), n), {}, once)
            for n in range(100)
        ]
        done = await asyncio.gather(*given, return_exceptions=True)
        lost = [n for n, result in enumerate(done) if isinstance(result, NodeLostError)]
        assert [result for n, result in enumerate(done) if n not in lost] == [
            n for n in range(100) if n not in lost
        ]
        assert 1 <= len(lost) <= 2  # what the lost agent had got
        for number in lost:
            error = done[number]
            assert isinstance(error, NodeLostError)
            assert error.delivery is Delivery.UNKNOWN
            assert given[number].attempt == 1
        assert [node.name for node in client.nodes.values()] == ["node 1"]
    assert max(Counter(signed.read_text().split()).values()) == 1
