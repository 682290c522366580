"""ASGI applications in clusters that are reloaded and closed under their clients."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster
from asyncpool.cluster import asgi
from asyncpool.events import Ready, Retiring
from tests.helpers.clusters import SPREADS, all_ready, cluster_of
from tests.helpers.gate import short_folder
from tests.helpers.http import Browser
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.tls import client_context, write_certificate
from tests.helpers.web_app import make_app_unless, make_flood
from tests.worker.serves import Patient

pytestmark = BOTH_LOOPS

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
        while not isinstance(await anext(events), Retiring):
            pass
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
        while not isinstance(await anext(events), Ready):
            pass
        # What is encrypted cannot move: some response is the last one.
        while not (response := await browser.get()).last:
            assert response.pid == old
        assert (await reloading).replaced == 1
        async with Browser(cluster, tls=client_context()) as other:
            assert (await other.get()).pid != old
