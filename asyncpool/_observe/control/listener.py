"""A Unix socket of this user alone: whoever comes is let in, or turned away."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable

from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import Alarm
from asyncpool._observe.control.paths import peer_uid
from asyncpool._observe.control.socket_files import closed_on_error, listen_at
from asyncpool._wire.log_records import LogMessage

# Seconds until the next try, when this process may open no more files.
_PAUSE = 0.1

_open_ones: weakref.WeakSet[UserSocket] = weakref.WeakSet()


class UserSocket:
    """Accepts connections of this user's processes.

    Args:
        path: The path of the socket's file.  Its folder is locked; see ``socket_files.py``.
        backlog: How many connections may wait.
        trouble: The log record of a connection that cannot be accepted.
        on_client: Called with each connection, which is non-blocking, and the callee's.
        on_other: Called for each connection that is refused: with the other user, or with the
            error of a system that does not say who it is.

    Raises:
        OSError: If somebody listens there already, or the file cannot be made.
    """

    def __init__(
        self,
        path: str,
        backlog: int,
        trouble: LogMessage,
        on_client: Callable[[socket.socket], object],
        on_other: Callable[[int | OSError], object],
    ) -> None:
        self._trouble, self._on_client, self._on_other = trouble, on_client, on_other
        self._loop = asyncio.get_running_loop()
        self._pause = Alarm(self._loop, lambda _: self.listen())
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_error(self._sock):
            self._sock.setblocking(False)
            self._file = listen_at(self._sock, path, mode=0o600, backlog=backlog)
        _open_ones.add(self)

    @property
    def path(self) -> str:
        """The path of the socket's file."""
        return self._file.path

    def listen(self) -> None:
        """Accept connections from now on; some may have come before, and wait."""
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock, self._accept)

    def rest(self) -> None:
        """Accept none until :meth:`listen` is called."""
        self._loop.remove_reader(self._sock)

    def close(self) -> None:
        """Remove the file, and accept nobody any more."""
        if self._sock.fileno() < 0:  # it was closed, or is a copy
            return
        self._file.remove()
        self.rest()
        self._pause.cancel()
        self._sock.close()

    def after_fork_in_child(self) -> None:
        """Change into the copy in a process that this one has forked, which answers nobody.

        If the copies stayed open, clients would wait for the end of that process too.
        """
        for sock in (self._sock, *self._accepted):
            # Not close(), which waits until the loop has closed it too.
            if (fd := sock.detach()) >= 0:
                os.close(fd)

    def _accept(self) -> None:
        if self._sock.fileno() < 0:
            return  # the loop of a copy may still look
        # Not asyncio's server, which logs an error if it is closed while a client comes, and whose
        # transports carry no descriptors.  And not sock_accept(), which loses a client that comes
        # while it is cancelled.
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._trouble.log(LOGGER, {}, why=error)
            self.rest()
            self._pause.set_in(_PAUSE)
            return
        sock.setblocking(False)
        try:
            uid: int | OSError = peer_uid(sock)
        except OSError as error:
            uid = error
        if uid == os.geteuid():
            self._accepted.add(sock)
            self._on_client(sock)
        else:
            sock.close()
            self._on_other(uid)


def _after_fork_in_child() -> None:
    for each in _open_ones:
        each.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
