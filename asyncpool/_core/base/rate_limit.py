"""So many things a second: a bucket of tokens, which is full at first.

It is kept as a time: from when on there is one token.  Whoever asks for each of 100 000 jobs a
second then compares two numbers.
"""

from __future__ import annotations

import math

# Seconds in which an empty bucket is filled: so many things may come at once.
_SPAN = 1.0


class RateLimit:
    """A bucket of tokens.  The times come from outside, and never go backwards.

    Args:
        rate: How many things may pass in a second, one at least, and in an instant after a second
            without any; ``None`` for all.

    Attributes:
        next_at: Before this time nothing passes.
        refused: How many things did not pass; whoever compares *next_at* himself counts too.
    """

    __slots__ = ("_ahead", "_interval", "next_at", "refused")

    def __init__(self, rate: float | None) -> None:
        self._interval = 0.0 if rate is None else _SPAN / rate
        # In a full bucket the tokens but one have been there for so long; and a bit more, since
        # a sum of many intervals is not exact.
        self._ahead = _SPAN - (1 - 1e-6) * self._interval
        self.next_at = -math.inf
        self.refused = 0

    def take(self, now: float) -> bool:
        """Let one thing pass at *now*, or count it as refused."""
        if now < self.next_at:
            self.refused += 1
            return False
        self.spend(now, 1.0)
        return True

    def spend(self, now: float, tokens: float) -> None:
        """Take so many tokens, also if there are not as many."""
        self.next_at = max(self.next_at, now - self._ahead) + tokens * self._interval
