"""Send frames, in a process that has nothing else to do meanwhile."""

from __future__ import annotations

import socket

# Up to here one system call and a copy are cheaper than two system calls.
SMALL = 65_536


def send(sock: socket.socket, head: bytes, payload: bytes) -> None:
    """Send a frame, and what its head begins with."""
    if len(payload) <= SMALL:
        sock.sendall(head + payload)
    else:
        sock.sendall(head)
        sock.sendall(payload)
