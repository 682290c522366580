"""How many workers there are, and how many more may come, or go, before another one is ready.

Who is neither about to leave nor to replace somebody *counts*: as many as count make the
size of the pool.

And how many workers there are to be, between a least and a most number.

A pool grows when jobs have waited for a while, by one worker, then by two, by four, and
so on, as long as they go on waiting: a burst that the present workers can do at once starts
none, and a flood does not start all of them in one moment.  No more are started than
there are jobs without one.

It shrinks when a worker has been idle for long enough, counted from the moment in which
it became idle.  The time to look is never later than that: with nobody idle, it is a whole
*idle_timeout* from now, and so nothing has to be done when a worker becomes idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

_NOT_NEEDED = frozenset({SlotState.UNUSED, SlotState.RETIRED})


class Budget:
    """What a pool can afford.

    Args:
        slots: The slots; there may be more later.
        sizing: How many workers there are to be.
        max_surge: How many there may be beyond that.
        max_unavailable: How many may be missing.
        serving: Workers serve: those that are down are missed, whatever is to be done, and
            one that fails is followed before it has finished.
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

    # Who is there.

    @property
    def missing(self) -> int:
        """How many are to come; below zero, how many are too many."""
        return self._sizing.size - sum(map(counts, self._slots))

    @property
    def coming(self) -> int:
        """How many are being started."""
        return sum(slot.state is SlotState.STARTING for slot in self._slots)

    def needs(self, slot: Slot) -> bool:
        """Tell whether a worker is to come into an empty *slot*."""
        return self.missing + counts(slot) > 0

    @property
    def settled(self) -> bool:
        """Whether nobody comes or goes because of the pool's size.

        Where jobs wait in a queue, a worker that comes back later is there all the same.
        """
        if self._serving and any(
            counts(slot) and slot.state not in UP for slot in self._slots
        ):
            return False
        return not self.missing and not any(
            slot.draining or slot.state is SlotState.STARTING for slot in self._slots
        )

    @property
    def stuck(self) -> bool:
        """Whether a slot is parked since starts fail: nobody knows when it will serve."""
        parked = (slot.state is SlotState.PARKED for slot in self._slots)
        return self._serving and any(parked)

    def misses(self, index: int) -> bool:
        """Tell whether one is missing who serves, if the worker of a slot is gone."""
        return self._serving and self._slots[index].state not in _NOT_NEEDED

    # What it can afford.

    @property
    def free(self) -> int:
        """How many more workers there may be; those that fail take up nothing."""
        filled = sum(slot.state not in _NOT_NEEDED for slot in self._slots)
        return self._sizing.size + self._surge - filled + self._failing

    @property
    def can_replace(self) -> bool:
        """Whether another worker may come before one goes."""
        return self.free > 0 and self._surge > 0

    @property
    def can_miss(self) -> bool:
        """Whether one may go before another one comes."""
        taking = sum(slot.state in UP and not slot.draining for slot in self._slots)
        return self._sizing.size - taking < self._unavailable

    @property
    def can_fail(self) -> bool:
        """Whether one that fails may be followed before it has finished."""
        return self._failing < self._sizing.size + self._surge

    def slots_for(self, most: int) -> int:
        """Return how many slots it takes for so many workers."""
        return most + self._surge

    @property
    def _failing(self) -> int:
        """How many have failed, and are followed before they have finished."""
        if not self._serving:
            return 0
        return sum(it.faulty and it.draining and not it.planned for it in self._slots)


def counts(slot: Slot) -> bool:
    """Tell whether *slot* is one of those that make the size of the pool."""
    return slot.state not in _NOT_NEEDED and not slot.draining and slot.replaces is None


# Seconds that jobs wait before there are more workers, and then more again.  A worker is
# ready some 10 ms after it is wanted.
GROW_EVERY = 0.02


class Sizing:
    """The size of a pool.

    Args:
        least: How many workers there always are.
        most: How many there may be.
        idle_timeout: Seconds after which one that is idle is too many.

    Attributes:
        size: How many there are to be.
        watching: Whether it matters that a job has to wait; see :meth:`crowded`.
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
        """Change what the size is kept between."""
        self.least, self.most = least, most
        self._grow_at, self._burst = None, 1
        self._resize(min(max(self.size, least), most), now)

    def crowded(self, now: float) -> None:
        """Take note that a job waits for which nobody comes, while *watching*."""
        if self.watching:
            self.watching, self._grow_at = False, now + GROW_EVERY

    def grow(self, now: float, *, waiting: int, coming: int) -> None:
        """Grow, if it is time for that, but for no job that a coming worker is for.

        Args:
            now: The time.
            waiting: How many jobs have no worker.
            coming: How many workers are on their way already.
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
        """Return the slot that is one too many, if there is one, and shrink by it.

        Args:
            now: The time.
            idle: Since when workers are idle, each with its slot.
        """
        if self._shrink_at is None or now < self._shrink_at:
            return None
        since, slot = min(idle, default=(now, None))
        if slot is None or since + self._idle_timeout > now:
            self._shrink_at = min(since, now) + self._idle_timeout
            return None
        self._resize(self.size - 1, now)
        # It is over if that was the last one too many.
        if self._shrink_at is not None:  # pyright: ignore[reportUnnecessaryComparison] - _resize() sets it
            self._shrink_at = now
        return slot

    def next_deadline(self, *, leaving: bool) -> float | None:
        """When to call :meth:`grow` and :meth:`shrink`; ``None`` if there is no need.

        While somebody is *leaving*, nobody else does.
        """
        return earliest(self._grow_at, None if leaving else self._shrink_at)

    def _resize(self, size: int, now: float) -> None:
        self.size = size
        self.watching = self._grow_at is None and size < self.most
        if size == self.least:
            self._shrink_at = None
        elif self._shrink_at is None:
            self._shrink_at = now + self._idle_timeout
