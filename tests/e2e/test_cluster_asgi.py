"""Web applications in clusters that are reloaded and closed under their clients."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from asyncpool import Cluster
from asyncpool.cluster import ClusterStats, asgi, protocol, streams
from asyncpool.events import Crashed, Exited, Ready, Retiring
from tests.helpers import plain_serves, tls
from tests.helpers.clusters import (
    SPREADS,
    Client,
    Connection,
    all_ready,
    cluster_of,
    come_true,
    whole_cluster,
)
from tests.helpers.gate import short_folder
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import next_of
from tests.helpers.tls import client_context, write_certificate
from tests.helpers.web_app import make_app_unless, make_flood
from tests.worker.serves import Patient

pytestmark = BOTH_LOOPS


class Response:
    """What was answered.

    Attributes:
        last: Whether the connection is not to be used again.
    """

    def __init__(self, head: bytes, body: bytes) -> None:
        self.status = int(head.split()[1])
        self.last = b"connection: close" in head.lower()
        self.pid, self.size = (int(part) for part in body.split())


class Browser(Connection):
    """One connection to a cluster that speaks HTTP."""

    async def get(self, path: str = "/") -> Response:
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return await self.response()

    def begin_upload(self, size: int) -> None:
        """Send the headers of an upload."""
        head = f"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}"
        self.writer.write(f"{head}\r\n\r\n".encode())

    async def response(self) -> Response:
        """Wait for a response.

        Raises:
            EOFError: If there is none, since the connection has ended.
        """
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return Response(head, await self.reader.readexactly(size))

    async def open_websocket(self) -> None:
        self.writer.write(
            b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")

    def take_nothing(self) -> None:
        """Read nothing any more, so that the other side can send only what buffers hold."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    async def echo(self, text: bytes) -> bytes:
        """Have a short text come back through the WebSocket."""
        self.writer.write(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
        kind, size = await self.reader.readexactly(2)
        assert kind == 0x81
        return await self.reader.readexactly(size)

    async def close_code(self) -> int:
        """Wait until the WebSocket is closed, and return why."""
        kind, size = await self.reader.readexactly(2)
        assert kind == 0x88
        code = int.from_bytes((await self.reader.readexactly(size))[:2])
        assert not await self.reader.read()
        return code


in_each_way = pytest.mark.parametrize("spread", SPREADS)


def web(app: Any = "tests.helpers.web_app:app", **options: Any) -> Patient:
    # Uvicorn's 5 seconds may be over before a busy machine has reloaded all twice.
    options.setdefault("timeout_keep_alive", 600)
    return Patient(asgi(app, **options))


def cluster_with(target: Any = None, **options: Any) -> Cluster:
    options.setdefault("drain_timeout", PATIENCE)
    return cluster_of(web() if target is None else target, **options)


def pids(cluster: Cluster) -> set[int]:
    return {slot.pid for slot in cluster.stats().slots if slot.pid is not None}


async def browse(cluster: Cluster, enough: asyncio.Event) -> set[int]:
    """Send one request after the other on one connection; return who has answered."""
    answered = set()
    async with Browser(cluster) as browser:
        while not enough.is_set():
            response = await browser.get()
            assert (response.status, response.last) == (200, False)
            answered.add(response.pid)
    return answered


@in_each_way
async def test_connections_outlive_reloads(spread: str) -> None:
    async with patience(), cluster_with(spread=spread) as cluster:
        await all_ready(cluster)
        old = pids(cluster)
        enough = asyncio.Event()
        browsing = [asyncio.create_task(browse(cluster, enough)) for _ in range(10)]
        async with Browser(cluster) as unused, Browser(cluster) as resting:
            first = await resting.get()
            for _ in range(2):
                result = await cluster.reload()
                assert (result.replaced, result.reason) == (2, "")
            await all_ready(cluster)
            # Neither has noticed that the worker which it was connected to is gone.
            assert first.pid in old
            for browser in (unused, resting):
                assert (await browser.get()).pid in pids(cluster) - old
            enough.set()
            for answered in await asyncio.gather(*browsing):
                assert answered & pids(cluster)


async def test_clients_are_told_when_all_ends() -> None:
    async def browse_on(browser: Browser) -> None:
        while not (await browser.get()).last:
            pass
        assert not await browser.reader.read()

    async with patience(), cluster_with() as cluster:
        async with Browser(cluster) as one, Browser(cluster) as other:
            for browser in (one, other):
                assert (await browser.get()).last is False
            browsing = asyncio.gather(browse_on(one), browse_on(other))
            summary = await cluster.close()
            await browsing
        assert summary.killed == 0


async def test_a_websocket_is_told_to_come_back() -> None:
    async with patience(), cluster_with(workers=1) as cluster:
        async with Browser(cluster) as browser:
            await browser.open_websocket()
            assert await browser.echo(b"hello") == b"hello"
            reloading = asyncio.create_task(cluster.reload())
            assert await browser.close_code() == 1012
        async with Browser(cluster) as browser:
            await browser.open_websocket()
            assert await browser.echo(b"again") == b"again"
            assert (await reloading).replaced == 1


@pytest.mark.parametrize("ws", ["auto", "wsproto"])
@pytest.mark.parametrize("end", ["reload", "close"])
async def test_who_takes_nothing_from_a_websocket_is_cut_off_in_time(
    tmp_path: Path, ws: str, end: str
) -> None:
    counted = tmp_path / "KiB"
    target = web(partial(make_flood, counted), factory=True, ws=ws)
    cluster = cluster_with(target, workers=1, drain_timeout=0.3)
    async with patience(), cluster, Browser(cluster) as browser:
        await browser.open_websocket()
        browser.take_nothing()
        await getattr(cluster, end)()
        stats = cluster.stats()
    assert stats.crashes == 0
    # What the kernel holds for both sides, and not what there was time to send.
    assert 0 < int(counted.read_text()) < 64 * 1024


async def test_a_slow_upload_ends_where_it_has_begun() -> None:
    cluster = cluster_with(workers=1)
    async with patience(), cluster, Browser(cluster) as browser:
        old = (await browser.get()).pid
        browser.begin_upload(10)
        browser.writer.write(b"12345")
        events = cluster.events()
        reloading = asyncio.create_task(cluster.reload())
        await next_of(events, Retiring)
        browser.writer.write(b"67890")
        response = await browser.response()
        assert (response.pid, response.size) == (old, 10)
        # Its connection goes on with the next worker.
        response = await browser.get()
        assert response.pid != old
        assert (await reloading).replaced == 1


async def test_an_application_that_refuses_to_start_leaves_the_old_one(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "broken"
    target = web(partial(make_app_unless, flag), factory=True)
    cluster = cluster_with(target, workers=1)
    async with patience(), cluster, Browser(cluster) as browser:
        old = (await browser.get()).pid
        flag.touch()
        result = await cluster.reload()
        assert result.replaced == 0
        assert "lifespan has refused to start: no database" in str(result.crash)
        assert (await browser.get()).pid == old


@in_each_way
async def test_unix_sockets_and_ipv6(spread: str) -> None:
    with short_folder() as folder:
        bind = ["tcp://[::1]:0", f"unix://{folder}/s"]
        async with (
            patience(),
            cluster_with(bind=bind, spread=spread, workers=1) as cluster,
        ):
            for address in range(len(bind)):
                async with Browser(cluster, address) as browser:
                    old = (await browser.get()).pid
                    await cluster.reload()
                    assert (await browser.get()).pid != old


@in_each_way
async def test_tls(spread: str, tmp_path: Path) -> None:
    target = web(ssl_certfile=write_certificate(tmp_path))
    async with (
        patience(),
        cluster_with(target, spread=spread, workers=1) as cluster,
        Browser(cluster, tls=client_context()) as browser,
    ):
        old = (await browser.get()).pid
        events = cluster.events()
        reloading = asyncio.create_task(cluster.reload())
        await next_of(events, Ready)
        # What is encrypted cannot move: some response is the last one.
        while not (response := await browser.get()).last:
            assert response.pid == old
        assert (await reloading).replaced == 1
        async with Browser(cluster, tls=client_context()) as other:
            assert (await other.get()).pid != old


async def test_django_serves_each_kind_of_view_and_outlives_reloads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_with(web("tests.helpers.django_app:app"), workers=1)
    async with patience(3), cluster, Browser(cluster) as browser:
        first = await browser.get()
        assert (first.status, first.size) == (200, 42)
        for path, size in (("/later", 0), ("/stream", 1)):
            response = await browser.get(path)
            assert (response.pid, response.size) == (first.pid, size)
        browser.begin_upload(10)
        reloading = asyncio.create_task(cluster.reload())
        browser.writer.write(b"0123456789")
        assert (await browser.response()).size == 10
        assert (await reloading).replaced == 1
        await all_ready(cluster)
        # On the same connection, which the next worker has got.
        last = await browser.get()
        assert last.size == 42
        assert last.pid != first.pid
        summary = await cluster.close()
    assert (summary.failed, summary.killed) == (0, 0)
    assert [it for it in caplog.records if it.levelno >= logging.WARNING] == []


# The example with aiohttp: other servers than uvicorn drain without a loss, too.
GET_BYTES = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def browse_anew(cluster: Cluster, enough: asyncio.Event) -> set[int]:
    """Send requests, on another connection when told to; return who has answered."""
    answered = set()
    while not enough.is_set():
        async with Browser(cluster) as browser:
            head = b""
            while not (enough.is_set() or b"connection: close" in head.lower()):
                browser.writer.write(GET_BYTES)
                head = await browser.reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length: ")[2].split()[0]
                body = await browser.reader.readexactly(int(size))
                answered.add(json.loads(body)["pid"])
    return answered


@pytest.mark.parametrize("spread", SPREADS)
async def test_aiohttp_loses_no_request(spread: str) -> None:
    async with whole_cluster(
        "aiohttp_cluster:serve", spread=spread, drain_timeout=PATIENCE
    ) as cluster:
        old = {slot.pid for slot in cluster.stats().slots}
        enough = asyncio.Event()
        browsing = [asyncio.create_task(browse_anew(cluster, enough)) for _ in range(8)]
        assert (await cluster.reload()).replaced == 2
        stats = await all_ready(cluster)
        enough.set()
        new = {slot.pid for slot in stats.slots}
        assert not new & old
        for answered in await asyncio.gather(*browsing):
            assert answered <= new | old


# Stream handlers and protocols.
BOTH = pytest.mark.parametrize(
    ("adapter", "target"),
    [(streams, plain_serves.converse), (protocol, plain_serves.Shouter)],
    ids=["streams", "protocol"],
)


async def ask(browser: Browser, line: bytes) -> int:
    """Say a line, and return the pid of who says it again."""
    browser.writer.write(line + b"\n")
    pid, _, same = (await browser.reader.readline()).partition(b" ")
    assert same == line + b"\n"
    return int(pid)


@in_each_way
@BOTH
async def test_conversations_end_where_they_have_begun(
    adapter: Any, target: Any, spread: str
) -> None:
    name = f"{target.__module__}:{target.__qualname__}"
    cluster = cluster_of(
        adapter(name), spread=spread, workers=1, drain_timeout=PATIENCE
    )
    async with patience(), cluster, Browser(cluster) as browser:
        old = await ask(browser, b"hello")
        events = cluster.events()
        reloading = asyncio.create_task(cluster.reload())
        await next_of(events, Ready)
        async with Browser(cluster) as other:
            assert await ask(other, b"hello") != old
        assert await ask(browser, b"still here") == old
        browser.writer.close()
        assert (await reloading).replaced == 1


@BOTH
async def test_conversations_have_an_end(adapter: Any, target: Any) -> None:
    cluster = cluster_of(adapter(target), workers=1, drain_timeout=0.1)
    async with patience(), cluster, Browser(cluster) as browser:
        await ask(browser, b"hello")
        assert (await cluster.reload()).replaced == 1
        assert not await browser.reader.read()


@BOTH
async def test_tls_unix_and_ipv6(adapter: Any, target: Any) -> None:
    with short_folder() as folder:
        bind = [f"unix://{folder}/s", "tcp://[::1]:0"]
        plain = adapter(target)
        encrypted = adapter(target, ssl=tls.server_context)
        named = adapter(target, ssl="tests.helpers.tls:server_context")
        for served, context in (
            (plain, None),
            (encrypted, tls.client_context()),
            (named, tls.client_context()),
        ):
            async with patience(), cluster_of(served, bind=bind, workers=1) as cluster:
                for address in range(2):
                    async with Browser(cluster, address, tls=context) as browser:
                        await ask(browser, b"hello")


@BOTH
async def test_who_speaks_no_tls_harms_nobody(adapter: Any, target: Any) -> None:
    served = adapter(target, ssl=tls.server_context)
    async with patience(), cluster_of(served, workers=1) as cluster:
        async with Browser(cluster) as rude:
            rude.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b"GET" not in await rude.reader.read()
        with pytest.raises(ssl.SSLError):
            async with Browser(cluster, tls=ssl.create_default_context()):
                pass
        async with Browser(cluster, tls=tls.client_context()) as browser:
            await ask(browser, b"hello")
            (slot,) = cluster.stats().slots
            assert slot.handed == 3


# Figures: what workers did is known in the master, and outlives them.
HTTP_TOO_LARGE = 431


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
        async with Browser(cluster) as browser:
            await browser.get()
    # The last second of a worker is in its last report.
    assert answered(cluster.stats()) == {"2xx": 6, "5xx": 1}


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
    async with whole_cluster(drain_timeout=PATIENCE) as cluster:
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
