"""One timer for the time limits of all jobs.

It is set again only if a new limit comes before all others.  If all jobs have the same limit,
that hardly ever happens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from asyncpool._core.base.deadlines import Deadlines
from asyncpool._core.slots.ping_ledger import LATE
from asyncpool._runtime.base.alarm import Alarm


class DeadlineTimer:
    """Watches the time limits of a pool's jobs.

    Args:
        loop: The loop, for its clock.
        deadlines: When the time of each job is over.
        on_due: Called with the jobs whose time is over, and the time.

    Attributes:
        resumed_at: When this process last went on after it, or its loop, had been stopped
            for a while; minus infinity if that never happened.
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
        """Call back at *until*, instead of at any time set before for *job*."""
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
