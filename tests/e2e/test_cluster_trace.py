"""A trace of a real cluster: what its workers did, and what became of them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from asyncpool.events import Crashed
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import next_of
from tests.helpers.traces import read_trace

pytestmark = BOTH_LOOPS


async def test_a_trace_shows_the_life_of_each_worker(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    async with patience(), cluster_of(trace=path, drain_timeout=PATIENCE) as cluster:
        stats = await all_ready(cluster)
        events = cluster.events()
        pid = stats.slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await next_of(events, Crashed)
        await all_ready(cluster)
        assert (await cluster.reload()).ok
        async with Client(cluster) as client:
            await client.ask("who")
    traced = read_trace(path)
    assert traced.whole
    names = [each.name for each in traced.slices]
    assert names.count("starting") == names.count("serving") == 5
    assert names.count("reload") == 1
    assert {"slot 0", "slot 1", "the cluster"} <= set(traced.names.values())
    instants = [each["name"] for each in traced.instants]
    assert instants.count("crashed") == 1
    assert instants.count("exited") == 4
    [crashed] = [each for each in traced.instants if each["name"] == "crashed"]
    assert crashed["args"]["signal"] == "SIGKILL"
    [reload] = [each for each in traced.slices if each.name == "reload"]
    assert (reload.args["replaced"], reload.args["reason"]) == (2, "")
    assert traced.counters["memory of the workers"]


async def test_a_trace_that_cannot_be_written_is_an_error_of_the_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    cluster = cluster_of(trace=path)
    async with patience():
        with pytest.raises(FileExistsError) as caught:
            await cluster.start()
        await cluster.close()
    assert caught.value.strerror == (
        f"there is a file that is no trace: cluster {cluster.name} cannot write its "
        "trace; name another file by trace, or leave trace out"
    )
    assert caught.value.filename == str(path)
    assert path.read_text() == "mine\n"


async def test_two_clusters_need_two_files(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    async with patience(), cluster_of(trace=path, workers=1):
        with pytest.raises(FileExistsError, match="another pool or cluster writes it"):
            await cluster_of(trace=path).start()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert read_trace(path).whole
