"""The link of a worker that serves: frames and descriptors stay together."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._system.descriptors import receive_fds
from asyncpool._worker.cluster import link as line_module
from asyncpool._worker.cluster.link import MasterLink
from asyncpool.errors import ProtocolError
from tests.helpers.patience import PATIENCE, patience

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
        self.refuses = False
        self._decoder = FrameDecoder(max_payload=MAX_PAYLOAD)
        self._read: list[tuple[Frame, int | None]] = []
        self._fds: list[int] = []
        self.line = MasterLink(
            other,
            max_payload=MAX_PAYLOAD,
            owner=cast("Any", self),
        )

    def on_frame(self, frame: Frame, descriptor: int | None) -> None:
        """Take a frame, or refuse it."""
        if self.refuses:
            raise ProtocolError(f"no {frame.kind.name}, please")
        self.frames.append((frame.kind, frame.job, bytes(frame.payload)))
        if frame.kind in {FrameKind.HANDLE, FrameKind.LISTEN}:
            self.descriptors.append(
                None if descriptor is None else read_mark(descriptor)
            )
        self.changed.set()

    def on_end(self, error: ProtocolError | None) -> None:
        """Take the end."""
        self.ends.append(error)
        self.changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with patience():
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def hand(self, number: int, kind: FrameKind = FrameKind.HANDLE) -> None:
        """Write a frame with a descriptor that is known by its number."""
        descriptor = marked(number)
        frame = header(kind, 0, number)
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


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more."""
    lowest = os.dup(0)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# What the pool writes: frames with descriptors, of which some are lost, and others.
HANDLE = st.tuples(st.sampled_from((FrameKind.HANDLE, FrameKind.LISTEN)), st.booleans())
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

    def receive(
        sock: socket.socket, _: int, most: int
    ) -> tuple[bytes, list[int], bool]:
        # As the kernel does when there is no room for a descriptor: it closes it.
        data, fds, _ = receive_fds(sock, size, most)
        if fds and int(os.pread(fds[0], 20, 0)) in lost:
            os.close(fds.pop())
            return data, [], True
        return data, fds, False

    async def test(peer: Peer) -> None:
        for number, (kind, extra) in enumerate(written):
            if kind is FrameKind.MESSAGE:
                peer.sock.sendall(header(kind, len(extra), number) + extra)
            else:
                peer.hand(number, kind)
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
        patch.setattr(line_module, "receive_fds", receive)
        run(test)


@given(written=WRITTEN, cut=st.floats(0, 1), size=st.integers(1, 60))
def test_an_end_may_come_anywhere(
    written: list[tuple[FrameKind, Any]], cut: float, size: int
) -> None:
    pieces = [
        (header(kind, len(payload), number) + payload, kind is not FrameKind.MESSAGE)
        for number, (kind, extra) in enumerate(written)
        for payload in [extra if kind is FrameKind.MESSAGE else b""]
    ]
    left = int(cut * sum(len(data) for data, _ in pieces))
    whole = 0
    descriptors = []

    def receive(
        sock: socket.socket, _: int, most: int
    ) -> tuple[bytes, list[int], bool]:
        return receive_fds(sock, size, most)

    async def test(peer: Peer) -> None:
        nonlocal left, whole
        for number, (data, carries) in enumerate(pieces):
            part = data[:left]
            left -= len(part)
            if not part:
                break
            if carries:
                descriptor = marked(number)
                socket.send_fds(peer.sock, [part], [descriptor])
                os.close(descriptor)
            else:
                peer.sock.sendall(part)
            if part == data:
                whole += 1
                descriptors.extend([number] * carries)
        peer.sock.shutdown(socket.SHUT_WR)
        await peer.until(lambda: peer.ends)
        assert peer.ends == [None]
        assert len(peer.frames) == whole
        assert peer.descriptors == descriptors
        # What the guards see: the descriptor of a frame that was cut is closed, too.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_module, "receive_fds", receive)
        run(test)


def test_a_descriptor_for_which_there_is_no_room_is_lost_alone() -> None:
    async def test(peer: Peer) -> None:
        for number in (1, 2):
            peer.hand(number)
        with no_descriptor_left():
            await peer.until(lambda: len(peer.frames) == 2)
        assert peer.descriptors == [None, None]
        peer.hand(3)
        await peer.until(lambda: len(peer.frames) == 3)
        assert peer.descriptors == [None, None, 3]

    run(test)


def test_a_long_payload_costs_no_descriptor_behind_it() -> None:
    long = os.urandom(1 << 20) + b"end"

    async def test(peer: Peer) -> None:
        peer.hand(1)
        writing = asyncio.to_thread(
            peer.sock.sendall, header(FrameKind.MESSAGE, len(long)) + long
        )
        await writing
        peer.hand(2)
        await peer.until(lambda: len(peer.frames) == 3)
        assert [kind for kind, _, _ in peer.frames] == [
            FrameKind.HANDLE,
            FrameKind.MESSAGE,
            FrameKind.HANDLE,
        ]
        assert peer.frames[1][2] == long
        assert peer.descriptors == [1, 2]

    run(test)


@pytest.mark.parametrize("kind", [FrameKind.HANDLE, FrameKind.LISTEN])
def test_a_frame_that_lacks_its_descriptor_ends_the_line(kind: FrameKind) -> None:
    async def test(peer: Peer) -> None:
        peer.sock.sendall(header(FrameKind.MESSAGE, 0) + header(kind, 0, 1))
        await peer.until(lambda: peer.ends)
        assert len(peer.frames) == 1
        (error,) = peer.ends
        assert str(error) == f"{kind.name} came without a descriptor"

    run(test)


def test_several_descriptors_with_one_frame_are_an_offence() -> None:
    async def test(peer: Peer) -> None:
        marks = [marked(1), marked(2)]
        socket.send_fds(peer.sock, [header(FrameKind.HANDLE, 0, 1)], marks)
        for mark in marks:
            os.close(mark)
        await peer.until(lambda: peer.ends)
        (error,) = peer.ends
        assert str(error) == "the pool sent several descriptors with one frame"
        assert not peer.frames

    run(test)


def test_what_comes_before_nonsense_counts() -> None:
    async def test(peer: Peer) -> None:
        peer.hand(1)
        peer.sock.sendall(header(FrameKind.MESSAGE, 0) + bytes(24))
        await peer.until(lambda: peer.ends)
        assert [kind for kind, _, _ in peer.frames] == [
            FrameKind.HANDLE,
            FrameKind.MESSAGE,
        ]
        (error,) = peer.ends
        assert str(error) == "the peer speaks version 0, not 2"
        assert peer.line.ended

    run(test)


def test_an_offence_that_the_taker_finds_ends_the_line() -> None:
    async def test(peer: Peer) -> None:
        peer.refuses = True
        peer.sock.sendall(header(FrameKind.MESSAGE, 0) * 2)
        await peer.until(lambda: peer.ends)
        (error,) = peer.ends
        assert str(error) == "no MESSAGE, please"

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


def test_what_the_pool_does_not_read_waits_and_so_does_the_pool() -> None:
    payload = bytes(60_000)

    async def test(peer: Peer) -> None:
        link, count = peer.line, 0
        while link.unsent <= 262_144:
            link.put(header(FrameKind.MESSAGE, len(payload), count) + payload)
            link.put(header(FrameKind.HANDLE, 0, count), marked(count))
            count += 1
        waiting = asyncio.ensure_future(link.until_sent())
        flushing = asyncio.ensure_future(link.flushed())
        # One read, after which it is seen that nothing more can be answered.
        peer.sock.sendall(header(FrameKind.MESSAGE, 0, 1))
        await peer.until(lambda: len(peer.frames) == 1)
        peer.sock.sendall(header(FrameKind.MESSAGE, 0, 2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(peer.frames) == 1
        assert not waiting.done()
        assert not flushing.done()
        async with patience():
            found = await asyncio.to_thread(peer.read, 2 * count)
            await waiting
            await flushing
        assert link.unsent == 0
        assert [frame.job for frame, _ in found] == [
            number for number in range(count) for _ in "ab"
        ]
        assert [mark for _, mark in found if mark is not None] == list(range(count))
        await peer.until(lambda: len(peer.frames) == 2)

    run(test)


def test_of_totals_only_the_latest_goes_out() -> None:
    async def test(peer: Peer) -> None:
        for number in (1, 2, 3):
            peer.line.note(FrameKind.ROOM, job=number)
        peer.line.put(header(FrameKind.TAKEN, 0, 9))
        await peer.line.flushed()
        frames = [(frame.kind, frame.job) for frame, _ in peer.read(2)]
        assert frames == [(FrameKind.TAKEN, 9), (FrameKind.ROOM, 3)]
        # The same while nothing can be sent.
        while not peer.line.unsent:
            peer.line.put(header(FrameKind.MESSAGE, 60_000) + bytes(60_000))
        for number in (4, 5):
            peer.line.note(FrameKind.ROOM, job=number)
            await asyncio.sleep(0)
        found: list[Frame] = []
        while not found or found[-1].kind is not FrameKind.ROOM:
            found += [frame for frame, _ in await asyncio.to_thread(peer.read, 1)]
        assert [frame.job for frame in found if frame.kind is FrameKind.ROOM] == [5]

    run(test)


def test_a_pool_that_is_gone_is_an_end_and_costs_nothing() -> None:
    async def test(peer: Peer) -> None:
        while not peer.line.unsent:
            peer.line.put(header(FrameKind.MESSAGE, 60_000) + bytes(60_000))
        peer.line.put(header(FrameKind.HANDLE, 0, 1), marked(1))
        waiting = asyncio.ensure_future(peer.line.flushed())
        await asyncio.sleep(0)
        peer.sock.close()
        await peer.until(lambda: peer.ends)
        async with patience():
            await waiting
        assert peer.ends == [None]
        # Nor does what comes later.
        peer.line.put(header(FrameKind.HANDLE, 0, 2), marked(2))
        peer.line.note(FrameKind.ROOM, job=1)
        assert peer.line.unsent == 0

    run(test)


def test_too_many_descriptors_on_their_way_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = [errno.ETOOMANYREFS, errno.ETOOMANYREFS]
    send_fds = socket.send_fds

    def send(sock: socket.socket, *args: Any) -> int:
        if refusals:
            code = refusals.pop()
            raise OSError(code, os.strerror(code))
        return send_fds(sock, *args)

    async def test(peer: Peer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "send_fds", send)
            peer.line.put(header(FrameKind.HANDLE, 0, 1), marked(1))
            peer.line.put(header(FrameKind.TAKEN, 0, 2))
            async with patience():
                await peer.line.flushed()
        assert not refusals
        found = peer.read(2)
        assert [(frame.job, mark) for frame, mark in found] == [(1, 1), (2, None)]
        assert not peer.ends

    run(test)


def test_closing_closes_what_nobody_has_had() -> None:
    async def test(peer: Peer) -> None:
        # Of the second one only the beginning comes, with its descriptor.
        peer.hand(1)
        mark = marked(2)
        socket.send_fds(peer.sock, [header(FrameKind.HANDLE, 0, 2)[:5]], [mark])
        os.close(mark)
        await peer.until(lambda: peer.frames)
        for _ in range(5):
            await asyncio.sleep(0)
        assert list(peer.line._arrived)
        peer.line.close()
        assert not peer.ends
        assert peer.descriptors == [1]

    run(test)
