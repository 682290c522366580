"""One timer for the times of all jobs.

It is set anew only for what comes before whatever it is set to: with the same limit for
all jobs, hardly ever.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from asyncpool._core.base.deadlines import Deadlines
from asyncpool._core.slots.health import LATE

__all__ = ["Timeouts"]


class Timeouts:
    """Watches the times of a pool's jobs.

    Args:
        loop: Whose clock counts.
        deadlines: The times.
        on_due: Called with the jobs whose time is over, and when that is.

    Attributes:
        resumed_at: When this process was last found to go on after a while in which it, or
            its loop, had been stopped; minus infinity if it never was.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        on_due: Callable[[list[int], float], None],
    ) -> None:
        self.resumed_at = -math.inf
        self._loop = loop
        self._deadlines = deadlines
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0  # of that timer; uvloop's cannot tell

    def watch(self, job: int, until: float | None) -> None:
        """Call back when it is *until*, instead of any time given before for *job*."""
        if until is None:
            self._deadlines.discard(job)
            return
        self._deadlines.set(job, until)
        if self._timer is None or until < self._when:
            self._ring_by(until)

    def stop(self) -> None:
        """Call back no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring_by(self, when: float) -> None:
        """Have the timer set to then, or to what is before."""
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        self._when = when
        self._timer = self._loop.call_at(when, self._on_timer, when)

    def _on_timer(self, when: float) -> None:
        # A timer may fire a clock tick early, as the loop sees it.
        now = max(when, self._loop.time())
        if now - when > LATE:
            self.resumed_at = now
        self._timer = None
        self._on_due(self._deadlines.pop(now), now)
        later = self._deadlines.next()
        if later is not None:
            self._ring_by(later)
