"""Accept connections on sockets that other workers may accept on, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from asyncpool._cluster.rules import EXHAUSTED
from asyncpool._wire import log_records as say
from asyncpool._worker.channels import own_logger

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE = 0.1  # seconds

# The worker warns of them at most once in so many seconds, because they come in bursts.
_QUIET = 10.0

# The most that is accepted at the end of a cluster, from each socket: see the balancer's.
_ACCEPTS_AT_END = 1 << 16


class AcceptRequest:
    """Warns that there are no descriptors left, but not each time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._quiet_until = 0.0

    def tell(self, number: int) -> None:
        """Warn that there are none, with the error of the system."""
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET
            say.NOT_ACCEPTED.log(own_logger(), {}, why=os.strerror(number))


class Acceptor:
    """Accepts one connection per socket and turn of the loop.

    asyncio's own servers accept all connections that wait, up to their backlog.  If many
    arrive at once, one worker would get most of them.

    Args:
        sockets: The listening sockets, which do not block.
        accepted: Called with the descriptor of each connection, which it owns.

    Attributes:
        used: Whether it has ever accepted.  If not, other code uses the sockets.
    """

    def __init__(
        self, sockets: list[socket.socket], accepted: Callable[[int], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._accepted = accepted
        self._wanted = self._watching = self._pausing = False
        self._want = AcceptRequest()
        self.used = False

    def listen(self) -> None:
        """Accept from now on."""
        self.used = self._wanted = True
        self._watch()

    def pause(self) -> None:
        """Accept nothing before :meth:`listen`."""
        self._wanted = False
        self._watch()

    def accept_rest(self) -> None:
        """Accept all connections that wait now, because no other worker will."""
        for sock in self._sockets:
            left = _ACCEPTS_AT_END
            with contextlib.suppress(OSError):
                while left and self._accept(sock):
                    left -= 1

    def close(self) -> None:
        """Accept no more connections; other workers accept those that wait."""
        self.pause()
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def _accept(self, sock: socket.socket) -> bool:
        """Accept a connection; tell whether there may be more."""
        try:
            connection, _ = sock.accept()
        except BlockingIOError:
            return False
        except (InterruptedError, ConnectionAbortedError):
            return True
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._want.tell(error.errno)
            self._wait()
            return False
        self._accepted(connection.detach())
        return True

    def _watch(self) -> None:
        """Watch the sockets, or leave connections in their queues, where others see them."""
        watching = self._wanted and not self._pausing
        if watching is self._watching:
            return
        self._watching = watching
        for sock in self._sockets:
            if watching:
                self._loop.add_reader(sock.fileno(), self._accept, sock)
            else:
                self._loop.remove_reader(sock.fileno())

    def _wait(self) -> None:
        """Accept nothing for a moment, even if :meth:`listen` is called meanwhile."""
        self._pausing = True
        self._watch()
        self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._pausing = False
        self._watch()
