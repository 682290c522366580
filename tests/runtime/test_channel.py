"""The contract of a channel: frames in their order, one end, no blocking."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Self

import pytest

from asyncpool._core.frames import Frame, FrameDecoder, Kind, header
from asyncpool._runtime.channel import READ_SIZE, Channel
from asyncpool.errors import ProtocolError
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

LIMIT = 10_000_000


class Line:
    """A channel, what it has reported, and the bare socket at its other end."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.frames: list[Frame] = []
        self.ends: list[ProtocolError | None] = []
        self.news = asyncio.Event()
        self.channel = Channel(
            asyncio.get_running_loop(),
            ours,
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=LIMIT,
            on_frame=self.on_frame,
            on_end=self.on_end,
        )

    def on_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.peer.close()


def encode(job: int, payload: bytes, kind: Kind = Kind.VALUE) -> bytes:
    return header(kind, len(payload), job, 1) + payload


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 20, 64, 100_000])
async def test_frames_arrive_whole_wherever_they_are_cut(size: int) -> None:
    sent = [(n, bytes([n]) * (n * 9)) for n in range(20)]
    data = b"".join(encode(job, payload) for job, payload in sent)
    with Line() as line:
        async with patience():
            for piece in cut(data, size):
                await line.write(piece)
            await line.heard(len(sent))
        assert [(frame.job, frame.payload) for frame in line.frames] == sent
        assert line.ends == []


async def test_a_peer_that_reads_slowly_gets_everything_in_order() -> None:
    large = bytes(range(256)) * 20_000
    decoder, frames = FrameDecoder(max_payload=LIMIT), list[Frame]()
    with Line() as line:
        for job in range(1, 4):
            line.channel.send(header(Kind.JOB, len(large), job, 1), large)
            line.channel.send(header(Kind.JOB, 0, 10 + job, 1))
        kept = [line.channel.unsent]
        async with patience():
            while len(frames) < 6:
                frames += decoder.feed(await line.read(65_536))
        kept.append(line.channel.unsent)
    assert kept == [True, False]
    assert [frame.job for frame in frames] == [1, 11, 2, 12, 3, 13]
    assert {frame.payload for frame in frames[::2]} == {large}
    assert {frame.payload for frame in frames[1::2]} == {b""}


async def test_nothing_is_kept_back_for_a_peer_that_reads() -> None:
    with Line() as line:
        line.channel.send(header(Kind.JOB, 3, 1, 1), b"abc")
        # Sent at once, without a turn of the loop.
        assert not line.channel.unsent
        assert line.peer.recv(100) == encode(1, b"abc", Kind.JOB)


async def test_half_closing_comes_after_what_is_still_to_be_sent() -> None:
    large = bytes(3_000_000)
    with Line() as line:
        line.channel.send(header(Kind.JOB, len(large), 1, 1), large)
        line.channel.half_close()
        got = 0
        async with patience():
            while data := await line.read():
                got += len(data)
            assert got == len(large) + 20
            # The other direction is open still.
            await line.write(encode(5, b"bye"))
            await line.heard(1)
        assert line.frames[0].payload == b"bye"


async def test_closing_lets_go_of_what_is_still_to_be_sent() -> None:
    large = bytes(3_000_000)
    with Line() as line:
        line.channel.send(header(Kind.JOB, len(large), 1, 1), large)
        line.channel.close()
        got = 0
        async with patience():
            while data := await line.read():
                got += len(data)
        assert got < len(large)
        assert line.ends == []


async def test_an_end_is_reported_once() -> None:
    with Line() as line:
        async with patience():
            await line.write(encode(1, b"last"))
            line.peer.close()
            await line.heard(1, ends=1)
            line.channel.drain()
            await asyncio.sleep(0)
        assert line.ends == [None]
        assert [frame.payload for frame in line.frames] == [b"last"]


async def test_a_frame_that_was_cut_short_is_no_offence() -> None:
    with Line() as line:
        async with patience():
            await line.write(encode(1, b"half")[:-2])
            line.peer.close()
            await line.heard(0, ends=1)
        assert (line.frames, line.ends) == ([], [None])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff" * 100, "version 255"),
        (b"\x01\xee" + bytes(18), "unknown kind"),
        (header(Kind.VALUE, LIMIT + 1, 1, 1), "exceeds the limit"),
    ],
    ids=["version", "kind", "size"],
)
async def test_an_offence_ends_the_channel_behind_what_came_before(
    data: bytes, text: str
) -> None:
    with Line() as line:
        async with patience():
            await line.write(encode(1, b"good") + data + encode(2, b"never"))
            await line.heard(1, ends=1)
            await line.write(encode(3, b"nor this"))
            line.channel.drain()
        [error] = line.ends
        assert text in str(error)
        assert [frame.payload for frame in line.frames] == [b"good"]


async def test_the_limit_itself_is_allowed() -> None:
    with Line() as line:
        payload = bytes(LIMIT)
        async with patience(), asyncio.TaskGroup() as tasks:
            tasks.create_task(line.write(encode(1, payload)))
            await line.heard(1)
        assert line.frames[0].payload == payload


async def test_no_frame_comes_after_the_channel_was_closed() -> None:
    with Line() as line:

        def close(frame: Frame) -> None:
            line.on_frame(frame)
            line.channel.close()

        # In the middle of a batch, by whoever gets the first frame.
        line.channel._on_frame = close
        line.peer.send(encode(1, b"one") + encode(2, b"two"))
        async with patience():
            await line.heard(1)
        assert [frame.job for frame in line.frames] == [1]
        assert line.ends == []


async def test_draining_reads_what_the_dead_have_written() -> None:
    with Line() as line:
        line.peer.send(b"".join(encode(n, bytes(100)) for n in range(50)))
        line.peer.close()
        line.channel.drain()
        assert len(line.frames) == 50
        assert line.ends == [None]


async def test_sending_to_a_peer_that_is_gone_is_quiet() -> None:
    with Line() as line:
        line.peer.close()
        line.channel.send(header(Kind.JOB, 3, 1, 1), b"abc")
        line.channel.half_close()
        async with patience():
            await line.heard(0, ends=1)
        assert line.ends == [None]


async def test_a_peer_that_leaves_in_the_middle_of_a_message() -> None:
    with Line() as line:
        line.channel.send(header(Kind.JOB, 3_000_000, 1, 1), bytes(3_000_000))
        async with patience():
            await line.read(1000)
            line.peer.close()
            await line.heard(0, ends=1)
        line.channel.send(header(Kind.JOB, 3, 1, 1), b"abc")
        assert line.ends == [None]
