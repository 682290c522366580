"""The trace of one pool: from the events that it publishes to the lines of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

from asyncpool._core.trace.trace_book import TraceBook
from asyncpool._observe.live_trace import LiveTrace, next_number
from asyncpool._observe.trace_file import TraceFile
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import JobEnded, JobQueued, JobStarted
from asyncpool.stats import PoolStats


class Trace(LiveTrace):
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
        title = f"pool {name}"
        file = TraceFile(path, title)
        self._book = TraceBook(title, next_number(), os.getpid(), concurrency)
        self._stats = stats
        super().__init__(file, self._book, hub)

    def note(self, event: Any) -> None:
        """Have the book note an event."""
        book = self._book
        # By the exact class, which takes the least time: there are three of each job.
        kind = type(event)
        if kind is JobQueued:
            book.queued(event)
        elif kind is JobStarted:
            book.started(event)
        elif kind is JobEnded:
            book.ended(event)
        else:
            book.happened(event, monotonic())

    def count(self) -> None:
        """Have the book note the figures, and which attempts run for long."""
        self._book.look(monotonic())
        stats = self._stats()
        self._book.count(
            monotonic(),
            queued=stats.queued,
            busy=stats.busy,
            memory=sum(slot.memory for slot in stats.slots),
        )
