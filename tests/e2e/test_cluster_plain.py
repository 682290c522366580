"""Stream handlers and protocols in clusters."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from asyncpool.cluster import protocol, streams
from asyncpool.events import Ready
from tests.helpers import plain_serves, tls
from tests.helpers.clusters import SPREADS, cluster_of
from tests.helpers.gate import short_folder
from tests.helpers.http import Browser
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

in_each_way = pytest.mark.parametrize("spread", SPREADS)

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
        while not isinstance(await anext(events), Ready):
            pass
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
