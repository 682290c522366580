"""The page of metrics: what it answers, and what clients cannot do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asyncpool.prometheus import _page
from asyncpool.prometheus._page import MetricsPage
from tests.helpers.clusters import come_true
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

HERE = "127.0.0.1:0"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Large(Collector):
    """More than the buffers of a connection hold."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        family = GaugeMetricFamily("large", "Large.", labels=["text"])
        family.add_metric(["x" * (16 << 20)], 1.0)
        yield family


async def connect(
    page: MetricsPage,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = page.addresses[0].removeprefix("tcp://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ask(page: MetricsPage, request: str, accept: str = "") -> tuple[str, str]:
    """Return the head of the answer, and its body."""
    reader, writer = await connect(page)
    writer.write(f"{request} HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head, body


async def ends(reader: asyncio.StreamReader) -> bool:
    """Wait until the connection ends; return whether nothing has come before."""
    try:
        return not await reader.read()
    except ConnectionError:
        return True


async def test_it_shows_the_registry() -> None:
    async with patience(), MetricsPage(HERE) as page:
        head, body = await ask(page, "GET /metrics?name=x")
        assert head.startswith("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=")
        assert f"content-length: {len(body)}\r\nconnection: close" in head
        assert "process_open_fds " in body
        strict, body = await ask(page, "GET /metrics", OPEN_METRICS)
        assert "application/openmetrics-text" in strict
        assert body.endswith("# EOF\n")
        head, body = await ask(page, "HEAD /metrics")
        assert (head.split()[1], body) == ("200", "")


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        ("GET /", "404 Not Found", "the metrics are at /metrics\n"),
        ("POST /metrics", "405 Method Not Allowed", "GET it\n"),
        ("nonsense", "405 Method Not Allowed", "GET it\n"),
    ],
)
async def test_anything_else_is_refused(
    request_line: str, status: str, text: str
) -> None:
    async with patience(), MetricsPage(HERE) as page:
        head, body = await ask(page, request_line)
        assert head.startswith(f"HTTP/1.1 {status}\r\n")
        assert body == text


async def test_who_sends_no_request_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_page, "_PATIENCE", 0.05)
    async with patience(), MetricsPage(HERE) as page:
        reader, writer = await connect(page)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost:")
        assert await ends(reader)
        writer.close()


async def test_who_takes_no_answer_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_page, "_PATIENCE", 0.2)
    async with patience(), MetricsPage(HERE) as page:
        page.registry.register(Large())
        with socket.socket() as slow:
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            port = int(page.addresses[0].rpartition(":")[2])
            await loop.sock_connect(slow, ("127.0.0.1", port))
            await loop.sock_sendall(slow, b"GET /metrics HTTP/1.1\r\n\r\n")
            await come_true(lambda: bool(page._clients))
            head, _ = await ask(page, "HEAD /metrics")
            assert head.startswith("HTTP/1.1 200 OK"), "others are answered meanwhile"
            await come_true(lambda: not page._clients)


async def test_a_head_without_end_is_cut_short() -> None:
    async with patience(), MetricsPage(HERE) as page:
        reader, writer = await connect(page)
        writer.write(b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 100_000)
        assert await ends(reader)
        writer.close()


async def test_more_clients_than_that_are_closed_at_once() -> None:
    async with patience(), MetricsPage(HERE) as page:
        patient = [await connect(page) for _ in range(_page._MOST_CLIENTS)]
        await come_true(lambda: len(page._clients) == _page._MOST_CLIENTS)
        reader, writer = await connect(page)
        assert await ends(reader)
        writer.close()
        for _, other in patient:
            other.close()
        await come_true(lambda: not page._clients)
        head, _ = await ask(page, "GET /metrics")
        assert head.startswith("HTTP/1.1 200 OK")
