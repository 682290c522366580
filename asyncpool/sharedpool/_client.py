"""A pool that another process has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast

from asyncpool import __version__
from asyncpool._api.caller import Caller
from asyncpool._api.listened import JobsListened
from asyncpool._core.codec.data_only import DataOnly
from asyncpool._core.policies.job_options import JobOptions, Options
from asyncpool._runtime.base.arguments import check_choice, check_timeout, not_callable
from asyncpool._runtime.base.event_loop import check_home
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.client.client import Client
from asyncpool._runtime.control.socket_files import closed_on_error
from asyncpool._runtime.options.job_options import changed
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool._runtime.remote.carrier import (
    flaw,
    greeting,
    pack_greeting,
    unpack_greeting,
)
from asyncpool._runtime.remote.unix_carrier import UnixCarrier, is_same_user
from asyncpool.boundpool import BoundPool
from asyncpool.errors import PoolClosedError, ProtocolError
from asyncpool.events import CloseSummary
from asyncpool.sharedpool._orders import Orders

_CONNECT_TIMEOUT = 10.0


class _Life:
    """The hub of a client, before, during and after its time."""

    def __init__(self) -> None:
        self.hub = PoolHub()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.listened = False

    def check_loop(self) -> None:
        """Check that the client's loop runs."""
        check_home(self.loop, "the shared pool")


class SharedPool(Orders, JobsListened, Caller):
    """A pool that another process has; :func:`connect` makes it, for ``async with``.

    It has the calls of a :class:`Pool`: ``submit``, ``map``, ``stream``, ``broadcast``,
    ``worker``, ``options`` and so on, with its own queue and attempts.  What is about the pool as
    a whole, such as ``stats`` and ``resize``, has to be awaited, since the agent answers.
    Events of jobs are those of this client's jobs.
    """

    _life: _Life

    def __init__(
        self,
        path: str,
        *,
        node_timeout: float | None,
        max_queued: int | None,
        options: JobOptions,
        data: DataOnly | None,
    ) -> None:
        self._path = path
        self._node_timeout = node_timeout
        self._max_queued = max_queued
        self._options = options
        self._data = data
        self._life = _Life()
        self._client: Client | None = None

    @property
    def name(self) -> str:
        """What logs call it: where its agent listens."""
        return f"unix:{self._path}"

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return a view of the pool whose jobs have these options; see :meth:`Pool.options`."""
        return BoundPool(self, changed(self._options, changes))

    async def start(self) -> None:
        """Connect.

        Raises:
            OSError: If nobody listens there.
            ProtocolError: If the agent has another version of asyncpool or Python, or another
                codec, or too many clients.
            TimeoutError: If it does not answer within 10 s.
            ValueError: If *node_timeout* is shorter than the agent's *client_timeout*.
            RuntimeError: If it was started before.

        Cancellation:
            Safe: nothing is left open.
        """
        if self._client is not None:
            raise RuntimeError(
                "a shared pool can be started only once: ask for another"
            )
        self._life.loop = asyncio.get_running_loop()
        hub = self._life.hub
        client = Client(
            "the shared pool", self._node_timeout, self._data, self._max_queued, hub
        )
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await self._greet(client)
        except BaseException:
            client.close()
            await client.close_threads()
            raise
        self._client = client
        if self._life.listened:
            client.listen()

    @property
    def _codec(self) -> str:
        return "pickle" if self._data is None else self._data.how.name

    async def _greet(self, client: Client) -> None:
        answered = asyncio.get_running_loop().create_future()
        carrier = UnixCarrier(await self._socket(), client.threads)
        _expect_greeting(client, carrier, answered)
        try:
            carrier.send(pack_greeting(greeting(__version__, self._codec)))
            why = flaw(unpack_greeting(await answered))
        except BaseException:
            carrier.abort()
            raise
        if why:
            carrier.abort()
            text = f"the agent at {self._path} refuses: {carrier.why or why}"
            raise ProtocolError(text) from carrier.why

    async def _socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(sock):
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, self._path)
            if not is_same_user(sock):
                raise PermissionError(
                    f"a process of another user listens at {self._path}, so the shared pool "
                    "is not used"
                )
        return sock

    async def close(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the jobs, not the wait
        finish: Literal["all", "running", "none"] = "all",
    ) -> CloseSummary:
        """Take no more jobs, finish those of this client that *finish* names, and leave the agent.

        The pool and the jobs of other clients go on.

        Args:
            timeout: Seconds until the jobs that are left fail; ``None`` for no limit.
            finish: Which jobs to finish: ``"all"``, only those that the pool has got
                (``"running"``; as many as it has workers may wait there), or ``"none"``.

        Returns:
            How many jobs finished and failed meanwhile.

        Raises:
            ValueError: If an argument is out of range.
            PoolClosedError: If it was never started.

        Cancellation:
            Fails the jobs that are left, and leaves the agent.
        """
        check_choice("finish", finish, ("all", "running", "none"))
        check_timeout(timeout)
        client = self._open()
        client.registry.mark_close(0)
        try:
            async with asyncio.timeout(timeout):
                await client.finish(finish)
        except TimeoutError:
            pass
        finally:
            client.close()
        await client.close_threads()
        return client.registry.summary(0)

    async def __aenter__(self) -> Self:
        """Connect, see :meth:`start`."""
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the jobs, or give them up if an exception leaves the context; leave the agent."""
        await self.close(finish="all" if error is None else "none")

    def _open(self) -> Client:
        if self._client is None:
            raise PoolClosedError("the shared pool was not started: use 'async with'")
        return self._client

    def _running_supervisor(self) -> Supervisor:
        # What callers, maps, streams and sessions need of a supervisor, a client has too.
        return cast("Supervisor", self._open())

    async def _broadcast(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        if not callable(fn):
            raise not_callable("broadcast", fn)
        return await self._open().broadcast(fn, args, kwargs, options)

    def _listening(self) -> None:
        if not self._life.listened:
            self._life.listened = True
            if self._client is not None:
                self._client.listen()


def _expect_greeting(
    client: Client, carrier: UnixCarrier, answered: asyncio.Future[bytes]
) -> None:
    """Have *client* join when the agent has greeted, and tell what it has said."""

    def answer(data: bytes) -> None:
        about = unpack_greeting(data)
        if answered.done():
            return
        try:
            if not flaw(about):
                client.nodes.join(carrier, about)  # at once: a batch may follow
        except ValueError as error:
            answered.set_exception(error)
        else:
            answered.set_result(data)

    def gone() -> None:
        if not answered.done():
            answered.set_result(b"")

    carrier.on_bytes, carrier.on_gone = answer, gone
