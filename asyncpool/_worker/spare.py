"""A process that is forked before it is needed, and then becomes a worker at once.

A fork takes 1 to 2 ms, and what the new process touches first as much again.  A slot
whose worker has died need not wait for that: it gets the spare one, and the launcher
forks the next when it has nothing else to do.
"""

from __future__ import annotations

import os
import socket

from asyncpool._descriptors import receive_fds
from asyncpool._worker.rehearsal import rehearse

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Spare"]

# More than a worker gets.
_MOST = 16


class Spare:
    """The process, and the way of a worker's descriptors to it.

    Args:
        fork: Forks a process that calls what it is given, to get its descriptors;
            returns its pid.

    Attributes:
        pid: Its number.

    Raises:
        OSError: If there can be none.
    """

    def __init__(self, fork: Callable[[Callable[[], list[int]]], int]) -> None:
        self._door, inside = socket.socketpair()

        def await_fds() -> list[int]:
            self._door.close()
            rehearse()
            with inside:
                data, fds, _ = receive_fds(inside, 1, _MOST)
            if not data:  # the launcher is gone
                os._exit(0)
            return fds

        try:
            self.pid = fork(await_fds)
        except OSError:
            self._door.close()
            inside.close()
            raise
        inside.close()  # not in the process that waits there, which does not come here

    def hand_over(self, fds: list[int]) -> bool:
        """Make it a worker; return whether it is still there.  Once is all."""
        with self._door:
            try:
                socket.send_fds(self._door, [b"."], fds)
            except OSError:
                return False
        return True
