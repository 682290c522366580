"""Both directions of a channel: floods, pauses, full sockets, descriptors, and its end."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

import pytest

from asyncpool._engine.channel import MOST_FRAMES, READ_SIZE, Channel
from asyncpool._wire.frames import HEADER_SIZE, Frame, FrameKind, header
from asyncpool.errors import ProtocolError
from tests.helpers.inside import ask_frame_watch, unfinished_for_long
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

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


# What it reads.


async def test_a_long_payload_is_read_where_it_stays_and_the_rest_as_ever() -> None:
    payloads = [b"before", bytes(range(256)) * 5_000, b"behind", bytes(2_000_000), b""]
    with Line() as line:
        data = b"".join(encode(n, payload) for n, payload in enumerate(payloads))
        async with patience(), asyncio.TaskGroup() as tasks:
            tasks.create_task(line.write(data))
            await line.heard(5)
        assert [frame.job for frame in line.frames] == [0, 1, 2, 3, 4]
        assert [frame.payload for frame in line.frames] == payloads
        kinds = [type(frame.payload) for frame in line.frames]
        assert kinds == [bytes, memoryview, bytes, memoryview, bytes]
        assert isinstance(line.frames[1].payload.obj, mmap.mmap)
        line.peer.close()
        async with patience():
            await line.heard(5, ends=1)
        assert line.ends == [None]


async def test_nothing_comes_after_the_channel_was_closed() -> None:
    with Line() as line:

        def close(frames: list[Frame]) -> None:
            line.on_frames(frames)
            line.channel.close()

        # By whoever gets the first frames, with more, an offence and an end behind.
        line.channel._on_frames = close
        line.peer.send(encode(1, b"one") + encode(2, b"two") + b"\xff" * 100)
        line.peer.close()
        async with patience():
            await line.heard(1)
        line.channel.read_rest()
        await asyncio.sleep(0)
        assert [frame.job for frame in line.frames] == [1, 2]
        assert line.ends == []


async def test_draining_ends_though_somebody_else_writes_on() -> None:
    with Line() as line:

        def write_on(frames: list[Frame]) -> None:
            line.on_frames(frames)
            if len(line.frames) < 1000:
                line.peer.send(encode(2, b"a child's"))

        line.channel._on_frames = write_on
        line.peer.send(encode(1, b"the dead one's"))
        line.channel.read_rest()
        assert [frame.job for frame in line.frames] == [1, 2]


async def test_what_is_paused_is_read_when_it_goes_on() -> None:
    with Line() as line:
        async with patience():
            await line.write(encode(1, b"one"))
            await line.heard(1)
            line.channel.pause()
            await line.write(encode(2, b"two"))
            for _ in range(10):
                await asyncio.sleep(0)
            assert [frame.job for frame in line.frames] == [1]
            line.channel.resume()
            await line.heard(2)
            line.channel.pause()
            await line.write(encode(3, b"three"))
            line.channel.read_rest()  # of a peer that is gone, all is read even so
        assert [frame.job for frame in line.frames] == [1, 2, 3]


def flood(count: int) -> bytes:
    return b"".join(encode(number, b"") for number in range(count))


def told(line: Line) -> list[int]:
    return [frame.job for frame in line.frames]


async def test_a_flood_is_passed_on_in_parts_and_the_loop_turns_between() -> None:
    with Line() as line:
        count = 2 * MOST_FRAMES + 1
        turns: list[int] = []
        line.peer.send(flood(count) + encode(count, b"whole")[:-1])
        line.channel.read()
        assert told(line) == [*range(MOST_FRAMES)]
        asyncio.get_running_loop().call_soon(lambda: turns.append(len(line.frames)))
        async with patience():
            await line.heard(count)
            await line.write(b"e")
            await line.heard(count + 1)
        assert max(map(len, line.batches)) == MOST_FRAMES
        assert turns[0] < count
        assert told(line) == [*range(count + 1)]


async def test_draining_passes_on_all_of_a_flood_and_its_offence() -> None:
    with Line() as line:
        count = 3 * MOST_FRAMES
        line.peer.send(flood(count) + b"\xff" * HEADER_SIZE)
        line.peer.close()
        line.channel.read()
        line.channel.read_rest()
        assert told(line) == [*range(count)]
        [error] = line.ends
        assert "version 255" in str(error)


async def test_nothing_comes_from_a_peer_that_is_ignored() -> None:
    with Line() as line:
        line.peer.send(flood(3 * MOST_FRAMES))
        line.channel.read()
        line.channel.ignore()
        for _ in range(10):
            await asyncio.sleep(0)
        line.channel.read_rest()
        assert len(line.frames) == MOST_FRAMES
        assert line.ends == []


async def test_a_channel_that_was_closed_leaves_alone_who_has_its_descriptor_now() -> (
    None
):
    with Line() as closed, ExitStack() as lines:
        number = closed.ours.fileno()
        closed.channel.close()
        line = lines.enter_context(Line())
        while line.ours.fileno() != number:  # there may be lower ones that are free
            line = lines.enter_context(Line())
        closed.channel.ignore()
        closed.channel.close()
        async with patience():
            await line.write(encode(1, b"heard"))
            await line.heard(1)


async def test_who_goes_on_or_is_paused_has_not() -> None:
    with Line() as line:
        await line.write(encode(1, b"half")[:-2])
        line.channel.read()
        line.channel.pause()
        unfinished_for_long(line.channel)
        line.channel.resume()
        ask_frame_watch(line.channel)
        await line.write(encode(1, b"half")[-2:-1])
        ask_frame_watch(line.channel)  # reads it
        ask_frame_watch(line.channel)
        await line.write(encode(1, b"half")[-1:])
        ask_frame_watch(line.channel)
        ask_frame_watch(line.channel)
        assert line.ends == []
        assert told(line) == [1]


# What it sends.


async def test_a_flush_behind_a_full_socket_waits_its_turn() -> None:
    with Line() as line:
        line.send(bytes(3_000_000))
        [taken] = line.ours.taken
        for n in range(10):
            line.send(bytes([n]))
            line.channel.flush_soon()
        # The loop says when the socket takes more, and until then nobody asks it.
        await asyncio.sleep(0)
        assert line.ours.taken == [taken]
        assert line.ours.calls == 1
        assert line.channel.unsent == 3_000_010 - taken
        async with patience():
            data = await line.read_exactly(3_000_010)
        assert data == bytes(3_000_000) + bytes(range(10))
        assert line.channel.unsent == 0
        # It is not blocked for ever.
        line.send(b"next")
        assert line.peer.recv(100) == b"next"


async def test_what_was_never_sent_is_known_after_the_peer_left() -> None:
    with Line() as line:
        line.send(b"x" * 3_000_000)
        async with patience():
            # Enough to let the channel send a second time.
            await line.read_exactly(line.ours.taken[0] + 1000)
            line.peer.close()
            await line.heard(0, ends=1)
        assert len(line.ours.taken) > 1
        left = 3_000_000 - sum(line.ours.taken)
        assert left > 0
        assert line.channel.unsent == left
        line.send(b"too late")
        assert line.channel.unsent == left + 8
        line.channel.close()
        assert line.channel.unsent == left + 8


async def test_a_socket_that_cannot_send_ends_the_channel() -> None:
    with Line() as line:
        line.ours.failure = OSError(errno.ENOBUFS, "no room")
        line.channel.put(b"abc", b"def")
        line.channel.flush()
        assert line.channel.unsent == 6
        assert line.ends == []  # not in the middle of somebody else's step
        async with patience():
            await line.heard(0, ends=1)
        [error] = line.ends
        assert (
            str(error) == f"nothing can be sent to it: [Errno {errno.ENOBUFS}] no room"
        )


async def test_half_closing_comes_after_what_is_still_to_be_sent() -> None:
    large = bytes(3_000_000)
    with Line() as line:
        line.send(header(FrameKind.JOB, len(large), 1, 1) + large)
        line.channel.half_close()
        got = 0
        async with patience():
            while data := await line.read():
                got += len(data)
            assert got == len(large) + HEADER_SIZE
            # The other direction is open still.
            await line.write(encode(5, b"bye"))
            await line.heard(1)
        assert line.frames[0].payload == b"bye"


async def test_a_frame_that_interrupts_another_one_does_not_cut_it() -> None:
    """Ctrl-C may cancel a job, and so ask its worker, between any two calls."""
    with Line() as line:
        sizes = {number: number % 4 * 30_000 for number in range(90)}
        waiting = list(sizes)

        def put() -> None:
            number = waiting.pop()
            data = encode(number, bytes(sizes[number]))
            line.channel.put(data[:HEADER_SIZE], data[HEADER_SIZE:])
            line.channel.flush()

        def interrupt(frame: FrameType, *_: object) -> None:
            if frame.f_locals.get("self") is line.channel and waiting:
                put()

        while waiting:
            sys.setprofile(interrupt if len(waiting) % 2 else None)
            put()
        sys.setprofile(None)
        async with patience():
            data = await line.read_exactly(line.channel.put_bytes)
        frames = line.channel._decoder.feed(data)
        assert {frame.job: len(frame.payload) for frame in frames} == sizes


# Descriptors.
def a_pipe() -> tuple[int, int]:
    """Return a descriptor to be sent, and one that tells when no copy of it is left."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return writer, reader


def is_gone(reader: int) -> bool:
    """Tell whether nobody can write to the pipe any more."""
    try:
        return os.read(reader, 100) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("gone", [True, False], ids=["peer left", "channel closed"])
async def test_a_descriptor_that_is_never_sent_is_closed(gone: bool) -> None:  # noqa: FBT001
    writer, reader = a_pipe()
    with Line() as line:
        line.send(bytes(3_000_000))
        line.channel.put_descriptor(encode(2, b"", FrameKind.SEGMENT), writer)
        line.channel.flush()
        left = line.channel.unsent
        assert not is_gone(reader)
        if gone:
            line.peer.close()
            async with patience():
                await line.heard(0, ends=1)
        line.channel.close()
        assert is_gone(reader)
        assert line.channel.unsent == left
    os.close(reader)
