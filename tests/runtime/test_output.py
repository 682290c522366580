"""The contract of a worker's output: line by line, whatever it writes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._runtime.output.output import Output
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


def is_line(record: logging.LogRecord) -> bool:
    return record.name == "asyncpool.worker"


async def logged(log: pytest.LogCaptureFixture, count: int) -> list[str]:
    """Let the loop turn until that many lines are there."""
    async with patience():
        while sum(map(is_line, log.records)) < count:  # noqa: ASYNC110 - logging tells nobody
            await asyncio.sleep(0)
    # On a busy machine asyncio may log that a turn of the loop took long.
    return [
        record.getMessage().removeprefix("w: ")
        for record in log.records
        if is_line(record)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_lines_are_whole_wherever_they_are_cut(
    size: int, log: pytest.LogCaptureFixture
) -> None:
    data = "eins\n\nzwei drei\r\nvier €\n".encode()
    with pipe() as (_, writing):
        for start in range(0, len(data), size):
            os.write(writing, data[start : start + size])
            await asyncio.sleep(0)
        assert await logged(log, 4) == ["eins", "", "zwei drei", "vier €"]


async def test_the_streams_have_levels_of_their_own(
    log: pytest.LogCaptureFixture,
) -> None:
    for err, level in ((False, logging.INFO), (True, logging.WARNING)):
        with pipe(err=err) as (output, writing):
            os.write(writing, b"line\n")
            await logged(log, 1)
            assert log.records[0].levelno == level
            assert output.tail == (("line",) if err else ())
            log.clear()


async def test_lines_cannot_control_whoever_reads_the_log_nor_the_error(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe(err=True) as (output, writing):
        os.write(writing, b"\x1b[2Jred\r2026 CRITICAL forged\r\nnext\x07")
        await logged(log, 1)
    shown = [r"\x1b[2Jred\x0d2026 CRITICAL forged", r"next\x07"]
    assert await logged(log, 2) == shown
    assert output.tail == tuple(shown)


async def test_what_is_inherited_is_as_it_was_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pipe("inherit") as (_, writing):
        os.write(writing, b"\x1b[31mred\x1b[0m\n")
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n"


@pytest.mark.parametrize("how", ["the pool closes it", "the worker does"])
async def test_an_end_without_a_newline_is_not_lost(
    how: str, log: pytest.LogCaptureFixture
) -> None:
    reading, writing = os.pipe()
    output = Output(asyncio.get_running_loop(), reading, "log", err=True)
    os.write(writing, b"one\nlast words")
    if how == "the pool closes it":
        output.close()
        os.close(writing)
    else:
        os.close(writing)
        await logged(log, 2)
        output.close()
    assert output.tail == ("one", "last words")
    assert len(log.records) == 2


async def test_what_is_no_text_is_shown_as_far_as_possible(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe() as (_, writing):
        os.write(writing, b"a\xffb\x00c\xe2\x82\n")
        assert await logged(log, 1) == ["a\ufffdb\\x00c\ufffd"]


async def test_a_line_without_an_end_is_cut(log: pytest.LogCaptureFixture) -> None:
    with pipe() as (output, writing):
        for _ in range(10):
            os.write(writing, b"x" * 6000)
            await asyncio.sleep(0)
        await logged(log, 3)
        os.write(writing, b"\n")
        output.close()
    pieces = [message.removeprefix("w: ") for message in log.messages]
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


async def test_a_flood_takes_no_more_than_its_turn(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe() as (_, writing):
        os.write(writing, b"z\n" * 30_000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(log.records) <= 2 * 4096
        assert len(await logged(log, 30_000)) == 30_000


async def test_inherited_output_goes_to_the_streams_of_this_process(
    capsys: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture
) -> None:
    for err in (False, True):
        with pipe("inherit", err=err) as (output, writing):
            os.write(writing, b"hello\nworld")
            output.close()
    assert capsys.readouterr() == ("hello\nworld\n", "hello\nworld\n")
    assert log.messages == []


async def test_streams_that_are_gone_cost_nothing_but_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with pipe("inherit") as (output, writing):
        os.write(writing, b"hello\n")
        output.close()


async def test_closing_reads_what_the_dead_have_written(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe() as (output, writing):
        os.write(writing, b"".join(b"%d\n" % n for n in range(60)))
        output.close()
        output.close()
    assert log.messages == [f"w: {n}" for n in range(60)]


async def test_what_is_left_out_of_a_flood_at_its_end_is_counted(
    log: pytest.LogCaptureFixture,
) -> None:
    with pipe(err=True) as (output, writing):
        os.write(writing, b"".join(b"%d\n" % n for n in range(10_000)))
        output.close()
    shown = [message.removeprefix("w: ") for message in log.messages]
    [note] = [text for text in shown if not text.isdecimal()]
    assert int(note.removeprefix("(").partition(" ")[0]) + len(shown) - 1 == 10_000
    # The end of it is what matters.
    assert shown[-60:] == [str(n) for n in range(9940, 10_000)]
    assert output.tail == tuple(str(n) for n in range(9960, 10_000))
