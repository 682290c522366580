"""Sockets that block, whatever default timeout the program has set.

``socket.setdefaulttimeout()`` makes each later socket of Python's non-blocking in the kernel.  The
process that inherits such a socket knows nothing of the timeout, and fails at its first read.
"""

from __future__ import annotations

import socket


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets that are connected to each other."""
    one, other = socket.socketpair()
    one.settimeout(None)
    other.settimeout(None)
    return one, other


def socket_of(fd: int) -> socket.socket:
    """Return a socket that owns the descriptor *fd*."""
    sock = socket.socket(fileno=fd)
    sock.settimeout(None)
    return sock
