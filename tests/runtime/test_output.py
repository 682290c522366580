"""What workers print and log, in the service: bounded, in order, and controlling nobody."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from time import perf_counter
from typing import Any, cast

import pytest

from asyncpool._engine.options import OutputMode
from asyncpool._engine.output import _TURN, Output, WorkerLogs
from asyncpool._wire.log_records import pack_record
from tests.helpers.logs import Kept, handled_by
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "asyncpool.worker")
    return caplog


@contextmanager
def pipe(
    mode: OutputMode = "log", *, err: bool = False
) -> Iterator[tuple[Output, int]]:
    reading, writing = os.pipe()
    output = Output(asyncio.get_running_loop(), reading, mode, err=err)
    output.name("w", {"pid": 1}, trusted=True)
    try:
        yield output, writing
    finally:
        output.close()
        os.close(writing)


async def logged(log: pytest.LogCaptureFixture, count: int) -> list[str]:
    """Let the loop turn until that many lines are there."""

    def lines() -> list[str]:
        # On a busy machine asyncio may log that a turn of the loop took long.
        ours = [it for it in log.records if it.name == "asyncpool.worker"]
        return [record.getMessage().removeprefix("w: ") for record in ours]

    async with patience():
        while len(log.records) < count or len(lines()) < count:  # noqa: ASYNC110 - logging tells nobody
            await asyncio.sleep(0)
    return lines()


@pytest.mark.parametrize("how", ["the pool closes it", "the worker does"])
async def test_lines_cannot_control_whoever_reads_the_log_nor_the_error(
    how: str, log: pytest.LogCaptureFixture
) -> None:
    with pipe(err=True) as (output, writing):
        os.write(writing, b"\x1b[2Jred\x0b2026 CRITICAL forged\r\nlast words\x07")
        if how == "the worker does":
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, writing, inheritable=False)
            os.close(null)
            await logged(log, 2)
    # An end without a newline is not lost.
    shown = [r"\x1b[2Jred\x0b2026 CRITICAL forged", r"last words\x07"]
    assert await logged(log, 2) == shown
    assert output.tail == tuple(shown)
    assert {record.levelno for record in log.records} == {logging.WARNING}


async def test_a_line_without_an_end_is_cut(log: pytest.LogCaptureFixture) -> None:
    with pipe() as (output, writing):
        for _ in range(10):
            os.write(writing, b"x" * 6000)
            await asyncio.sleep(0)
        await logged(log, 3)
        os.write(writing, b"\n")
        output.close()
    pieces = await logged(log, 3)
    assert "".join(pieces) == "x" * 60_000
    assert max(map(len, pieces)) <= 2 * 8192


async def test_the_tail_is_bounded() -> None:
    with pipe(err=True) as (output, writing):
        for n in range(100):
            os.write(writing, b"%d " % n + b"y" * 2000 + b"\n")
            await asyncio.sleep(0)
        output.close()
        assert len(output.tail) == 40
        assert output.tail[-1].startswith("99 yyy")
        assert {len(line) for line in output.tail} == {500}


async def test_what_is_left_out_of_a_flood_at_its_end_is_counted(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe(err=True) as (output, writing):
        os.write(writing, b"".join(b"%d\n" % n for n in range(10_000)))
        output.close()
    shown = await logged(log, 1)
    [note] = [text for text in shown if not text.isdecimal()]
    assert int(note.removeprefix("(").partition(" ")[0]) + len(shown) - 1 == 10_000
    # The end of it is what matters.
    assert shown[-60:] == [str(n) for n in range(9940, 10_000)]
    assert output.tail == tuple(str(n) for n in range(9960, 10_000))


async def test_inherited_output_goes_to_the_streams_of_this_process_as_it_is(
    capsys: pytest.CaptureFixture[str],
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = "\x1b[31mred\x1b[0m\nkey\rvalue\r\n." + "ä" * 20_000 + "\nworld"
    for err in (False, True):
        with pipe("inherit", err=err) as (_, writing):
            os.write(writing, shown.encode())
    assert capsys.readouterr() == (shown, shown)
    assert log.messages == []
    monkeypatch.setattr("sys.stdout", None)
    with pipe("inherit") as (_, writing):
        os.write(writing, b"nobody hears\n")


LINE = b"x" * 999 + b"\n"
LINES = 300  # more than two pipes hold


async def test_a_stdout_that_nobody_reads_stops_the_worker_and_not_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drained() -> bytes:
        with suppress(BlockingIOError):
            return os.read(unread, 1 << 20)
        return b""

    unread, stdout = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(stdout, "w"))
    os.set_blocking(unread, False)
    sent, received = 0, b""
    with pipe("inherit") as (_, writing):
        os.set_blocking(writing, False)
        async with patience():
            while sent < LINES:
                try:
                    os.write(writing, LINE)
                    sent += 1
                except BlockingIOError:  # the worker would wait; now somebody reads
                    received += drained()
                await asyncio.sleep(0)
            while len(received) < LINES * len(LINE):
                received += drained()
                await asyncio.sleep(0)
    assert received == LINE * LINES
    sys.stdout.close()
    os.close(unread)


# Records of loggers.


class Worker:
    """One that logs, and the channel that it logs through."""

    pid: int | None = 77
    slot = 3
    generation = 2

    def __init__(self, worker_logs: WorkerLogs) -> None:
        self.accused: list[str] = []
        self.calls: list[str] = []
        self.logs, self.as_both = worker_logs, cast("Any", self)

    def distrust(self, detail: str) -> None:
        self.accused.append(detail)

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def send(self, payload: bytes) -> None:
        self.logs.add(self.as_both, self.as_both, payload)

    def say(self, message: str, **changes: Any) -> None:
        fields = changes.pop("fields", {})
        self.send(pack_record(ENTRY | {"msg": message} | changes, fields))


ENTRY = {"name": "tests.worker_logs", "levelno": 20, "created": 1000.5, "process": 1}
ENTRY |= {"job_id": 3, "attempt": 1}


class Slow(Kept):
    """Takes the whole turn for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        until = perf_counter() + _TURN
        while perf_counter() < until:
            pass


def worker_logs() -> WorkerLogs:
    return WorkerLogs(asyncio.get_running_loop(), "shop")


async def finish(logs: WorkerLogs) -> None:
    async with patience():
        await logs.finish()


async def test_records_are_handled_in_their_order_and_accuse_their_author_alone() -> (
    None
):
    kept, logs = Kept(), worker_logs()
    one, other = Worker(logs), Worker(logs)
    with handled_by(kept):
        one.say("a")
        other.say("b")
        other.send(b"nonsense")
        one.say("c")
        now = logging.makeLogRecord({})
        assert kept.messages == [], "not at once"
        await finish(logs)
    assert kept.messages == ["a", "b", "c"]
    assert other.accused == ["a record of a logger cannot be read"]
    assert (one.accused, one.calls, other.calls) == ([], [], [])
    # Times are those of the worker.
    record = kept.records[0]
    assert (record.created, record.msecs) == (1000.5, 500.0)
    since_then = now.relativeCreated - record.relativeCreated
    assert since_then == pytest.approx((now.created - 1000.5) * 1000, abs=1)


async def test_the_loop_has_its_turn_between_records_that_take_long() -> None:
    slow, logs = Slow(), worker_logs()
    worker = Worker(logs)
    with handled_by(slow):
        for number in range(5):
            worker.say(str(number))
        seen = []
        for _ in range(6):
            await asyncio.sleep(0)
            seen.append(len(slow.messages))
    assert seen[0] <= 1
    assert all(later - before <= 1 for before, later in pairwise(seen))
    assert seen[-1] == 5


async def test_a_worker_that_is_too_far_ahead_waits() -> None:
    one, other = Worker(logs := worker_logs()), Worker(logs)
    for _ in range(64):
        one.say("again")
    other.say("once")
    assert (one.calls, other.calls) == (["pause"], [])
    await finish(logs)
    assert (one.calls, other.calls) == (["pause", "resume"], [])


@pytest.mark.logs("records-dropped")
async def test_what_is_left_is_dropped_at_the_end_and_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    with handled_by(kept):
        worker.say("late")
        worker.say("later")
        logs.close()
        await logs.finish()
        logs.close()
    assert kept.messages == []
    assert caplog.messages == [
        "the pool ends; 2 log records of its workers are dropped"
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        # Fields cannot pose as anything else.
        ({"levelno": 50, "args": 5}, {"levelno": 20, "args": None}),
        ({"exc_info": "no", "job_id": 99}, {"exc_info": None, "job_id": 3}),
        ({"pid": "me"}, {"pid": 77, "extra_pid": "me"}),
        ({"attempt": 5}, {"attempt": 1, "extra_attempt": 5}),
        # The job's own logger gives that.
        ({"job_id": 3}, {"job_id": 3, "extra_job_id": None}),
        # A worker gives no message an id of the service, but those that only workers have.
        (
            {"message_id": "worker-crashed", "kind": "crash"},
            {"message_id": None, "extra_message_id": "worker-crashed", "kind": "crash"},
        ),
        (
            {"message_id": "retire-called", "reason": "old"},
            {"message_id": "retire-called", "extra_message_id": None, "reason": "old"},
        ),
    ],
)
async def test_what_is_given_by_our_names_has_others(
    given: dict[str, Any], found: dict[str, Any]
) -> None:
    kept, logs = Kept(), worker_logs()
    with handled_by(kept):
        Worker(logs).say("given", fields=given)
        await finish(logs)
    [record] = kept.records
    assert {name: vars(record).get(name) for name in found} == found
    assert logging.Formatter("%(message)s").format(record) == "given"


@pytest.mark.parametrize(
    "name", ["asyncpool", "asyncpool.worker", "asyncpool.job", "asyncpool.x.y"]
)
async def test_a_worker_does_not_speak_for_the_service(name: str) -> None:
    kept, logs = Kept(), worker_logs()
    worker = Worker(logs)
    worker.pid = None  # before it is known it goes by its own word
    with handled_by(kept, "asyncpool"):
        worker.say("a worker died", name=name)
        await finish(logs)
    assert [(it.name, it.msg, vars(it)["pid"]) for it in kept.records] == [
        ("asyncpool.job", "a worker died", 1)
    ]
