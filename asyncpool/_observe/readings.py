"""What exporters of figures have in common: one reading of a pool or cluster, and what they tell."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from asyncpool.enums import RunState

# The bounds in each exported histogram, in seconds.  They never change, or nobody could
# compare two readings.  Each bound is a series for each function, so there are only powers of
# four, from 64 us to 72 minutes: every second one of the powers of two in PoolStats.
BOUNDS = tuple((1 << digits) / 1e6 for digits in range(6, 34, 2))


class _SlotStats(Protocol):
    @property
    def cpu(self) -> float: ...


class Stats(Protocol):
    """What the figures of pools and of clusters have in common."""

    @property
    def state(self) -> RunState: ...
    @property
    def exited_cpu(self) -> float: ...
    @property
    def slots(self) -> Sequence[_SlotStats]: ...


S = TypeVar("S")
T = TypeVar("T", bound=Stats)
S_co = TypeVar("S_co", bound=Stats, covariant=True)


class Readable(Protocol[S_co]):
    """What has figures: a pool, or a cluster."""

    def stats(self) -> S_co:
        """Return them."""
        ...


class Reading(NamedTuple, Generic[S]):
    """The figures of one pool or cluster at one moment.

    Attributes:
        stats: The figures.
        cpu: Seconds of CPU time of all workers, also of those that have ended.
    """

    stats: S
    cpu: float


class StatsReader(Generic[T]):
    """Reads one pool or cluster, now and then, in any thread."""

    def __init__(self) -> None:
        self._cpu = 0.0  # the most seconds of CPU time that were read
        self._lock = threading.Lock()

    def read(self, readable: Readable[T]) -> Reading[T]:
        """Read the figures of *readable*, which is always the same."""
        stats = readable.stats()
        seconds = stats.exited_cpu + sum(slot.cpu for slot in stats.slots)
        with self._lock:
            # A worker that has just ended is for a moment neither in /proc nor part of
            # exited_cpu.  If the sum fell, it would look like a restart of the service.
            self._cpu = max(self._cpu, seconds)
            return Reading(stats, self._cpu)
