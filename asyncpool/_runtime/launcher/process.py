"""One worker's process, as the service sees and signals it.

On Linux the pool holds the process by a pidfd, so that a signal can never hit a later process
with the same number.  On other systems the pool sends no signal after the launcher has reported
the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.arguments import is_refusal, tell_once
from asyncpool._runtime.base.machine import status_of_zombie

_LOGGER = logging.getLogger("asyncpool")

# Seconds that the launcher has to report an end that the pidfd has shown already.
_REPORT_GRACE = 0.5


class Process:
    """A process that the launcher has started, and whose end the launcher will report.

    Args:
        loop: The loop that watches for its end.
        pid: Its number.
        pidfd: A descriptor that stands for the process, owned by this object, or ``None``.

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
        self._has_launcher = True
        self._pidfd = pidfd
        self._end: asyncio.Future[int | None] = loop.create_future()
        self._alarm = Alarm(loop, lambda _: self._ended_unreported())
        if pidfd is not None:
            loop.add_reader(pidfd, self._is_gone)

    async def wait(self) -> int | None:
        """Wait until the process has ended; return its exit status, or ``None`` if unknown.

        A negative status means that a signal with that number has ended the process.

        Cancellation:
            Safe: the process goes on.
        """
        return await asyncio.shield(self._end)

    def ended(self, status: int | None, *, cpu: float = 0.0) -> None:
        """Note the exit status and the CPU time of the process, which has ended."""
        self._alarm.cancel()
        if not self._end.done():
            self.cpu = cpu
            self._end.set_result(status)

    def launcher_gone(self) -> None:
        """Watch the process without the launcher, which is gone.

        Without a pidfd nothing would show the end of the process.  So it is killed now.
        """
        self._has_launcher = False
        if self._pidfd is None:
            self.signal(signal.SIGKILL)
            self.ended(None)
        elif self._alarm.is_set:
            self._ended_unreported()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is still there."""
        if self._end.done():
            return
        try:
            self._send(number)
        except ProcessLookupError:
            pass  # the process has just ended
        except OSError as error:
            extra = {"pid": self.pid, "signal": int(number)}
            say.SIGNAL_NOT_SENT.log(_LOGGER, extra, why=error)

    def close(self) -> None:
        """Close the pidfd."""
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
                # The number is still that of this process: the launcher has not reaped it.
                tell_once("pidfd_send_signal", error, "workers are signalled by number")
            else:
                return
        os.kill(self.pid, number)

    def _is_gone(self) -> None:
        # The launcher reports the exit status and more, but it may be stopped, or dead.
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        if not self._end.done():
            self._alarm.set_in(_REPORT_GRACE if self._has_launcher else 0.0)

    def _ended_unreported(self) -> None:
        # Without a launcher the system collects the process, sooner or later than this.
        status = status_of_zombie(self.pid) if self._has_launcher else None
        # The launcher would have killed the rest of the group.  The kernel has hardly given
        # the number to another process by now.
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended(status)
