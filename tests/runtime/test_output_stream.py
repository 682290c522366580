"""The contract of a worker's output towards streams that nobody reads."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from asyncpool._runtime.output.output import Output
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

LINE = b"x" * 999 + b"\n"
LINES = 300  # more than two pipes hold


async def test_a_stdout_that_nobody_reads_stops_the_worker_and_not_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    unread, stdout = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(stdout, "w"))
    os.set_blocking(writing, False)
    output = Output(asyncio.get_running_loop(), reading, "inherit", err=False)
    os.set_blocking(unread, False)
    sent, received = 0, b""
    async with patience():
        while sent < LINES:
            try:
                os.write(writing, LINE)
                sent += 1
            except BlockingIOError:  # the worker would wait here; now somebody reads
                received += drained(unread)
            await asyncio.sleep(0)
        while len(received) < LINES * len(LINE):
            received += drained(unread)
            await asyncio.sleep(0)
    assert received == LINE * LINES
    output.close()
    sys.stdout.close()
    os.close(writing)
    os.close(unread)


def drained(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""
