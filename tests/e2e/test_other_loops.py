"""What acts on a pool in another event loop than its own is refused, and changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import socket
from asyncio import to_thread
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from asyncpool.errors import PoolClosedError
from asyncpool.events import Event
from asyncpool.stats import NO_DURATIONS
from tests.helpers import jobs
from tests.helpers.clusters import all_ready, cluster_of
from tests.helpers.faces import Faced
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


# What refuses an act, by its name or by its class.
OWNERS = {
    "Job": "job 1",
    "Job.progress next": "the progress of a job",
    "EventStream": "an iterator over events",
    "LeaseKeeper": "a lease keeper",
    "SharedPool": "the shared pool",
    "PoolServer": "a PoolServer",
}
OTHER_LOOP = "belongs to another event loop than the one that runs here: start and use"
NO_LOOP = (
    "belongs to an event loop that does not run in this thread: from threads use pool"
)
CLOSED_LOOP = (
    "belongs to a closed event loop: start another one in the loop that uses it"
)
ERROR = (OSError, OSError(), None)
NONE = (None, None, None)

Act = Callable[[World], Any]

# By the class and the method; a second word tells several acts of a method apart.
ACTS: dict[str, Act] = {
    "Pool.start": lambda it: it.pool.start(),
    "Pool.close": lambda it: it.pool.close(),
    "Pool.close none": lambda it: it.pool.close(timeout=0, finish="none"),
    "Pool.__aenter__": lambda it: it.pool.__aenter__(),
    "Pool.__aexit__": lambda it: it.pool.__aexit__(*NONE),
    "Pool.__aexit__ error": lambda it: it.pool.__aexit__(*ERROR),
    "Pool.resize": lambda it: it.pool.resize(3),
    "Pool.roll": lambda it: it.pool.roll(),
    "Pool.retire": lambda it: it.pool.retire(0),
    "Pool.kill": lambda it: it.pool.kill(0),
    "Pool.stacks": lambda it: it.pool.stacks(),
    "Pool.profile": lambda it: it.pool.profile(0.1),
    "Pool.events": lambda it: it.pool.events(),
    "Pool.job_events": lambda it: it.pool.job_events(),
    "Pool.add_listener": lambda it: it.pool.add_listener(print),
    "Pool.add_job_listener": lambda it: it.pool.add_job_listener(print),
    "Pool.remove_listener": lambda it: it.pool.remove_listener(print),
    "Pool.submit": lambda it: it.pool.submit(jobs.square, 2),
    "Pool.broadcast": lambda it: it.pool.broadcast(jobs.pid),
    "Pool.map": lambda it: _await(it.pool.map(jobs.square, [1])),
    "Pool.map async": lambda it: _await(it.pool.map(jobs.square, _items())),
    "Pool.starmap": lambda it: _await(it.pool.starmap(jobs.square, [(1,)])),
    "Pool.stream": lambda it: anext(it.pool.stream(range, 3)),
    "Pool.worker": lambda it: it.pool.worker().__aenter__(),
    "BoundPool.submit": lambda it: it.view.submit(jobs.square, 2),
    "BoundPool.broadcast": lambda it: it.pool.options().broadcast(jobs.pid),
    "BoundPool.map": lambda it: _await(it.view.map(jobs.square, [1])),
    "BoundPool.starmap": lambda it: _await(it.view.starmap(pow, [(1, 2)])),
    "BoundPool.stream": lambda it: anext(it.view.stream(range, 3)),
    "BoundPool.worker": lambda it: it.pool.options().worker().__aenter__(),
    "WorkerSession.__aenter__": lambda it: it.pool.worker().__aenter__(),
    "WorkerSession.__aexit__": lambda it: it.session.__aexit__(*NONE),
    "WorkerSession.__aexit__ error": lambda it: it.session.__aexit__(*ERROR),
    "WorkerSession.submit": lambda it: it.session.submit(jobs.pid),
    "WorkerSession.stream": lambda it: anext(it.session.stream(range, 3)),
    "Map.__await__": lambda it: _await(it.map),
    "Map.__aiter__": lambda it: aiter(it.map),
    "Map.__anext__": lambda it: anext(it.map),
    "Map.__anext__ begun": lambda it: anext(it.begun),
    "Map.outcomes": lambda it: anext(it.map.outcomes()),
    "Map.unordered": lambda it: anext(it.map.unordered()),
    "Map.aclose": lambda it: it.begun.aclose(),
    "Stream.__aiter__": lambda it: aiter(it.stream),
    "Stream.__anext__": lambda it: anext(it.stream),
    "Stream.started": lambda it: it.stream.started(),
    "Stream.aclose": lambda it: it.stream.aclose(),
    "Job.cancel": lambda it: it.job.cancel(),
    "Job.stack": lambda it: it.job.stack(),
    "Job.progress": lambda it: it.job.progress(),
    "Job.progress next": lambda it: anext(it.progress),
    "EventStream.__anext__": lambda it: anext(it.events),
    "LeaseKeeper.add": lambda it: it.keeper.add("b"),
    "LeaseKeeper.keep": lambda it: it.keeper.keep("b", it.job),
    "LeaseKeeper.remove": lambda it: it.keeper.remove("a"),
    "LeaseKeeper.events": lambda it: it.keeper.events(),
    "LeaseKeeper.__aexit__": lambda it: it.keeper.__aexit__(*NONE),
}

# What only reads, or makes something that belongs to no loop yet.
HARMLESS = {
    "Pool": {"options", "stats", "submit_threadsafe"},
    "BoundPool": {"options", "submit_threadsafe"},
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
    "SharedPool": {"options", "submit_threadsafe"},
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
    acts = {act.partition(" ")[0] for act in REMOTE_ACTS}
    assert acts == methods_of(SharedPool, PoolServer)


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


def owner_of(act: str) -> str:
    """Return what refuses an act, as errors call it."""
    return OWNERS.get(act) or OWNERS.get(act.partition(".")[0], "pool mine")


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
            for act, do in ACTS.items():
                text = f"^{owner_of(act)} {OTHER_LOOP}"
                with case(act), pytest.raises(RuntimeError, match=text):
                    await to_thread(elsewhere, partial(do, world))
                assert timeless(pool.stats()) == before, f"{act} changed the pool"
                assert keeper.stats().leases == 1
            assert await session.submit(jobs.pid) == session.pid
            await session.__aexit__(*NONE)
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
                for act in (partial(anext, iteration), iteration.aclose):
                    with pytest.raises(RuntimeError, match=text):
                        await to_thread(elsewhere, act)
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
            with pytest.raises(RuntimeError, match=f"^{what} {NO_LOOP}"):
                await to_thread(act)
        # What only reads may be used anywhere.
        assert (await to_thread(pool.stats)).busy == 1
        assert await to_thread(lambda: job.state) == "running"
        assert "1 busy" in await to_thread(repr, pool)
        visitor.release()
        assert await job == "go"


async def test_a_pool_ends_with_its_loop() -> None:
    async def left_open() -> Pool:
        pool = Pool(1)
        await pool.start()
        return pool

    async with patience():
        pool = await to_thread(asyncio.run, left_open())
        submits = [
            partial(it, jobs.square) for it in (pool.submit, pool.submit_threadsafe)
        ]
        acts: list[Callable[[], Any]] = [pool.start, pool.roll, *submits]
        for act in acts:
            with case(act), pytest.raises(RuntimeError, match=f"pool.* {CLOSED_LOOP}"):
                await to_thread(elsewhere, act)


async def test_a_thread_submits(faced: Faced) -> None:
    async with patience(), Gate() as gate:
        async with faced(1) as (caller, _):

            async def result_of(*call: Any) -> Any:
                view = caller.options(priority=1)
                return await to_thread(lambda: view.submit_threadsafe(*call).result())

            assert await result_of(jobs.square, 3) == 9
            assert await result_of(jobs.greet, "Ada") == "hello Ada"
            with pytest.raises(ZeroDivisionError):
                await result_of(jobs.divide, 1, 0)
            future = await to_thread(caller.submit_threadsafe, jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            assert future.cancel()
            await visitor.gone()
            with pytest.raises(
                RuntimeError, match=r"^submit_threadsafe\(\) is for other "
            ):
                caller.submit_threadsafe(jobs.square, 3)
        with pytest.raises(PoolClosedError):
            await result_of(jobs.square, 3)


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
    "__aexit__": lambda it: it.__aexit__(*NONE),
    "__aexit__ error": lambda it: it.__aexit__(*ERROR),
}


async def test_what_acts_on_a_cluster_is_refused() -> None:
    text = f"^{CLUSTER} {OTHER_LOOP}"
    async with patience(), cluster_of(workers=1, name="theirs") as cluster:
        await all_ready(cluster)
        before = [slot.pid for slot in cluster.stats().slots]
        for act in CLUSTER_ACTS.values():
            with pytest.raises(RuntimeError, match=text):
                await to_thread(elsewhere, partial(act, cluster))
        for inbox in (cluster.messages(), cluster.incoming_sockets()):
            coming = "what comes from the workers of a cluster belongs to another "
            with pytest.raises(RuntimeError, match=f"^{coming}"):
                await to_thread(elsewhere, partial(anext, inbox))
        assert [slot.pid for slot in cluster.stats().slots] == before


@dataclass(frozen=True)
class Shared:
    """A pool that is shared, and a client of it."""

    server: PoolServer
    client: SharedPool


REMOTE_ACTS: dict[str, Callable[[Shared], Any]] = {
    "SharedPool.start": lambda it: it.client.start(),
    "SharedPool.__aenter__": lambda it: it.client.__aenter__(),
    "SharedPool.__aexit__": lambda it: it.client.__aexit__(*NONE),
    "SharedPool.close": lambda it: it.client.close(timeout=0),
    "SharedPool.stats": lambda it: it.client.stats(),
    "SharedPool.stacks": lambda it: it.client.stacks(),
    "SharedPool.profile": lambda it: it.client.profile(0.1),
    "SharedPool.resize": lambda it: it.client.resize(3),
    "SharedPool.roll": lambda it: it.client.roll(),
    "SharedPool.retire": lambda it: it.client.retire(0),
    "SharedPool.kill": lambda it: it.client.kill(0),
    "SharedPool.events": lambda it: it.client.events(),
    "SharedPool.job_events": lambda it: it.client.job_events(),
    "SharedPool.add_listener": lambda it: it.client.add_listener(print),
    "SharedPool.add_job_listener": lambda it: it.client.add_job_listener(print),
    "SharedPool.remove_listener": lambda it: it.client.remove_listener(print),
    "SharedPool.submit": lambda it: it.client.submit(jobs.square, 2),
    "SharedPool.broadcast": lambda it: it.client.broadcast(jobs.pid),
    "SharedPool.map": lambda it: _await(it.client.map(jobs.square, [1])),
    "SharedPool.starmap": lambda it: _await(it.client.starmap(jobs.square, [(1,)])),
    "SharedPool.stream": lambda it: anext(it.client.stream(range, 3)),
    "SharedPool.worker": lambda it: it.client.worker().__aenter__(),
    "PoolServer.__aexit__": lambda it: it.server.__aexit__(*NONE),
}


async def test_what_acts_on_a_shared_pool_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "pool.sock")
    async with patience(), Pool(1) as pool, PoolServer(pool, path) as server:  # noqa: SIM117
        async with connect(f"unix:{path}") as client:
            shared = Shared(server, client)
            for act, do in REMOTE_ACTS.items():
                text = f"^{owner_of(act)} {OTHER_LOOP}"
                if act in {"SharedPool.start", "SharedPool.__aenter__"}:
                    text = "can be started only once"
                with case(act), pytest.raises(RuntimeError, match=text):
                    await to_thread(elsewhere, partial(do, shared))
            assert await client.submit(jobs.square, 3) == 9
            assert (await client.stats()).workers == 1
