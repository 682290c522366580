"""Which lane of a slot's tracks shows which attempt, so that the slices of a track nest.

A viewer draws the slices of one track inside each other, so two of them may not overlap in
part.  A worker with several lanes runs several jobs at once, and each gets a track of its
own.  Attempts come here in the order of their ends.  The track that has been free for the
shortest time gets the next one: so there are never more tracks than attempts at once.

The pool hears of several short jobs together, and knows how long each ran but not when it
began.  So an attempt may be too early for every track.  Then it moves behind the one before.
"""

from __future__ import annotations

from bisect import bisect_right, insort

_LAST = 1 << 40  # more lanes than there are, to sort behind all of them


class SlotLanes:
    """The lanes of one slot.  All times are whole microseconds.

    Args:
        usual: How many attempts the worker runs at once.

    Attributes:
        count: How many lanes there are.
    """

    __slots__ = ("_free", "_usual", "count")

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._free: list[
            tuple[int, int]
        ] = []  # until when each was in use, and its number
        self.count = 0

    def put(self, begin: int, run: int) -> tuple[int, int]:
        """Give a lane to an attempt that is over; return the lane, and when it begins there."""
        free = self._free
        if self._usual == 1 and len(free) == 1:  # which most pools have
            end, lane = free[0]
            begin = max(begin, end)
            free[0] = begin + run, lane
            return lane, begin
        lane, begin = self.take(begin)
        insort(free, (begin + run, lane))
        return lane, begin

    def take(self, begin: int) -> tuple[int, int]:
        """Give a lane to an attempt that still runs; return as :meth:`put` does."""
        free = self._free
        place = bisect_right(free, (begin, _LAST))
        if place:
            _, lane = free.pop(place - 1)
            return lane, begin
        if free and self.count >= self._usual:
            begin, lane = free.pop(0)
            return lane, begin
        self.count += 1
        return self.count - 1, begin

    def give_back(self, lane: int, end: int) -> None:
        """Take back a lane from an attempt that ended at *end*."""
        insort(self._free, (end, lane))
