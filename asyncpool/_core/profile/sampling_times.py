"""When a sampler looks at the stacks."""

from __future__ import annotations

# The range of the generator of pseudo-random numbers, and its constants.  The module random
# would cost a worker 300 KB.
_RANGE = 1 << 31
_FACTOR, _STEP = 1_103_515_245, 12_345


class SamplingTimes:
    """The times at which a sampler looks, until its time is over.

    The distance between two looks varies by half of its mean.  With equal distances, a job
    that does the same every 10 ms would be met at the same place each time.

    Args:
        rate: How many looks there are in a second.
        seconds: For how long.
        now: When that begins.
    """

    def __init__(self, rate: float, seconds: float, now: float) -> None:
        self._distance = 1 / rate
        self._end = now + seconds
        self._random = int(now * 1e6) % _RANGE
        self._due = now
        self._set_next()

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next look; ``None`` if there is none."""
        if self._due >= self._end:
            return None
        return max(0.0, self._due - now)

    def take(self, now: float) -> int:
        """Return how many looks are due by *now*, of which all but one are late."""
        due = 0
        while self._due <= now and self._due < self._end:
            due += 1
            self._set_next()
        return due

    def _set_next(self) -> None:
        self._random = (self._random * _FACTOR + _STEP) % _RANGE
        self._due += self._distance * (0.5 + self._random / _RANGE)
