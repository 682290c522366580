"""The link of a worker that serves, and what it accepts by itself, also where it may open no more."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._cluster.acceptor import _PAUSE, _QUIET, Acceptor
from asyncpool._cluster.rules import DrainTimes
from asyncpool._cluster.worker import DrainTime, LinkChannel
from asyncpool._engine.channel import READ_SIZE, DescriptorSocket
from asyncpool._wire import log_records as say
from asyncpool._worker.channels import own_logger
from asyncpool.errors import ProtocolError
from tests.helpers import virtual_time
from tests.helpers.patience import PATIENCE, patience
from tests.worker.by_hand import Frame, FrameDecoder, FrameKind, header, receive_fds

MAX_PAYLOAD = 1 << 22


class Peer:
    """The pool's end, and what the worker's end has made of what was written."""

    def __init__(self) -> None:
        self.sock, other = socket.socketpair()
        self.sock.settimeout(PATIENCE)
        self.frames: list[tuple[FrameKind, int, bytes]] = []
        self.descriptors: list[int | None] = []
        self.ends: list[ProtocolError | None] = []
        self.changed = asyncio.Event()
        self._decoder = FrameDecoder(max_payload=MAX_PAYLOAD)
        self._read: list[tuple[Frame, int | None]] = []
        self._fds: list[int] = []
        self.arrived = DescriptorSocket(other)
        self.line = LinkChannel(
            asyncio.get_running_loop(),
            self.arrived,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=MAX_PAYLOAD,
            on_frames=self._on_frames,
            on_end=self.ends.append,
        )

    def _on_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.frames.append((frame.kind, frame.job, bytes(frame.payload)))
            if frame.kind is FrameKind.HANDLE:
                descriptor = self.arrived.arrived.popleft()
                mark = None if descriptor is None else read_mark(descriptor)
                self.descriptors.append(mark)
        self.changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with patience():
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def hand(self, number: int) -> None:
        """Write a frame with a descriptor that is known by its number."""
        descriptor = marked(number)
        frame = header(FrameKind.HANDLE, 0, number)
        assert socket.send_fds(self.sock, [frame], [descriptor]) == len(frame)
        os.close(descriptor)

    def read(self, count: int) -> list[tuple[Frame, int | None]]:
        """Read so many frames at the pool's end, with the marks of their descriptors."""
        while len(self._read) < count:
            data, fds, _ = receive_fds(self.sock, 65_536, 1)
            assert data
            self._fds += fds
            for frame in self._decoder.feed(data):
                carries = frame.kind is FrameKind.HANDLE
                mark = read_mark(self._fds.pop(0)) if carries else None
                self._read.append((frame, mark))
        found, self._read = self._read[:count], self._read[count:]
        return found

    def close(self) -> None:
        self.line.close()
        self.sock.close()


def marked(number: int) -> int:
    descriptor = os.memfd_create("mark")
    os.write(descriptor, b"%d" % number)
    return descriptor


def read_mark(descriptor: int) -> int:
    """Return by what it is known, and close it."""
    number = int(os.pread(descriptor, 20, 0))
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    return number


def run(test: Callable[[Peer], Awaitable[None]]) -> None:
    """Run a test that is a coroutine with a peer of its own."""

    async def main() -> None:
        peer = Peer()
        try:
            await test(peer)
        finally:
            peer.close()

    asyncio.run(main())


# What the pool writes: frames with descriptors, of which some are lost, and others.
HANDLE = st.tuples(st.just(FrameKind.HANDLE), st.booleans())
OTHER = st.tuples(st.just(FrameKind.MESSAGE), st.binary(max_size=100))
WRITTEN = st.lists(st.one_of(HANDLE, OTHER), max_size=12)


@given(written=WRITTEN, size=st.integers(1, 60))
def test_each_descriptor_comes_with_its_frame_however_reads_are_cut(
    written: list[tuple[FrameKind, Any]], size: int
) -> None:
    lost = [
        number
        for number, (kind, extra) in enumerate(written)
        if kind is not FrameKind.MESSAGE and extra
    ]

    receive = DescriptorSocket.recv_into

    def read(sock: DescriptorSocket, buffer: memoryview, _: int = 0) -> int:
        had = len(sock.arrived)
        found = receive(sock, buffer[:size])
        # As the kernel does when there is no room for a descriptor: it closes it.
        fd = sock.arrived[-1] if len(sock.arrived) > had else None
        if fd is not None and int(os.pread(fd, 20, 0)) in lost:
            os.close(fd)
            sock.arrived[-1] = None
        return found

    async def test(peer: Peer) -> None:
        for number, (kind, extra) in enumerate(written):
            if kind is FrameKind.MESSAGE:
                peer.sock.sendall(header(kind, len(extra), number) + extra)
            else:
                peer.hand(number)
        await peer.until(lambda: len(peer.frames) == len(written))
        assert peer.frames == [
            (kind, number, extra if kind is FrameKind.MESSAGE else b"")
            for number, (kind, extra) in enumerate(written)
        ]
        assert peer.descriptors == [
            None if number in lost else number
            for number, (kind, _) in enumerate(written)
            if kind is not FrameKind.MESSAGE
        ]
        assert not peer.ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DescriptorSocket, "recv_into", read)
        run(test)


def test_a_flood_leaves_turns_to_others() -> None:
    async def test(peer: Peer) -> None:
        for number in range(40):
            peer.hand(number)
        await peer.until(lambda: peer.frames)
        seen = len(peer.frames)
        assert 0 < seen < 40
        await peer.until(lambda: len(peer.frames) == 40)
        assert peer.descriptors == list(range(40))

    run(test)


TOLD = "no connection can be accepted now: Too many open files"


class Room:
    """How many more connections this process may open.

    Attributes:
        left: That many.
        tries: When somebody has tried to accept one, in virtual time.
    """

    def __init__(self) -> None:
        self.left = 0
        self.tries: list[float] = []

    def accept(self) -> None:
        """Take the room for one.

        Raises:
            OSError: If there is none.
        """
        self.tries.append(round(asyncio.get_running_loop().time(), 3))
        if not self.left and len(self.tries) < 1000:  # or it would never end
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.left -= 1


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Have no room, until there is some."""
    found, accept = Room(), socket.socket.accept

    def accept_if(sock: socket.socket) -> tuple[socket.socket, object]:
        found.accept()
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", accept_if)
    return found


class Door:
    """A socket that listens, guests that have come, and those that were let in.

    Attributes:
        acceptor: What lets them in.
        inside: How many it has.
    """

    def __init__(self, stack: ExitStack, guests: int) -> None:
        self._stack = stack
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        for _ in range(guests):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        self.inside = 0
        self.acceptor = Acceptor(
            [listener],
            self._let_in,
            lambda it: say.NOT_ACCEPTED.log(own_logger(), {}, why=it.strerror),
        )
        stack.callback(self.acceptor.close)

    def _let_in(self) -> None:
        if (descriptor := self.acceptor.accept()) is not None:
            self.inside += 1
            self._stack.callback(os.close, descriptor)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def pass_time(seconds: float) -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def test_without_descriptors_it_pauses_and_goes_on(
    room: Room, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door = Door(stack, 3)
        door.acceptor.listen()
        await pass_time(2.5 * _PAUSE)
        assert room.tries == [0.0, 0.1, 0.2], "and not again and again"
        assert door.inside == 0
        room.left = 2
        await pass_time(_PAUSE)
        assert door.inside == 2
        room.left = 1
        await pass_time(_PAUSE)
        assert door.inside == 3
        assert caplog.messages == [TOLD]
        stack.close()

    virtual_time.run(main())


def test_nobody_makes_it_try_before_the_time(room: Room, stack: ExitStack) -> None:
    async def main() -> None:
        door = Door(stack, 1)
        door.acceptor.listen()
        await pass_time(_PAUSE / 4)
        for _ in range(3):
            # As when a connection is taken that has come before.
            door.acceptor.listen(wanted=False)
            door.acceptor.listen()
            await pass_time(_PAUSE / 4)
        await pass_time(_PAUSE / 4)
        assert room.tries == [0.0, 0.1]
        stack.close()

    virtual_time.run(main())


def test_it_is_told_now_and_then(
    room: Room, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door = Door(stack, 60)
        door.acceptor.listen()
        for _ in range(50):  # one goes and one comes, all the time
            await pass_time(0.9 * _QUIET / 50)
            room.left = 1
        assert door.inside > 40
        assert caplog.messages == [TOLD]
        await pass_time(0.2 * _QUIET)
        assert caplog.messages == [TOLD] * 2
        stack.close()

    virtual_time.run(main())


# When the time of a worker that drains is over.


# Seconds that a worker has if all ends, and if others serve on.
AT_END, REPLACED = 5.0, 60.0


@pytest.mark.parametrize(
    ("calls", "seconds"),
    [
        ({}, AT_END),
        ({"others_serve": 0.0}, REPLACED),
        # That others serve may be known later.
        ({"others_serve": 2.0}, REPLACED),
        # The end of the cluster leaves what the end has, and nobody has longer for it.
        ({"others_serve": 1.0, "cluster_ends": 20.0}, 20.0 + AT_END),
        ({"others_serve": 1.0, "cluster_ends": 58.0}, REPLACED),
        ({"cluster_ends": 2.0}, AT_END),
    ],
)
def test_how_long_a_worker_may_drain(calls: dict[str, float], seconds: float) -> None:
    """These are called so many seconds after the beginning."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        time = DrainTime(DrainTimes(AT_END, REPLACED))
        time.begin()
        for name, after in calls.items():
            loop.call_later(after, getattr(time, name))
        began = loop.time()
        await time.bound(asyncio.Event().wait())
        return loop.time() - began

    assert virtual_time.run(main()) == seconds
