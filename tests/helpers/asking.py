"""Ask a pool or a cluster through its control socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from asyncpool._observe.control.protocol import MAX_REPLY, Request
from asyncpool._observe.control.socket_files import path_of

__all__ = ["Lines", "ask"]


async def ask(name: str, action: Any, **fields: Any) -> dict[str, Any]:
    """Return the answer of what has this name, or path."""
    async with Lines(name, action, **fields) as lines:
        return await lines.next()


class Lines:
    """The answers to one request; an async context manager.

    Args:
        name: The name or path of what is asked.
        action: What it is asked for.
        **fields: The rest of the request.
    """

    def __init__(self, name: str, action: Any, **fields: Any) -> None:
        self._path = path_of(name)
        self._request = Request(action, **fields)

    async def __aenter__(self) -> Self:
        opened = await asyncio.open_unix_connection(self._path, limit=MAX_REPLY)
        self._reader, self._writer = opened
        self._writer.write(self._request.pack())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def next(self) -> dict[str, Any]:
        """Return the next one."""
        line = await self._reader.readline()
        assert line, "it has ended"
        reply: dict[str, Any] = json.loads(line)
        return reply
