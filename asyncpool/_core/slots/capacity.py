"""How many workers a pool has, and how many it may add or let go at this moment.

A worker *counts* unless it is about to leave, or is the replacement of one that is not
about to leave yet.  The size of the pool is the number of workers that count.  It stays
between a least and a most number.

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

from collections.abc import Iterable, Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

_NOT_NEEDED = frozenset({SlotState.UNUSED, SlotState.RETIRED})


class Budget:
    """How many workers may come and go at this moment.

    Args:
        slots: The slots; there may be more later.
        sizing: How many workers the pool should have.
        max_surge: How many workers there may be beyond that.
        max_unavailable: How many workers may be missing.
        serving: Whether workers serve instead of running jobs.  Then a worker that
            fails is followed before it has finished.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        sizing: Sizing,
        *,
        max_surge: int,
        max_unavailable: int,
        serving: bool,
    ) -> None:
        self._slots = slots
        self._sizing = sizing
        self._surge = max_surge
        self._unavailable = max_unavailable
        self._serving = serving

    # Workers that are there.

    def counts(self, slot: Slot) -> bool:
        """Tell whether the worker of *slot* counts for the size of the pool."""
        if slot.state in _NOT_NEEDED or slot.draining:
            return False
        return slot.replaces is None or self._slots[slot.replaces].draining

    @property
    def missing(self) -> int:
        """How many workers are still to be started; below zero, how many are too many."""
        return self._sizing.size - sum(map(self.counts, self._slots))

    @property
    def coming(self) -> int:
        """How many workers are being started."""
        return sum(slot.state is SlotState.STARTING for slot in self._slots)

    def needs(self, slot: Slot) -> bool:
        """Tell whether a worker should be started in an empty *slot*."""
        return self.missing + self.counts(slot) > 0

    @property
    def settled(self) -> bool:
        """Whether as many workers are ready as there should be, and none comes or goes."""
        return not self.missing and not any(
            slot.draining
            or slot.state is SlotState.STARTING
            or (self.counts(slot) and slot.state not in UP)
            for slot in self._slots
        )

    def misses(self, index: int) -> bool:
        """Tell whether there should be another worker in a slot whose worker has gone."""
        return self._slots[index].state not in _NOT_NEEDED

    # What the budget allows.

    @property
    def free(self) -> int:
        """How many more workers there may be.  Failing workers take up nothing."""
        filled = sum(slot.state not in _NOT_NEEDED for slot in self._slots)
        return self._sizing.size + self._surge - filled + self._failing

    @property
    def can_replace(self) -> bool:
        """Whether a worker may be started before another one goes."""
        return self.free > 0 and self._surge > 0

    @property
    def can_miss(self) -> bool:
        """Whether a worker may go before another one is started."""
        taking = sum(slot.state in UP and not slot.draining for slot in self._slots)
        return self._sizing.size - taking < self._unavailable

    @property
    def can_fail(self) -> bool:
        """Whether a failing worker may have a successor before it has finished."""
        return self._failing < self._sizing.size + self._surge

    def slots_for(self, most: int) -> int:
        """Return how many slots the pool needs for *most* workers."""
        return most + self._surge

    @property
    def _failing(self) -> int:
        """How many workers have failed, and have a successor before they have finished."""
        if not self._serving:
            return 0
        return sum(
            it.faulty and it.draining and not it.exit_planned for it in self._slots
        )


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
