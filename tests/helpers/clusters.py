"""Clusters for tests, and clients of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from asyncpool import Cluster
from asyncpool.cluster import ClusterStats
from tests.helpers import serves
from tests.helpers.patience import look_again, patience

SPREADS = ("handoff", "shared")


def cluster_of(target: Any = serves.talk, **options: Any) -> Cluster:
    """Return a cluster on a free port, whose workers have a loop as the test has."""
    module = type(asyncio.get_running_loop()).__module__
    options.setdefault("worker_loop", "uvloop" if "uvloop" in module else "asyncio")
    options.setdefault("bind", "tcp://127.0.0.1:0")
    options.setdefault("workers", 2)
    options.setdefault("reload_drain_timeout", None)
    return Cluster(target, **options)


@asynccontextmanager
async def whole_cluster(
    target: Any = serves.talk, **options: Any
) -> AsyncIterator[Cluster]:
    """Start a cluster, and wait until all of its workers serve."""
    async with patience(), cluster_of(target, **options) as cluster:
        await all_ready(cluster)
        yield cluster


async def until(
    cluster: Cluster, predicate: Callable[[ClusterStats], bool]
) -> ClusterStats:
    """Wait for events of *cluster* until *predicate* holds for its figures."""
    events = cluster.events()
    while not predicate(cluster.stats()):
        await anext(events)
    return cluster.stats()


async def all_ready(cluster: Cluster) -> ClusterStats:
    """Wait until every worker serves, and nobody else is there."""
    return await until(cluster, is_whole)


def is_whole(stats: ClusterStats) -> bool:
    there = [slot for slot in stats.slots if slot.pid is not None]
    return len(there) == stats.workers and all(slot.ready for slot in there)


async def come_true(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells of, such as the end of a connection."""
    while not condition():
        await look_again()


async def connected(cluster: Cluster, count: int) -> None:
    """Wait until so many connections are open."""
    await come_true(
        lambda: sum(slot.connections for slot in cluster.stats().slots) == count
    )


class Connection:
    """One connection to a cluster; an async context manager."""

    def __init__(
        self, cluster: Cluster, address: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._address, self._tls = cluster.addresses[address], tls

    async def __aenter__(self) -> Self:
        tls: dict[str, Any] = {"ssl": self._tls}
        if self._tls is not None:
            tls["server_hostname"] = "localhost"
        if self._address.startswith("unix:"):
            path = self._address.removeprefix("unix:").removeprefix("//")
            opening = asyncio.open_unix_connection(path, **tls)
        else:
            host, _, port = self._address.removeprefix("tcp://").rpartition(":")
            opening = asyncio.open_connection(host.strip("[]"), int(port), **tls)
        self.reader, self.writer = await opening
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class Client(Connection):
    """A conversation with a worker."""

    async def ask(self, line: str) -> str:
        """Say something, and return the answer; empty if the connection has ended."""
        self.say(line)
        return await self.answer()

    def say(self, line: str) -> None:
        self.writer.write(f"{line}\n".encode())

    async def answer(self) -> str:
        try:
            return (await self.reader.readline()).decode().rstrip("\n")
        except ConnectionError:
            return ""

    async def who(self) -> tuple[int, int, int]:
        """Return the slot, the generation and the pid of the worker."""
        slot, generation, pid = map(int, (await self.ask("who")).split())
        return slot, generation, pid


async def who(cluster: Cluster) -> tuple[int, int, int]:
    """Have a new connection, and return who has served it."""
    async with Client(cluster) as client:
        return await client.who()


@asynccontextmanager
async def clients(cluster: Cluster, count: int) -> AsyncIterator[list[Client]]:
    """Open so many connections at once, and close them in the end."""
    opened = [Client(cluster) for _ in range(count)]
    await asyncio.gather(*(client.__aenter__() for client in opened))
    try:
        yield opened
    finally:
        await asyncio.gather(*(client.close() for client in opened))
