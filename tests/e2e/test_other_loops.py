"""What acts on a pool in another event loop than its own is refused, and changes nothing."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from asyncpool import EventStream, Job, LeaseKeeper, Map, Pool, PoolStats, Stream
from asyncpool.cluster import Cluster
from asyncpool.events import Event
from asyncpool.stats import NO_DURATIONS
from tests.helpers import jobs
from tests.helpers.clusters import all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


@dataclass(frozen=True)
class World:
    """What there is in the home loop."""

    pool: Pool
    job: Job[Any]
    events: EventStream[Event]
    progress: Any
    map: Map[int]
    begun: Map[int]
    stream: Stream[int]
    keeper: LeaseKeeper[str]


POOL, JOB, KEEPER = "pool mine", "job 1", "a lease keeper"
EVENTS, PROGRESS = "an iterator over events", "the progress of a job"

Act = Callable[[World], Any]

ACTS: dict[str, tuple[str, Act]] = {
    "start": (POOL, lambda it: it.pool.start()),
    "close": (POOL, lambda it: it.pool.close()),
    "close none": (POOL, lambda it: it.pool.close(timeout=0, finish="none")),
    "aenter": (POOL, lambda it: it.pool.__aenter__()),
    "aexit": (POOL, lambda it: it.pool.__aexit__(None, None, None)),
    "aexit by an error": (
        POOL,
        lambda it: it.pool.__aexit__(OSError, OSError(), None),
    ),
    "resize": (POOL, lambda it: it.pool.resize(3)),
    "roll": (POOL, lambda it: it.pool.roll()),
    "events": (POOL, lambda it: it.pool.events()),
    "submit": (POOL, lambda it: it.pool.submit(jobs.square, 2)),
    "submit by a view": (
        POOL,
        lambda it: it.pool.options(priority=1).submit(jobs.square, 2),
    ),
    "broadcast": (POOL, lambda it: it.pool.broadcast(jobs.pid)),
    "broadcast by a view": (POOL, lambda it: it.pool.options().broadcast(jobs.pid)),
    "map": (POOL, lambda it: _await(it.pool.map(jobs.square, [1]))),
    "map by a view": (POOL, lambda it: _await(it.pool.options().map(jobs.square, [1]))),
    "map of async items": (POOL, lambda it: _await(it.pool.map(jobs.square, _items()))),
    "await a map": (POOL, lambda it: _await(it.map)),
    "aiter a map": (POOL, lambda it: aiter(it.map)),
    "anext of a map": (POOL, lambda it: anext(it.map)),
    "anext of a map under way": (POOL, lambda it: anext(it.begun)),
    "aclose a map": (POOL, lambda it: it.begun.aclose()),
    "starmap": (POOL, lambda it: _await(it.pool.starmap(jobs.square, [(1,)]))),
    "stream": (POOL, lambda it: anext(it.pool.stream(range, 3))),
    "aiter a stream": (POOL, lambda it: aiter(it.stream)),
    "anext of a stream": (POOL, lambda it: anext(it.stream)),
    "aclose a stream": (POOL, lambda it: it.stream.aclose()),
    "cancel": (JOB, lambda it: it.job.cancel()),
    "progress": (JOB, lambda it: it.job.progress()),
    "anext of a progress": (PROGRESS, lambda it: anext(it.progress)),
    "anext of events": (EVENTS, lambda it: anext(it.events)),
    "add a lease": (KEEPER, lambda it: it.keeper.add("b")),
    "keep a lease": (KEEPER, lambda it: it.keeper.keep("b", it.job)),
    "remove a lease": (KEEPER, lambda it: it.keeper.remove("a")),
    "events of a keeper": (KEEPER, lambda it: it.keeper.events()),
    "aexit of a keeper": (KEEPER, lambda it: it.keeper.__aexit__(None, None, None)),
}


async def _items() -> Any:
    yield 1


async def _await(awaitable: Any) -> Any:
    return await awaitable


def timeless(stats: PoolStats) -> PoolStats:
    """Return figures without those that time alone changes."""
    slots = (
        replace(slot, seconds=0.0, uptime=0.0, cpu=0.0, memory=0, running=())
        for slot in stats.slots
    )
    return replace(stats, slots=tuple(slots), oldest_queued=0.0, loop_lag=NO_DURATIONS)


def elsewhere(act: Callable[[], Any]) -> None:
    """Do something in another event loop, in this thread."""

    async def main() -> None:
        found = act()
        if hasattr(found, "__await__"):
            await found

    asyncio.run(main())


async def keep(_: str) -> None:
    pass


@pytest.mark.parametrize("act", ACTS)
async def test_what_acts_on_a_pool_is_refused(act: str) -> None:
    what, do = ACTS[act]
    async with patience(), Gate() as gate, LeaseKeeper(keep) as keeper:
        keeper.add("a")
        async with Pool(1, name="mine") as pool:
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            begun = pool.map(jobs.square, range(3), chunksize=1, buffersize=3)
            first = asyncio.ensure_future(_first(begun))
            while pool.stats().submitted < 4:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            world = World(
                pool=pool,
                job=job,
                events=pool.events(),
                progress=job.progress(),
                map=pool.map(jobs.square, [3]),
                begun=begun,
                stream=pool.stream(range, 3),
                keeper=keeper,
            )
            before = timeless(pool.stats())
            text = f"^{re.escape(what)} belongs to another event loop: from another "
            with pytest.raises(RuntimeError, match=text):
                await asyncio.to_thread(elsewhere, lambda: do(world))
            assert timeless(pool.stats()) == before, "the pool is as it was"
            assert keeper.stats().leases == 1
            visitor.release()
            assert await job == "go"
            assert await first == 0
            assert [result async for result in begun] == [1, 4]
            assert await world.map == [9]
            assert [item async for item in world.stream] == [0, 1, 2]


async def _first(results: Map[int]) -> int:
    return await anext(results)


async def test_a_bare_thread_is_elsewhere_too() -> None:
    async with patience(), Gate() as gate, Pool(1, name="mine") as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        acts: list[tuple[str, Callable[[], Any]]] = [
            ("pool mine", pool.events),
            ("pool mine", lambda: pool.submit(jobs.square, 2)),
            ("job 1", job.cancel),
            ("job 1", job.progress),
        ]
        for what, act in acts:
            with pytest.raises(RuntimeError, match=f"^{what} belongs to another event"):
                await asyncio.to_thread(act)
        # What only reads may be used anywhere.
        assert (await asyncio.to_thread(pool.stats)).busy == 1
        assert await asyncio.to_thread(lambda: job.state) == "running"
        assert "1 busy" in await asyncio.to_thread(repr, pool)
        visitor.release()
        assert await job == "go"


CLUSTER = "cluster theirs"
CLUSTER_ACTS: dict[str, Callable[[Cluster], Any]] = {
    "start": lambda it: it.start(),
    "wait": lambda it: it.wait(),
    "close": lambda it: it.close(),
    "reload": lambda it: it.reload(),
    "resize": lambda it: it.resize(2),
    "send": lambda it: it.send(0, "word"),
    "messages": lambda it: it.messages(),
    "sockets": lambda it: it.incoming_sockets(),
    "stacks": lambda it: it.stacks(),
    "events": lambda it: it.events(),
    "aenter": lambda it: it.__aenter__(),
    "aexit": lambda it: it.__aexit__(None, None, None),
    "aexit by an error": lambda it: it.__aexit__(OSError, OSError(), None),
}


async def test_what_acts_on_a_cluster_is_refused() -> None:
    text = f"^{CLUSTER} belongs to another event loop: from another "
    async with patience(), cluster_of(workers=1, name="theirs") as cluster:
        await all_ready(cluster)
        before = [slot.pid for slot in cluster.stats().slots]
        for act in CLUSTER_ACTS.values():
            with pytest.raises(RuntimeError, match=text):
                await asyncio.to_thread(elsewhere, functools.partial(act, cluster))
        for inbox in (cluster.messages(), cluster.incoming_sockets()):
            coming = "what comes from the workers of a cluster belongs to another "
            with pytest.raises(RuntimeError, match=f"^{coming}"):
                await asyncio.to_thread(elsewhere, functools.partial(anext, inbox))
        assert [slot.pid for slot in cluster.stats().slots] == before
