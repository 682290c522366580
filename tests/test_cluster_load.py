"""The load client of the benchmarks: what it counts as a failure, and what not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.cluster.answer import Answer
from benchmarks.cluster.load import Load, judge, load_on, was_closed
from benchmarks.cluster.tally import (
    Outcome,
)
from tests.helpers.patience import PATIENCE

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n123"
LAST = ANSWER.replace(b"keep-alive", b"close")
WRONG = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("error", "received", "is_connected", "expected"),
    [
        (ConnectionRefusedError(), b"", False, Outcome.REFUSED),
        (ConnectionResetError(), b"", False, Outcome.REFUSED),
        (TimeoutError(), b"", False, Outcome.LATE),
        (TimeoutError(), b"HTTP", True, Outcome.LATE),
        (ConnectionResetError(), b"", True, Outcome.UNANSWERED),
        (BrokenPipeError(), b"", True, Outcome.UNANSWERED),
        (EOFError(), b"", True, Outcome.UNANSWERED),
        (EOFError(), b"H", True, Outcome.CUT),
        (ConnectionResetError(), b"H", True, Outcome.CUT),
        (ValueError(), b"H", True, Outcome.WRONG),
    ],
)
def test_what_a_client_calls_it(
    error: Exception,
    received: bytes,
    is_connected: bool,  # noqa: FBT001
    expected: Outcome,
) -> None:
    answer = Answer()
    if received:
        answer.feed(received)
    assert judge(error, answer, is_connected=is_connected) is expected


class TestConnections:
    def test_one_that_the_server_has_closed_is_seen_before_anything_is_sent(
        self,
    ) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            assert not was_closed(ours)
            theirs.close()
            assert was_closed(ours)


class Script:
    """A server that does to one request after the other what it is told.

    Each step is what it sends, and whether it closes the connection then.  Behind the last
    step it answers and keeps.
    """

    def __init__(self, *steps: tuple[bytes, bool]) -> None:
        self._steps = iter(steps)
        self.connections = 0
        self.port = 0

    async def handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        closes = False
        while not closes and await read_request(reader):
            data, closes = next(self._steps, (ANSWER, False))
            writer.write(data)
        writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Script]:
    server = await asyncio.start_server(script.handle, "127.0.0.1", 0)
    async with server:
        script.port = server.sockets[0].getsockname()[1]
        yield script


async def requests_of(
    script: Script, count: int, *, kept: int = 1, fresh: int = 0
) -> Load:
    """Return the load when it has *count* requests at least."""
    async with serving(script), load_on(script.port, kept=kept, fresh=fresh) as load:
        assert await load.until(lambda: len(load.requests) >= count, PATIENCE)
    return load


class TestLoad:
    pytestmark = pytest.mark.asyncio

    async def test_a_connection_is_kept(self) -> None:
        script = Script()
        load = await requests_of(script, 3)
        first, *others = load.requests
        assert all(r.outcome is Outcome.ANSWERED for r in load.requests)
        assert first.worker is None
        assert {r.worker for r in others} == {123}
        assert (script.connections, set(load.seen)) == (1, {123})
        assert len({r.path for r in load.requests}) == len(load.requests)

    async def test_or_each_request_has_one_of_its_own(self) -> None:
        script = Script(*[(LAST, True)] * 3)
        load = await requests_of(script, 3, kept=0, fresh=1)
        assert script.connections == len(load.requests)
        assert load.closed_between == 0

    async def test_one_that_is_closed_between_requests_is_no_failure(self) -> None:
        script = Script((ANSWER, True))
        load = await requests_of(script, 2)
        assert [r.outcome for r in load.requests[:2]] == [Outcome.ANSWERED] * 2
        assert [r.worker for r in load.requests[:2]] == [None, None]
        assert (script.connections, load.closed_between) == (2, 1)

    async def test_a_request_that_was_sent_and_gets_no_byte_is_one(self) -> None:
        load = await requests_of(Script((ANSWER, False), (b"", True)), 3)
        _, bad, good, *_ = load.requests
        assert (bad.outcome, bad.retried) == (Outcome.UNANSWERED, Outcome.ANSWERED)
        assert bad.worker == 123
        assert (good.outcome, good.retried, good.worker) == (
            Outcome.ANSWERED,
            None,
            123,  # in the connection of the retry
        )

    async def test_what_has_come_in_part_is_not_tried_again(self) -> None:
        load = await requests_of(Script((ANSWER[:9], True), (WRONG, False)), 2)
        cut, wrong, *_ = load.requests
        assert (cut.outcome, cut.retried) == (Outcome.CUT, None)
        assert (wrong.outcome, wrong.retried) == (Outcome.WRONG, None)

    async def test_a_refused_connection_is_counted(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # and nobody listens
            async with load_on(closed.getsockname()[1], kept=1, fresh=1) as load:
                assert await load.until(lambda: len(load.requests) >= 2, PATIENCE)
        refused = (Outcome.REFUSED, Outcome.REFUSED)
        assert {(r.outcome, r.retried) for r in load.requests} == {refused}
        assert not load.answered_since(0.0)
