"""Asks a program at its control socket, without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any

from asyncpool._observe.control.paths import peer_uid
from asyncpool._observe.control.protocol import MAX_REPLY, Request, unpack_reply
from asyncpool.errors import ProtocolError

# Seconds: to connect and to begin to answer; a program may be busy.
_PATIENCE = 10.0


@contextlib.asynccontextmanager
async def connected(
    path: str,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the control socket of a program of this user.

    Raises:
        OSError: If nobody listens there, or another user's process.
    """
    async with asyncio.timeout(_PATIENCE):
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_REPLY)
    try:
        uid = peer_uid(writer.get_extra_info("socket"))
        if uid != os.geteuid():
            raise PermissionError(f"user {uid} listens at {path}")
        yield reader, writer
    finally:
        # Not close(), which may wait for a program that does not read.
        writer.transport.abort()


async def ask(
    path: str, request: Request, *, within: float = _PATIENCE
) -> dict[str, Any]:
    """Return a program's answer to a request.

    Args:
        path: Its control socket.
        request: The request.
        within: The seconds that it has to answer.

    Raises:
        TimeoutError: If it does not answer in time.
        OSError: If it has ended.
        ProtocolError: If it refuses; the text is the program's.
    """
    async with asyncio.timeout(within), connected(path) as (reader, writer):
        writer.write(request.pack())
        return await _reply(reader)


async def watch(
    path: str, *, every: float, jobs: int
) -> AsyncGenerator[dict[str, Any]]:
    """Yield what a program tells of itself, until it ends.

    Args:
        path: Its control socket.
        every: Seconds between two lines.
        jobs: How many jobs a line may tell of.

    Raises:
        TimeoutError: If it does not answer in time.
        OSError: If it has ended.
        ProtocolError: If it cannot be watched.
    """
    async with connected(path) as (reader, writer):
        writer.write(Request("watch", every=every, jobs=jobs).pack())
        while True:
            async with asyncio.timeout(every + _PATIENCE):
                line = await _reply(reader)
            yield line


async def _reply(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        line = await reader.readline()
    except ValueError:
        raise ProtocolError("the answer has too many bytes") from None
    if not line:
        raise ConnectionResetError("the program has ended")
    reply = unpack_reply(line)
    if "error" in reply:
        raise ProtocolError(str(reply["error"]))
    return reply
