"""A frame that a peer has begun and does not finish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncpool._runtime.base.alarm import Alarm
from asyncpool.errors import ProtocolError

# Seconds that a peer may be silent in the middle of a frame.  A worker that has lost its
# processor in the middle of a write goes on within a few seconds.
SILENCE = 60.0


class FrameWatch:
    """Ends a channel whose peer has begun a frame and then sends nothing.

    Otherwise what comes later would be taken for the rest of that frame, and a job whose
    outcome is in there would hang.  The watch notices it after one to two times
    :data:`SILENCE`.

    Args:
        loop: The loop of the channel.
        read: Reads what has arrived, if the channel reads at all now, and returns how many
            bytes are part of an unfinished frame.
        end: Called with what is wrong.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read: Callable[[], int],
        end: Callable[[ProtocolError], None],
    ) -> None:
        self._read = read
        self._end = end
        self._alarm = Alarm(loop, self._ask)
        self._silent = False

    def go_on(self) -> None:
        """Note that something has come, and that there is an unfinished frame now."""
        self._silent = False
        if not self._alarm.is_set:
            self._alarm.set_in(SILENCE)

    def stop(self) -> None:
        """Watch no more."""
        self._alarm.cancel()

    def _ask(self, _: float) -> None:
        was_silent, self._silent = self._silent, True
        # This process may have been stopped itself, so what has arrived meanwhile counts.
        pending = self._read()
        if not pending:
            return
        if was_silent and self._silent:
            text = f"it began a frame, sent {pending} bytes of it, and then nothing for"
            self._end(ProtocolError(f"{text} {SILENCE:g} s"))
        elif not self._alarm.is_set:
            self._alarm.set_in(SILENCE)
