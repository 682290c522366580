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
    and so free a segment, between any two others.  A caller may let go of thousands at
    once, so nothing that a job needs looks at each that is free.

    Args:
        bound: The most bytes that all of them may have together.

    Attributes:
        total: How many they have.
        idle: How many bytes are free.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: dict[int, _Entry] = {}
        # By number, the one that has been free the longest first.
        self._free: dict[int, _Entry] = {}
        # The same, by size, for each owner: its identity, since it may be equal to others.
        self._shelves: dict[int, dict[int, dict[int, None]]] = {}
        self._last = 0
        self.total = 0
        self.idle = 0

    def take(self, owner: object, size: int) -> int | None:
        """Return a free segment of *owner* that fits *size* bytes; it is out now."""
        shelves = self._shelves.get(id(owner), {})
        for best in sorted(shelves):
            if size <= best <= _MOST_WASTE * size:
                number = next(reversed(shelves[best]))  # the warmest
                self._take_out(number)
                return number
        return None

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
        entry = self._entries[number]
        shelves = self._shelves.setdefault(id(entry.owner), {})
        shelf = shelves.setdefault(entry.size, {})
        # Nothing is called from here on, so nothing comes in between.
        entry.free_since = now
        self._free[number] = entry
        self.idle += entry.size
        shelf[number] = None

    def forget(self, number: int) -> None:
        """Take note that segment *number* is no more."""
        if number in self._free:
            self._take_out(number)
        self.total -= self._entries.pop(number).size

    def _take_out(self, number: int) -> None:
        entry = self._free.pop(number)
        entry.free_since = None
        self.idle -= entry.size
        owner = id(entry.owner)
        shelves = self._shelves[owner]
        shelf = shelves[entry.size]
        del shelf[number]
        if not shelf:
            del shelves[entry.size]
            if not shelves:
                del self._shelves[owner]

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
