"""Accept connections on sockets that other workers may accept on, too."""

from __future__ import annotations

import asyncio
import errno
import socket

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Acceptor"]

# What passes when others let go of something.
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE = 0.1  # seconds


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

    def close(self) -> None:
        """Accept nothing more; what waits is for the others."""
        self.pause()
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    def _accept(self, sock: socket.socket) -> None:
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            self._wait(error)
        else:
            self._scarce = False
            self._accepted(connection.detach())

    def _wait(self, error: OSError) -> None:
        import logging  # noqa: PLC0415 - most workers need none

        if not self._scarce:
            self._scarce = True
            logging.getLogger("asyncpool").warning(
                "no connection can be accepted now: %s", error.strerror
            )
        self.pause()
        self._loop.call_later(_PAUSE, self.listen)
