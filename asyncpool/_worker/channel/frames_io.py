"""Send and receive whole frames on blocking sockets."""

from __future__ import annotations

import mmap
import socket

from asyncpool._core.wire.frames import Frame, FrameDecoder


def decoder(max_payload: int) -> FrameDecoder:
    """Return a decoder for :func:`receive`."""
    # The kernel gives this memory real pages only where it is written to, and none is kept.
    return FrameDecoder(
        max_payload=max_payload, allocate=lambda size: mmap.mmap(-1, size)
    )


def receive(sock: socket.socket, decoder: FrameDecoder) -> list[Frame]:
    """Wait for whole frames; an empty list means that the channel has ended."""
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
    """Read without waiting, and return the whole frames; ``None`` means the end."""
    if decoder.target is not None:
        size = sock.recv_into(decoder.target)
        return decoder.fill(size) if size else None
    data = sock.recv(65536)
    return decoder.feed(data) if data else None


# Up to here one system call and a copy are cheaper than two system calls.
SMALL = 65_536


def send(sock: socket.socket, head: bytes, payload: bytes) -> None:
    """Send a frame, after the bytes in *ahead*."""
    if len(payload) <= SMALL:
        sock.sendall(head + payload)
    else:
        sock.sendall(head)
        sock.sendall(payload)
