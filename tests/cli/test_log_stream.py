"""A log whose reader stops, and goes on."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import NamedTuple, TextIO

import pytest

from asyncpool._cli.logs.command_log import LogStream

LINE = f"{'x' * 99}\n"


class Pipe(NamedTuple):
    """A pipe, and a stream into it."""

    fd: int
    stream: TextIO
    size: int

    def read(self, size: int) -> str:
        """Read so many bytes, and wait for them."""
        parts = []
        while size:
            parts.append(os.read(self.fd, size))
            size -= len(parts[-1])
        return b"".join(parts).decode()


@pytest.fixture
def full() -> Iterator[Pipe]:
    """Yield a pipe that takes no more before it is read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    while True:
        try:
            size += os.write(writer, bytes(4096))
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stream:
        yield Pipe(reader, stream, size)
    os.close(reader)


def gap(count: int) -> str:
    return f"({count})\n"


def test_nobody_waits_for_a_reader_that_has_stopped(full: Pipe) -> None:
    log = LogStream(full.stream, gap, most=1000)
    with log.in_a_thread():
        for _ in range(100):
            log.write(LINE)
        full.read(full.size)
        assert full.read(1000) == LINE * 10
        # The last one counts until it is written, which this thread cannot see.
        while not log.idle:
            pass
        log.write("after\n")
        assert full.read(len("(90)\nafter\n")) == "(90)\nafter\n"


def test_what_is_left_out_last_is_told_at_the_end(full: Pipe) -> None:
    log = LogStream(full.stream, gap, most=100)
    with log.in_a_thread():
        log.write(LINE)
        log.write(LINE)
        full.read(full.size)
    assert full.read(104) == f"{LINE}(1)\n"


def test_the_end_does_not_wait_for_a_reader_that_has_stopped(full: Pipe) -> None:
    log = LogStream(full.stream, gap)
    with log.in_a_thread(last_writes=0.0):
        log.write("before\n")
    log.write("behind\n")  # nor does who comes then
    full.read(full.size)
    assert full.read(14) == "before\nbehind\n"


def test_a_stream_that_does_not_block_gets_everything(full: Pipe) -> None:
    os.set_blocking(full.stream.fileno(), False)
    log = LogStream(full.stream, gap)
    with log.in_a_thread():
        log.write(LINE)
        full.read(full.size)
        assert full.read(len(LINE)) == LINE


def test_without_a_thread_or_a_file_it_writes_at_once() -> None:
    stream = io.StringIO()
    log = LogStream(stream, gap)
    log.write("one\n")
    with log.in_a_thread():
        log.write("two\n")
    assert stream.getvalue() == "one\ntwo\n"


def test_a_reader_that_is_gone_costs_lines_and_no_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        log = LogStream(stream, gap)
        with log.in_a_thread():
            log.write(LINE)
            log.write(LINE)
        assert log.idle
