"""What a channel sends: all of it, in order, with few calls, and never blocking."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

import pytest

from asyncpool._core.wire.frames import (
    HEADER_SIZE,
    Frame,
    FrameDecoder,
    FrameKind,
    header,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.parcels import received
from tests.helpers.patience import patience
from tests.runtime.line import LIMIT, Line, cut, encode

pytestmark = BOTH_LOOPS


async def test_a_peer_that_reads_slowly_gets_everything_in_order() -> None:
    large = bytes(range(256)) * 20_000
    decoder, frames = FrameDecoder(max_payload=LIMIT), list[Frame]()
    with Line() as line:
        for job in range(1, 4):
            line.channel.put(header(FrameKind.JOB, len(large), job, 1), large)
            line.channel.flush()
            line.channel.put(header(FrameKind.JOB, 0, 10 + job, 1))
            line.channel.flush_soon()
        async with patience():
            while len(frames) < 6:
                frames += received(decoder, await line.read(65_536))
        assert line.channel.unsent == 0
    assert [frame.job for frame in frames] == [1, 11, 2, 12, 3, 13]
    assert all(frame.payload == large for frame in frames[::2])
    assert {frame.payload for frame in frames[1::2]} == {b""}


async def test_flushing_does_not_wait_for_a_turn_of_the_loop() -> None:
    with Line() as line:
        line.channel.put(header(FrameKind.JOB, 3, 1, 1), b"abc")
        line.channel.put(header(FrameKind.JOB, 0, 2, 1), b"")
        line.channel.flush()
        sent = encode(1, b"abc", FrameKind.JOB) + encode(2, b"", FrameKind.JOB)
        assert line.channel.unsent == 0
        assert line.ours.taken == [len(sent)]
        assert line.peer.recv(100) == sent
        line.channel.flush()  # nothing to send is no reason for a system call
        assert line.ours.calls == 1


async def test_what_is_put_in_one_turn_goes_out_with_one_system_call() -> None:
    size = 5 * (HEADER_SIZE + 5)
    with Line() as line:
        for turn in range(1, 4):
            for job in range(5):
                line.channel.put(header(FrameKind.JOB, 5, job, turn), b"hello")
                line.channel.flush_soon()
            assert line.ours.calls == turn - 1
            assert line.channel.unsent == size
            await asyncio.sleep(0)
            assert line.ours.calls == turn
            assert line.channel.unsent == 0
            frames = FrameDecoder(max_payload=LIMIT).feed(line.peer.recv(1000))
            assert [(f.job, f.attempt, f.payload) for f in frames] == [
                (job, turn, b"hello") for job in range(5)
            ]
        assert line.ours.taken == [size] * 3


async def test_a_flush_takes_along_what_was_to_go_soon() -> None:
    with Line() as line:
        line.channel.put(b"a", b"b")
        line.channel.flush_soon()
        line.channel.put(b"c")
        line.channel.flush()
        assert line.peer.recv(100) == b"abc"
        # What is put behind it does not have to ask again, the turn being the same.
        line.channel.put(b"d")
        await asyncio.sleep(0)
        assert line.peer.recv(100) == b"d"
        assert line.ours.taken == [3, 1]


async def test_what_was_put_waits_for_a_flush() -> None:
    with Line() as line:
        line.channel.put(b"abc")
        await asyncio.sleep(0)
        assert line.ours.calls == 0
        line.send(b"def")
        assert line.peer.recv(100) == b"abcdef"


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


@pytest.mark.parametrize("pieces", [1, 1024, 1025, 5000])
async def test_any_number_of_small_frames_takes_one_system_call(pieces: int) -> None:
    data = b"".join(n.to_bytes(4) for n in range(pieces))
    with Line() as line:
        for piece in cut(data, 4):
            line.channel.put(piece[:2], piece[2:])
        line.channel.flush()
        assert line.ours.taken == [4 * pieces]
        async with patience():
            assert await line.read_exactly(len(data)) == data
        assert line.channel.unsent == 0
        assert line.ours.calls == 1
        assert line.ends == []


async def test_large_payloads_and_small_ones_arrive_in_their_order() -> None:
    frames = [b"%d" % n * size for n, size in enumerate([9, 90_000, 9, 9, 200_000])]
    with Line() as line:
        for frame in frames:
            line.channel.put(frame[:3], frame[3:])
        assert line.channel.unsent == sum(map(len, frames))
        line.channel.flush()
        async with patience():
            data = await line.read_exactly(sum(map(len, frames)))
        assert data == b"".join(frames)
        assert line.channel.unsent == 0


async def test_what_was_never_sent_is_known_after_the_close() -> None:
    with Line() as line:
        line.channel.put(b"x" * 3_000_000, b"y" * 1000)
        assert line.channel.unsent == 3_001_000
        line.channel.flush()
        [taken] = line.ours.taken
        line.channel.put(b"z")
        left = 3_001_001 - taken
        assert line.channel.unsent == left
        line.channel.close()
        assert line.channel.unsent == left
        line.channel.close()
        assert line.channel.unsent == left


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


async def test_what_the_peer_refuses_is_known_at_once() -> None:
    with Line() as line:
        line.peer.close()
        for n in range(1, 4):
            line.send(b"abcd")
            assert line.channel.unsent == 4 * n
        assert line.ours.taken == []
        async with patience():
            await line.heard(0, ends=1)
        assert line.ends == [None]
        assert line.channel.unsent == 12


async def test_nothing_is_sent_after_the_close() -> None:
    with Line() as line:
        line.channel.put(b"abc")
        line.channel.flush_soon()
        line.channel.close()
        await asyncio.sleep(0)
        line.channel.put(b"de")
        line.channel.flush_soon()
        await asyncio.sleep(0)
        assert line.ours.calls == 0
        assert line.channel.unsent == 5
        assert line.peer.recv(100) == b""


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


async def test_half_closing_waits_for_what_is_to_go_soon() -> None:
    with Line() as line:
        line.channel.put(b"last", b" words")
        line.channel.flush_soon()
        line.channel.half_close()
        async with patience():
            assert await line.read() == b"last words"
            assert await line.read() == b""


async def test_closing_lets_go_of_what_is_still_to_be_sent() -> None:
    large = bytes(3_000_000)
    with Line() as line:
        line.send(header(FrameKind.JOB, len(large), 1, 1) + large)
        line.channel.close()
        got = 0
        async with patience():
            while data := await line.read():
                got += len(data)
        assert got < len(large)
        assert line.ends == []


async def test_sending_to_a_peer_that_is_gone_is_quiet() -> None:
    with Line() as line:
        line.peer.close()
        line.send(b"abc")
        line.channel.half_close()
        async with patience():
            await line.heard(0, ends=1)
        assert line.ends == [None]


async def test_a_peer_that_leaves_in_the_middle_of_a_message() -> None:
    with Line() as line:
        line.send(bytes(3_000_000))
        async with patience():
            await line.read(1000)
            line.peer.close()
            await line.heard(0, ends=1)
        line.send(b"abc")
        assert line.ends == [None]


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


async def read_with_fds(line: Line, size: int) -> list[tuple[bytes, list[int]]]:
    """Read *size* bytes; return what each read has brought, with its descriptors."""
    reads: list[tuple[bytes, list[int]]] = []
    async with patience():
        while sum(len(data) for data, _ in reads) < size:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                data, fds, _, _ = socket.recv_fds(line.peer, 1 << 20, 3)
                reads.append((data, fds))
    return reads


async def test_a_descriptor_comes_with_its_frame_and_is_not_kept() -> None:
    writer, reader = a_pipe()
    before, with_it, behind = (encode(n, b"", FrameKind.SEGMENT) for n in (1, 2, 3))
    with Line() as line:
        line.channel.put(before)
        line.channel.put_descriptor(with_it, writer)
        line.channel.put(behind)
        assert line.channel.unsent == 3 * HEADER_SIZE
        line.channel.flush()
        reads = await read_with_fds(line, 3 * HEADER_SIZE)
        assert b"".join(data for data, _ in reads) == before + with_it + behind
        # A read that brings it ends with its frame.
        [last] = [n for n, (_, fds) in enumerate(reads) if fds]
        assert b"".join(data for data, _ in reads[: last + 1]) == before + with_it
        [found] = reads[last][1]
        os.write(found, b"hello")
        assert os.read(reader, 100) == b"hello"
        assert not is_gone(reader)
        os.close(found)
        assert is_gone(reader)
    os.close(reader)


async def test_a_descriptor_waits_until_the_peer_has_read_what_is_before_it() -> None:
    writer, reader = a_pipe()
    with Line() as line:
        line.send(bytes(3_000_000))
        line.channel.put_descriptor(encode(2, b"", FrameKind.SEGMENT), writer)
        line.channel.flush()
        assert not is_gone(reader)
        reads = await read_with_fds(line, 3_000_000 + HEADER_SIZE)
        [found] = [fd for _, fds in reads for fd in fds]
        assert not is_gone(reader)
        os.close(found)
        assert is_gone(reader)
    os.close(reader)


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
