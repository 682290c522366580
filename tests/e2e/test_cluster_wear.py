"""Workers of clusters that are old, worn or too large, and how others are started."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster, Crash, RollResult, WorkerLimits
from asyncpool.events import Exited, Retiring
from tests.helpers import serves
from tests.helpers.clusters import SPREADS, Client, all_ready, cluster_of, who
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import next_of

pytestmark = BOTH_LOOPS

in_each_way = pytest.mark.parametrize("spread", SPREADS)

MIB = 1 << 20


# Wear.


@asynccontextmanager
async def only_worker(**options: Any) -> AsyncGenerator[tuple[Cluster, Client]]:
    """Open a cluster of one worker, and a conversation with that."""
    async with (
        patience(),
        cluster_of(workers=1, **options) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


@in_each_way
async def test_a_worker_that_has_served_enough_is_followed_by_another(
    spread: str,
) -> None:
    limits = WorkerLimits(max_jobs=5, jitter=0.0)
    async with only_worker(worker_limits=limits, spread=spread) as (cluster, client):
        events = cluster.events()
        first = await client.who()
        seen = {first}
        while len(seen) < 2:
            seen.add(await who(cluster))
        assert (await next_of(events, Retiring)).reason == "max_jobs"
        assert await client.who() == first, "its own conversation goes on"
        assert cluster.stats().crashes == 0


@in_each_way
async def test_an_old_worker_finishes_its_conversation(spread: str) -> None:
    limits = WorkerLimits(max_age=0.05)
    async with only_worker(worker_limits=limits, spread=spread) as (cluster, client):
        events = cluster.events()
        first = await client.who()
        assert (await next_of(events, Retiring)).reason == "max_age"
        assert await client.ask("wait") == "draining"
        assert await who(cluster) != first
        assert await client.who() == first
        await client.close()
        while (await next_of(events, Exited)).pid != first[2]:
            pass
        assert cluster.stats().crashes == 0


async def test_a_worker_with_too_much_memory_finishes_its_conversation() -> None:
    limits = WorkerLimits(max_memory=64 * MIB)
    async with only_worker(worker_limits=limits) as (cluster, client):
        events = cluster.events()
        first = await client.who()
        assert await client.ask("leak 100") == "leaked"
        assert (await next_of(events, Retiring)).reason == "max_memory"
        assert await client.ask("wait") == "draining"
        assert await who(cluster) != first
        assert await client.who() == first
        assert cluster.stats().crashes == 0


async def test_one_with_far_too_much_is_killed_and_replaced() -> None:
    crashes: list[Crash] = []
    limits = WorkerLimits(kill_memory=64 * MIB)
    async with only_worker(worker_limits=limits, on_crash=crashes.append) as (
        cluster,
        client,
    ):
        _, _, pid = await client.who()
        client.say("leak 100")
        assert await client.answer() in {"leaked", ""}
        assert not await client.answer(), "the connection has ended"
        assert (await who(cluster))[2] != pid
        stats = await all_ready(cluster)
        assert (stats.crashes, stats.restarts) == (1, 1)
    [crash] = crashes
    assert (crash.kind, crash.pid) == ("out of memory", pid)
    told = r"it had [\d.]+ MiB of memory, and kill_memory is 64 MiB"
    assert re.search(told, crash.detail)
    assert crash.next_step_text == "restarting at once"


# How they are started.


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_what_is_preloaded_is_there_in_all_workers(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ap_model.py").write_text("import os\nPID = os.getpid()\n")
    async with (
        patience(),
        cluster_of(launcher=launcher, preload=["ap_model"]) as cluster,
    ):
        await all_ready(cluster)
        workers: dict[int, int] = {}
        while len(workers) < 2:
            async with Client(cluster) as client:
                _, _, pid = await client.who()
                workers[pid] = int(await client.ask("born ap_model"))
        if launcher == "spawn":
            assert all(pid == born for pid, born in workers.items())
        else:
            [born] = {*workers.values()}
            assert born not in {*workers, os.getpid()}


async def test_spawned_workers_are_replaced_and_reloaded() -> None:
    async with patience(), cluster_of(workers=1, launcher="spawn") as cluster:
        async with Client(cluster) as client:
            first = await client.who()
            assert not await client.ask("die SIGKILL")
        second = await who(cluster)
        assert second[1:] != first[1:]
        await all_ready(cluster)
        assert await cluster.reload() == RollResult(replaced=1, reason="", crash=None)
        third = await who(cluster)
        assert third[2] not in {first[2], second[2]}
        stats = await all_ready(cluster)
        assert (stats.crashes, stats.restarts, stats.spawned) == (1, 2, 3)


async def test_so_many_are_replaced_at_a_time_as_surge_says(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with patience(), Gate() as gate:
        target = serves.behind_if_there(gate.path, str(flag))
        async with cluster_of(target, workers=4, max_surge=2) as cluster:
            await all_ready(cluster)
            flag.touch()
            reload = asyncio.create_task(cluster.reload())
            for words in (("4.1", "5.1"), ("0.2", "1.2")):
                two = [await gate.visitor(word) for word in words]
                stats = cluster.stats()
                assert sum(it.pid is not None for it in stats.slots) == 6
                assert sum(it.ready for it in stats.slots) == 4
                for visitor in two:
                    visitor.release()
            assert await reload == RollResult(replaced=4, reason="", crash=None)
            stats = await all_ready(cluster)
            assert (stats.workers, stats.spawned, stats.crashes) == (4, 8, 0)
