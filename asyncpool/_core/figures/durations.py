"""Durations, counted by powers of two.

A microsecond or an hour, each duration falls into one of 64 buckets: a bucket holds those
with the same number of binary digits, in microseconds.  To count one takes 60 ns, and the
bounds are the same in all pools, so histograms of several can be added.

Rejected: buckets whose bounds the user chooses.  They take a search for each duration, and
whoever has chosen badly sees nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool.errors import ProtocolError
from asyncpool.stats import NO_DURATIONS, Histogram

# A count for each number of binary digits that a duration of microseconds may have.
BUCKETS = 64

# Before packed counts: the sum, the first bucket that has any, and how many counts follow.
HEAD = 3


class Durations:
    """A histogram that is being filled.

    Attributes:
        counts: How many there were, by the binary digits of their microseconds.
        total: Their sum, in microseconds, in which workers tell their run times.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        self.total: float = 0

    def note(self, seconds: float) -> None:
        """Count one more; what is below 0, since clocks differ, counts as 0."""
        if seconds > 0:
            microseconds = seconds * 1e6
            self.counts[int(microseconds).bit_length()] += 1
            self.total += microseconds
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
            total=self.total / 1e6,
        )

    def add(self, other: Durations) -> None:
        """Count those that *other* has counted, too."""
        self.total += other.total
        for digits, count in enumerate(other.counts):
            self.counts[digits] += count

    def follows(self, earlier: Durations) -> bool:
        """Tell whether none is missing of those that *earlier* has counted."""
        return all(map(int.__ge__, self.counts, earlier.counts))

    def pack(self) -> list[int]:
        """Return numbers that :meth:`unpack` reads; there are few of them if most counts are 0."""
        used = [digits for digits, count in enumerate(self.counts) if count]
        among = self.counts[used[0] : used[-1] + 1] if used else []
        return [round(self.total), used[0] if used else 0, len(among), *among]

    def unpack(self, numbers: Sequence[int], at: int) -> int:
        """Take over what was packed, from *numbers* at *at* on; return where its end is.

        Raises:
            ProtocolError: If there is nothing such.
        """
        begin = at + HEAD
        if begin > len(numbers):
            raise ProtocolError("durations are cut short")
        total, first, size = numbers[at:begin]
        end = begin + size
        if first + size > BUCKETS or end > len(numbers):
            raise ProtocolError("durations cannot be read")
        self.total = total
        self.counts[first : first + size] = numbers[begin:end]
        return end
