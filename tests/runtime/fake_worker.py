"""A worker that serves, of which a test plays every part: a bare socket, and no process."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from asyncpool._core.figures.request_figures import RequestFigures
from asyncpool._core.wire.frames import (
    HEADER_SIZE,
    Frame,
    FrameDecoder,
    FrameKind,
    header,
)
from asyncpool._core.wire.messages import pack_numbers
from asyncpool._runtime.channel.channel import READ_SIZE, Channel
from asyncpool._runtime.channel.descriptor_socket import DescriptorSocket
from asyncpool._runtime.cluster.balancer import ConnectionBalancer
from asyncpool._runtime.cluster.link import (
    MAX_MESSAGE,
    WorkerLink,
)
from asyncpool._runtime.cluster.message_queues import MessageQueues
from asyncpool.errors import ProtocolError
from tests.helpers.patience import patience

if TYPE_CHECKING:
    from asyncpool._runtime.cluster.service import Service

__all__ = ["FakeWorker", "Master"]


class Master:
    """What of a cluster's master deals with lines, and nothing else.

    Attributes:
        listener: What it accepts on.
        address: Where that is.
    """

    def __init__(self, name: str = "c") -> None:
        self.loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.lines: dict[int, WorkerLink] = {}
        self.balancer = ConnectionBalancer(self.loop, name, [self.listener], self.lines)
        self.mail = MessageQueues(name)
        self.queues = self.mail
        self.stopped = False
        self.workers: list[FakeWorker] = []
        self.guests: list[socket.socket] = []
        self._patience = patience()

    def worker(self, *, ready: bool = True) -> FakeWorker:
        """Return one more worker."""
        worker = FakeWorker(self, len(self.workers))
        self.workers.append(worker)
        if ready:
            worker.ready()
        return worker

    async def guest(self) -> socket.socket:
        """Return a connection to the cluster."""
        guest = socket.socket()
        self.guests.append(guest)
        guest.setblocking(False)
        await self.loop.sock_connect(guest, self.address)
        return guest

    # What a link asks of its service.

    def begin_drain(self, link: WorkerLink) -> None:
        self.balancer.left(link)

    def count_load(self, link: WorkerLink, opened: int, closed: int, cut: int) -> None:
        self.balancer.core.load(link.slot, opened, closed, cut)

    @property
    def waiting(self) -> int:
        """How many connections have come back and wait."""
        return len(self.balancer.core.waiting)

    async def __aenter__(self) -> Self:
        await self._patience.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.die()
        self.balancer.close()
        self.mail.close()
        self.listener.close()
        for guest in self.guests:
            guest.close()
        await self._patience.__aexit__(kind, error, traceback)


class FakeWorker:
    """One worker.

    Attributes:
        slot: Its slot.
        peer: Its end of the line.
        trouble: How it has broken the protocol.
        link: The master's end.
    """

    def __init__(self, master: Master, slot: int) -> None:
        self.slot = slot
        self.trouble = ""
        self._master = master
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        sock = DescriptorSocket(ours)
        self.channel = Channel(
            master.loop,
            sock,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=MAX_MESSAGE,
            on_frames=self._on_frames,
            on_end=self._on_end,
        )
        self.link = WorkerLink(slot, 1, sock, self.channel, cast("Service", master))
        master.lines[slot] = self.link
        master.balancer.core.add(slot)
        self.news = asyncio.Event()
        self.turn = asyncio.Event()
        self._decoder = FrameDecoder(max_payload=MAX_MESSAGE)
        self._frames: deque[Frame] = deque()
        self._arrived: deque[int] = deque()
        self._dead = False

    def ready(self) -> None:
        self.link.open = True
        self._master.balancer.joined(self.link)

    def die(self) -> None:
        """End, as a process does whose end is told when all is read."""
        if self._dead:
            return
        self._dead = True
        for fd in self._arrived:
            os.close(fd)
        self.peer.close()
        self.channel.drain()
        self.channel.close()
        del self._master.lines[self.slot]
        self.link.shut()
        self._master.balancer.gone(self.link)

    # What it hears.

    async def frame(self) -> tuple[Frame, int | None]:
        """Wait for the next frame; return it with the descriptor that came along."""
        while not self._frames:
            await self._readable()
            data, ancillary, _, _ = self.peer.recvmsg(READ_SIZE, socket.CMSG_SPACE(4))
            if not data:
                raise EOFError
            for _, _, fds in ancillary:
                self._arrived += array.array("i", fds)
            self._frames += self._decoder.feed(data)
        frame = self._frames.popleft()
        carries = frame.kind in {FrameKind.HANDLE, FrameKind.LISTEN}
        return frame, self._arrived.popleft() if carries else None

    async def handle(self) -> tuple[int, int]:
        """Wait for the next handle; return its number and its descriptor."""
        frame, fd = await self.frame()
        assert frame.kind is FrameKind.HANDLE
        assert fd is not None
        return frame.job, fd

    async def take(self) -> int:
        """Take the next connection, and close it; return its number."""
        number, fd = await self.handle()
        os.close(fd)
        self.say(FrameKind.TAKEN, number)
        return number

    async def _readable(self) -> None:
        loop, ready = self._master.loop, asyncio.Event()
        loop.add_reader(self.peer.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.peer.fileno())

    # What it says.

    def say(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        self.peer.sendall(header(kind, len(payload), number) + payload)

    def load(self, opened: int, closed: int, cut: int = 0, *, lost: int = 0) -> None:
        self.say(FrameKind.LOAD, lost, pack_numbers((opened, closed, cut)))

    def figures(self, *refused: int) -> None:
        """Tell of so many refused requests, one report after the other."""
        for count in refused:
            figures = RequestFigures()
            figures.refused = count
            self.say(FrameKind.FIGURES, payload=pack_numbers(figures.pack()))

    def send(self, number: int, *fds: int, tag: int = 1) -> None:
        socket.send_fds(self.peer, [header(FrameKind.HANDLE, 0, number, tag=tag)], fds)

    def send_slowly(self, number: int, fd: int) -> None:
        """Send the header of a handle in two pieces; the first brings the descriptor."""
        data = header(FrameKind.HANDLE, 0, number, tag=1)
        socket.send_fds(self.peer, [data[: HEADER_SIZE // 2]], [fd])
        self.peer.sendall(data[HEADER_SIZE // 2 :])

    async def accused(self) -> str:
        """Wait until it has broken the protocol, and return how."""
        while not self.trouble:
            self.news.clear()
            await self.news.wait()
        return self.trouble

    async def heard(self) -> None:
        """Wait until the master has read something of it."""
        self.turn.clear()
        await self.turn.wait()

    # What a handle does.

    def _on_frames(self, frames: list[Frame]) -> None:
        if not self.trouble:
            try:
                self.link.on_frames(frames)
            except ProtocolError as error:
                self._accuse(str(error))
        self.turn.set()

    def _on_end(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._accuse(str(error))
        self.link.shut()
        self.news.set()

    def _accuse(self, trouble: str) -> None:
        self.trouble = trouble
        self.link.shut()
        self.news.set()
