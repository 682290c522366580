"""Clusters at work: who serves, how evenly, and what a death costs."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster, Crash, RestartPolicy, WorkerLimits
from asyncpool.cluster import ClusterStats
from asyncpool.errors import PoolBrokenError, PoolClosedError
from asyncpool.events import Broken, Crashed, Exited, Ready, Retiring, Spawned
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
from tests.helpers.gate import Gate, short_folder
from tests.helpers.guards import open_fds
from tests.helpers.inside import BURST, break_core
from tests.helpers.locked_folder import assert_waits, locked
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import next_of

pytestmark = BOTH_LOOPS

in_each_way = pytest.mark.parametrize("spread", SPREADS)


def pid_in(stats: ClusterStats, slot: int) -> int:
    [pid] = [it.pid for it in stats.slots if it.slot == slot]
    assert pid is not None
    return pid


@pytest.mark.parametrize("how", ["start", "close", "cancel"])
async def test_a_locked_folder_does_not_hold_up_the_loop(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asyncpool")
    with short_folder() as folder:
        path = folder / "app.sock"
        cluster = cluster_of(bind=f"unix:{path}", workers=1)
        async with patience():
            with locked(folder):
                starting = [asyncio.create_task(cluster.start()) for _ in range(2)]
                await assert_waits(folder, *starting)
                if how == "close":
                    await cluster.close()
                elif how == "cancel":
                    starting[0].cancel()
            errors = await asyncio.gather(*starting, return_exceptions=True)
            if how == "start":
                assert path.is_socket()
                assert errors == [cluster, cluster]
                messages = [getattr(r, "message_id", "") for r in caplog.records]
                assert messages.count("server-ready") == 1
            else:
                kinds = (PoolClosedError, asyncio.CancelledError)
                assert all(isinstance(error, kinds) for error in errors)
                assert not [r for r in caplog.records if r.name == "asyncpool.pool"]
            await cluster.close()
        assert not path.exists()


@in_each_way
async def test_requests_are_served(spread: str) -> None:
    cluster = cluster_of("tests.helpers.serves:talk", workers=4, spread=spread)
    async with patience(), AsyncExitStack() as stack:
        await stack.enter_async_context(cluster)
        await all_ready(cluster)
        whose = Counter[int]()
        for n in range(40):  # at once, who is slow to take one would get fewer
            client = await stack.enter_async_context(Client(cluster))
            assert await client.ask(f"echo {n}") == str(n)
            slot, generation, pid = await client.who()
            assert (generation, pid) == (1, pid_in(cluster.stats(), slot))
            whose[slot] += 1
        stats = cluster.stats()
        if spread == "handoff":  # evenly
            assert whose == dict.fromkeys(range(4), 10)
            assert [slot.connections for slot in stats.slots if slot.ready] == [10] * 4
            assert [slot.handed for slot in stats.slots if slot.ready] == [10] * 4
    assert (stats.state, stats.spread, stats.workers) == ("running", spread, 4)
    assert (stats.handed, stats.crashes, stats.refused, stats.spawned) == (40, 0, 0, 4)
    assert all(slot.memory > 0 and slot.uptime > 0 for slot in stats.slots)
    assert cluster.stats().state == "closed"


@pytest.mark.parametrize("spread", ["handoff", "shared"])
async def test_several_addresses_of_all_kinds(spread: str) -> None:
    with short_folder() as folder:
        bind = ["127.0.0.1:0", "tcp://[::1]:0", f"unix://{folder}/s"]
        async with patience(), cluster_of(bind=bind, spread=spread) as cluster:
            assert len(cluster.addresses) == 3
            for address in range(3):
                async with Client(cluster, address) as client:
                    assert await client.ask(f"echo {address}") == str(address)
            taken = cluster.addresses[0]
            other = cluster_of(bind=taken)
            with pytest.raises(OSError, match=f"cannot listen on {taken}"):
                await other.start()
            assert other.stats().state == "new"
        assert not list(folder.iterdir())


async def test_a_worker_that_is_killed_costs_its_own_connections_only() -> None:
    async with whole_cluster() as cluster:
        events = cluster.events()
        async with clients(cluster, 6) as some:
            whose = [(await client.who())[0] for client in some]
            os.kill(pid_in(cluster.stats(), 0), signal.SIGKILL)
            crashed = await next_of(events, Crashed)
            assert (crashed.crash.slot, crashed.crash.signal) == (0, "SIGKILL")
            assert crashed.crash.next_step_text == "restarting at once"
            ready = await next_of(events, Ready)
            assert (ready.slot, ready.generation) == (0, 2)
            for slot, client in zip(whose, some, strict=True):
                assert await client.ask("echo on") == ("on" if slot else "")
            assert (await who(cluster))[0] == 0


@in_each_way
async def test_connections_wait_while_all_workers_are_dead(spread: str) -> None:
    """The listening sockets are the master's."""
    async with patience(), Gate() as gate:
        target = partial(serves.talk_behind, gate.path)
        cluster = cluster_of(target, workers=1, spread=spread)
        start = asyncio.create_task(cluster.start())
        (await gate.visitor("0.1")).release()
        await start
        async with cluster:
            for generation in range(2, 4):
                os.kill((await who(cluster))[2], signal.SIGKILL)
                successor = await gate.visitor(f"0.{generation}")
                assert not any(slot.ready for slot in cluster.stats().slots)
                async with clients(cluster, 5) as some:
                    successor.release()
                    for client in some:
                        assert (await client.who())[1] == generation


async def test_who_accepts_by_itself_is_handed_nothing() -> None:
    target = serves.talk_by_itself
    async with patience(), cluster_of(target, spread="shared") as cluster:
        events = cluster.events()
        for _ in range(2):
            pid = pid_in(await all_ready(cluster), 0)
            os.kill(pid, signal.SIGKILL)
            await next_of(events, Crashed)
            async with clients(cluster, 20) as some:
                for client in some:
                    await client.who()


async def test_what_a_dead_worker_has_not_taken_is_served_by_another() -> None:
    async with whole_cluster() as cluster, Client(cluster) as first:
        _, _, pid = await first.who()
        os.kill(pid, signal.SIGSTOP)
        # The least busy one has its turn now; after that, both are equals.
        async with clients(cluster, 7) as some:
            await come_true(lambda: cluster.stats().handed == 8)
            os.kill(pid, signal.SIGKILL)
            whose = [(await client.who())[0] for client in some]
        assert whose
        assert await first.ask("echo x") == ""


async def test_a_worker_out_of_descriptors_gets_none() -> None:
    async with (
        whole_cluster() as cluster,
        Client(cluster) as hog,
        Client(cluster) as other,
    ):
        assert (await hog.who())[0] == 0
        assert (await other.who())[0] == 1
        assert await hog.ask("hog") == "full"
        async with clients(cluster, 10) as some:
            whose = {(await client.who())[0] for client in some}
            assert whose == {1}
        assert cluster.stats().refused > 0
        assert await hog.ask("release") == "empty"
        await connected(cluster, 2)


@in_each_way
async def test_nothing_leaks_with_1000_connections(spread: str) -> None:
    async with patience(4), cluster_of(spread=spread) as cluster:
        await all_ready(cluster)

        async def talk() -> None:
            for _ in range(20):
                assert (await who(cluster))[1] == 1

        async def descriptors() -> dict[int, int]:
            found: dict[int, int] = {}
            while len(found) < 2:
                async with Client(cluster) as client:
                    slot, _, _ = await client.who()
                    found[slot] = int(await client.ask("descriptors"))
                await connected(cluster, 0)
            return found

        theirs, ours = await descriptors(), len(open_fds())
        await asyncio.gather(*(talk() for _ in range(50)))
        await connected(cluster, 0)
        assert await descriptors() == theirs
        assert len(open_fds()) == ours
        assert cluster.stats().handed >= (1000 if spread == "handoff" else 0)


# Exceptions, and other ends.


async def test_an_uncaught_exception_is_announced_and_replaced_at_once() -> None:
    async with whole_cluster() as cluster:
        async with Client(cluster) as client:
            slot, _, pid = await client.who()
            events = cluster.events()
            assert await client.ask("fail it broke") == "failing"
            retiring = await next_of(events, Retiring)
            assert retiring == Retiring(slot, 1, "uncaught exception")
            spawned = await next_of(events, Spawned)
            assert spawned.slot == 2
            await next_of(events, Ready)
            # The old one still has its connection.
            assert (await client.who())[2] == pid
            assert {(await who(cluster))[0] for _ in range(4)} == {1 - slot, 2}
        crash = (await next_of(events, Crashed)).crash
        assert (crash.slot, crash.exit_code, crash.kind) == (slot, 1, "crash")
        assert crash.detail == "serve failed: ArithmeticError: it broke"
        assert crash.stack.startswith("Traceback")
        assert crash.stack.endswith("ArithmeticError: it broke\n")
        assert crash.next_step_text == "not replaced: there are enough other workers"
        assert (await all_ready(cluster)).crashes == 1


def others(stats: ClusterStats, old: set[int | None]) -> set[int | None]:
    """Return who serves, apart from *old*."""
    return {slot.pid for slot in stats.slots if slot.ready} - old


async def test_where_all_fail_others_serve_at_once() -> None:
    async with patience(), cluster_of(drain_timeout=3600.0) as cluster:
        old = {slot.pid for slot in (await all_ready(cluster)).slots} - {None}
        async with clients(cluster, 2) as some:
            for client in some:
                assert await client.ask("fail together") == "failing"
            await until(cluster, lambda stats: len(others(stats, old)) == 2)
            assert {(await client.who())[2] for client in some} == old
            assert not {(await who(cluster))[2] for _ in range(4)} & old
            assert cluster.stats().crashes == 0
        assert (await all_ready(cluster)).crashes == 2


async def test_one_that_fails_at_once_gives_up_if_the_policy_says_so() -> None:
    crashes: list[Crash] = []
    cluster = cluster_of(
        serves.fail_at_once,
        workers=1,
        restart_policy=RestartPolicy.limited(2, period=60),
        on_crash=crashes.append,
    )
    events = cluster.events()
    async with patience(), cluster:
        reason = "3 workers died within 60 s, and the policy allows 2"
        for _ in range(2):
            with pytest.raises(PoolBrokenError, match=reason):
                await cluster.wait()
        assert (await next_of(events, Broken)).reason == reason
        assert cluster.stats().state == "broken"
    assert [crash.detail for crash in crashes] == [
        "serve failed: ArithmeticError: at once"
    ] * 3


@pytest.mark.parametrize(
    ("target", "detail"),
    [
        (serves.fail_before, "serve failed: ArithmeticError: before it was ready"),
        (serves.not_yet, "killed since it was not ready within 2 s (start_timeout)"),
    ],
)
async def test_one_that_never_is_ready_breaks_the_start(
    target: Any, detail: str
) -> None:
    policy = RestartPolicy(initial_delay=0.01, max_failed_starts=1)
    cluster = cluster_of(
        target,
        workers=1,
        restart_policy=policy,
        start_timeout=2.0 if "2 s" in detail else 60.0,
    )
    async with patience():
        with pytest.raises(PoolBrokenError, match=re.escape(detail)) as caught:
            await cluster.start()
    crash = caught.value.crashes[-1]
    assert (crash.kind, crash.detail) == ("failed start", detail)
    assert cluster.stats().state == "closed"


async def test_a_worker_that_retires_or_returns_is_replaced_at_once() -> None:
    async with patience(), cluster_of(workers=1) as cluster:
        events = cluster.events()
        async with Client(cluster) as client:
            assert await client.ask("retire I am old") == "retiring"
            retiring = await next_of(events, Retiring)
            assert (retiring.slot, retiring.generation) == (0, 1)
            ready = await next_of(events, Ready)
            assert ready.slot == 1
            assert (await who(cluster))[0] == 1
            assert (await client.who())[0] == 0
        assert (await next_of(events, Exited)).slot == 0
        assert cluster.stats().crashes == 0
        # To return unasked is a crash.
        async with Client(cluster) as client:
            assert await client.ask("finish") == "finishing"
            await client.close()
            crash = (await next_of(events, Crashed)).crash
        assert (crash.exit_code, crash.signal) == (0, None)
        assert crash.detail == "serve() returned"
        assert (await who(cluster))[1] == 2


async def test_no_number_of_kills_ends_a_cluster() -> None:
    """A crash with open connections is theirs, as one of a pool is its job's."""
    async with patience(), cluster_of(workers=1) as cluster:
        waiter = asyncio.create_task(cluster.wait())
        for generation in range(1, BURST + 8):
            async with Client(cluster) as client:
                assert (await client.who())[1] == generation
                if generation % 2:
                    assert await client.ask("die SIGKILL") == ""
                    continue
            await connected(cluster, 0)
            os.kill(pid_in(cluster.stats(), 0), signal.SIGKILL)
        assert cluster.stats().state == "running"
        assert not waiter.done()
        await cluster.close()
        await waiter


async def test_a_cluster_that_was_ready_once_never_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "ap_served.py"
    module.write_text("from tests.helpers.serves import talk as serve\n")
    policy = RestartPolicy(initial_delay=0.01, max_delay=0.02, max_failed_starts=2)
    cluster = cluster_of("ap_served:serve", workers=1, restart_policy=policy)
    async with patience(), cluster:
        waiter = asyncio.create_task(cluster.wait())
        pid = (await who(cluster))[2]
        events = cluster.events()
        module.write_text("raise ValueError('a bad deploy')\n")
        os.kill(pid, signal.SIGKILL)
        assert (await next_of(events, Broken)).reason == "2 starts failed in a row"
        assert cluster.stats().state == "broken"
        assert not waiter.done()
        module.write_text("from tests.helpers.serves import talk as serve\n")
        assert (await who(cluster))[2] != pid
        assert cluster.stats().state == "running"
        await cluster.close()
        await waiter


# What goes wrong in the master.


async def test_no_descriptor_to_listen_is_a_start_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = RestartPolicy(initial_delay=0.01)
    cluster = cluster_of(workers=1, spread="shared", restart_policy=policy)
    async with patience(), cluster:
        pid = (await who(cluster))[2]
        events = cluster.events()
        with monkeypatch.context() as patch:
            patch.setattr("os.dup", out_of_descriptors_once(patch))
            os.kill(pid, signal.SIGKILL)
            assert (await next_of(events, Crashed)).crash.kind == "crash"
            crash = (await next_of(events, Crashed)).crash
        assert crash.kind == "failed start"
        assert crash.detail == "[Errno 24] Too many open files"
        assert (await who(cluster))[1] == 3


def out_of_descriptors_once(patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        patch.undo()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    return fail


async def test_a_bug_in_the_master_is_no_orderly_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "the supervisor failed: .*LookupError"
    async with patience():
        cluster = cluster_of(workers=1)
        async with cluster:
            pid = (await who(cluster))[2]
            waiter = asyncio.create_task(cluster.wait())
            break_core(cluster, LookupError("a bug"))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(PoolBrokenError, match=text):
                await waiter
        with pytest.raises(PoolBrokenError, match=text):
            await cluster.wait()
        assert cluster.stats().state == "closed"
    assert "LookupError: a bug" in caplog.text


# The end of the cluster.


async def test_a_connection_in_progress_is_finished() -> None:
    async with patience(), cluster_of() as cluster:
        async with Client(cluster) as client:
            await client.who()
            client.say("wait")
            closing = asyncio.create_task(cluster.close())
            assert await client.answer() == "draining"
            assert await client.ask("echo more") == "more"
            with pytest.raises(ConnectionRefusedError):
                await who(cluster)
            assert not closing.done()
        summary = await closing
    assert (summary.finished, summary.failed, summary.killed) == (1, 0, 0)
    await cluster.wait()


@pytest.mark.logs("connections-cut-off")
async def test_a_connection_that_never_ends_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(drain_timeout=0.2)
    async with patience(), cluster, Client(cluster) as client:
        await client.who()
        summary = await cluster.close()
        assert await client.answer() == ""
    assert (summary.finished, summary.failed, summary.killed) == (0, 1, 0)
    [record] = caplog.records
    data = vars(record)
    assert (data["open"], data["opened"], data["limit"]) == (1, 1, "drain_timeout")


async def test_a_worker_that_hangs_is_killed_in_the_end(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cluster = cluster_of(workers=1, drain_timeout=0.1)
    async with patience(), cluster, Client(cluster) as client:
        await client.who()
        [pid] = [slot.pid for slot in cluster.stats().slots]
        events = cluster.events()
        client.say(f"freeze {tmp_path / 'hangs'}")
        await come_true((tmp_path / "hangs").exists)
        async with Client(cluster) as other:
            await come_true(lambda: cluster.stats().slots[0].connections == 2)
            summary = await cluster.close(timeout=0.2)
            assert await other.answer() == ""
        assert await client.answer() == ""
        exited = await next_of(events, Exited)
    assert (summary.finished, summary.failed, summary.killed) == (0, 2, 1)
    assert cluster.stats().crashes == 0
    why = "killed since it had not ended within the drain_timeout of 0.1 s"
    assert (exited.signal, exited.detail) == ("SIGKILL", why)
    assert caplog.messages == [
        (
            f"cluster {cluster.name}: worker {pid} in slot 0 was {why}: 2 of 2 connections "
            "are cut off"
        )
    ]


async def test_who_wants_the_end_at_once_is_not_told_of_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), cluster_of(workers=1) as cluster, Client(cluster) as client:
        await client.who()
        events = cluster.events()
        closing = asyncio.create_task(cluster.close())
        assert await client.ask("wait") == "draining"
        summary = await cluster.close(timeout=0)
        assert await closing == summary
        exited = await next_of(events, Exited)
    assert (summary.finished, summary.failed) == (0, 1)
    assert (exited.signal, exited.detail) == ("SIGKILL", "")
    assert caplog.messages == []


@in_each_way
async def test_what_waits_in_the_queue_is_still_served(spread: str) -> None:
    async with patience(), cluster_of(workers=1, spread=spread) as cluster:
        pid = (await who(cluster))[2]
        await connected(cluster, 0)
        os.kill(pid, signal.SIGSTOP)
        async with clients(cluster, 40) as some:
            for client in some:
                client.say("echo late")
            closing = asyncio.create_task(cluster.close())
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGCONT)
            assert [await client.answer() for client in some] == ["late"] * 40
        summary = await closing
    assert (summary.finished, summary.failed) == (40, 0)


async def test_before_the_start_and_after_the_end() -> None:
    cluster = cluster_of()
    text = "the cluster was not started: use 'async with cluster'"
    for attempt in (cluster.wait, cluster.reload, cluster.stacks):
        with pytest.raises(PoolClosedError, match=text):
            await attempt()
    assert cluster.stats().state == "new"
    await cluster.close()
    assert cluster.stats().state == "closed"
    with pytest.raises(PoolClosedError, match="the cluster is closed"):
        await cluster.start()
    async with patience(), cluster_of() as cluster:
        one, two = await asyncio.gather(cluster.close(), cluster.close(timeout=9))
        assert one == two
    assert await cluster.close() == one
    with pytest.raises(PoolClosedError, match="the pool is closed"):
        await cluster.reload()
    with pytest.raises(PoolClosedError, match="the cluster is closed"):
        await cluster.start()


@pytest.mark.logs("sockets-ignored")
async def test_sockets_of_systemd_that_are_not_served_on_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LISTEN_FDS", "2")
    for owner in (os.getpid() + 1, os.getpid()):
        monkeypatch.setenv("LISTEN_PID", str(owner))
        async with cluster_of(name="app"):
            pass
    [text] = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert text.startswith("cluster app does not serve on 2 sockets that the service")


async def test_stacks_of_all_workers() -> None:
    async with whole_cluster() as cluster:
        async with Client(cluster) as client:
            slot, _, _ = await client.who()
            texts: list[str] = []
            # The worker may be on its way back to its wait for connections.
            while not texts or not all("in accept" in text for text in texts):
                asked = (cluster.stacks(), cluster.stacks())
                stacks, again = await asyncio.gather(*asked)
                assert stacks.keys() == again.keys() == {0, 1}
                texts = [*stacks.values(), *again.values()]
            client.say("wait")
            closing = asyncio.create_task(cluster.close())
            assert await client.answer() == "draining"
            assert slot in await cluster.stacks()
        await closing


async def test_a_worker_whose_loop_is_blocked_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate, cluster_of(ping_timeout=1) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        async with Client(cluster) as client:
            slot, _, pid = await client.who()
            client.say(f"block {gate.path}")
            await gate.visitor("blocked")
            async with clients(cluster, 10) as some:
                for n, late in enumerate(some):
                    assert await late.ask(f"echo {n}") == str(n)
            crash = (await next_of(events, Crashed)).crash
            assert (crash.slot, crash.pid, crash.kind) == (slot, pid, "hung")
            assert crash.detail == "no answer to pings for 1 s"
            assert "in block" in crash.stack
            [record] = [it for it in caplog.records if "in block" in str(it.stack_info)]
            assert record.getMessage().endswith(
                "was killed by SIGKILL (hung): no answer to pings for 1 s; restarting at once"
            )
            assert await client.answer() == ""
        assert (await next_of(events, Ready)).slot == slot


async def test_a_worker_whose_loop_is_blocked_holds_up_few_clients() -> None:
    quiet = cluster_of(ping_timeout=None)
    async with patience(), Gate() as gate, quiet as cluster:
        await all_ready(cluster)
        async with Client(cluster) as client:
            slot, _, _ = await client.who()
            client.say(f"block {gate.path}")
            visitor = await gate.visitor("blocked")
            async with clients(cluster, 10) as some:
                asked = [asyncio.create_task(it.who()) for it in some]
                await come_true(lambda: sum(it.done() for it in asked) >= 8)
                assert slot not in {it.result()[0] for it in asked if it.done()}
                visitor.release()
                await asyncio.gather(*asked)


async def test_arguments_are_checked() -> None:
    for wrong, text in (
        ({"target": "no colon"}, "target must be 'package.module:name'"),
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"spread": "evenly"}, "spread must be one of handoff, shared"),
        ({"max_surge": 0}, "surge must be at least 1, not 0"),
        ({"drain_timeout": 0}, "drain_timeout must be > 0 seconds, not 0"),
        ({"bind": "nowhere"}, "nowhere"),
        (
            {"worker_limits": WorkerLimits(drain_timeout=5.0)},
            "worker_limits of a cluster take no drain_timeout: give it to the cluster itself",
        ),
    ):
        options = {"target": serves.talk, **wrong}
        with pytest.raises(ValueError, match=text):
            Cluster(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="target must be a function, or its name"):
        Cluster(7)  # type: ignore[arg-type]
