"""A page of metrics over HTTP, for processes that serve nothing else by HTTP.

The server of ``prometheus_client`` has a thread for each connection, however many there are and
however long they say nothing.  This one lives in the event loop, and whatever a client
does is bounded: how many there are at once, how long each may take, and how often the page is
made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from asyncpool._cluster.listeners import Listeners

# More clients than that at once are closed without an answer: a Prometheus needs one.
_MOST_CLIENTS = 16

# Seconds for all that a client does: its request, and to take the page.
_PATIENCE = 5.0

_MOST_HEAD = 8192  # bytes

# For so many seconds a page is shown again, and not made anew: that takes some milliseconds.
_FRESH = 0.2

# Prometheus asks for the one or the other of two formats.
_MOST_FORMATS = 4

_PATH = "/metrics"


class MetricsPage:
    """The page ``/metrics``, from its opening until it is closed; an async context manager.

    Args:
        address: Where it is; see :mod:`asyncpool._cluster.addresses`.

    Attributes:
        registry: What it shows: the metrics of this process, and what is added.
        addresses: Where it is, with the real port.

    Raises:
        OSError: If the address cannot be had.
        ValueError: If it makes no sense.
    """

    def __init__(self, address: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._listeners = Listeners([address], backlog=_MOST_CLIENTS)
        self.addresses = self._listeners.addresses
        self._servers: list[asyncio.Server] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._pages: dict[str, tuple[float, bytes]] = {}

    async def __aenter__(self) -> Self:
        """Answer from now on."""
        for listener in self._listeners.sockets:
            self._servers.append(
                await asyncio.start_server(
                    self._accept, sock=listener, limit=_MOST_HEAD, backlog=_MOST_CLIENTS
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything.

        Cancellation:
            Clients may be left for an iteration of the loop.
        """
        for server in self._servers:
            server.close()
        self._listeners.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(self._clients) >= _MOST_CLIENTS:
            writer.transport.abort()
            return
        # Not left to asyncio, which gives such tasks no name.
        task = asyncio.create_task(
            self._serve(reader, writer), name="asyncpool metrics page"
        )
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # An end of the connection, a head that is too long, or no time: the client's own fault.
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(_PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    # So that drain() waits until all is gone, which the time is for, too.
                    writer.transport.set_write_buffer_limits(0)
                    writer.write(self._response(head.decode("latin-1")))
                    await writer.drain()
                    writer.close()
            finally:
                if not writer.is_closing():
                    writer.transport.abort()

    def _response(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, kind = "200 OK", "text/plain; charset=utf-8"
        if method not in {"GET", "HEAD"}:
            status, body = "405 Method Not Allowed", b"GET it\n"
        elif path != _PATH:
            status, body = "404 Not Found", f"the metrics are at {_PATH}\n".encode()
        else:
            pairs = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value for name, _, value in pairs}
            kind, body = self._page(headers.get("accept", "").strip())
        start = (
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return start.encode() + (b"" if method == "HEAD" else body)

    def _page(self, accept: str) -> tuple[str, bytes]:
        """Return the page in one of its formats, and what that is called."""
        encode: Callable[[CollectorRegistry], bytes]
        encode, kind = choose_encoder(accept)
        now = asyncio.get_running_loop().time
        made_at, body = self._pages.get(kind, (-_FRESH, b""))
        if now() - made_at >= _FRESH:
            body = encode(self.registry)
            if len(self._pages) >= _MOST_FORMATS:
                self._pages.clear()
            self._pages[kind] = now(), body
        return kind, body
