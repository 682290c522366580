"""The trace of one pool: from the events that it publishes to the lines of a file."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from time import monotonic

from asyncpool._core.trace.trace_book import TraceBook
from asyncpool._observe.trace_file import TraceFile
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import Event, JobEnded, JobEvent, JobQueued, JobStarted
from asyncpool.stats import PoolStats

# Seconds between two looks at the figures, and how long a line waits at most.
_INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

# The pools of one service are told apart by these.
_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


class Trace:
    """Hears the events of a pool, and writes its trace.

    Args:
        path: The file.
        name: What the pool is called.
        concurrency: How many jobs each worker runs at once.
        hub: What tells the events.
        stats: Returns the pool's figures.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str,
        concurrency: int,
        hub: PoolHub,
        stats: Callable[[], PoolStats],
    ) -> None:
        title, service = f"pool {name}", os.getpid()
        self._file = TraceFile(path, title)
        number = service * _POOLS + next(_numbers) % _POOLS
        self._book = TraceBook(title, number, service, concurrency)
        self._hub = hub
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL, self._look)
        hub.add_reader(self)

    def hear(self, event: Event | JobEvent) -> None:
        """Take note of an event."""
        book = self._book
        # By the exact class, which takes the least time: there are three of each job.
        kind = type(event)
        if kind is JobQueued:
            book.queued(event)  # type: ignore[arg-type]
        elif kind is JobStarted:
            book.started(event)  # type: ignore[arg-type]
        elif kind is JobEnded:
            book.ended(event)  # type: ignore[arg-type]
        else:
            book.happened(event, monotonic())  # type: ignore[arg-type]
        if len(book.lines) >= _MANY:
            self._hand_over()

    def end(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self._count()
        finally:
            self._book.end(monotonic())
            self._hand_over()
            self._file.close()

    def _look(self) -> None:
        if self._file.stopped:
            self._hub.remove_reader(self)
            return
        self._timer = self._loop.call_later(_INTERVAL, self._look)
        self._book.look(monotonic())
        self._count()
        self._hand_over()

    def _count(self) -> None:
        stats = self._stats()
        self._book.count(
            monotonic(),
            queued=stats.queued,
            busy=stats.busy,
            memory=sum(slot.memory for slot in stats.slots),
        )

    def _hand_over(self) -> None:
        file, book = self._file, self._book
        lost = file.lost
        if book.lines:
            file.put(book.lines)
            book.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            book.lost(monotonic(), lost)
