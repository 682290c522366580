"""How many things have happened lately, at a time that comes from outside.

What happened *t* seconds ago counts ``exp(-t / span)``.  So at a constant rate the count is as many
as happen in a span, and a few spans after the last one it is nothing.
"""

from __future__ import annotations

import math


class RecentCount:
    """A count that fades.

    Args:
        span: Seconds in which what has happened fades to 1/e.
    """

    __slots__ = ("_at", "_count", "_new", "_span")

    def __init__(self, span: float) -> None:
        self._span = span
        self._count: float = 0.0
        self._new: int = 0  # since the last look
        self._at: float = -math.inf  # when that was

    def add(self) -> None:
        """Count one more."""
        self._new += 1

    def at(self, now: float) -> int:
        """Return the count; a time before that of the last look is taken for that one."""
        now = max(self._at, now)
        self._count *= math.exp((self._at - now) / self._span)
        self._count += self._new
        self._new, self._at = 0, now
        return int(self._count)
