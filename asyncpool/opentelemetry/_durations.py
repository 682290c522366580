"""The histograms of a pool, as observations of a histogram of OpenTelemetry.

OpenTelemetry has no histogram that reads its figures when they are collected: it wants to be
told each duration.  A pool counts its durations itself, at a tenth of the price, so here the
durations that came since the last collection are told afterwards, a bucket at a time.

A duration is told as a value in the bucket that it is in.  That is exact, since the bounds of
the exported histogram are some of those of the pool's.  And all values of one histogram are at
the same place in their buckets, which is chosen so that their sum is exact too.
"""

from __future__ import annotations

from asyncpool.stats import Histogram

# A value at its bucket's bound would count as one of the bucket beside it.
_LEAST, _MOST = 0.001, 0.999

# Below it there is only what took less than a microsecond.
_FIRST_BOUND = 1e-6


# To tell one takes 6 us of the thread that collects, which has the GIL meanwhile.  So this is how
# many are told in a second on average, of all pools, and how many in one collection.
MOST_A_SECOND = 1000
MOST_AT_ONCE = 10_000


class Budget:
    """How many durations may be told.  The times come from outside.

    Args:
        now: The time.
    """

    def __init__(self, now: float) -> None:
        self._left = float(MOST_AT_ONCE)
        self._at = now

    def divide(self, due: int, now: float) -> int:
        """Return that one of how many durations is to be told, if so many are due."""
        come = (now - self._at) * MOST_A_SECOND
        self._left = min(MOST_AT_ONCE, self._left + come)
        self._at = now
        every = 1 + int(due / max(1.0, self._left))
        self._left -= due / every
        return every


class NewDurations:
    """What was added to one histogram of a pool since it was told the last time."""

    def __init__(self) -> None:
        self._total = 0.0
        self._counts: dict[float, int] = {}
        self._owed: dict[float, int] = {}
        self._values: dict[float, float] = {}

    def add(self, histogram: Histogram) -> int:
        """Take the histogram as it is now; return how many durations are to be told."""
        new: dict[float, int] = {}
        for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
            added = count - self._counts.get(bound, 0)
            if added > 0:
                new[bound] = added
                self._counts[bound] = count
                self._owed[bound] = self._owed.get(bound, 0) + added
        if new:
            place = _place(new, histogram.total - self._total)
            self._total = histogram.total
            for bound in new:
                least = _least(bound)
                self._values[bound] = least + place * (bound - least)
        return sum(self._owed.values())

    def take(self, every: int) -> list[tuple[float, int]]:
        """Return values, and how often to tell each: one for *every* so many durations."""
        taken: list[tuple[float, int]] = []
        for bound, owed in self._owed.items():
            if owed >= every:
                taken.append((self._values[bound], owed // every))
                self._owed[bound] = owed % every
        return taken


def _least(bound: float) -> float:
    """Return the lower bound of a bucket."""
    return bound / 2 if bound > _FIRST_BOUND else 0.0


def _place(counts: dict[float, int], total: float) -> float:
    """Return where in their buckets durations are, from 0 to 1, so that *total* is their sum."""
    least = sum(_least(bound) * count for bound, count in counts.items())
    most = sum(bound * count for bound, count in counts.items())
    return min(_MOST, max(_LEAST, (total - least) / (most - least)))
