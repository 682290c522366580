"""Receive descriptors over a Unix socket; both sides of the launcher do."""

from __future__ import annotations

import array
import os
import socket

__all__ = ["receive_fds"]

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


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
