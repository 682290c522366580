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
from asyncpool._runtime.base.alarm import Alarm


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
        self._deadlines = deadlines
        self._on_due = on_due
        self._alarm = Alarm(loop, self._on_alarm)

    def watch(self, job: int, until: float | None) -> None:
        """Call back when it is *until*, instead of any time given before for *job*."""
        if until is None:
            self._deadlines.discard(job)
            return
        self._deadlines.set(job, until)
        self._alarm.set_by(until)

    def stop(self) -> None:
        """Call back no more."""
        self._alarm.cancel()

    def _on_alarm(self, now: float) -> None:
        if now - self._alarm.due > LATE:
            self.resumed_at = now
        self._on_due(self._deadlines.pop(now), now)
        later = self._deadlines.next()
        if later is not None:
            self._alarm.set_by(later)
