"""Durations, counted by powers of two.

A microsecond or an hour, each duration falls into one of 64 buckets: a bucket holds those
with the same number of binary digits, in microseconds.  To count one takes 60 ns, and the
bounds are the same in all pools, so histograms of several can be added.

Rejected: buckets whose bounds the user chooses.  They take a search for each duration, and
whoever has chosen badly sees nothing.
"""

from __future__ import annotations

from asyncpool.stats import NO_DURATIONS, Histogram

# A count for each number of binary digits that a duration of microseconds may have.
_BUCKETS = 64


class Durations:
    """A histogram that is being filled.

    Attributes:
        counts: How many there were, by the binary digits of their microseconds.
        total: Their sum, in seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * _BUCKETS
        self.total: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one more; what is below 0, since clocks differ, counts as 0."""
        if seconds > 0:
            self.counts[int(seconds * 1e6).bit_length()] += 1
            self.total += seconds
        else:
            self.counts[0] += 1

    def histogram(self) -> Histogram:
        """Return what was counted until now."""
        counts = self.counts
        used = [digits for digits, count in enumerate(counts) if count]
        if not used:
            return NO_DURATIONS
        among = range(used[0], used[-1] + 1)
        return Histogram(
            bounds=tuple((1 << digits) / 1e6 for digits in among),
            counts=tuple(counts[digits] for digits in among),
            total=self.total,
        )
