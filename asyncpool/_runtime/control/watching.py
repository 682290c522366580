"""Send a client that watches one line after the other, as long as it reads them.

A line that the client has not taken yet stays in the connection, and no other one is written
until it has.  So a client that hangs costs the memory of one line, and no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from asyncpool._core.control.control_protocol import Request
from asyncpool._runtime.control.replies import write_reply


class Watcher(Protocol):
    """What tells one client how it goes."""

    def look(self) -> dict[str, Any]:
        """Return how it stands, and what has happened since the last call."""
        ...

    def close(self) -> None:
        """Take note that the client is gone."""
        ...


Watch: TypeAlias = Callable[[Request], Watcher]


async def send_lines(
    watcher: Watcher,
    every: float,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Write a line now and each *every* seconds, until the client goes or says something.

    Raises:
        ConnectionResetError: If the client has gone just now.

    Cancellation:
        Safe: no line is written in part, as far as this process is concerned.
    """
    loop = asyncio.get_running_loop()
    lost, due = 0, loop.time()
    while True:
        if writer.transport.get_write_buffer_size():
            lost += 1
        else:
            reply = watcher.look()
            if lost:
                reply["lost"] = lost
            lost = 0
            write_reply(writer, reply)
        # A loop that was blocked does not make up for it.
        due = max(due + every, loop.time())
        try:
            async with asyncio.timeout_at(due):
                said = await reader.read(1)
        except TimeoutError:
            continue
        if said:
            write_reply(writer, {"error": "a client that watches asks no more"})
        return
