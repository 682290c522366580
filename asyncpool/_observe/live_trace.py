"""A trace that is written while its pool or cluster lives."""

from __future__ import annotations

import asyncio
import itertools
import os
from time import monotonic
from typing import Protocol

from asyncpool._observe.trace_file import TraceFile
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import Event

# Seconds between two looks at the figures, and how long a line waits at most.
INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

# The pools and clusters of one service are told apart by these.
_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


def next_number() -> int:
    """Return what the trace calls the next pool or cluster of this process."""
    return os.getpid() * _POOLS + next(_numbers) % _POOLS


class Book(Protocol):
    """What becomes of events and figures; *lines* is what is to be written."""

    lines: list[str]

    def lost(self, now: float, lines: int) -> None:
        """Write that so many lines are missing."""
        ...

    def end(self, now: float) -> None:
        """Write the end of the trace."""
        ...


class LiveTrace:
    """Hears the events of a pool or cluster, and writes its trace.

    A subclass says what becomes of an event, and looks at the figures.

    Args:
        file: The file.
        book: What makes the lines.
        hub: What tells the events.
    """

    def __init__(self, file: TraceFile, book: Book, hub: PoolHub) -> None:
        self._file = file
        self._lines = book
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(INTERVAL, self._look)
        hub.add_reader(self)

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        self.note(event)
        self.hand_over_many()

    def hand_over_many(self) -> None:
        """Hand the lines over, if they are many."""
        if len(self._lines.lines) >= _MANY:
            self._hand_over()

    def stop(self) -> None:
        """Hear of nothing any more but of the end."""
        self._hub.remove_reader(self)

    def note(self, event: Event) -> None:
        """Have the book note an event."""
        raise NotImplementedError

    def count(self) -> None:
        """Have the book note the figures, at most twice a second and at the end."""
        raise NotImplementedError

    def end(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self.count()
        finally:
            self._lines.end(monotonic())
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
        file, book = self._file, self._lines
        lost = file.lost
        if book.lines:
            file.put(book.lines)
            book.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            book.lost(monotonic(), lost)
