"""The actor that has the pool of a node: Ray starts one on each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from asyncpool import __version__
from asyncpool._remote.agent import Agent
from asyncpool._remote.objects import pack_own
from asyncpool.errors import AsyncPoolError
from asyncpool.pool import Pool
from asyncpool.ray._ends import AgentEnd
from asyncpool.ray._references import payload_of


class NodeAgent:
    """The pool of one node, and the agent that lets the client use it.

    Ray calls its methods in one event loop.

    Args:
        name: What the client calls the node.
        workers: How many workers its pool has.
        options: The other options of the pool.
        lease: For how many seconds it works for a client that it does not hear.
    """

    def __init__(
        self, name: str, workers: int, options: Mapping[str, Any], lease: float
    ) -> None:
        self._name = f"{name}/{os.getpid()}"
        self._pool = Pool(workers, **options)
        self._end = AgentEnd(lease)
        self._agent: Agent | None = None

    async def start(self, hello: bytes) -> tuple[bool, bytes]:
        """Start the pool and begin a session with the client.

        Returns:
            Whether that went well, and the greeting, or the error.
        """
        try:
            await self._pool.start()
        except AsyncPoolError as error:
            return False, pack_own(error)
        engine = self._pool._running_engine()  # noqa: SLF001 - as PoolServer
        self._agent = Agent(self._pool, engine, self._name, __version__, most_clients=1)
        self._agent.welcome(self._end, hello)
        return True, self._end.greeting()

    async def exchange(
        self, number: int, done: int, *pieces: bytes
    ) -> list[bytes] | None:
        """Hear what the client says, and return what there is to say to it; see :class:`AgentEnd`."""
        return await self._end.exchange(number, done, *pieces)

    # What Ray's store does not take.

    async def bring(self, number: int, piece: int, place: int, *parts: bytes) -> None:
        """Keep parts of what the client says in a call that comes later."""
        self._end.bring(number, piece, place, *parts)

    async def sizes(self, number: int) -> list[int] | None:
        """Return the sizes of an answer that the client could not get."""
        return self._end.sizes(number)

    async def part(self, number: int, piece: int, begin: int) -> bytes:
        """Return a part of it."""
        return self._end.part(number, piece, begin)

    async def take(self, number: int, call: bytes, *values: Any) -> None:
        """Take the call of a job whose arguments are in part in Ray's store; the job comes later.

        Args:
            number: The client's number of the job.
            call: The call.
            values: Those arguments, which Ray has brought here.
        """
        if self._agent is not None:
            self._agent.stored[number] = payload_of(call, values)

    async def stop(self) -> None:
        """End the session and the pool; all jobs end."""
        if self._agent is not None:
            self._agent.close()
        await self._pool.close(finish="none", timeout=0)
        await asyncio.sleep(0)
