"""The trace of one pool: from what it tells of its life and its jobs to the lines of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from asyncpool._core.trace.trace_book import TraceBook
from asyncpool._observe.live_trace import LiveTrace, next_number
from asyncpool._observe.trace_file import TraceFile
from asyncpool._observe.traced_jobs import TracedJobs
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import Event
from asyncpool.stats import PoolStats


class Trace(LiveTrace):
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
        file = TraceFile(path, title)
        self._stats = stats
        self._book = TraceBook(title, next_number(), os.getpid(), concurrency)
        self.jobs = TracedJobs(hub, self._book, most, self.hand_over_many)
        super().__init__(file, self._book, hub)
        hub.add_tracer(self.jobs)

    def note(self, event: Event) -> None:
        """Have the book note an event."""
        self._book.happened(event, monotonic())

    def stop(self) -> None:
        """Follow no job any more."""
        super().stop()
        self._hub.remove_tracer(self.jobs)

    def count(self) -> None:
        """Have the book note the figures, and which attempts run for long."""
        stats, now = self._stats(), monotonic()
        self.jobs.look(stats.slots, now)
        self._book.count(
            now,
            queued=stats.queued,
            busy=stats.busy,
            memory=sum(slot.memory for slot in stats.slots),
            omitted=self.jobs.limit.refused,
        )
