"""Decide when the next renewal of a lease may begin, and how many may be in progress.

The outside system takes only so many renewals a second.  So there is one renewal per
*tick*, and a tick every ``1 / rate`` seconds.  From 40 a second on, a tick is for all the
renewals of :data:`TICK` seconds: to wake up for a renewal costs more than to send it, and at 100
a second it costs 1 % of a core.

Time that passes without a renewal is gone: no tokens are saved up, and so no burst follows a
stall.  But a timer of an event loop is late by up to a millisecond or two, and at forty
renewals a second that lateness would cost a twentieth of them.  So the next ticks make
:data:`SLACK` seconds of lateness good.  Let *b* be the renewals at a tick, which is one up to a
rate of 40.  Then any *n + b* renewals in a row take at least ``n / rate - SLACK`` seconds.  In
other words, any *w* seconds have at most ``rate * (w + SLACK) + b`` of them.
"""

from __future__ import annotations

import enum
import math

# Seconds of lateness that the next ticks make good.
SLACK = 0.002

# Seconds between two ticks, if a tick is for several renewals; less if an interval is short.
TICK = 0.05

# The longest pause after a renewal that was throttled, as a share of the interval.
_MAX_PAUSE = 1 / 8

# The weight of the latest renewal in the mean of how long renewals take.
_WEIGHT = 1 / 8


def pause_before(retry: int, max_retries: int, interval: float) -> float:
    """Return the seconds between a failed renewal and its *retry*, counted from 1.

    Each pause is twice as long as the one before.  The last one is a quarter of the interval,
    so all of them take less than half of it.  The other half is for the attempts themselves.
    """
    return math.ldexp(interval, retry - max_retries - 2)


def longest_gap(interval: float, max_retries: int, timeout: float) -> float:
    """Return how long a lease can go without extension if only its last attempt succeeds.

    The gap is from the begin of a renewal to the end of that attempt.  Each attempt takes
    *timeout*, and there are no more leases than an interval has renewals.
    """
    pauses = interval / 2 - math.ldexp(interval, -1 - max_retries)
    return interval + pauses + (2 + max_retries) * timeout


class RenewalResult(enum.Enum):
    """How a renewal ended."""

    EXTENDED = enum.auto()
    THROTTLED = enum.auto()
    FAILED = enum.auto()
    LOST = enum.auto()


class RenewalPace:
    """The ticks of one keeper: when the next renewal may begin.

    Args:
        max_rate: The most renewals a second.
        interval: Seconds in which each lease has a turn.
        overlap: How many renewals may be in progress at a time.
        max_overlap: How many at the most, if they take so long that *max_rate* asks for more.
        now: Current time.

    Attributes:
        next_tick: When the next tick is.
    """

    def __init__(
        self,
        *,
        max_rate: float,
        interval: float,
        overlap: int,
        max_overlap: int,
        now: float,
    ) -> None:
        self._max_rate, self._interval = max_rate, interval
        self._overlap, self._max_overlap = overlap, max_overlap
        # The mean of how long renewals take; the latest one counts most.
        self._latency: float | None = None
        # The next tick is a full one, for so many renewals: with 40 a second it is two,
        # whatever floats make of that.  All but the last of them may come before it.
        self._at_a_tick = max(1, int(max_rate * min(TICK, interval / 4) + 1e-9))
        self.next_tick = now
        self._not_before = now  # because of a renewal that was throttled
        self._streak = 0  # pauses in a row, without a success between them
        self._slowed = float("-inf")  # when the latest of them began

    @property
    def rate(self) -> float:
        """The most renewals a second: *max_rate*, or fewer if they take too long for that."""
        in_progress = self._max_rate * (self._latency or 0.0)
        if not in_progress:
            return self._max_rate
        return self._max_rate * min(1.0, self._max_overlap / in_progress)

    @property
    def capacity(self) -> int:
        """How many renewals an interval has."""
        # With 0.1 a second and 30 s it is three, whatever floats make of that.
        return int(self.rate * self._interval + 1e-9)

    @property
    def max_in_progress(self) -> int:
        """How many renewals may be in progress at a time."""
        # As many as begin while one is in progress.
        wanted = math.ceil(self._max_rate * (self._latency or 0.0))
        return min(max(self._overlap, wanted), self._max_overlap)

    def may_begin(self, now: float) -> bool:
        """Tell whether a renewal may begin now."""
        early = (self._at_a_tick - 1) / self._max_rate + 1e-9
        return now >= max(self.next_tick - early, self._not_before)

    def begin(self, now: float) -> None:
        """Count a renewal that begins now."""
        self.next_tick = max(self.next_tick, now - SLACK) + 1 / self._max_rate

    def skip_to(self, now: float) -> None:
        """Drop the ticks before *now*: no lease waited, so none of them is late."""
        self.next_tick = max(self.next_tick, now)

    def end(
        self, begun: float, now: float, result: RenewalResult, retry_after: float
    ) -> float:
        """Learn from a renewal how fast the outside system is.

        Args:
            begun: When the renewal began.
            now: Current time.
            result: How it ended.
            retry_after: The pause that the outside system has asked for, in seconds.

        Returns:
            For how many seconds no renewal begins.
        """
        seconds = now - begun
        mean = seconds if self._latency is None else self._latency
        self._latency = mean + (seconds - mean) * _WEIGHT
        # Of the renewals that were in progress together only the first one counts, for
        # slower or for faster: they all tell of the same moment.
        is_news = begun > self._slowed
        if result is not RenewalResult.THROTTLED:
            if is_news and result is RenewalResult.EXTENDED:
                self._streak = 0
            return 0.0
        if is_news:
            self._streak += 1
            self._slowed = now
        return self._pause(now, retry_after)

    def _pause(self, now: float, retry_after: float) -> float:
        # Each pause doubles the time, at most 2**30 times, which is more than any cap.
        pause = min(
            2.0 ** min(self._streak, 30) / self._max_rate, self._interval * _MAX_PAUSE
        )
        pause = max(pause, 1 / self._max_rate, min(retry_after, self._interval))
        self._not_before = max(self._not_before, now + pause)
        self.next_tick = max(self.next_tick, self._not_before)
        return pause
