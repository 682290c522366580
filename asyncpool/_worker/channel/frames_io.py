"""Receive whole frames, in a process that has nothing else to do meanwhile.

Send frames, in a process that has nothing else to do meanwhile.
"""

from __future__ import annotations

import mmap
import socket

from asyncpool._core.wire.frames import Frame, FrameDecoder


def decoder(max_payload: int) -> FrameDecoder:
    """Return a decoder for :func:`receive`."""
    # Of such memory only what is written to exists, and none of it is kept.
    return FrameDecoder(
        max_payload=max_payload, allocate=lambda size: mmap.mmap(-1, size)
    )


def receive(sock: socket.socket, decoder: FrameDecoder) -> list[Frame]:
    """Wait for whole frames; none means that the channel has ended."""
    while True:
        if decoder.target is not None:
            size = sock.recv_into(decoder.target)
            frames = decoder.fill(size)
        else:
            data = sock.recv(65536)
            size = len(data)
            frames = decoder.feed(data) if data else []
        if frames or not size:
            return frames


def receive_some(sock: socket.socket, decoder: FrameDecoder) -> list[Frame] | None:
    """Take what is there, and return what is whole by now; ``None`` means the end."""
    if decoder.target is not None:
        size = sock.recv_into(decoder.target)
        return decoder.fill(size) if size else None
    data = sock.recv(65536)
    return decoder.feed(data) if data else None


# Up to here one system call and a copy are cheaper than two system calls.
SMALL = 65_536


def send(sock: socket.socket, head: bytes, payload: bytes) -> None:
    """Send a frame, and what its head begins with."""
    if len(payload) <= SMALL:
        sock.sendall(head + payload)
    else:
        sock.sendall(head)
        sock.sendall(payload)
