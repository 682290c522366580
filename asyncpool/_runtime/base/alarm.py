"""One timer that can be set again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls back once, at the time that it is set to.

    Args:
        loop: The loop, for its clock and its timer.
        callback: Called with the time, which is never before *due*, though a timer of the loop
            may fire a tick of the clock early.  By then the alarm is no longer set.

    Attributes:
        is_set: Whether it is going to call back.
        due: The time on the loop's clock that it is set to, or was set to last.
    """

    __slots__ = ("_callback", "_loop", "_timer", "due", "is_set")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[float], object]
    ) -> None:
        self.is_set = False
        self.due = 0.0
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None

    def set_at(self, when: float | None) -> None:
        """Call back at *when* instead of at any time set before; ``None`` sets no time."""
        if self.is_set and when == self.due:
            return
        self.cancel()
        if when is not None:
            self._timer = self._loop.call_at(when, self._ring)
            self.due, self.is_set = when, True

    def set_by(self, when: float) -> None:
        """Call back at *when*, unless it is set to an earlier time."""
        if not self.is_set or when < self.due:
            self.set_at(when)

    def set_in(self, seconds: float) -> None:
        """Call back after *seconds*, instead of at any time set before."""
        self.cancel()
        # First: if the process is held up here, the callback would else be told a time to come.
        self.due = self._loop.time() + seconds
        # Not call_at(): uvloop counts in whole milliseconds.  It would round the difference of
        # two times, and get another number than for the seconds themselves.
        self._timer = self._loop.call_later(seconds, self._ring)
        self.is_set = True

    def cancel(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.is_set = False

    def _ring(self) -> None:
        self._timer = None
        self.is_set = False
        self._callback(max(self.due, self._loop.time()))
