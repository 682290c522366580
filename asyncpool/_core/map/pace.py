"""How many items of a map make a job, and how many of them are under way at once."""

from __future__ import annotations

import math

from asyncpool._core.base.job_traits import BUDGET
from asyncpool._core.base.recent_count import RecentCount
from asyncpool._core.map.chunks import CHUNK_SIZE

# How many microseconds a job of several items should take: a hundred times what the
# pool adds to it, and a sixteenth of what a worker may have in flight.
TARGET = BUDGET / 16

# A chunk is at most this many times as large as the one whose run time set its size.
_GROWTH = 16

# The least cost that an item may count with.
_LEAST = 0.25

# How many microseconds of work are under way for each worker: what it has in flight,
# and as much in the queue.
_AHEAD = 2 * BUDGET

# The fewest items under way for each worker, however long they take: a few more than it
# needs, since the first item may take longer than the others, and results keep the
# order.
_FEWEST = 4

# If nobody knows how long items take, as many as have ended in so many seconds are under way
# besides.  Where a job is a long way off, that keeps short items coming.
_SPAN = 0.1


class Pace:
    """The pace of one map.

    Args:
        chunksize: How many items make a job; ``None`` for as many as suit the pool.
        buffersize: How many items may be under way; ``None`` for as many as keep
            the pool busy.
        alone: Whether each item must be a job of its own.
        lanes: How many jobs each worker runs at once.
    """

    def __init__(
        self,
        *,
        chunksize: int | None,
        buffersize: int | None,
        alone: bool = False,
        lanes: int = 1,
    ) -> None:
        self._lanes = lanes
        self._chunk = 1 if alone else chunksize
        self._buffersize = buffersize
        self._cost: float | None = None
        self._learned_from = 1
        self._ends = RecentCount(_SPAN)
        self._recent: int = 0

    def note(self, items: int, microseconds: float) -> None:
        """Record that *items* items have taken *microseconds* in one worker."""
        cost = max(microseconds / items, _LEAST)
        known = self._cost
        # A longer time counts at once: a chunk that takes too long delays other jobs.
        if known is None or cost > known:
            self._cost = cost
        else:
            self._cost = known + (cost - known) / 4
        self._learned_from = max(self._learned_from, items)

    def ended(self, now: float) -> None:
        """Record that an item has ended *now*, in seconds, and nobody knows how long it took."""
        self._ends.add()
        self._recent = self._ends.at(now)

    def window(self, workers: int) -> int:
        """Return how many items may be under way with this number of workers."""
        if self._buffersize is not None:
            return self._buffersize
        some = _FEWEST * self._lanes
        if self._cost is None:
            return workers * some + self._recent
        return workers * max(some, math.ceil(_AHEAD / self._cost))

    def size(self, workers: int) -> int:
        """Return how many items the next job should have."""
        size = self._chunk or self._fitting()
        # Each lane should have at least two jobs, one of which waits.
        most = self.window(workers) // (2 * workers * self._lanes)
        return max(1, min(size, most, CHUNK_SIZE))

    @property
    def is_slow(self) -> bool:
        """Whether items take so long that each travels by itself."""
        return self._cost is not None and self._cost > TARGET / 2

    def _fitting(self) -> int:
        if self._cost is None or self.is_slow:
            return 1
        size = int(TARGET / self._cost)
        return min(size, _GROWTH * self._learned_from)
