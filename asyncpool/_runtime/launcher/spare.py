"""The service's side of a spare process: one that the launcher has forked ahead of need.

The spare process waits at a socket.  When the pool sends it descriptors there, it becomes a
worker.  When the pool closes the socket, the spare process ends.
"""

from __future__ import annotations

import socket

from asyncpool._runtime.launcher.process import Process
from asyncpool._system.sockets import socket_of


class SpareProcess:
    """A spare process, and the socket at which it waits for descriptors.

    Args:
        process: The process.
        door: The descriptor of the pool's end of that socket; this object owns it.

    Attributes:
        process: The same process.  After :meth:`hand_over` it belongs to the worker handle.
    """

    def __init__(self, process: Process, door: int) -> None:
        self.process = process
        self._door = socket_of(door)

    def hand_over(self, fds: list[int]) -> bool:
        """Make the process a worker, which works once; return whether it is still there."""
        with self._door:
            try:
                socket.send_fds(self._door, [b"."], fds)
            except OSError:
                return False
        return True

    def close(self) -> None:
        """End the process, which never became a worker."""
        self._door.close()
        self.process.close()
