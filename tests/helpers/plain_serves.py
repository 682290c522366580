"""Stream handlers and protocols that are served in tests."""

from __future__ import annotations

import asyncio
import os
from typing import cast


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each line with the pid and that line."""
    while line := await reader.readline():
        writer.write(b"%d %s" % (os.getpid(), line))
        await writer.drain()
    writer.close()


class Shouter(asyncio.Protocol):
    """Does the same; it takes whatever comes for a line."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"%d %s" % (os.getpid(), data))
