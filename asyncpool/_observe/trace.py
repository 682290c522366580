"""The trace of one pool: from what it tells of its life and its jobs to the lines of a file."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from time import monotonic

from asyncpool._core.trace.trace_book import TraceBook
from asyncpool._observe.trace_file import TraceFile
from asyncpool._observe.traced_jobs import TracedJobs
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import Event
from asyncpool.stats import PoolStats

# Seconds between two looks at the figures, and how long a line waits at most.
INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

# The pools of one service are told apart by these.
_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


def next_number() -> int:
    """Return what the trace calls the next pool of this process."""
    return os.getpid() * _POOLS + next(_numbers) % _POOLS


class Trace:
    """Hears the events of a pool, follows its jobs, and writes its trace.

    Args:
        path: The file.
        name: What the pool is called.
        concurrency: How many jobs each worker runs at once.
        hub: What tells the events.
        stats: Returns the pool's figures.
        most: How many jobs a second are shown; ``None`` for all.

    Attributes:
        jobs: What follows the jobs.

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
        most: int | None,
    ) -> None:
        title = f"pool {name}"
        self._file = TraceFile(path, title)
        self._hub = hub
        self._stats = stats
        self._book = self._make_book(title, concurrency)
        self.jobs = TracedJobs(hub, self._book, most, self.hand_over_many)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(INTERVAL, self._look)
        hub.add_reader(self)
        hub.add_tracer(self.jobs)

    def _make_book(self, title: str, concurrency: int) -> TraceBook:
        return TraceBook(title, next_number(), os.getpid(), concurrency)

    def stop(self) -> None:
        """Hear of nothing any more but of the end."""
        self._hub.remove_reader(self)
        self._hub.remove_tracer(self.jobs)

    def count(self) -> None:
        """Have the book note the figures, and which attempts run for long."""
        self._count(self._stats(), monotonic())

    def _count(self, stats: PoolStats, now: float) -> None:
        self.jobs.look(stats.slots, now)
        self._book.count(
            now,
            queued=stats.queued,
            busy=stats.busy,
            memory=sum(slot.memory for slot in stats.slots),
            omitted=self.jobs.limit.refused,
        )

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        self._book.happened(event, monotonic())
        self.hand_over_many()

    def hand_over_many(self) -> None:
        """Hand the lines over, if they are many."""
        if len(self._book.lines) >= _MANY:
            self._hand_over()

    def end(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self.count()
        finally:
            self._book.end(monotonic())
            self._hand_over()
            self._file.close()

    def _look(self) -> None:
        if self._file.stopped:
            self.stop()
            return
        self._timer = self._loop.call_later(INTERVAL, self._look)
        self.count()
        self._hand_over()

    def _hand_over(self) -> None:
        file, book = self._file, self._book
        lost = file.lost
        if book.lines:
            file.put(book.lines)
            book.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            book.lost(monotonic(), lost)
