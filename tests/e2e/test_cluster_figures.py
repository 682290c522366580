"""The figures of clusters: what workers did is known in the master, and outlives them."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from asyncpool import Cluster
from asyncpool.cluster import ClusterStats, asgi
from asyncpool.events import Crashed, Exited
from tests.helpers.clusters import Client, all_ready, cluster_of, come_true
from tests.helpers.http import Browser
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import next_of
from tests.worker.serves import Patient

pytestmark = BOTH_LOOPS

HTTP_TOO_LARGE = 431


def web(**options: Any) -> Patient:
    return Patient(asgi("tests.helpers.web_app:app", **options))


def answered(stats: ClusterStats) -> dict[str, int]:
    return {name: each.count for name, each in stats.requests.responses.items()}


async def told(cluster: Cluster, count: int) -> ClusterStats:
    """Wait until so many responses have been reported."""
    await come_true(lambda: cluster.stats().requests.count >= count)
    return cluster.stats()


async def status(browser: Browser, path: str) -> int:
    """Send a request whose response is the last one; return its status."""
    browser.writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return int((await browser.reader.read()).split()[1])


async def test_requests_are_counted_by_the_class_of_their_status() -> None:
    async with patience(), cluster_of(web(header_size=500)) as cluster:
        async with Browser(cluster) as browser:
            for _ in range(5):
                await browser.get()
        async with Browser(cluster) as browser:
            assert await status(browser, "/fail") == 500
        async with Browser(cluster) as browser:
            assert await status(browser, f"/{'x' * 600}") == HTTP_TOO_LARGE
        await come_true(lambda: cluster.stats().requests.refused == 1)
        stats = await told(cluster, 6)
        assert answered(stats) == {"2xx": 5, "5xx": 1}
        assert stats.requests.responses["2xx"].total > 0
        assert (stats.requests.open, stats.requests.cut) == (0, 0)
        assert sum(slot.requests.count for slot in stats.slots) == 6
    # The last second of a worker is in its last report.
    assert answered(cluster.stats()) == {"2xx": 5, "5xx": 1}


async def test_what_a_worker_did_in_its_last_second_is_counted() -> None:
    async with patience(), cluster_of(web(), workers=1) as cluster:
        async with Browser(cluster) as browser:
            await browser.get()
        await cluster.close()
    assert answered(cluster.stats()) == {"2xx": 1}


async def test_what_dead_workers_did_stays_counted() -> None:
    async with patience(), cluster_of(web(), workers=1) as cluster:
        events = cluster.events()
        async with Browser(cluster) as browser, Browser(cluster) as other:
            pid = (await browser.get()).pid
            other.begin_upload(1)
            await come_true(lambda: cluster.stats().requests.open == 1)
            before = await told(cluster, 1)
            os.kill(pid, signal.SIGKILL)
            await next_of(events, Crashed)
            stats = cluster.stats()
        assert answered(stats) == answered(before) == {"2xx": 1}
        assert (stats.requests.open, stats.requests.cut, stats.cut) == (0, 1, 2)
        assert stats.exited_cpu >= before.slots[0].cpu > 0
        assert (stats.exits, stats.crash_kinds) == ({"crash": 1}, {"crash": 1})
        await all_ready(cluster)
        async with Browser(cluster) as browser:
            await browser.get()
            await told(cluster, 2)
    assert answered(cluster.stats()) == {"2xx": 2}


async def test_what_had_no_more_time_is_cut_off() -> None:
    cluster = cluster_of(web(), workers=1, drain_timeout=0.1)
    async with (
        patience(),
        cluster,
        Browser(cluster) as browser,
        Browser(cluster) as websocket,
    ):
        browser.begin_upload(1)
        await websocket.open_websocket()
        await come_true(lambda: cluster.stats().requests.open == 1)
        await come_true(lambda: cluster.stats().requests.open_websockets == 1)
        summary = await cluster.close()
    stats = cluster.stats()
    assert stats.requests.cut >= 1
    assert (stats.requests.open, stats.requests.open_websockets) == (0, 0)
    assert stats.requests.websockets == 1
    assert stats.cut == summary.failed >= 1
    assert answered(stats) == {}


async def test_requests_beyond_the_limit_are_refused() -> None:
    target = web(limit_concurrency=2)
    async with patience(), cluster_of(target, workers=1) as cluster:
        async with Browser(cluster) as other:
            other.begin_upload(1)
            await come_true(lambda: cluster.stats().requests.open == 1)
            async with Browser(cluster) as browser:
                assert await status(browser, "/") == 503
            other.writer.write(b"x")
            await other.response()
        await come_true(lambda: cluster.stats().requests.refused == 1)
        assert answered(await told(cluster, 1)) == {"2xx": 1}


async def test_workers_and_master_tell_how_late_their_loops_are() -> None:
    async with patience(), cluster_of(web(), workers=1) as cluster:
        await come_true(lambda: cluster.stats().loop_lag.count > 0)
        async with Browser(cluster) as browser:
            while not cluster.stats().worker_loop_lag.count:
                await browser.get()


async def test_ends_are_counted_by_their_cause() -> None:
    async with patience(), cluster_of(drain_timeout=PATIENCE) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        await cluster.reload()
        await all_ready(cluster)
        async with Client(cluster) as client:
            await client.ask("retire worn")
        await next_of(events, Exited)
        await all_ready(cluster)
        await cluster.resize(1)
        slot = (await all_ready(cluster)).slots[0].slot
        cluster.kill(slot)
        await come_true(lambda: "kill" in cluster.stats().exits)
        await all_ready(cluster)
    stats = cluster.stats()
    assert stats.exits == {"roll": 2, "retire": 1, "resize": 1, "kill": 1, "close": 1}
    assert stats.spawned == stats.started.count == sum(stats.exits.values())


async def test_a_worker_tells_since_when_it_drains() -> None:
    async with patience(), cluster_of(drain_timeout=PATIENCE, workers=1) as cluster:
        async with Client(cluster) as client:
            await client.ask("who")
            await come_true(lambda: cluster.stats().slots[0].seconds > 0.01)
            reloading = asyncio.create_task(cluster.reload())
            await come_true(lambda: len(cluster.stats().slots) == 2)
            await all_but_one_ready(cluster)
            old = cluster.stats().slots[0]
            assert (old.state, old.ready) == ("stopping", False)
            assert 0 <= old.seconds < old.uptime
            assert old.cpu > 0
        await reloading


async def all_but_one_ready(cluster: Cluster) -> None:
    await come_true(lambda: [s.ready for s in cluster.stats().slots] == [False, True])
