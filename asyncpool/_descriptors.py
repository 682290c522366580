"""Pass descriptors on, over Unix sockets and in pickles."""

from __future__ import annotations

import array
import errno
import os
import socket

__all__ = ["HANDED", "Handed", "receive_fds"]

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

# Those that this process got for what it is to unpickle; None where one was lost.
HANDED: list[int | None] = []


class Handed:
    """Stands for a descriptor in a pickle.

    Args:
        number: Which one it is of those that go along.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        """Return the descriptor, which belongs to the caller.

        Raises:
            OSError: If it was lost on its way, since this process may open no more.
        """
        fd = HANDED[self._number]
        if fd is None:
            text = "a descriptor for the initializer cannot be received"
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {text}")
        return fd


def receive_fds(
    sock: socket.socket, size: int, most: int
) -> tuple[bytes, list[int], bool]:
    """Return data, the descriptors that came with it, and whether some were lost.

    Not :func:`socket.recv_fds`: that one drops its flags, so that what it returns
    is inherited by every program that a job starts.  Descriptors are lost, while
    the data arrives, when this process may open no more.
    """
    room = array.array("i", [0] * most)
    data, ancillary, flags, _ = sock.recvmsg(
        size, socket.CMSG_SPACE(room.itemsize * most), _CLOEXEC
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found = array.array("i")
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
            fds += found
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds, bool(flags & socket.MSG_CTRUNC)
