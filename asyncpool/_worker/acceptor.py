"""Accept connections on sockets that other workers may accept on, too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Acceptor"]

# What passes when others let go of something.
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE = 0.1  # seconds

# The most that is accepted at the end of a cluster, from each socket: see the spreader's.
_ACCEPTS_AT_END = 1 << 16


class Acceptor:
    """Accepts one connection per socket and turn of the loop.

    Asyncio's own servers accept all that wait, up to their backlog: then one worker gets
    most of many connections that come at once.

    Args:
        sockets: The listening sockets, which do not block.
        accepted: Called with the descriptor of each connection, which it owns.

    Attributes:
        used: Whether it has ever accepted; or the sockets are those of somebody else.
    """

    def __init__(
        self, sockets: list[socket.socket], accepted: Callable[[int], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._accepted = accepted
        self._listening = self._scarce = False
        self.used = False

    def listen(self) -> None:
        """Accept from now on."""
        self.used = True
        if not self._listening:
            self._listening = True
            for sock in self._sockets:
                self._loop.add_reader(sock.fileno(), self._accept, sock)

    def pause(self) -> None:
        """Accept nothing before :meth:`listen`."""
        if self._listening:
            self._listening = False
            for sock in self._sockets:
                self._loop.remove_reader(sock.fileno())

    def accept_rest(self) -> None:
        """Accept what waits by now, since there are no others for it."""
        for sock in self._sockets:
            left = _ACCEPTS_AT_END
            with contextlib.suppress(OSError):
                while left and self._accept(sock):
                    left -= 1

    def close(self) -> None:
        """Accept nothing more; what waits is for the others."""
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
            if error.errno not in _SCARCE:
                raise
            self._wait(error)
            return False
        self._scarce = False
        self._accepted(connection.detach())
        return True

    def _wait(self, error: OSError) -> None:
        import logging  # noqa: PLC0415 - most workers need none

        if not self._scarce:
            self._scarce = True
            logging.getLogger("asyncpool").warning(
                "no connection can be accepted now: %s", error.strerror
            )
        self.pause()
        self._loop.call_later(_PAUSE, self.listen)
