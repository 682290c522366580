"""Accept connections on listening sockets, in the master or in workers that share them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import TYPE_CHECKING

from asyncpool._engine.loop import Alarm

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

# Errors which say that this process, or this machine, has no descriptor or memory left.  They end
# when some process closes a descriptor.
_EXHAUSTED = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM

# Seconds for which nothing is accepted then, even if it is told to listen meanwhile.
_PAUSE = 0.1

# Want of descriptors is told at most once in so many seconds, because it comes in bursts.
_QUIET = 10.0

# The most that is accepted at the end: more than any kernel lets wait.  The limit is for clients
# that keep coming as fast as they are accepted.
_ACCEPTS_AT_END = 1 << 16


class Acceptor:
    """Accepts connections one by one; those that it leaves wait in the kernel's queues.

    asyncio's own servers accept all that wait, up to their backlog.  If many arrive at once, one
    worker would get most of them.

    Args:
        sockets: The listening sockets, which do not block.
        ready: Called if a connection may wait; the next iteration of the loop calls it again.
        log: Called now and then with the error of the system while there are no descriptors left.

    Attributes:
        used: Whether it has ever been told to listen.  If not, other code uses the sockets.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        ready: Callable[[], object],
        log: Callable[[OSError], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets, self._call, self._log = sockets, ready, log
        self._quiet_until = 0.0
        self._ready: deque[socket.socket] = deque()
        self._wanted = self._watching = self.used = False
        self._pause = Alarm(self._loop, lambda _: self.listen(wanted=self._wanted))

    def listen(self, *, wanted: bool = True) -> None:
        """Watch the sockets from now on, or do not: then other processes see what waits there."""
        self.used |= wanted
        self._wanted = wanted
        watching = wanted and not self._pause.is_set
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
                if error.errno in _EXHAUSTED:
                    self.tell_want(error.errno)
                    self._ready.clear()
                    if not self._pause.is_set:
                        self._pause.set_in(_PAUSE)
                    self.listen(wanted=self._wanted)
                    return None
                # The client has left already, or the error is that of this one connection.
                # The loop reports the socket again if another one waits.
                continue
            connection.settimeout(None)  # the program's default one is not the worker's
            self._ready.append(listener)
            return connection.detach()
        return None

    def tell_want(self, number: int) -> None:
        """Tell that there are no descriptors left, with the number of the error, but not each time."""
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            self._log(OSError(number, os.strerror(number)))

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
        self._pause.cancel()
        self._sockets = []
        self._ready.clear()

    def _on_ready(self, sock: socket.socket) -> None:
        if sock not in self._ready:
            self._ready.append(sock)
        self._call()
