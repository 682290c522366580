"""Accept connections on listening sockets, in the master or in workers that share them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING

from asyncpool._cluster.rules import EXHAUSTED

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

_PAUSE = 0.1  # seconds

# Want of descriptors is told at most once in so many seconds, because it comes in bursts.
_QUIET = 10.0

# The most that is accepted at the end: more than any kernel lets wait.  The limit is for clients
# that keep coming as fast as they are accepted.
_ACCEPTS_AT_END = 1 << 16


class Want:
    """Tells that there are no descriptors left, but not each time.

    Args:
        log: Called with the error of the system.
    """

    def __init__(self, log: Callable[[OSError], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._quiet_until = 0.0

    def tell(self, number: int) -> None:
        """Tell it, with the number of the error."""
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            self._log(OSError(number, os.strerror(number)))


class Acceptor:
    """Accepts connections one by one; those that it leaves wait in the kernel's queues.

    asyncio's own servers accept all that wait, up to their backlog.  If many arrive at once, one
    worker would get most of them.

    Args:
        sockets: The listening sockets, which do not block.
        ready: Called if a connection may wait; the next iteration of the loop calls it again.
        want: Is told of a lack of descriptors.

    Attributes:
        used: Whether it has ever been told to listen.  If not, other code uses the sockets.
        pauses: Whether there were no descriptors just now.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        ready: Callable[[], object],
        want: Want,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._call = ready
        self._want = want
        self._ready: deque[socket.socket] = deque()
        self._wanted = self._watching = self.used = False
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, *, wanted: bool = True) -> None:
        """Watch the sockets from now on, or do not: then other processes see what waits there."""
        self.used |= wanted
        self._wanted = wanted
        watching = wanted and self._timer is None
        if watching is self._watching:
            return
        self._watching = watching
        for sock in self._sockets:
            if watching:
                self._loop.add_reader(sock.fileno(), self._on_ready, sock)
            else:
                self._loop.remove_reader(sock.fileno())

    def accept(self) -> int | None:
        """Return the descriptor of a connection, if one waits at a socket that was ready."""
        while self._ready:
            listener = self._ready.popleft()
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._want.tell(error.errno)
                    self._pause()
                    return None
                # The client has left already, or the error is that of this one connection.
                # The loop reports the socket again if another one waits.
                continue
            connection.settimeout(None)  # the program's default one is not the worker's
            self._ready.append(listener)
            return connection.detach()
        return None

    def rest(self) -> Iterator[int]:
        """Accept what waits now, since nobody accepts it later."""
        self._ready.extend(self._sockets)
        for _ in range(_ACCEPTS_AT_END):
            descriptor = self.accept()
            if descriptor is None:
                return
            yield descriptor

    def close(self) -> None:
        """Accept nothing more."""
        self.listen(wanted=False)
        if self._timer is not None:
            self._timer.cancel()
        self._sockets = []
        self._ready.clear()

    def _on_ready(self, sock: socket.socket) -> None:
        if sock not in self._ready:
            self._ready.append(sock)
        self._call()

    def _pause(self) -> None:
        """Accept nothing for a moment, even if told to listen meanwhile."""
        self._ready.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE, self._go_on)
        self.listen(wanted=self._wanted)

    def _go_on(self) -> None:
        self._timer = None
        self.listen(wanted=self._wanted)
