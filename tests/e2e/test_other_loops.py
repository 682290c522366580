"""What acts on a pool in another event loop than its own is refused, and changes nothing."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    BoundPool,
    EventStream,
    Job,
    LeaseKeeper,
    Map,
    Pool,
    PoolServer,
    PoolStats,
    SharedPool,
    Stream,
    WorkerSession,
    connect,
)
from asyncpool.cluster import Cluster
from asyncpool.events import Event
from asyncpool.stats import NO_DURATIONS
from tests.helpers import jobs
from tests.helpers.clusters import all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import case

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
    session: WorkerSession
    keeper: LeaseKeeper[str]

    @property
    def view(self) -> BoundPool:
        return self.pool.options(priority=1)


POOL, JOB, KEEPER = "pool mine", "job 1", "a lease keeper"
EVENTS, PROGRESS = "an iterator over events", "the progress of a job"

Act = Callable[[World], Any]

# By the class and the method; a second word tells several acts of a method apart.
ACTS: dict[str, tuple[str, Act]] = {
    "Pool.start": (POOL, lambda it: it.pool.start()),
    "Pool.close": (POOL, lambda it: it.pool.close()),
    "Pool.close none": (POOL, lambda it: it.pool.close(timeout=0, finish="none")),
    "Pool.__aenter__": (POOL, lambda it: it.pool.__aenter__()),
    "Pool.__aexit__": (POOL, lambda it: it.pool.__aexit__(None, None, None)),
    "Pool.__aexit__ error": (
        POOL,
        lambda it: it.pool.__aexit__(OSError, OSError(), None),
    ),
    "Pool.resize": (POOL, lambda it: it.pool.resize(3)),
    "Pool.roll": (POOL, lambda it: it.pool.roll()),
    "Pool.retire": (POOL, lambda it: it.pool.retire(0)),
    "Pool.kill": (POOL, lambda it: it.pool.kill(0)),
    "Pool.stacks": (POOL, lambda it: it.pool.stacks()),
    "Pool.profile": (POOL, lambda it: it.pool.profile(0.1)),
    "Pool.events": (POOL, lambda it: it.pool.events()),
    "Pool.job_events": (POOL, lambda it: it.pool.job_events()),
    "Pool.add_listener": (POOL, lambda it: it.pool.add_listener(print)),
    "Pool.add_job_listener": (POOL, lambda it: it.pool.add_job_listener(print)),
    "Pool.remove_listener": (POOL, lambda it: it.pool.remove_listener(print)),
    "Pool.submit": (POOL, lambda it: it.pool.submit(jobs.square, 2)),
    "Pool.broadcast": (POOL, lambda it: it.pool.broadcast(jobs.pid)),
    "Pool.map": (POOL, lambda it: _await(it.pool.map(jobs.square, [1]))),
    "Pool.map async": (POOL, lambda it: _await(it.pool.map(jobs.square, _items()))),
    "Pool.starmap": (POOL, lambda it: _await(it.pool.starmap(jobs.square, [(1,)]))),
    "Pool.stream": (POOL, lambda it: anext(it.pool.stream(range, 3))),
    "Pool.worker": (POOL, lambda it: it.pool.worker().__aenter__()),
    "BoundPool.submit": (POOL, lambda it: it.view.submit(jobs.square, 2)),
    "BoundPool.broadcast": (POOL, lambda it: it.pool.options().broadcast(jobs.pid)),
    "BoundPool.map": (POOL, lambda it: _await(it.view.map(jobs.square, [1]))),
    "BoundPool.starmap": (POOL, lambda it: _await(it.view.starmap(pow, [(1, 2)]))),
    "BoundPool.stream": (POOL, lambda it: anext(it.view.stream(range, 3))),
    "BoundPool.worker": (POOL, lambda it: it.pool.options().worker().__aenter__()),
    "WorkerSession.__aenter__": (POOL, lambda it: it.pool.worker().__aenter__()),
    "WorkerSession.__aexit__": (
        POOL,
        lambda it: it.session.__aexit__(None, None, None),
    ),
    "WorkerSession.__aexit__ error": (
        POOL,
        lambda it: it.session.__aexit__(OSError, OSError(), None),
    ),
    "WorkerSession.submit": (POOL, lambda it: it.session.submit(jobs.pid)),
    "WorkerSession.stream": (POOL, lambda it: anext(it.session.stream(range, 3))),
    "Map.__await__": (POOL, lambda it: _await(it.map)),
    "Map.__aiter__": (POOL, lambda it: aiter(it.map)),
    "Map.__anext__": (POOL, lambda it: anext(it.map)),
    "Map.__anext__ begun": (POOL, lambda it: anext(it.begun)),
    "Map.outcomes": (POOL, lambda it: anext(it.map.outcomes())),
    "Map.unordered": (POOL, lambda it: anext(it.map.unordered())),
    "Map.aclose": (POOL, lambda it: it.begun.aclose()),
    "Stream.__aiter__": (POOL, lambda it: aiter(it.stream)),
    "Stream.__anext__": (POOL, lambda it: anext(it.stream)),
    "Stream.started": (POOL, lambda it: it.stream.started()),
    "Stream.aclose": (POOL, lambda it: it.stream.aclose()),
    "Job.cancel": (JOB, lambda it: it.job.cancel()),
    "Job.stack": (JOB, lambda it: it.job.stack()),
    "Job.progress": (JOB, lambda it: it.job.progress()),
    "Job.progress next": (PROGRESS, lambda it: anext(it.progress)),
    "EventStream.__anext__": (EVENTS, lambda it: anext(it.events)),
    "LeaseKeeper.add": (KEEPER, lambda it: it.keeper.add("b")),
    "LeaseKeeper.keep": (KEEPER, lambda it: it.keeper.keep("b", it.job)),
    "LeaseKeeper.remove": (KEEPER, lambda it: it.keeper.remove("a")),
    "LeaseKeeper.events": (KEEPER, lambda it: it.keeper.events()),
    "LeaseKeeper.__aexit__": (
        KEEPER,
        lambda it: it.keeper.__aexit__(None, None, None),
    ),
}

# What only reads, or makes something that belongs to no loop yet.
HARMLESS = {
    "Pool": {"options", "stats"},
    "BoundPool": {"options"},
    "WorkerSession": {"options"},
    "Job": {
        "get_loop",
        # As with any future; asyncio says itself that a task waits for another loop's.
        *("__await__", "add_done_callback", "remove_done_callback"),
        *("done", "cancelled", "result", "exception"),
        *("set_result", "set_exception"),
    },
    "EventStream": {"__aiter__", "put", "end"},
    "LeaseKeeper": {"__aenter__", "stats"},
    "Cluster": {"run", "stats"},
    "SharedPool": {"options"},
    "PoolServer": {"__aenter__"},
}

_SPECIAL = {"__aenter__", "__aexit__", "__await__", "__aiter__", "__anext__"}


def methods_of(*classes: type) -> set[str]:
    """Return the public methods of *classes* that are not known as harmless."""
    return {
        f"{of.__name__}.{name}"
        for of in classes
        for name in dir(of)
        if callable(getattr(of, name))
        and (name in _SPECIAL or not name.startswith("_"))
        and name not in HARMLESS.get(of.__name__, ())
    }


async def test_no_method_is_left_out() -> None:
    classes = Pool, BoundPool, WorkerSession, Map, Stream, Job, EventStream, LeaseKeeper
    assert {act.partition(" ")[0] for act in ACTS} == methods_of(*classes)
    acts = {act.partition(" ")[0] for act in CLUSTER_ACTS}
    assert {f"Cluster.{act}" for act in acts} == methods_of(Cluster)
    assert {act.partition(" ")[0] for act in REMOTE_ACTS} == methods_of(
        SharedPool, PoolServer
    )


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


async def test_what_acts_on_a_pool_is_refused() -> None:
    async with patience(), Gate() as gate, LeaseKeeper(keep) as keeper:
        keeper.add("a")
        async with Pool(2, name="mine") as pool:
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            session = await pool.worker().__aenter__()
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
                session=session,
                keeper=keeper,
            )
            before = timeless(pool.stats())
            for act, (what, do) in ACTS.items():
                text = f"^{re.escape(what)} belongs to another event loop: from "
                with case(act), pytest.raises(RuntimeError, match=text):
                    await asyncio.to_thread(elsewhere, functools.partial(do, world))
                assert timeless(pool.stats()) == before, f"{act} changed the pool"
                assert keeper.stats().leases == 1
            assert await session.submit(jobs.pid) == session.pid
            await session.__aexit__(None, None, None)
            visitor.release()
            assert await job == "go"
            assert await first == 0
            assert [result async for result in begun] == [1, 4]
            assert await world.map == [9]
            assert [item async for item in world.stream] == [0, 1, 2]


ITERATIONS: dict[str, Callable[[Pool], Any]] = {
    "map": lambda pool: pool.map(jobs.square, range(4)),
    "unordered": lambda pool: pool.map(jobs.square, range(4)).unordered(),
    "outcomes": lambda pool: pool.map(jobs.square, range(4)).outcomes(),
    "stream": lambda pool: pool.stream(range, 4),
}


async def test_an_iteration_goes_on_in_its_own_loop() -> None:
    text = r"^pool mine belongs to another "
    async with patience(), Pool(1, name="mine") as pool:
        for kind, begun in itertools.product(ITERATIONS, (False, True)):
            with case(kind, begun):
                iteration = aiter(ITERATIONS[kind](pool))
                found = [await anext(iteration)] if begun else []
                for act in (functools.partial(anext, iteration), iteration.aclose):
                    with pytest.raises(RuntimeError, match=text):
                        await asyncio.to_thread(elsewhere, act)
                found += [item async for item in iteration]
                assert len(found) == 4


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


async def _send_socket(cluster: Cluster) -> None:
    with socket.socket() as sock:
        await cluster.send_socket(0, sock)


CLUSTER = "cluster theirs"
CLUSTER_ACTS: dict[str, Callable[[Cluster], Any]] = {
    "start": lambda it: it.start(),
    "wait": lambda it: it.wait(),
    "close": lambda it: it.close(),
    "reload": lambda it: it.reload(),
    "resize": lambda it: it.resize(2),
    "retire": lambda it: it.retire(0),
    "kill": lambda it: it.kill(0),
    "send": lambda it: it.send(0, "word"),
    "send_file": lambda it: it.send_file(0, 0),
    "send_socket": _send_socket,
    "broadcast": lambda it: it.broadcast("word"),
    "messages": lambda it: it.messages(),
    "incoming_sockets": lambda it: it.incoming_sockets(),
    "incoming_files": lambda it: it.incoming_files(),
    "stacks": lambda it: it.stacks(),
    "events": lambda it: it.events(),
    "add_listener": lambda it: it.add_listener(print),
    "remove_listener": lambda it: it.remove_listener(print),
    "__aenter__": lambda it: it.__aenter__(),
    "__aexit__": lambda it: it.__aexit__(None, None, None),
    "__aexit__ error": lambda it: it.__aexit__(OSError, OSError(), None),
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


@dataclass(frozen=True)
class Shared:
    """A pool that is shared, and a client of it."""

    server: PoolServer
    client: SharedPool


CLIENT = "the shared pool"
REMOTE_ACTS: dict[str, tuple[str, Callable[[Shared], Any]]] = {
    "SharedPool.start": ("", lambda it: it.client.start()),
    "SharedPool.__aenter__": ("", lambda it: it.client.__aenter__()),
    "SharedPool.__aexit__": (CLIENT, lambda it: it.client.__aexit__(None, None, None)),
    "SharedPool.close": (CLIENT, lambda it: it.client.close(timeout=0)),
    "SharedPool.stats": (CLIENT, lambda it: it.client.stats()),
    "SharedPool.stacks": (CLIENT, lambda it: it.client.stacks()),
    "SharedPool.profile": (CLIENT, lambda it: it.client.profile(0.1)),
    "SharedPool.resize": (CLIENT, lambda it: it.client.resize(3)),
    "SharedPool.roll": (CLIENT, lambda it: it.client.roll()),
    "SharedPool.retire": (CLIENT, lambda it: it.client.retire(0)),
    "SharedPool.kill": (CLIENT, lambda it: it.client.kill(0)),
    "SharedPool.events": (CLIENT, lambda it: it.client.events()),
    "SharedPool.job_events": (CLIENT, lambda it: it.client.job_events()),
    "SharedPool.add_listener": (CLIENT, lambda it: it.client.add_listener(print)),
    "SharedPool.add_job_listener": (
        CLIENT,
        lambda it: it.client.add_job_listener(print),
    ),
    "SharedPool.remove_listener": (
        CLIENT,
        lambda it: it.client.remove_listener(print),
    ),
    "SharedPool.submit": (CLIENT, lambda it: it.client.submit(jobs.square, 2)),
    "SharedPool.broadcast": (CLIENT, lambda it: it.client.broadcast(jobs.pid)),
    "SharedPool.map": (CLIENT, lambda it: _await(it.client.map(jobs.square, [1]))),
    "SharedPool.starmap": (
        CLIENT,
        lambda it: _await(it.client.starmap(jobs.square, [(1,)])),
    ),
    "SharedPool.stream": (CLIENT, lambda it: anext(it.client.stream(range, 3))),
    "SharedPool.worker": (CLIENT, lambda it: it.client.worker().__aenter__()),
    "PoolServer.__aexit__": (
        "a PoolServer",
        lambda it: it.server.__aexit__(None, None, None),
    ),
}


async def test_what_acts_on_a_shared_pool_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "pool.sock")
    async with patience(), Pool(1) as pool, PoolServer(pool, path) as server:  # noqa: SIM117
        async with connect(f"unix:{path}") as client:
            shared = Shared(server, client)
            for what, act in REMOTE_ACTS.values():
                text = f"^{what} belongs to another event loop: from another "
                if not what:
                    text = "can be started only once"
                with pytest.raises(RuntimeError, match=text):
                    await asyncio.to_thread(elsewhere, functools.partial(act, shared))
            assert await client.submit(jobs.square, 3) == 9
            assert (await client.stats()).workers == 1
