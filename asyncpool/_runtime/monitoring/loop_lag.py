"""How late the event loop of the service runs what is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncpool._core.figures.durations import Durations

PERIOD = 1.0
"""Seconds from one measurement to the next."""


class LoopLag:
    """Measures once a second, as long as there is something to measure for.

    An idle pool has no timer, so that the service may sleep.

    Args:
        loop: The event loop.
        is_needed: Tells whether to go on.

    Attributes:
        durations: What was measured, in seconds.
        active: Whether there is a next measurement.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_needed: Callable[[], bool]
    ) -> None:
        self.durations = Durations()
        self.active = False
        self._loop = loop
        self._is_needed = is_needed
        self._timer: asyncio.TimerHandle | None = None

    def go(self) -> None:
        """Begin to measure."""
        self.active = True
        due = self._loop.time() + PERIOD
        self._timer = self._loop.call_at(due, self._look, due)

    def stop(self) -> None:
        """Measure no more."""
        self.active = False
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, due: float) -> None:
        self.durations.note(self._loop.time() - due)
        if self._is_needed():
            self.go()
        else:
            self.active = False
