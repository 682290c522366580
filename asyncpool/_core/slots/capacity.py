"""The size of a pool: how many workers it should have, between a least and a most number.

A pool grows when jobs have waited for a while: by one worker, then by two, by four, and
so on, as long as jobs go on waiting.  So a burst that the present workers can finish at
once starts no worker, and a flood of jobs does not start all workers in one moment.
The pool starts no more workers than there are jobs without one.

A pool shrinks when a worker has been idle for *idle_timeout*.  The time of the next
check never comes later than that.  While no worker is idle, the next check is a whole
*idle_timeout* from now, so the pool need not do anything at the moment when a worker
becomes idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.base.deadlines import earliest

# Seconds that jobs wait before the pool adds workers, and before it adds more again.  A
# worker is ready about 10 ms after the pool wants it.
GROW_EVERY = 0.02


class Sizing:
    """The size that a pool should have.

    Args:
        least: How many workers there are at the least.
        most: How many workers there may be.
        idle_timeout: After how many seconds without work the pool lets a worker go.

    Attributes:
        size: How many workers there should be.
        watching: Whether it matters that a job has to wait; see :meth:`job_waits`.
    """

    def __init__(self, least: int, most: int, idle_timeout: float) -> None:
        self.size = self.least = least
        self.most = most
        self._idle_timeout = idle_timeout
        self._burst = 1
        self._grow_at: float | None = None
        self._shrink_at: float | None = None
        self.watching = least < most

    def limit(self, least: int, most: int, now: float) -> None:
        """Set the least and the most number of workers."""
        self.least, self.most = least, most
        self._grow_at, self._burst = None, 1
        self._resize(min(max(self.size, least), most), now)

    def job_waits(self, now: float) -> None:
        """Record that a job waits and no worker is being started for it, while *watching*."""
        if self.watching:
            self.watching, self._grow_at = False, now + GROW_EVERY

    def grow(self, now: float, *, waiting: int, coming: int) -> None:
        """Grow, if jobs have waited long enough; workers that are starting take one job each.

        Args:
            now: The time.
            waiting: How many jobs have no worker.
            coming: How many workers are already being started.
        """
        if self._grow_at is None or now < self._grow_at:
            return
        self._grow_at = None
        more = min(self._burst, waiting - coming)
        if more > 0:
            self._burst *= 2
            self._resize(min(self.size + more, self.most), now)
            if self.size < self.most:
                self._grow_at = now + GROW_EVERY
        elif not waiting:
            self._burst = 1
        self.watching = self._grow_at is None and self.size < self.most

    def shrink(self, now: float, idle: Iterable[tuple[float, int]]) -> int | None:
        """Shrink by one idle worker, if there is one too many, and return its slot.

        Args:
            now: The time.
            idle: The idle workers: for each, since when it is idle, and its slot.
        """
        if self._shrink_at is None or now < self._shrink_at:
            return None
        since, slot = min(idle, default=(now, None))
        if slot is None or since + self._idle_timeout > now:
            self._shrink_at = min(since, now) + self._idle_timeout
            return None
        self._resize(self.size - 1, now)
        # There is no next check if that was the last worker too many.
        if self._shrink_at is not None:  # pyright: ignore[reportUnnecessaryComparison] - _resize() sets it
            self._shrink_at = now
        return slot

    @property
    def shrinks(self) -> bool:
        """Whether the pool looks for a worker that has been idle for too long."""
        return self._shrink_at is not None

    def next_deadline(self, *, nobody_goes: bool) -> float | None:
        """When to call :meth:`grow` and :meth:`shrink`; ``None`` if there is no need.

        While *nobody_goes*, since no worker may leave now, there is no need to shrink.
        """
        return earliest(self._grow_at, None if nobody_goes else self._shrink_at)

    def _resize(self, size: int, now: float) -> None:
        self.size = size
        self.watching = self._grow_at is None and size < self.most
        if size == self.least:
            self._shrink_at = None
        elif self._shrink_at is None:
            self._shrink_at = now + self._idle_timeout
