"""One timer for the times of all jobs.

It is set anew only for what comes before whatever it is set to: with the same limit for
all jobs, hardly ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncpool._core.deadlines import Deadlines

__all__ = ["Timeouts"]


class Timeouts:
    """Watches the times of a pool's jobs.

    Args:
        loop: Whose clock counts.
        deadlines: The times.
        on_due: Called with each job whose time is over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        on_due: Callable[[int, float], None],
    ) -> None:
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
            self._set_timer(until)

    def stop(self) -> None:
        """Call back no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._timer = self._loop.call_at(when, self._on_timer, when)

    def _on_timer(self, when: float) -> None:
        # A timer may fire a clock tick early, as the loop sees it.
        now = max(when, self._loop.time())
        self._timer = None
        for job in self._deadlines.pop(now):
            self._on_due(job, now)
        later = self._deadlines.next()
        if later is not None and self._timer is None:
            self._set_timer(later)
