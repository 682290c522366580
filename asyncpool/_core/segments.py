"""Which shared segments there are, whose each is, and which of them are free.

A segment belongs to one worker for as long as it exists: what a worker, or a stray
pointer in it, writes where it once was allowed to, can hurt nobody's jobs but its own.
All segments are the pool's, which alone decides.  One is free, or it is *out*: its
contents are on their way, or somebody has a view of them.

To touch fresh memory costs ten times as much as to copy into it, so what is free is
kept, and taken again, for a while; what has been free the longest makes room for what
is needed now.
"""

from __future__ import annotations

__all__ = ["SegmentLedger", "size_class"]

# Two segments that differ by less than a quarter might as well be the same.
_STEPS = 4
_SMALLEST = 1 << 16

# A segment is not spent on something this many times smaller.
_MOST_WASTE = 4


def size_class(size: int) -> int:
    """Return how large a segment for *size* bytes is."""
    step = max(_SMALLEST, 1 << (size - 1).bit_length()) // (2 * _STEPS)
    return max(_SMALLEST, -(-size // step) * step)


class _Entry:
    __slots__ = ("free_since", "owner", "size")

    def __init__(self, owner: object, size: int) -> None:
        self.owner = owner
        self.size = size
        self.free_since: float | None = None


class SegmentLedger:
    """The segments of one pool, by number.

    It looks at copies of its tables, which are made in one step: Ctrl-C may cancel a job,
    and so free a segment, between any two others.

    Args:
        bound: The most bytes that all of them may have together.

    Attributes:
        total: How many they have.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: dict[int, _Entry] = {}
        # By number, the one that has been free the longest first.
        self._free: dict[int, _Entry] = {}
        self._last = 0
        self.total = 0

    @property
    def idle(self) -> int:
        """How many bytes are free."""
        return sum(entry.size for entry in list(self._free.values()))

    def take(self, owner: object, size: int) -> int | None:
        """Return a free segment of *owner* that fits *size* bytes; it is out now."""
        fitting = [
            (entry.size, number)
            for number, entry in list(self._free.items())
            if entry.owner is owner and size <= entry.size <= _MOST_WASTE * size
        ]
        if not fitting:
            return None
        _, number = min(fitting)
        self._free.pop(number).free_since = None
        return number

    def add(self, owner: object, size: int) -> tuple[int | None, list[int]]:
        """Enter a new segment of *size* bytes, which is out.

        Returns:
            Its number, or ``None`` if there may be no such segment; and the free ones
            that had to make room for it and are forgotten.
        """
        dropped: list[int] = []
        if self.total - self.idle + size > self._bound:
            return None, dropped
        while self.total + size > self._bound:
            dropped.append(next(iter(self._free)))
            self.forget(dropped[-1])
        self._last += 1
        self._entries[self._last] = _Entry(owner, size)
        self.total += size
        return self._last, dropped

    def free(self, number: int, now: float) -> None:
        """Take note that segment *number*, which was out, may be used again."""
        entry = self._free[number] = self._entries[number]
        entry.free_since = now

    def forget(self, number: int) -> None:
        """Take note that segment *number* is no more."""
        self._free.pop(number, None)
        self.total -= self._entries.pop(number).size

    def free_since(self, moment: float) -> list[int]:
        """Return what has been free since *moment* or longer."""
        return [
            number
            for number, entry in list(self._free.items())
            if entry.free_since is not None and entry.free_since <= moment
        ]

    def next_free_since(self) -> float | None:
        """Since when that one is free that has been for the longest."""
        entry = next(iter(self._free.values()), None)
        return entry.free_since if entry is not None else None
