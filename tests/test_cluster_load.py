"""The load client of the benchmarks: what it counts as a failure, and what not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, strategies as st

from benchmarks.cluster import report, wrk
from benchmarks.cluster.answer import Answer, request
from benchmarks.cluster.load import Load, judge, load_on, was_closed
from benchmarks.cluster.tally import (
    Outcome,
    Request,
    Whose,
    figures_of,
    kinds_of,
    timeline,
    whose,
)
from benchmarks.cluster.trials import TRIALS, balance
from tests.helpers.patience import PATIENCE

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n123"
LAST = ANSWER.replace(b"keep-alive", b"close")
WRONG = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


class TestAnswer:
    @given(cuts=st.sets(st.integers(1, len(ANSWER) - 1)))
    def test_it_may_come_in_any_pieces(self, cuts: set[int]) -> None:
        answer = Answer()
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            assert not answer.is_complete
            answer.feed(ANSWER[start:end])
        assert answer.is_complete
        assert answer.worker == 123
        assert not answer.closes

    def test_it_may_be_the_last_one(self) -> None:
        answer = Answer()
        answer.feed(LAST)
        assert answer.closes

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (WRONG, "not a good status: HTTP/1.1 503 Service Unavailable"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "the answer does not say its length"),
            (ANSWER + b"4", "more than one answer"),
        ],
    )
    def test_what_is_no_answer_is_refused(self, data: bytes, problem: str) -> None:
        with pytest.raises(ValueError, match=f"^{problem}$"):
            Answer().feed(data)

    def test_the_end_is_no_answer(self) -> None:
        with pytest.raises(EOFError, match=r"^the connection ends before"):
            Answer().feed(b"")

    def test_the_body_is_the_worker(self) -> None:
        answer = Answer()
        answer.feed(ANSWER.replace(b"123", b"abc"))
        with pytest.raises(ValueError, match="invalid literal"):
            _ = answer.worker

    def test_a_request_says_if_it_is_the_last(self) -> None:
        assert request("/1") == b"GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert b"\r\nConnection: close\r\n\r\n" in request("/1", last=True)


def ended(outcome: Outcome, **changes: object) -> Request:
    fields = {"path": "/1", "due": 1.0, "ended": 1.25, "outcome": outcome}
    return Request(**fields | changes)  # type: ignore[arg-type]


class TestTally:
    def test_failures_are_counted_with_and_without_a_retry(self) -> None:
        requests = [
            ended(Outcome.ANSWERED, ended=1.5),
            ended(Outcome.ANSWERED),
            ended(Outcome.CUT),
            ended(Outcome.UNANSWERED, ended=9.0, retried=Outcome.ANSWERED),
            ended(Outcome.UNANSWERED, retried=Outcome.UNANSWERED),
            ended(Outcome.REFUSED, retried=Outcome.REFUSED),
            ended(Outcome.LATE),
        ]
        assert figures_of(requests) == {
            "requests": 7,
            "failed": 4,
            "refused": 1,
            "lost": 4,
            "max_ms": 500.0,
            "p99_ms": 500.0,
        }
        assert kinds_of(requests) == "1 refused, 2 unanswered, 1 cut, 1 late"

    def test_nothing_may_be_answered(self) -> None:
        figures = {"requests": 1, "failed": 0, "refused": 1, "lost": 1}
        assert figures_of([ended(Outcome.REFUSED)]) == figures
        assert kinds_of([ended(Outcome.ANSWERED)]) == ""

    def test_waiting_for_the_answer_before_counts(self) -> None:
        assert ended(Outcome.ANSWERED, due=0.5).latency == 0.75

    @pytest.mark.parametrize(
        ("worker", "begun", "expected"),
        [
            (7, {(7, "/1")}, Whose.BEGUN),
            (None, {(7, "/1")}, Whose.BEGUN),
            (7, set(), Whose.CONNECTED),
            (None, set(), Whose.NEW),
            (8, set(), Whose.OTHER),
            (8, {(8, "/1")}, Whose.OTHER),
            (None, {(7, "/2")}, Whose.NEW),
        ],
    )
    def test_where_a_failed_request_was(
        self, worker: int | None, begun: set[tuple[int, str]], expected: Whose
    ) -> None:
        failed = ended(Outcome.UNANSWERED, worker=worker)
        assert whose(failed, {7}, begun) is expected

    def test_a_timeline_has_a_line_for_each_step(self) -> None:
        requests = [
            ended(Outcome.ANSWERED, due=1.0, ended=1.25),
            ended(Outcome.ANSWERED, due=1.25, ended=1.75),
            ended(Outcome.CUT, due=1.25, ended=9.0),
            ended(Outcome.REFUSED, due=3.0, ended=3.0),
        ]
        assert timeline(requests, 0.5, 0.5) == [
            [0.5, 250.0, 500.0, 1],
            [2.5, 0.0, 0.0, 1],
        ]


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

    def test_and_so_is_one_in_which_something_comes_unasked(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
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

    async def test_nor_is_one_that_the_server_announces_to_close(self) -> None:
        script = Script((LAST, False))
        load = await requests_of(script, 2)
        assert [r.outcome for r in load.requests[:2]] == [Outcome.ANSWERED] * 2
        assert (script.connections, load.closed_between) == (2, 0)

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

    async def test_the_retry_may_fail_as_well(self) -> None:
        load = await requests_of(Script((b"", True), (b"", True)), 2)
        bad, good, *_ = load.requests
        assert (bad.outcome, bad.retried) == (Outcome.UNANSWERED, Outcome.UNANSWERED)
        assert good.is_answered

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

    async def test_it_knows_who_is_alive(self) -> None:
        here, length = b"%d" % os.getpid(), len(str(os.getpid()))
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, here)
        dead = answer.replace(here, b"9" * length)
        load = await requests_of(Script((answer, False), (dead, False)), 2)
        assert {os.getpid(), int(b"9" * length)} <= set(load.seen)
        assert os.getpid() in load.alive()
        assert not await load.until(lambda: False, 0.0)


class TestFindings:
    def test_shares_are_compared(self) -> None:
        even = balance.conclude([1] * 110 + [2] * 90 + [3] * 100 + [4] * 100)
        assert (even.status, even.note) == ("ok", "110/100/100/90")
        assert even.figures["ratio"] == pytest.approx(110 / 90)
        idle = balance.conclude([1] * 399 + [2])
        assert (idle.status, idle.note) == ("leaves some idle", "399/1/0/0")

    def test_wrk_is_read(self) -> None:
        output = """Running 2s test
        RESULT {"requests": 5000, "duration": 2000000, "p50": 500, "p99": 1500,
         "max": 9, "connect": 0, "read": 1, "write": 0, "status": 2, "timeout": 0}
        """
        assert wrk.parse(output) == {
            "rate": 2500.0,
            "p50_ms": 0.5,
            "p99_ms": 1.5,
            "errors": 3,
        }
        with pytest.raises(wrk.WrkError, match=r"^unable to connect$"):
            wrk.parse("unable to connect\n")

    def test_it_says_if_wrk_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(wrk.WrkError, match=r"^wrk is not installed: apt-get"):
            wrk.run(1, 1.0)

    def test_a_table_has_ratios_to_uvicorn_on_the_same_loop(self) -> None:
        def found(rate: float) -> dict[str, object]:
            figures = {"rate": rate, "p50_ms": 1.0, "p99_ms": 2.5}
            return {"figures": figures, "status": "ok"}

        failed = {"figures": {}, "status": "failed", "note": "why", "wrong": 1}
        rows = {
            "shared+uvloop": found(3000.0),
            "uvicorn+uvloop": found(2000.0),
            "uvicorn+asyncio": found(1000.0),
            "shared+asyncio": found(3000.0),
            "granian+uvloop": {**failed, "rounds": 1},
        }
        lines = report.table(TRIALS["speed"], rows).splitlines()[2:]
        assert [line.split("  ")[1] for line in lines] == [
            "asyncpool, shared",
            "uvicorn --workers",
            "uvicorn --workers, asyncio",
            "asyncpool, shared, asyncio",
            "granian",
        ]
        assert "3 000 (1.50x)" in lines[0]
        assert "3 000 (3.00x)" in lines[3]
        assert lines[4].endswith("-  failed: why")
