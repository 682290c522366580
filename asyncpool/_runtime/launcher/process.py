"""One worker's process, as far as it can be seen and touched from here.

On Linux it is held by a pidfd, so that a signal can never hit a process that has
inherited the number; elsewhere no signal is sent after its end was reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.refusals import is_refusal, tell_once

_LOGGER = logging.getLogger("asyncpool")

# Seconds that the launcher has to report an end that the pidfd shows.
_REPORT_GRACE = 0.5


class Process:
    """A process that the launcher has started and will report the end of.

    Args:
        loop: The loop on which its end is awaited.
        pid: Its number.
        pidfd: A descriptor that stands for it, owned by this object, or ``None``.

    Attributes:
        pid: As above.
        cpu: Seconds of CPU time that it has used, once it has ended and if it is known.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, pidfd: int | None
    ) -> None:
        self._loop = loop
        self.pid = pid
        self.cpu = 0.0
        self._report_grace = _REPORT_GRACE
        self._pidfd = pidfd
        self._end: asyncio.Future[int | None] = loop.create_future()
        self._alarm = Alarm(loop, lambda _: self._ended_unreported())
        if pidfd is not None:
            loop.add_reader(pidfd, self._is_gone)

    async def wait(self) -> int | None:
        """Return its exit status once it has ended; ``None`` if nobody knows it.

        The negative number of a signal stands for the signal.

        Cancellation:
            Safe: the process is not touched.
        """
        return await asyncio.shield(self._end)

    def ended(self, status: int | None, *, cpu: float = 0.0) -> None:
        """Take note of its end, and of the CPU time that it has used."""
        self._alarm.cancel()
        if not self._end.done():
            self.cpu = cpu
            self._end.set_result(status)

    def launcher_gone(self) -> None:
        """Do without the launcher's word.

        Without a pidfd nobody would hear of its end, so it ends now.
        """
        self._report_grace = 0.0
        if self._pidfd is None:
            self.signal(signal.SIGKILL)
            self.ended(None)
        elif self._alarm.is_set:
            self._ended_unreported()

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self._end.done():
            return
        try:
            self._send(number)
        except ProcessLookupError:
            pass  # it has just ended
        except OSError as error:
            _LOGGER.error(  # noqa: TRY400 - nothing is wrong here
                "signal %d cannot be sent to worker %d: %s", number, self.pid, error
            )

    def close(self) -> None:
        """Let go of the process."""
        self.ended(None)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _send(self, number: int) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except OSError as error:
                if not is_refusal(error):
                    raise
                # The number is still its own: its end was not reported yet.
                tell_once("pidfd_send_signal", error, "workers are signalled by number")
            else:
                return
        os.kill(self.pid, number)

    def _is_gone(self) -> None:
        # Only the launcher knows the status; but it may be stopped, or dead.
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        if not self._end.done():
            self._alarm.set_in(self._report_grace)

    def _ended_unreported(self) -> None:
        # The launcher would have done this; the number is as good as unused still.
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended(None)
