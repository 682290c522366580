"""A bit of all that pools are for, for programs that have one where something is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from asyncpool import Pool
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from tests.helpers.patience import patience

__all__ = ["Messages", "tour"]

_LARGE = 1 << 22


class Messages(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _linger_deaf() -> NoReturn:
    """Hear no signal that can be blocked, and never return."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        threading.Event().wait()


def _truncate_what_is_shared() -> None:
    """Truncate each file without a name that this worker has open."""
    for fd in range(3, 64):
        try:
            if os.fstat(fd).st_nlink == 0:
                os.ftruncate(fd, 0)
        except OSError:
            continue


def _log(count: int) -> None:
    for n in range(count):
        logging.getLogger("tour").warning("record %d", n)


def _count(n: int) -> Iterator[int]:
    yield from range(n)


async def tour(**options: Any) -> list[str]:
    """Go through it all, with a pool of these options; return what was logged."""
    messages = Messages()
    logging.getLogger().addHandler(messages)
    async with patience(), Pool(2, cancel_grace=0.1, **options) as pool:
        await pool.broadcast(_log, 0)  # imports this module, which may take its time
        assert await pool.submit(divmod, 17, 5) == (3, 2)
        large = os.urandom(_LARGE)
        assert await pool.submit(bytes, large) == large
        with pytest.raises(WorkerCrashedError) as crashed:
            await pool.submit(os._exit, 3)
        assert crashed.value.exit_code == 3
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.3).submit(_linger_deaf)
        assert await pool.map(abs, range(-500, 0)) == list(range(500, 0, -1))
        items = ["a", None, *range(50)]
        assert await pool.map(_die_of_13, items, chunksize=52).outcomes()
        assert [n async for n in pool.stream(_count, 300)] == list(range(300))
        try:
            await pool.submit(_truncate_what_is_shared)
        except WorkerCrashedError as error:  # which kills the one who did it
            assert error.signal == "SIGBUS"  # noqa: PT017
        await pool.submit(_log, 200)
        while "record 199" not in messages.said:  # noqa: ASYNC110 - they come by another way
            await asyncio.sleep(0)
        assert await pool.submit(abs, -1) == 1
    return messages.said


def _die_of_13(item: object) -> object:
    if item == 13:
        os._exit(3)
    return item
