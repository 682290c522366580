"""Clusters that are reloaded and resized, whatever else happens meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
import textwrap
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster, Crash, RestartPolicy, WorkerLimits
from asyncpool.cluster import ClusterStats
from asyncpool.errors import PoolClosedError, RollInProgressError
from asyncpool.events import (
    Crashed,
    Exited,
    Parked,
    Ready,
    Retiring,
    RollResult,
    Spawned,
)
from tests.helpers import serves
from tests.helpers.clusters import (
    SPREADS,
    Client,
    all_ready,
    clients,
    cluster_of,
    come_true,
    connected,
    until,
    who,
    whole_cluster,
)
from tests.helpers.gate import Gate
from tests.helpers.guards import few_descriptors
from tests.helpers.inside import end_cluster_workers_within, terminate_within
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import next_of

pytestmark = BOTH_LOOPS

in_each_way = pytest.mark.parametrize("spread", SPREADS)

CODE = """
    from tests.helpers.serves import Talker

    class Version(Talker):
        async def version(self, _):
            return "{version}"

    async def serve(worker):
        worker.ready()
        await Version(worker).run()
"""


def write(folder: Path, version: str, code: str = CODE) -> None:
    # Each has another size, or Python would take the old one for up to date.
    text = textwrap.dedent(code).format(version=version)
    (folder / "served.py").write_text(text)


async def version(cluster: Cluster) -> str:
    async with Client(cluster) as client:
        return await client.ask("version")


def generations(stats: ClusterStats) -> list[int]:
    return [slot.generation for slot in stats.slots if slot.ready]


# A reload.


@in_each_way
async def test_a_reload_brings_new_code(
    spread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "1")
    async with whole_cluster("served:serve", spread=spread) as cluster:
        assert await version(cluster) == "1"
        write(tmp_path, "two")
        assert await version(cluster) == "1"
        assert await cluster.reload() == RollResult(replaced=2, reason="", crash=None)
        assert {await version(cluster) for _ in range(6)} == {"two"}
        stats = await all_ready(cluster)
        assert (stats.crashes, stats.restarts, stats.spawned) == (0, 2, 4)


@pytest.mark.parametrize(
    ("target", "spread"), [(serves.talk, "handoff"), (serves.talk_by_itself, "shared")]
)
async def test_a_connection_goes_on_while_its_worker_is_replaced(
    target: Any, spread: str
) -> None:
    """Also if the server accepts by itself."""
    cluster = cluster_of(target, workers=1, spread=spread)
    async with patience(), cluster, Client(cluster) as client:
        _, _, pid = await client.who()
        reload = asyncio.create_task(cluster.reload())
        assert await client.ask("wait") == "draining"
        assert (await who(cluster))[2] != pid
        assert (await client.who())[2] == pid
        assert not reload.done()
        await client.close()
        assert await reload == RollResult(replaced=1, reason="", crash=None)
        assert cluster.stats().crashes == 0


async def test_connections_outlive_a_reload_though_descriptors_are_scarce(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 100
    whole = whole_cluster(serves.keep, workers=1)
    async with whole as cluster, clients(cluster, count) as some:
        await connected(cluster, count)
        with few_descriptors(40):  # of which a new worker needs some
            assert (await cluster.reload()).ok
            await connected(cluster, count)
        await cluster.close()
        assert {await client.answer() for client in some} == {"kept"}
    assert "lost" not in caplog.text


BROKEN = {
    "no syntax": ("this is no Python", "SyntaxError"),
    "no import": ("import not_there_at_all", "No module named 'not_there_at_all'"),
    "no function": ("x = 1", "has no attribute 'serve'"),
    "it raises": (
        "async def serve(worker):\n    raise ValueError('broken')",
        "ValueError: broken",
    ),
    "it returns": ("async def serve(worker):\n    pass", "before it was ready"),
    "it exits": ("import os\nos._exit(3)", ""),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_new_code_that_cannot_start_leaves_the_old_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "1")
    code, detail = BROKEN[case]
    async with whole_cluster("served:serve") as cluster:
        write(tmp_path, "", code)
        result = await cluster.reload()
        assert (result.replaced, result.ok) == (0, False)
        assert result.reason == "a replacement did not start"
        assert result.crash is not None
        assert result.crash.kind == "failed start"
        assert detail in result.crash.detail
        stats = await all_ready(cluster)
        assert (generations(stats), stats.state) == ([1, 1], "running")
        assert await version(cluster) == "1"
        # And when it is repaired, it comes.
        write(tmp_path, "three")
        assert (await cluster.reload()).ok
        assert await version(cluster) == "three"


# A slot whose starts fail is tried again after this time, if nobody asks for it before.
LATE = RestartPolicy(initial_delay=3600.0, max_delay=3600.0, max_failed_starts=1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_tries_slots_whose_starts_have_failed(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "1")
    cluster = cluster_of("served:serve", workers=workers, restart_policy=LATE)
    async with patience(), cluster:
        events = cluster.events()
        stats = await all_ready(cluster)
        write(tmp_path, "", "import not_there_at_all")
        assert stats.slots[0].pid is not None
        os.kill(stats.slots[0].pid, signal.SIGKILL)
        await next_of(events, Parked)
        assert cluster.stats().state == ("broken" if workers == 1 else "running")
        # The code is as bad as before.
        result = await cluster.reload()
        assert (result.replaced, result.filled, result.ok) == (0, 0, False)
        assert result.crash is not None
        assert "not_there_at_all" in result.crash.detail
        # Of two tries, one may be under way yet, and load the old code or the new one.
        write(tmp_path, "three")
        result = await cluster.reload()
        assert result.ok
        assert result.replaced + result.filled == workers
        assert {await version(cluster) for _ in range(4)} == {"three"}


@in_each_way
async def test_no_connection_fails_during_reloads(spread: str) -> None:
    async with whole_cluster(spread=spread) as cluster:
        served, over = 0, asyncio.Event()

        async def come_and_go() -> None:
            nonlocal served
            while not over.is_set():
                assert await who(cluster)
                served += 1

        guests = [asyncio.create_task(come_and_go()) for _ in range(8)]
        for _ in range(3):
            assert (await cluster.reload()).replaced == 2
        over.set()
        await asyncio.gather(*guests)
        assert served > 0
        assert cluster.stats().handed >= served


def _states(stats: ClusterStats) -> Counter[str]:
    return Counter(it.state for it in stats.slots if it.pid is not None)


async def test_workers_finish_their_connections_side_by_side() -> None:
    async with whole_cluster(workers=3, drain_timeout=PATIENCE) as cluster:
        async with clients(cluster, 3) as some:
            before = {await client.who() for client in some}
            assert len(before) == 3
            reload = asyncio.create_task(cluster.reload())
            await until(cluster, lambda stats: _states(stats)["stopping"] == 3)
            assert _states(cluster.stats())["ready"] == 3
            assert not reload.done()
            assert {await client.who() for client in some} == before
        assert (await reload).replaced == 3


@pytest.mark.parametrize(
    "limits",
    [{"drain_timeout": 0.2}, {"drain_timeout": 3600.0, "reload_drain_timeout": 0.2}],
)
async def test_a_connection_that_never_ends_does_not_hold_up_a_reload(
    limits: dict[str, float],
) -> None:
    async with whole_cluster(**limits) as cluster:
        async with clients(cluster, 4) as some:
            for client in some:
                await client.who()
            assert (await cluster.reload()).replaced == 2
            assert [await client.answer() for client in some] == [""] * 4
        assert cluster.stats().crashes == 0


@pytest.mark.logs("worker-overran")
@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
async def test_a_reload_tells_of_who_cannot_tell_what_it_cuts_off(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    way: str,
) -> None:
    """One that is stopped takes no SIGTERM; one whose GIL is held dies of it."""
    end_cluster_workers_within(monkeypatch, 0.1)
    terminate_within(monkeypatch, 0.1 if way == "SIGKILL" else PATIENCE)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(patience())
        cluster = cluster_of(workers=1, drain_timeout=0.3, reload_drain_timeout=0.1)
        await stack.enter_async_context(cluster)
        some = await stack.enter_async_context(clients(cluster, 3))
        *_, pid = [(await client.who())[2] for client in some]
        events = cluster.events()
        hangs = tmp_path / "hangs"
        some[0].say(f"{'freeze' if way == 'SIGKILL' else 'hold_gil'} {hangs}")
        await come_true(hangs.exists)
        assert (await cluster.reload()).replaced == 1
        assert [await client.answer() for client in some] == [""] * 3
        exited = await next_of(events, Exited)
        assert cluster.stats().crashes == 0
    by = "" if way == "SIGKILL" else " by SIGTERM"
    why = "since it had not ended within the reload_drain_timeout of 0.1 s"
    assert (exited.signal, exited.detail) == (way, f"killed{by} {why}")
    assert caplog.messages == [
        (
            f"cluster {cluster.name}: worker {pid} in slot 0 was killed {why}: 3 of 3 "
            "connections are cut off"
        )
    ]


@pytest.mark.parametrize("way", ["block", "hold_gil"])
@pytest.mark.parametrize("end", ["reload", "close"])
async def test_one_that_hangs_while_it_drains_tells_where(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, way: str, end: str
) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(patience())
        gate = await stack.enter_async_context(Gate())
        cluster = cluster_of(workers=1, drain_timeout=0.1, ping_timeout=None)
        await stack.enter_async_context(cluster)
        client = await stack.enter_async_context(Client(cluster))
        *_, pid = await client.who()
        if way == "block":
            client.say(f"block {gate.path}")
            await gate.visitor("blocked")
        else:
            client.say(f"hold_gil {tmp_path / 'hangs'}")
            await come_true((tmp_path / "hangs").exists)
        await getattr(cluster, end)()
        assert await client.answer() == ""
    ours = [it for it in caplog.records if it.name.startswith("asyncpool")]
    [record] = [it for it in ours if it.levelno >= logging.WARNING]
    assert f"worker {pid} in slot 0 was killed since" in record.getMessage()
    assert f" in {way}\n" in str(record.stack_info)


async def test_who_has_long_to_drain_has_not_when_the_cluster_ends() -> None:
    async with patience(), AsyncExitStack() as stack:
        cluster = cluster_of(workers=1, drain_timeout=0.2, reload_drain_timeout=3600.0)
        await stack.enter_async_context(cluster)
        client = await stack.enter_async_context(Client(cluster))
        pid = (await client.who())[2]
        reload = asyncio.create_task(cluster.reload())
        assert await client.ask("wait") == "draining"
        assert (await client.who())[2] == pid
        summary = await cluster.close(timeout=PATIENCE)
        assert (summary.failed, summary.killed) == (1, 0)
        assert await client.answer() == ""
        assert (await reload).reason == "the pool was closed"


@asynccontextmanager
async def cluster_behind(gate: Gate, *, max_surge: int = 1) -> AsyncIterator[Cluster]:
    """Start a cluster of two; who comes later waits at the gate before it is ready."""
    cluster = cluster_of(partial(serves.talk_behind, gate.path), max_surge=max_surge)
    start = asyncio.create_task(cluster.start())
    for word in ("0.1", "1.1"):
        (await gate.visitor(word)).release()
    await start
    async with cluster:
        await all_ready(cluster)
        yield cluster


async def test_the_old_worker_dies_before_the_new_one_is_ready() -> None:
    async with patience(), Gate() as gate, cluster_behind(gate) as cluster:
        events = cluster.events()
        stats = await all_ready(cluster)
        reload = asyncio.create_task(cluster.reload())
        new = await gate.visitor("2.1")
        os.kill(stats.slots[0].pid or 0, signal.SIGKILL)
        await next_of(events, Crashed)
        new.release()
        # It takes the place of the crashed one; the other is replaced as well.
        (await gate.visitor("0.2")).release()
        assert (await reload).ok
        stats = await all_ready(cluster)
        assert (stats.crashes, stats.workers) == (1, 2)


@pytest.mark.parametrize("closed", [False, True])
async def test_the_new_worker_or_the_cluster_ends_before_that_is_ready(
    *, closed: bool
) -> None:
    async with patience(), Gate() as gate, cluster_behind(gate) as cluster:
        reload = asyncio.create_task(cluster.reload())
        visitor = await gate.visitor("2.1")
        if closed:
            await cluster.close()
            result = await reload
            assert (result.replaced, result.reason) == (0, "the pool was closed")
            return
        os.kill(visitor.pid, signal.SIGKILL)
        result = await reload
        assert result.reason == "a replacement did not start"
        assert result.crash is not None
        assert result.crash.signal == "SIGKILL"
        assert generations(await all_ready(cluster)) == [1, 1]


async def test_what_a_failed_reload_has_begun_does_not_end_the_next_one() -> None:
    async with patience(), Gate() as gate, cluster_behind(gate, max_surge=2) as cluster:
        await all_ready(cluster)
        first = asyncio.create_task(cluster.reload())
        early = await gate.visitor("2.1")
        os.kill((await gate.visitor("3.1")).pid, signal.SIGKILL)
        assert not (await first).ok
        events = cluster.events()
        second = asyncio.create_task(cluster.reload())
        new = await gate.visitor("3.2")
        os.kill(early.pid, signal.SIGKILL)
        crash = (await next_of(events, Crashed)).crash
        assert crash.pid == early.pid
        assert crash.next_step_text.endswith("stays, next try at once")
        (await gate.visitor("2.2")).release()
        new.release()
        assert await second == RollResult(replaced=2, reason="", crash=None)


async def test_a_worker_that_asks_for_a_successor_serves_until_that_is_ready() -> None:
    async with patience(), Gate() as gate, cluster_behind(gate) as cluster:
        events = cluster.events()
        async with Client(cluster) as client:
            old = await client.who()
            assert await client.ask("replace worn out") == "serving on"
            assert await client.ask("replace once more") == "serving on"
            new = await gate.visitor("2.1")
            # Both serve still, and nobody else is to come.
            assert generations(cluster.stats()) == [1, 1]
            new.release()
            assert (await next_of(events, Ready)).slot == 2
            retiring = await next_of(events, Retiring)
            assert (retiring.slot, retiring.reason) == (
                old[0],
                "request_replacement(): worn out",
            )
            assert await client.ask("echo still here") == "still here"
        stats = await all_ready(cluster)
        assert old[0] not in [slot.slot for slot in stats.slots if slot.ready]
        assert (stats.spawned, stats.crashes) == (3, 0)


@pytest.mark.parametrize("target", [serves.talk, serves.fail_at_last])
async def test_a_crash_while_it_drains_is_none_the_less_a_crash(target: Any) -> None:
    """An exception then cuts nobody off."""
    async with patience(), cluster_of(target, workers=1) as cluster:
        events = cluster.events()
        async with Client(cluster) as client:
            reload = asyncio.create_task(cluster.reload())
            assert await client.ask("wait") == "draining"
            if target is serves.talk:
                assert await client.ask("die SIGABRT") == ""
        crash = (await next_of(events, Crashed)).crash
        if target is serves.talk:
            assert (crash.slot, crash.signal, crash.kind) == (0, "SIGABRT", "crash")
        else:
            assert (crash.exit_code, crash.signal) == (1, None)
            assert crash.detail == "serve failed: ArithmeticError: at last"
        assert crash.next_step_text == "not replaced: there are enough other workers"
        assert (await reload).replaced == 1
        stats = await all_ready(cluster)
        assert (stats.crashes, stats.state) == (1, "running")


ORDERS = list(itertools.permutations(("reload", "crash", "close")))


@pytest.mark.parametrize("pace", ["at once", "one by one"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_reload_and_crash_and_close_in_any_order(
    order: tuple[str, ...], pace: str
) -> None:
    spread = SPREADS[(ORDERS.index(order) + len(pace)) % 2]
    async with patience(), cluster_of(spread=spread, drain_timeout=1.0) as cluster:
        stats = await all_ready(cluster)
        events = cluster.events()
        tasks: list[asyncio.Task[object]] = []
        for action in order:
            if action == "reload":
                tasks.append(asyncio.create_task(reload_unless_closed(cluster)))
                shows: type[Spawned | Crashed | Exited] = Spawned
            elif action == "crash":
                crash(stats)
                shows = Crashed
            else:
                tasks.append(asyncio.create_task(cluster.close()))
                shows = Exited
            await asyncio.sleep(0)
            if pace != "at once" and cluster.stats().state == "running":
                await next_of(events, shows)
        await asyncio.gather(*tasks)
    assert cluster.stats().state == "closed"
    assert not any(slot.pid for slot in cluster.stats().slots)
    await cluster.wait()


async def reload_unless_closed(cluster: Cluster) -> None:
    try:
        result = await cluster.reload()
    except PoolClosedError:
        return
    assert result.reason in {"", "the pool was closed", "a replacement did not start"}


def crash(stats: ClusterStats) -> None:
    for slot in stats.slots:
        if slot.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGKILL)
            return


# A resize.


@in_each_way
async def test_a_cluster_grows_and_shrinks(spread: str) -> None:
    async with whole_cluster(workers=1, spread=spread) as cluster:
        for size in (4, 2, 3, 1):
            await cluster.resize(size)
            stats = await all_ready(cluster)
            assert stats.workers == size
            assert len(generations(stats)) == size
            async with clients(cluster, 12) as some:
                whose = {(await client.who())[2] for client in some}
            assert whose <= {slot.pid for slot in stats.slots}
            if spread == "handoff":
                assert len(whose) == size
        assert cluster.stats().crashes == 0


async def test_who_is_too_many_finishes_its_connections() -> None:
    async with whole_cluster(workers=2) as cluster:
        async with clients(cluster, 2) as some:
            pids = [(await client.who())[2] for client in some]
            assert len(set(pids)) == 2
            resize = asyncio.create_task(cluster.resize(1))
            waits = [asyncio.create_task(client.ask("wait")) for client in some]
            await asyncio.wait(waits, return_when="FIRST_COMPLETED")
            assert not resize.done()
            [leaves] = [n for n, wait in enumerate(waits) if wait.done()]
            assert (await some[leaves].who())[2] == pids[leaves]
            await some[leaves].close()
            await resize
            assert [s.pid for s in cluster.stats().slots if s.pid] == [pids[1 - leaves]]
            assert not waits[1 - leaves].done()
            closing = asyncio.create_task(cluster.close())
            assert await waits[1 - leaves] == "draining"
        await closing


async def test_a_resize_during_a_reload() -> None:
    async with patience(), Gate() as gate, cluster_behind(gate) as cluster:
        await all_ready(cluster)
        reload = asyncio.create_task(cluster.reload())
        await gate.visitor("2.1")
        with pytest.raises(RollInProgressError):
            await cluster.reload()
        resize = asyncio.create_task(cluster.resize(3))
        # One replaces, and one comes for the larger size, in whatever order.
        for word in ("2.1", "3.1"):
            (await gate.visitor(word)).release()
        # Another replaces, in the slot of the first one if that has ended.
        words = ("0.2", "4.1")
        await come_true(lambda: any(map(gate.visits, words)))
        [word] = filter(gate.visits, words)
        (await gate.visitor(word)).release()
        assert (await reload).ok
        await resize
        assert len(generations(await all_ready(cluster))) == 3


# Workers that are old, worn or too large, and how others are started.
MIB = 1 << 20


# Wear.


@asynccontextmanager
async def only_worker(**options: Any) -> AsyncGenerator[tuple[Cluster, Client]]:
    """Open a cluster of one worker, and a conversation with that."""
    cluster = cluster_of(workers=1, **options)
    async with patience(), cluster, Client(cluster) as client:
        yield cluster, client


@pytest.mark.parametrize(
    ("limits", "reason", "spread"),
    [
        (WorkerLimits(max_jobs=5, jitter=0.0), "max_jobs", "handoff"),
        (WorkerLimits(max_jobs=5, jitter=0.0), "max_jobs", "shared"),
        (WorkerLimits(max_age=0.05), "max_age", "handoff"),
        (WorkerLimits(max_age=0.05), "max_age", "shared"),
        (WorkerLimits(max_memory=64 * MIB), "max_memory", "handoff"),
    ],
)
async def test_a_worn_worker_is_followed_by_another_and_finishes_its_conversation(
    limits: WorkerLimits, reason: str, spread: str
) -> None:
    async with only_worker(worker_limits=limits, spread=spread) as (cluster, client):
        events = cluster.events()
        first = await client.who()
        if reason == "max_jobs":
            while await who(cluster) == first:
                pass
        elif reason == "max_memory":
            assert await client.ask("leak 100") == "leaked"
        assert (await next_of(events, Retiring)).reason == reason
        assert await client.ask("wait") == "draining"
        assert await who(cluster) != first
        assert await client.who() == first
        await client.close()
        while (await next_of(events, Exited)).pid != first[2]:
            pass
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
    async with whole_cluster(launcher=launcher, preload=["ap_model"]) as cluster:
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
            for words in (("4.1", "5.1"), ("6.1", "7.1")):
                two = [await gate.visitor(word) for word in words]
                states = _states(cluster.stats())
                assert (states["starting"], states["ready"]) == (2, 4)
                for visitor in two:
                    visitor.release()
            assert await reload == RollResult(replaced=4, reason="", crash=None)
            stats = await all_ready(cluster)
            assert (stats.workers, stats.spawned, stats.crashes) == (4, 8, 0)
