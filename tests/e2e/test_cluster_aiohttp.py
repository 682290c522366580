"""The example with aiohttp: other servers than uvicorn drain without a loss, too."""

from __future__ import annotations

import asyncio
import json

import pytest

from asyncpool import Cluster
from tests.helpers.clusters import SPREADS, all_ready, cluster_of
from tests.helpers.http import Browser
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def browse(cluster: Cluster, enough: asyncio.Event) -> set[int]:
    """Send requests, on another connection when told to; return who has answered."""
    answered = set()
    while not enough.is_set():
        async with Browser(cluster) as browser:
            head = b""
            while not (enough.is_set() or b"connection: close" in head.lower()):
                browser.writer.write(GET)
                head = await browser.reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length: ")[2].split()[0]
                body = await browser.reader.readexactly(int(size))
                answered.add(json.loads(body)["pid"])
    return answered


@pytest.mark.parametrize("spread", SPREADS)
async def test_no_request_is_lost(spread: str) -> None:
    cluster = cluster_of("aiohttp_cluster:serve", spread=spread, drain_timeout=PATIENCE)
    async with patience(), cluster:
        await all_ready(cluster)
        old = {slot.pid for slot in cluster.stats().slots}
        enough = asyncio.Event()
        browsing = [asyncio.create_task(browse(cluster, enough)) for _ in range(8)]
        assert (await cluster.reload()).replaced == 2
        stats = await all_ready(cluster)
        enough.set()
        new = {slot.pid for slot in stats.slots}
        assert not new & old
        for answered in await asyncio.gather(*browsing):
            assert answered <= new | old
