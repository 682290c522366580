"""A channel whose other end is a bare socket, and a socket that can be asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any, Self

from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._runtime.channel.channel import READ_SIZE, Channel
from asyncpool.errors import ProtocolError

__all__ = ["LIMIT", "CountingSocket", "Line", "cut", "encode"]

LIMIT = 10_000_000


class CountingSocket(socket.socket):
    """A socket that knows how it was written to.

    Attributes:
        calls: How often it was asked to send.
        taken: How many bytes it took, each time when it took some.
        failure: What it raises instead, if anything.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.calls = 0
        self.taken: list[int] = []
        self.failure: OSError | None = None

    def send(self, *args: Any) -> int:
        self._asked()
        self.taken.append(super().send(*args))
        return self.taken[-1]

    def sendmsg(self, *args: Any) -> int:
        self._asked()
        self.taken.append(super().sendmsg(*args))
        return self.taken[-1]

    def _asked(self) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure


class Line:
    """A channel, what it has reported, and the bare socket at its other end."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.ours = CountingSocket(ours.detach())
        self.peer.setblocking(False)
        self.batches: list[list[Frame]] = []
        self.ends: list[ProtocolError | None] = []
        self.news = asyncio.Event()
        self.channel = Channel(
            asyncio.get_running_loop(),
            self.ours,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=LIMIT,
            on_frames=self.on_frames,
            on_end=self.on_end,
        )

    @property
    def frames(self) -> list[Frame]:
        return [frame for batch in self.batches for frame in batch]

    def on_frames(self, frames: list[Frame]) -> None:
        self.batches.append(frames)
        self.news.set()

    def on_end(self, error: ProtocolError | None) -> None:
        self.ends.append(error)
        self.news.set()

    async def heard(self, frames: int, ends: int = 0) -> None:
        while len(self.frames) < frames or len(self.ends) < ends:
            self.news.clear()
            await self.news.wait()

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    async def read(self, size: int = 1 << 20) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.peer, size)

    async def read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await self.read(size - len(data))
        return bytes(data)

    def send(self, data: bytes) -> None:
        self.channel.put(data)
        self.channel.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.peer.close()


def encode(job: int, payload: bytes, kind: FrameKind = FrameKind.VALUE) -> bytes:
    return header(kind, len(payload), job, 1) + payload


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
