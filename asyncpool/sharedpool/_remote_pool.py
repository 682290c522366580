"""A pool whose workers belong to agents in other processes, and the one of this machine that is shared."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Self, Unpack

from asyncpool import __version__
from asyncpool._core import checks
from asyncpool._core.data_only import DataOnly
from asyncpool._core.options import JobOptions, Options, changed
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.machine import least_and_most
from asyncpool._engine.options import check_codec
from asyncpool._observe.control.socket_files import (
    check_length,
    closed_on_error,
    is_socket,
    peer_uid,
)
from asyncpool._remote.carrier import UnixCarrier, Why
from asyncpool._remote.client import Client
from asyncpool._remote.figures import merged_profiles, merged_rolls
from asyncpool._remote.messages import flaw, greeting, pack_greeting, unpack_greeting
from asyncpool._remote.node import Node
from asyncpool._wire.formats import Codec, format_of
from asyncpool._wire.text import function_name
from asyncpool.enums import RunState
from asyncpool.errors import NoWorkerError, PoolClosedError, ProtocolError
from asyncpool.events import CloseSummary, RollResult
from asyncpool.pool import BoundPool, JobEventSource, PoolSubmitter
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats


class _Life:
    """A client and its hub, before, during and after its time.

    Args:
        title: What errors call the pool.

    Attributes:
        hub: Where events go.
        client: What makes the calls.
        engine: The same, once it has joined an agent.  It has all that callers need of an engine.
        listened: Whether agents are asked to tell of events.
    """

    def __init__(self, title: str) -> None:
        self._title, self.hub = title, PoolHub()
        self.client: Client | None = None
        self.engine: Client | None = None
        self.listened = False

    def check_loop(self) -> None:
        """Check that the client's loop runs, if there is one."""
        if self.client is not None:
            self.client.check_loop()

    def running(self) -> Client:
        """Return what makes the calls, which may have ended.

        Raises:
            PoolClosedError: If there never was one.
        """
        if self.engine is None:
            text = f"{self._title} was not started: use 'async with'"
            raise PoolClosedError(text)
        return self.engine

    def open_engine(self) -> Client:
        """Return the same, to code that runs in its loop."""
        client = self.running()
        client.check_loop()
        return client

    @property
    def over(self) -> bool:
        """Whether the client has left its agents."""
        return self.client is not None and self.client.left

    def node_with(self, slot: int) -> str:
        """Return the name of the node that may have a worker in *slot*; nothing if it is gone."""
        node = None if self.client is None else self.client.with_slot(slot)
        return "" if node is None else node.name


class _Latest:
    """The figures of a remote pool as they were told last, for metrics, which keep no pool alive.

    Metrics end when this is gone, and that is so when the pool is: the hub may hold its life.

    Args:
        life: The pool's client.
        name: The pool's name.
    """

    def __init__(self, life: _Life, name: str) -> None:
        self._life, self.name = life, name

    def stats(self) -> PoolStats:
        """Return the figures, in any thread."""
        client = self._life.client
        if client is None:
            return PoolStats(state=RunState.NEW, workers=0)
        return client.stats()


class RemotePool(JobEventSource, PoolSubmitter):
    """A pool whose workers belong to agents; see :class:`SharedPool`.

    The agents have to answer its questions and orders.  These raise :exc:`PoolClosedError` if the
    only agent is gone, and what the method of :class:`asyncpool.Pool` with the same name raises
    there.  What is about all workers is so for all clients of a shared pool, and for all agents of
    a pool over Ray.  The slots of its first agent are 0, 1 and so on, those of the second one
    10000, 10001 and so on.  An agent that takes the place of a lost one has numbers that none had
    before.

    Args:
        title: What errors call it.
        name: What logs and metrics call it.
        max_queued: How many jobs may wait for an agent.
        data: What calls may be, if the pool is data only.
        control: The name or path of its control socket; ``""`` for its name, ``None`` for none.
        concurrency: How many jobs each worker runs at once.
    """

    # Whether it has one agent, whose pool it stands for.
    _has_one_agent = False

    def __init__(
        self,
        title: str,
        name: str,
        *,
        max_queued: int | None,
        data: DataOnly | None,
        control: str | None = None,
        concurrency: int = 1,
    ) -> None:
        self._control, self._concurrency = control, concurrency
        self._title = title
        self.name: str = name
        self._max_queued = max_queued
        self._options = JobOptions(codec=None if data is None else data.how)
        self._data = data
        self._life: _Life = _Life(title)  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]
        self._latest = _Latest(self._life, name)

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return a view of the pool whose jobs have these options; see :meth:`Pool.options`."""
        return BoundPool(self, changed(self._options, changes))

    async def stats(self) -> PoolStats:
        """Return the figures of the shared pool, with the jobs of all clients.

        Over Ray they are those of all agents' pools, added up, also of those that are gone.  The
        counters of jobs, and of attempts after one that raised, are those of this client then, and
        ``PoolStats.nodes`` has a summary of each agent.
        """
        if self._has_one_agent:
            [(_, found)] = await self._ask_all("stats")
            stats: PoolStats = found
            return stats
        # It has figures while it starts.
        client = self._life.client or self._life.running()
        client.check_loop()
        return await client.figures.ask()

    async def stacks(self, *, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of what the workers run; see :meth:`Pool.stacks`."""
        stacks: dict[int, str] = {}
        for node, found in await self._ask_slot(slot, "stacks"):
            stacks |= {node.first_slot + one: text for one, text in found.items()}
        return stacks

    async def profile(
        self,
        seconds: float,
        *,
        slot: int | None = None,
        function: Callable[..., Any] | str | None = None,
        rate: float = 100.0,
    ) -> Profile:
        """Sample what the workers do, for all clients; see :meth:`Pool.profile`."""
        if callable(function):
            function = function_name(function)
        answers = await self._ask_slot(
            slot, "profile", seconds=seconds, function=function, rate=rate
        )
        found = [profile for _, profile in answers]
        name = found[0].pool if self._has_one_agent else f"pool {self.name}"
        return merged_profiles(found, name)

    async def resize(self, workers: int | tuple[int, int]) -> None:
        """Change the number of workers of each agent, for all clients; see :meth:`Pool.resize`.

        Agents that come later have as many as the pool was made with.
        """
        least_and_most(workers)  # checks them
        await self._ask_all("resize", workers=workers)

    async def roll(self) -> RollResult:
        """Replace every worker by a fresh one, for all clients; see :meth:`Pool.roll`.

        Cancellation:
            Safe: the rolls go on.
        """
        return merged_rolls([found for _, found in await self._ask_all("roll")])

    async def retire(self, slot: int) -> None:
        """Replace the worker in *slot* by a fresh one; see :meth:`Pool.retire`."""
        await self._ask_slot(slot, "retire")

    async def kill(self, slot: int) -> None:
        """Kill the worker in *slot*, whoever's jobs it runs; see :meth:`Pool.kill`."""
        await self._ask_slot(slot, "kill")

    async def _ask_slot(
        self, slot: int | None, what: str, **details: Any
    ) -> list[tuple[Node, Any]]:
        """Ask the agent that has *slot*, or all."""
        if slot is None:
            return await self._ask_all(what, slot=None, **details)
        checks.at_least(0)("slot", slot)
        nodes, node = self._asked(), self._life.running().with_slot(slot)
        if node is None:
            raise NoWorkerError(slot, there=tuple(each.first_slot for each in nodes))
        first = node.first_slot
        try:
            return [(node, await node.ask(what, slot=slot - first, **details))]
        except NoWorkerError as error:
            there = tuple(first + one for one in error.there or ())
            raise NoWorkerError(slot, there=there) from None

    async def _ask_all(self, what: str, **details: Any) -> list[tuple[Node, Any]]:
        """Ask all agents; one that is lost meanwhile is left out, if there are others."""
        nodes = self._asked()
        asked = [node.ask(what, **details) for node in nodes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [
            (node, answer)
            for node, answer in zip(nodes, answers, strict=True)
            if self._has_one_agent
            or not (node.gone and isinstance(answer, PoolClosedError))
        ]
        for _, answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return found

    def _asked(self) -> list[Node]:
        client = self._life.open_engine()
        nodes = [*client.nodes.values()]
        if self._has_one_agent and not nodes:
            raise client.no_agent()
        return nodes

    @abstractmethod
    async def start(self) -> None:
        """Reach the agents."""

    @abstractmethod
    async def _reach(self, client: Client) -> None:
        """Have *client* join at least one agent."""

    async def _leave(self) -> None:
        """Do what is left to do when the client has left the agents."""

    async def _start(self) -> None:
        if self._life.engine is not None:
            raise RuntimeError(
                f"{self._title} can be started only once: ask for another"
            )
        life = self._life
        client = life.client = Client(
            self._title, self.name, self._data, self._max_queued, life.hub
        )
        try:
            await self._open_control(client)
            if life.listened:
                client.listen()
            await self._reach(client)
        except BaseException:
            await self._end(client)
            raise
        life.engine = client

    async def _open_control(self, client: Client) -> None:
        if self._control is None:
            return
        from asyncpool._observe.control.pool_control import PoolAnswers  # noqa: PLC0415 - few have one

        self._life.listened = True
        answers = PoolAnswers(self, lambda: client, self._concurrency)
        await answers.open(self._control or None)

    @property
    def _codec(self) -> str:
        return "pickle" if self._data is None else self._data.how.name

    async def close(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the jobs, not the wait
        finish: Literal["all", "running", "none"] = "all",
    ) -> CloseSummary:
        """Take no more jobs, finish those of this client that *finish* names, and leave the agents.

        The pool of a shared agent and the jobs of other clients go on.

        Args:
            timeout: Seconds until the jobs that are left fail; ``None`` for no limit.
            finish: Which jobs to finish: ``"all"``, only those that the pool has got
                (``"running"``; as many as it has workers may wait there), or ``"none"``.

        Returns:
            How many jobs finished and failed meanwhile.

        Raises:
            ValueError: If an argument is out of range.
            PoolClosedError: If it was never started.
            RuntimeError: If it was started in another event loop.

        Cancellation:
            Fails the jobs that are left, and leaves the agents.
        """
        checks.one_of(("all", "running", "none"))("finish", finish)
        checks.TIMEOUT("timeout", timeout)
        client = self._life.open_engine()
        client.registry.mark_close(0)
        try:
            async with asyncio.timeout(timeout):
                await client.finish(finish)
        except TimeoutError:
            pass
        finally:
            await self._end(client)
        return client.registry.summary(0)

    async def _end(self, client: Client) -> None:
        await client.hub.close_companions()
        client.close()
        try:
            await self._leave()
        finally:
            await client.threads.close()

    async def __aenter__(self) -> Self:
        """Connect, see :meth:`start`."""
        await self.start()
        return self

    async def __aexit__(
        self, _: object, error: BaseException | None, __: object
    ) -> None:
        """Wait for the jobs, or give them up if an exception leaves the context; leave the agents."""
        await self.close(finish="all" if error is None else "none")

    @property
    def _is_started(self) -> bool:
        return self._life.client is not None

    def _on_listener(self) -> None:
        if not self._life.listened:
            self._life.listened = True
            if self._life.engine is not None:
                self._life.engine.listen()


def data_only(
    codec: Literal["json", "msgspec"] | Codec | None,
    functions: Iterable[Any] | None,
    errors: Iterable[type[BaseException]],
) -> DataOnly | None:
    """Return what calls may be in a pool with a codec; ``None`` without one.

    Raises:
        ValueError: If there are functions or errors without a codec.
        ImportError: If the package of the codec is not installed.
    """
    check_codec(codec, functions=functions, errors=errors)
    return None if codec is None else DataOnly(format_of(codec), functions, errors)


def figures_of(pool: object) -> Any:
    """Return what has the figures of *pool* at once: agents have to be asked for theirs."""
    return pool._latest if isinstance(pool, RemotePool) else pool  # noqa: SLF001 - of its own module


# A pool that another process of this machine has, and how a program gets it.

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
            "the shared pool", f"unix:{path}", max_queued=max_queued, data=data
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
            if not answered.done():
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
    checks.optional(checks.at_least(1))("max_queued", max_queued)
    checks.optional(checks.PERIOD)("reconnect", reconnect)
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
