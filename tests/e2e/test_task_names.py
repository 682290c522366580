"""Every task that asyncpool makes has a name that says whose it is."""

from __future__ import annotations

import asyncio

from asyncpool import Pool
from tests.helpers import jobs
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.inside import supervisor_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


def others(before: set[asyncio.Task[object]]) -> set[str]:
    """Return the names of the tasks that have come since."""
    return {task.get_name() for task in asyncio.all_tasks() - before}


async def test_tasks_of_a_pool() -> None:
    async with patience():
        before = set(asyncio.all_tasks())
        async with Gate() as gate:
            gates = set(asyncio.all_tasks())
            async with Pool(1, name="shop") as pool:
                job = pool.submit(jobs.wait_at, gate.path, "here")
                visitor = await gate.visitor("here")
                gates |= {
                    t for t in asyncio.all_tasks() if "Gate" in repr(t.get_coro())
                }
                [slot] = pool.stats().slots
                names = others(before | gates)
                stacks = asyncio.ensure_future(supervisor_of(pool).where())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                names |= others(before | gates | {stacks})
                await stacks
                visitor.release()
                await job
    assert {
        "asyncpool supervisor of shop",
        "asyncpool worker in slot 0 of shop",
        f"asyncpool end of worker {slot.pid} in slot 0 of shop",
        f"asyncpool errors of worker {slot.pid} in slot 0 of shop",
        "asyncpool stacks of slot 0",
    } <= names
    assert [name for name in names if not name.startswith("asyncpool ")] == []


async def test_tasks_of_a_cluster() -> None:
    async with patience():
        before = set(asyncio.all_tasks())
        async with cluster_of(name="app") as cluster, Client(cluster) as client:
            await all_ready(cluster)
            await client.ask("who")
            names = others(before)
    assert "asyncpool supervisor of app" in names
    assert [name for name in names if not name.startswith("asyncpool ")] == []
