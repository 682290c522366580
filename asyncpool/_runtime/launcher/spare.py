"""The process that a launcher has forked ahead, as the pool sees it.

It becomes a worker as soon as it gets descriptors, and ends if it never will.
"""

from __future__ import annotations

import socket

from asyncpool._runtime.launcher.process import Process


class SpareProcess:
    """The process, and the way of a worker's descriptors to it.

    Args:
        process: The process.
        door: The descriptor of the socket at which it waits, owned by this object.

    Attributes:
        process: The same, which is no longer this object's once it has become a worker.
    """

    def __init__(self, process: Process, door: int) -> None:
        self.process = process
        self._door = socket.socket(fileno=door)

    def hand_over(self, fds: list[int]) -> bool:
        """Make it a worker; return whether it is still there.  Once is all."""
        with self._door:
            try:
                socket.send_fds(self._door, [b"."], fds)
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Let it end."""
        self._door.close()
        self.process.close()
