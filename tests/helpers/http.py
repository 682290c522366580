"""A client of HTTP that keeps its connection, and notices what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self, cast

from asyncpool import Cluster

__all__ = ["Browser", "Response"]


class Response:
    """What was answered.

    Attributes:
        last: Whether the connection is not to be used again.
    """

    def __init__(self, head: bytes, body: bytes) -> None:
        self.status = int(head.split()[1])
        self.last = b"connection: close" in head.lower()
        self.pid, self.size = (int(part) for part in body.split())


class Browser:
    """One connection to a cluster; an async context manager."""

    def __init__(
        self, cluster: Cluster, address: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._cluster, self._number = cluster, address
        self._tls = tls

    async def __aenter__(self) -> Self:
        name = None if self._tls is None else "localhost"
        address = self._cluster.addresses[self._number]
        if address.startswith("unix:"):
            path = address.removeprefix("unix:").removeprefix("//")
            opening = asyncio.open_unix_connection(
                path, ssl=self._tls, server_hostname=name
            )
        else:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            opening = asyncio.open_connection(
                host.strip("[]"), int(port), ssl=self._tls, server_hostname=name
            )
        self.reader, self.writer = await opening
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()

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
