"""The load client: clients that ask at fixed times, and tell all that goes wrong.

Some keep their connection, as browsers and proxies do, and some open a new one for each
request.  None of them is faster when the server is slow: a request that was due while the
client still waited counts from when it was due.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.cluster.answer import Answer, request
from benchmarks.cluster.running import is_alive
from benchmarks.cluster.tally import RETRIED, Outcome, Request

KEPT, FRESH = 20, 5
"""Clients that keep their connection, and that open a new one each time."""

PERIOD = 0.05
"""Seconds from one request of a client to its next: 500 requests a second in all."""

LIMIT = 10.0
"""Seconds that a client waits for an answer."""


class Connection(NamedTuple):
    """An open connection, and who has answered in it."""

    socket: socket.socket
    worker: int | None = None


class Load:
    """All clients of one server, and what they have seen."""

    def __init__(self, port: int, *, kept: int = KEPT, fresh: int = FRESH) -> None:
        self._kept, self._fresh = kept, fresh
        self._address = ("127.0.0.1", port)
        self._loop = asyncio.get_running_loop()
        self._leave = False
        self._sent = 0
        self.since = perf_counter()
        self.requests: list[Request] = []
        self.seen: dict[int, float] = {}
        """When each worker has answered last."""
        self.closed_between = 0
        """Connections that the server closed while nothing was under way: no failures."""
        self.lag = 0.0
        """How late the clients were themselves, at the worst, in seconds."""

    async def run(self) -> None:
        """Ask until told to leave, and then finish what is under way."""
        clients = self._kept + self._fresh
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                first = self.since + PERIOD * number / clients
                group.create_task(self._client(first, keeps=number < self._kept))

    def leave(self) -> None:
        self._leave = True

    def alive(self) -> set[int]:
        """Return the workers that have answered and still run."""
        return {pid for pid in self.seen if is_alive(pid)}

    def answered_since(self, moment: float) -> bool:
        return any(seen > moment for seen in self.seen.values())

    async def until(self, holds: Callable[[], object], limit: float) -> bool:
        """Wait, at most *limit* seconds, until that is so; tell whether it is."""
        give_up_at = perf_counter() + limit
        while not holds():
            if perf_counter() > give_up_at:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _client(self, due: float, *, keeps: bool) -> None:
        connection: Connection | None = None
        while not self._leave:
            if (wait := due - perf_counter()) > 0:
                await asyncio.sleep(wait)
                self.lag = max(self.lag, perf_counter() - due)
            connection = await self._ask(connection, due, keeps=keeps)
            due += PERIOD
        if connection:
            connection.socket.close()

    async def _ask(
        self, connection: Connection | None, due: float, *, keeps: bool
    ) -> Connection | None:
        """Send what was *due*, again if need be; return the connection if it is kept."""
        if connection and was_closed(connection.socket):
            self.closed_between += 1
            connection.socket.close()
            connection = None
        self._sent += 1
        path, worker = f"/{self._sent}", connection.worker if connection else None
        outcome, connection = await self._attempt(connection, path, keeps=keeps)
        ended, retried = perf_counter(), None
        if outcome in RETRIED:
            path_again = f"{path}-again"
            retried, connection = await self._attempt(None, path_again, keeps=keeps)
        self.requests.append(Request(path, due, ended, outcome, worker, retried))
        return connection

    async def _attempt(
        self, connection: Connection | None, path: str, *, keeps: bool
    ) -> tuple[Outcome, Connection | None]:
        """Return what became of it, and the connection if it can be used again."""
        answer = Answer()
        plug = connection.socket if connection else new_socket()
        try:
            async with asyncio.timeout(LIMIT):
                if not connection:
                    await self._loop.sock_connect(plug, self._address)
                    connection = Connection(plug)
                await self._loop.sock_sendall(plug, request(path, last=not keeps))
                while not answer.is_complete:
                    answer.feed(await self._loop.sock_recv(plug, 4096))
                worker = answer.worker
        except (OSError, EOFError, ValueError) as error:
            plug.close()
            return judge(error, answer, is_connected=connection is not None), None
        self.seen[worker] = perf_counter()
        if keeps and not answer.closes:
            return Outcome.ANSWERED, Connection(plug, worker)
        plug.close()
        return Outcome.ANSWERED, None


def judge(error: Exception, answer: Answer, *, is_connected: bool) -> Outcome:
    """Name what went wrong with an attempt.

    Whatever was sent and got no byte is a failure, also on a connection that the server
    meant to close: the client cannot know whether its request was read.
    """
    if isinstance(error, TimeoutError):
        return Outcome.LATE
    if isinstance(error, ValueError):
        return Outcome.WRONG
    if not is_connected:
        return Outcome.REFUSED
    return Outcome.CUT if answer.has_begun else Outcome.UNANSWERED


def new_socket() -> socket.socket:
    plug = socket.socket()
    plug.setblocking(False)
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plug


def was_closed(plug: socket.socket) -> bool:
    """Tell whether the server has closed a connection in which nothing is under way.

    Good clients look before they send; what arrives afterwards comes too late for them.
    """
    try:
        plug.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@asynccontextmanager
async def load_on(
    port: int, *, kept: int = KEPT, fresh: int = FRESH
) -> AsyncIterator[Load]:
    """Have all clients ask while the body runs."""
    load = Load(port, kept=kept, fresh=fresh)
    running = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        load.leave()
        await running


def under_load(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run *body* with the collector out of the way: its pauses would be the client's."""
    import gc

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        return asyncio.run(body())
    finally:
        gc.enable()
        gc.unfreeze()
