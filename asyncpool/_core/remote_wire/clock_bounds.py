"""How far the clock of an agent is from that of its client, and how sure that is.

The agent says in each batch when it made it, on its own clock, and when it took the newest
message that it acknowledges.  It cannot have made the batch after it came, nor taken the
message before that was sent.  So each batch bounds the difference of the clocks on both sides,
and the narrowest bounds are kept.  This is the intersection of intervals of Marzullo's
algorithm, which NTP uses, for one server.

Both clocks are monotonic ones, so wall clocks that differ by hours make no difference.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

# Seconds that two clocks may drift apart in a second: bounds widen as they grow old.
DRIFT = 1e-4

# uvloop's clock ticks once a millisecond, and says less than it is in between.
TICK = 1e-3

# So many messages are on their way whose times are kept.
_KEPT = 64


class ClockOffset(NamedTuple):
    """What is known of an agent's clock.

    Attributes:
        ahead: Seconds that it is ahead of the client's.
        error: By how many seconds that may be wrong, either way; infinity if nothing is known.
    """

    ahead: float
    error: float


class ClockBounds:
    """The bounds of the difference of two clocks."""

    def __init__(self) -> None:
        self._least = -math.inf
        self._most = math.inf
        self._at = 0.0  # when the bounds were this wide
        self._sent: deque[tuple[int, float]] = deque()

    def sent(self, last: int, now: float) -> None:
        """Take note that all messages up to number *last* have been sent by *now*."""
        if len(self._sent) < _KEPT:
            self._sent.append((last, now))

    def heard(
        self, stamp: float, taken_at: float, acknowledged: int, now: float
    ) -> None:
        """Take note of a batch that has come *now*.

        Args:
            stamp: The agent's time when it made the batch, in seconds.
            taken_at: The agent's time when it took the newest message that it acknowledges.
            acknowledged: The number of that message.
            now: The client's time.
        """
        least, most = stamp - now - TICK, math.inf
        while self._sent and self._sent[0][0] <= acknowledged:
            _, at = self._sent.popleft()
            most = taken_at - at + TICK
        self._widen(now)
        if least > most:
            return  # no clock shows that: the agent says something wrong
        if least > self._most or most < self._least:
            # A clock has jumped, as when a machine was suspended.
            self._least, self._most = least, most
        else:
            self._least, self._most = max(self._least, least), min(self._most, most)

    def offset(self, now: float) -> ClockOffset:
        """Return what is known *now*."""
        self._widen(now)
        if math.isinf(self._least) or math.isinf(self._most):
            ahead = 0.0 if math.isinf(self._least) else self._least
            return ClockOffset(ahead, math.inf)
        middle = (self._least + self._most) / 2
        return ClockOffset(middle, (self._most - self._least) / 2)

    def _widen(self, now: float) -> None:
        wider = DRIFT * max(0.0, now - self._at)
        self._least -= wider
        self._most += wider
        self._at = now
