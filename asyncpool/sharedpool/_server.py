"""Who has the pool that others share."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import Self

from asyncpool._core import checks, log_messages as say
from asyncpool._engine.channel import READ_SIZE
from asyncpool._engine.loop import Threads, check_loop
from asyncpool._observe.control.server import UserSocket
from asyncpool._observe.control.socket_files import folders_locked
from asyncpool._remote.agent import MOST_CLIENTS, Agent
from asyncpool._remote.carrier import UnixCarrier, Why
from asyncpool.pool import Pool

_BACKLOG = 64

# Seconds that a client has to say who it is, and how many may have that time at once: each of
# them has a descriptor of this process.
_PATIENCE = 10.0
MOST_STRANGERS = 64

_POOL = checks.Argument((Pool,), "an asyncpool.Pool")
_PATH = checks.Argument((str, os.PathLike), "a str or a PathLike")


class PoolServer:
    """Lets other processes of this user use a pool, by a Unix socket; an async context manager.

    The pool must be open before, and closed after.  Whoever connects may run any function in its
    workers, so the socket is for this user only.  When a client is gone, its jobs are made to end.

    Args:
        pool: The pool.
        path: The path of the socket, also with ``"unix:"`` before it.  The file of a dead server
            is replaced.
        max_clients: How many clients there may be at a time.

    Raises:
        ValueError: If *max_clients* is not positive, or *path* is empty.
        TypeError: If an argument is of the wrong type.
        OSError: On entering, if the socket cannot be made, or another process listens there.
        PoolClosedError: On entering, if the pool was not started.
    """

    def __init__(
        self,
        pool: Pool,
        path: str | os.PathLike[str],
        *,
        max_clients: int = MOST_CLIENTS,
    ) -> None:
        _POOL("pool", pool)
        checks.at_least(1)("max_clients", max_clients)
        self._pool = pool
        _PATH("path", path)
        # Also as connect() has it.
        self._path = os.fspath(path).removeprefix("unix:")
        if not self._path:
            raise ValueError("path must not be empty")
        self._max_clients = max_clients

    async def __aenter__(self) -> Self:
        """Begin to take clients.

        Cancellation:
            Takes none.
        """
        self._pool._running_engine().check_loop()  # noqa: SLF001
        loop = self._loop = asyncio.get_running_loop()
        async with folders_locked([self._path]):
            self._socket = UserSocket(
                self._path,
                _BACKLOG,
                say.CLIENT_NOT_ACCEPTED,
                self._on_client,
                lambda _: self._agent.refuse("it belongs to another user", None),
            )
        self._threads = Threads(loop)
        self._buffer = memoryview(bytearray(READ_SIZE))
        name = f"{self._pool.name}@{os.getpid()}"
        self._agent = Agent(self._pool, name, most_clients=self._max_clients)
        self._carriers: set[UnixCarrier] = set()
        self._greeted: dict[UnixCarrier, asyncio.TimerHandle] = {}
        self._socket.listen()
        return self

    async def __aexit__(
        self, _: object, error: BaseException | None, __: object
    ) -> None:
        """Take no more clients, and wait for the jobs that they have here.

        Jobs that wait with the clients fail.  If an exception leaves the context, all fail.

        Raises:
            RuntimeError: In another event loop than the pool's.

        Cancellation:
            Ends the jobs at once.
        """
        check_loop(self._loop, "a PoolServer")
        self._socket.shut()
        for carrier in [*self._greeted]:
            self._cut(carrier)
        try:
            if error is None:
                await self._agent.drain()
        finally:
            self._agent.close()
            await self._end()

    async def _end(self) -> None:
        """Wait until clients have read what was sent, but no longer than a carrier does."""
        try:
            if self._carriers:
                await asyncio.wait([carrier.ended for carrier in self._carriers])
        finally:
            for carrier in [*self._carriers]:
                carrier.abort()
            await self._threads.close()

    def _on_client(self, sock: socket.socket) -> None:
        carrier = UnixCarrier(sock, self._threads, self._buffer)
        carrier.on_bytes = partial(self._on_hello, carrier)
        carrier.on_gone = partial(self._cut, carrier)
        slow = TimeoutError(f"it has not said for {_PATIENCE:g} s who it is")
        late = self._loop.call_later(_PATIENCE, self._cut, carrier, slow)
        self._greeted[carrier] = late
        if len(self._greeted) >= MOST_STRANGERS:
            self._socket.rest()  # until one has said who it is
        self._carriers.add(carrier)
        carrier.ended.add_done_callback(lambda _: self._carriers.discard(carrier))

    def _on_hello(self, carrier: UnixCarrier, data: bytes) -> None:
        self._known(carrier)
        carrier.greeted()
        self._agent.welcome(carrier, data)

    def _cut(self, carrier: UnixCarrier, why: Why = None) -> None:
        self._known(carrier)
        carrier.abort()
        if why is not None:
            self._agent.refuse(str(why), carrier.process)

    def _known(self, carrier: UnixCarrier) -> None:
        """Wait no longer for what a client says first."""
        was_full = len(self._greeted) >= MOST_STRANGERS
        self._greeted.pop(carrier).cancel()
        if was_full:
            self._socket.listen()
