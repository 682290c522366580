"""A pool that another process has, and how a program gets it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from asyncpool import __version__
from asyncpool._core import checks
from asyncpool._core.data_only import DataOnly
from asyncpool._observe.control.paths import peer_uid
from asyncpool._observe.control.socket_files import (
    check_length,
    closed_on_error,
    is_socket,
)
from asyncpool._remote.carrier import UnixCarrier, Why
from asyncpool._remote.client import Client
from asyncpool._remote.messages import (
    flaw,
    greeting,
    pack_greeting,
    unpack_greeting,
)
from asyncpool._wire.formats import Codec
from asyncpool.errors import ProtocolError
from asyncpool.sharedpool._remote_pool import RemotePool, data_only

# Where the paths of their sockets are, by name, as JSON.
VARIABLE = "ASYNCPOOL_SHARED_POOLS"

_UNIX = "unix:"
_CONNECT_TIMEOUT = 10.0

# Seconds between two tries to reach an agent that is gone.
_PAUSE = 0.1


class SharedPool(RemotePool):
    """A pool that another process has; :func:`connect` makes it, for ``async with``.

    It has the calls of a :class:`Pool`: ``submit``, ``map``, ``stream``, ``broadcast``,
    ``worker``, ``options`` and so on, with its own queue and attempts.  What is about the pool as
    a whole, such as ``stats`` and ``resize``, has to be awaited, since the agent answers.
    Events of jobs are those of this client's jobs.

    Attributes:
        name: What logs and metrics call it: where its agent listens.
    """

    _has_one_agent = True

    def __init__(
        self,
        path: str,
        *,
        max_queued: int | None,
        data: DataOnly | None,
        reconnect: float | None = None,
    ) -> None:
        super().__init__(
            "the shared pool",
            f"unix:{path}",
            max_queued=max_queued,
            data=data,
        )
        self._path, self._reconnect = path, reconnect
        self._reconnecting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect.

        Raises:
            OSError: If nobody listens there, or the path is too long for a socket.
            ProtocolError: If the agent has another version of asyncpool or Python, or another
                codec, or too many clients.
            TimeoutError: If it does not answer within 10 s.
            RuntimeError: If it was started before.

        Cancellation:
            Safe: nothing is left open.
        """
        await self._start()

    async def _reach(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await self._greet(client)
        except TimeoutError:
            raise TimeoutError(
                f"the agent at {self._path} has not answered for {_CONNECT_TIMEOUT:g} s: its "
                "process may be stopped, or its event loop blocked"
            ) from None

        client.reconnects = self._reconnect is not None
        client.on_lost = partial(self._on_lost, client)

    def _on_lost(self, client: Client) -> bool:
        if self._reconnect is None or client.left:
            return False
        self._reconnecting = client.loop.create_task(
            self._reach_again(client, self._reconnect), name="asyncpool reconnect"
        )
        return True

    async def _reach_again(self, client: Client, seconds: float) -> None:
        """Connect again when an agent is back; give all jobs up if there is none in time."""
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                while not client.nodes:
                    try:
                        await self._greet(client)
                    except (OSError, ProtocolError):
                        await asyncio.sleep(_PAUSE)
        except TimeoutError:
            why = f"no agent has been at {self._path} for {seconds:g} s (reconnect)"
            client.give_up(why)
        client.expected = False

    async def _leave(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])

    async def _greet(self, client: Client) -> None:
        """Have *client* join the agent.

        Raises:
            ProtocolError: If the agent refuses, or is none.
        """
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        carrier = UnixCarrier(await self._socket(), client.threads)

        def answer(data: bytes) -> None:
            about = unpack_greeting(data)
            if answered.done():
                return
            why = flaw(about)
            if not why:
                carrier.greeted()
                client.join(carrier, about)  # at once: a batch may follow
            answered.set_result(why)

        def gone(why: Why) -> None:
            if answered.done():
                return
            if isinstance(why, Exception) and not isinstance(why, ProtocolError):
                answered.set_exception(why)
            else:
                answered.set_result(str(why or flaw({})))

        carrier.on_bytes, carrier.on_gone = answer, gone
        try:
            carrier.send(pack_greeting(greeting(__version__, self._codec)))
            if why := await answered:
                text = f"the agent at {self._path} refuses: {why}"
                raise ProtocolError(text)  # noqa: TRY301 - as what the carrier finds
        except BaseException:
            carrier.abort()
            raise

    async def _socket(self) -> socket.socket:
        check_length(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(sock):
            sock.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(sock, self._path)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                text = (
                    "no process shares a pool there: start "
                    f"'asyncpool agent --bind unix:{self._path}', or a PoolServer"
                )
                if not is_socket(self._path):
                    text = "there is a file of that name, which is no socket"
                raise type(error)(error.errno, text, self._path) from None
            if not _is_same_user(sock):
                raise PermissionError(
                    f"a process of another user listens at {self._path}, so the shared pool "
                    "is not used"
                )
        return sock


def _is_same_user(sock: socket.socket) -> bool:
    try:
        return peer_uid(sock) == os.geteuid()
    except OSError:
        return False


def connect(
    address: str,
    *,
    max_queued: int | None = None,
    reconnect: float | None = None,
    codec: Literal["json", "msgspec"] | Codec | None = None,
    functions: Iterable[Callable[..., object] | str] | None = None,
    errors: Iterable[type[BaseException]] = (),
) -> SharedPool:
    """Return a pool that another process has, for ``async with``.

    Args:
        address: ``"unix:"`` and the path of the socket of a :class:`PoolServer`.
        max_queued: How many jobs of this client may wait here; ``None`` for no bound.  The agent
            has 1024 more at the most.
        reconnect: For how many seconds the client waits for another agent when this one is gone.
            What the lost one may have begun fails, or has another attempt; all else goes on with
            the next one, whose slots have numbers from 10000 on.  ``None`` for no other agent.
        codec: As that of the pool, which must have the same.
        functions: As in :class:`Pool`, for a pool with a codec.
        errors: Likewise.

    Raises:
        ValueError: If the address is no such one, *max_queued* or *reconnect* not positive, or
            there are *functions* or *errors* without a *codec*.
        TypeError: If an argument is of the wrong type.
        ImportError: If the package of *codec* is not installed.
    """
    checks.TEXT("address", address)
    if not address.startswith(_UNIX) or address == _UNIX:
        raise ValueError(f"address must be 'unix:PATH', not {address!r}")
    if max_queued is not None:
        checks.at_least(1)("max_queued", max_queued)
    if reconnect is not None:
        checks.PERIOD("reconnect", reconnect)
    return SharedPool(
        address.removeprefix(_UNIX),
        max_queued=max_queued,
        data=data_only(codec, functions, errors),
        reconnect=reconnect,
    )


def shared_pool(name: str, **options: Any) -> SharedPool:
    """Return the pool *name* of ``asyncpool serve --pool NAME=MODULE:FUNCTION``, for ``async with``.

    Args:
        name: Its name.
        **options: Those of :func:`connect`.

    Raises:
        LookupError: If there is no pool of that name, or this is no worker of such a server.
        TypeError: If *name* is no str.
    """
    checks.TEXT("name", name)
    try:
        found = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        found = {}
    if name not in found:
        there = ", ".join(map(repr, found)) or "none"
        raise LookupError(
            f"there is no shared pool {name!r} (there are: {there}); a server has one by "
            f"'asyncpool serve --pool {name}=MODULE:FUNCTION'"
        )
    return connect(f"unix:{found[name]}", **options)
