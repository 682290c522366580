"""Which shared segments there are, which worker each belongs to, and which are free.

A segment belongs to one worker for as long as the segment exists.  A worker may write
where it once was allowed to, perhaps through a stray pointer.  So it can only damage
its own jobs.  All segments are the pool's, and the pool alone decides about them.  A
segment is free, or it is *out*: its content is on its way, or somebody has a view of
it.

It costs ten times as much to touch fresh memory as to copy into it.  So the pool keeps
free segments for a while, to use them again.  When it needs room, it drops the ones
that have been free the longest.
"""

from __future__ import annotations

# Two segments whose sizes differ by less than a quarter count as equal.
_STEPS = 4
_SMALLEST = 1 << 16

# A segment is not used for an object that is this many times smaller.
_MOST_WASTE = 4


def size_class(size: int) -> int:
    """Return the size of a segment for *size* bytes."""
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

    The ledger iterates over copies of its tables, which it makes in one step.  For
    Ctrl-C may cancel a job, and so free a segment, between any two other steps.  A
    caller may free thousands of segments at once.  So nothing that a job needs iterates
    over all free segments.

    Args:
        bound: The most bytes that all segments may have together.

    Attributes:
        total: How many bytes they have.
        idle: How many bytes are free.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: dict[int, _Entry] = {}
        # The free ones by number, the one that has been free the longest first.
        self._free: dict[int, _Entry] = {}
        # The same, by size, for each owner.  The key is its identity, since owners may
        # be equal.
        self._shelves: dict[int, dict[int, dict[int, None]]] = {}
        self._last = 0
        self.total = 0
        self.idle = 0

    def take(self, owner: object, size: int) -> int | None:
        """Return a free segment of *owner* that fits *size* bytes; it is now out."""
        shelves = self._shelves.get(id(owner), {})
        for best in sorted(shelves):
            if size <= best <= _MOST_WASTE * size:
                # The one that was freed last, since its memory is the warmest.
                number = next(reversed(shelves[best]))
                self._take_out(number)
                return number
        return None

    def add(self, owner: object, size: int) -> tuple[int | None, list[int]]:
        """Add a new segment of *size* bytes, which is out.

        Returns:
            Its number, or ``None`` if there may be no such segment; and the free
            segments that were dropped to make room for it.
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
        """Record that segment *number*, which was out, is free again."""
        entry = self._entries[number]
        shelves = self._shelves.setdefault(id(entry.owner), {})
        shelf = shelves.setdefault(entry.size, {})
        # From here on nothing is called, so nothing can interrupt this.
        entry.free_since = now
        self._free[number] = entry
        self.idle += entry.size
        shelf[number] = None

    def forget(self, number: int) -> None:
        """Record that segment *number* does not exist any more."""
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
        """Return the segments that have been free since *moment* or longer."""
        return [
            number
            for number, entry in list(self._free.items())
            if entry.free_since is not None and entry.free_since <= moment
        ]

    def next_free_since(self) -> float | None:
        """Since when the segment is free that has been free the longest."""
        entry = next(iter(self._free.values()), None)
        return entry.free_since if entry is not None else None
