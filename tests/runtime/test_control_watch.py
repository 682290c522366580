"""Clients that watch: each gets line after line, and one that hangs costs nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from asyncpool._core.control.control_protocol import MAX_REPLY, Request
from asyncpool._runtime.control import server as control_server
from asyncpool._runtime.control.client import ControlClient
from asyncpool._runtime.control.paths import path_of
from asyncpool._runtime.control.server import ControlSocket, send_lines
from asyncpool.errors import ProtocolError
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

WATCH = Request("watch", every=0.1)


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield


class Counter:
    """Tells a client how often it was asked.

    Attributes:
        looks: How often.
        looked: Set at the first time.
        closed: Set when the client is gone.
    """

    def __init__(self, ballast: int = 0) -> None:
        self.looks = 0
        self.looked, self.closed = asyncio.Event(), asyncio.Event()
        self._ballast = "x" * ballast

    def look(self) -> dict[str, Any]:
        self.looks += 1
        self.looked.set()
        return {"n": self.looks, "ballast": self._ballast}

    def close(self) -> None:
        self.closed.set()


async def nothing(_: Request) -> dict[str, Any]:
    return {"fine": True}


@asynccontextmanager
async def serving(watch: Callable[[Request], Any] | None) -> AsyncIterator[str]:
    control = ControlSocket(path_of("app", make=True), nothing, watch=watch)
    control.open()
    try:
        yield control.path
    finally:
        await control.close()


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(path: str, request: Request = WATCH) -> Client:
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_REPLY)
    writer.write(request.pack())
    return reader, writer


async def line(reader: asyncio.StreamReader) -> Any:
    return json.loads(await reader.readline())


async def test_lines_come_until_the_client_goes() -> None:
    counter = Counter()
    async with patience(), serving(lambda _: counter) as path:
        reader, writer = await connected(path)
        assert [(await line(reader))["n"] for _ in range(3)] == [1, 2, 3]
        writer.close()
        await counter.closed.wait()


async def test_a_client_that_blocks_can_watch() -> None:
    def three(path: str) -> list[int]:
        with ControlClient(path, within=PATIENCE) as client:
            lines = client.watch(WATCH)
            return [next(lines)["n"] for _ in range(3)]

    counter = Counter()
    async with patience(), serving(lambda _: counter) as path:
        assert await asyncio.to_thread(three, path) == [1, 2, 3]
        await counter.closed.wait()


async def test_lines_end_with_the_server() -> None:
    counter = Counter()
    async with patience():
        async with serving(lambda _: counter) as path:
            reader, writer = await connected(path)
            assert (await line(reader))["n"] == 1
        assert counter.closed.is_set()
        while await reader.readline():
            pass
        writer.close()


async def test_a_client_that_hangs_loses_lines_and_holds_up_nobody() -> None:
    """Its connection takes one line that is too large for the kernel, and no other."""
    hung, other = Counter(ballast=2_000_000), Counter()
    counters = [hung, other]
    async with patience(), serving(lambda _: counters.pop(0)) as path:
        with socket.socket(socket.AF_UNIX) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(path)
            client.sendall(WATCH.pack())
            reader, writer = await connected(path)
            for n in range(1, 6):
                assert (await line(reader))["n"] == n
            assert hung.looks == 1
            # It wakes up.
            lines = client.makefile("rb")
            first = json.loads(await asyncio.to_thread(lines.readline))
            second = json.loads(await asyncio.to_thread(lines.readline))
            lines.close()
        assert (first["n"], second["n"]) == (1, 2)
        assert "lost" not in first
        assert second["lost"] >= 3
        writer.close()
        await asyncio.gather(hung.closed.wait(), other.closed.wait())


async def test_the_end_does_not_wait_for_a_client_that_hangs() -> None:
    counter = Counter(ballast=2_000_000)
    with socket.socket(socket.AF_UNIX) as client:
        async with patience(), serving(lambda _: counter) as path:
            client.connect(path)
            client.sendall(WATCH.pack())
            reader, writer = await connected(path, Request("status"))
            assert await line(reader) == {"fine": True}
            await counter.looked.wait()
            writer.close()
        assert counter.closed.is_set()


async def test_a_client_that_watches_asks_no_more() -> None:
    counter = Counter()
    async with patience(), serving(lambda _: counter) as path:
        reader, writer = await connected(path)
        assert (await line(reader))["n"] == 1
        writer.write(Request("status").pack())
        rest = [json.loads(each) for each in (await reader.read()).splitlines()]
        assert rest[-1] == {"error": "a client that watches asks no more"}
        writer.close()
        assert counter.closed.is_set()


async def test_what_cannot_be_watched() -> None:
    async with patience(), serving(None) as path:
        reader, writer = await connected(path)
        assert await line(reader) == {"error": "there is nothing to watch here"}
        writer.close()


async def test_a_look_that_fails_is_an_error_of_the_clients() -> None:
    class Failing(Counter):
        def look(self) -> dict[str, Any]:
            raise ZeroDivisionError("no figures")

    counter = Failing()
    async with patience(), serving(lambda _: counter) as path:
        reader, writer = await connected(path)
        assert await line(reader) == {"error": "no figures"}
        assert await reader.read() == b""
        writer.close()
        assert counter.closed.is_set()


async def test_two_hundred_that_watch_are_refused_but_for_some() -> None:
    """The first ones go on, and commands still get in."""
    async with patience(), serving(lambda _: Counter()) as path:
        clients = [await connected(path) for _ in range(200)]
        said = [await line(reader) for reader, _ in clients]
        watching = [reply for reply in said if "n" in reply]
        errors = {reply["error"] for reply in said if "error" in reply}
        assert len(watching) == 16
        assert errors <= {
            "16 clients are watching already, and there may be no more",
            "32 clients are connected already, and there may be no more",
        }
        for (refused, _), reply in zip(clients, said, strict=True):
            if "error" in reply:
                assert await refused.read() == b""
        reader, writer = await connected(path, Request("status"))
        assert await line(reader) == {"fine": True}
        for _, each in [*clients, (reader, writer)]:
            each.close()


async def test_there_is_room_again_when_one_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_server, "_MOST_WATCHERS", 1)
    counters: list[Counter] = []

    def watch(_: Request) -> Counter:
        counters.append(Counter())
        return counters[-1]

    async with patience(), serving(watch) as path, AsyncExitStack() as stack:
        reader, writer = await connected(path)
        assert (await line(reader))["n"] == 1
        second, refused = await connected(path)
        assert "error" in await line(second)
        refused.close()
        writer.close()
        await counters[0].closed.wait()
        third, last = await connected(path)
        stack.callback(last.close)
        assert (await line(third))["n"] == 1


async def test_a_request_to_watch_that_blocks_ends_in_an_error() -> None:
    def ask(path: str) -> None:
        with ControlClient(path, within=PATIENCE) as client:
            next(client.watch(WATCH))

    async with patience(), serving(None) as path:
        with pytest.raises(ProtocolError, match=r"^there is nothing to watch here$"):
            await asyncio.to_thread(ask, path)


async def test_whoever_is_written_to_may_be_gone_already() -> None:
    """The end of a connection and the time for the next line may come in one turn of the loop."""
    ours, theirs = socket.socketpair()
    with theirs:
        async with patience():
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()
            counter = Counter()
            with pytest.raises(ConnectionResetError, match="the client is gone"):
                await send_lines(counter, 0.1, reader, writer)
    assert counter.looks == 1
