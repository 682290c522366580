"""The contract of a channel: frames come whole and in order, and it ends once."""

from __future__ import annotations

import asyncio
import mmap
from contextlib import ExitStack

import pytest

from asyncpool._core.wire.frames import HEADER_SIZE, VERSION, Frame, FrameKind, header
from asyncpool._runtime.channel.channel import MOST_FRAMES
from tests.helpers.inside import ask_frame_watch, unfinished_for_long
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.runtime.line import LIMIT, Line, cut, encode

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize("size", [1, 7, HEADER_SIZE, 64, 100_000])
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


async def test_what_came_in_one_read_is_told_at_once() -> None:
    with Line() as line:
        line.peer.send(encode(1, b"one") + encode(2, b"") + encode(3, b"three")[:-1])
        async with patience():
            await line.heard(2)
            await line.write(encode(3, b"three")[-1:])
            await line.heard(3)
        told = [[(frame.job, frame.payload) for frame in b] for b in line.batches]
        assert told == [[(1, b"one"), (2, b"")], [(3, b"three")]]


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
        (bytes([VERSION, 0xEE]) + bytes(HEADER_SIZE - 2), "unknown kind"),
        (header(FrameKind.VALUE, LIMIT + 1, 1, 1), "exceeds the limit"),
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


async def test_a_long_payload_that_is_cut_short_is_silence() -> None:
    with Line() as line:
        data = encode(1, b"good") + encode(2, bytes(2_000_000))
        async with patience(), asyncio.TaskGroup() as tasks:
            tasks.create_task(line.write(data[:-1]))
            await line.heard(1)
        line.peer.close()
        async with patience():
            await line.heard(1, ends=1)
        assert [frame.job for frame in line.frames] == [1]
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
        line.channel.drain()
        await asyncio.sleep(0)
        assert [frame.job for frame in line.frames] == [1, 2]
        assert line.ends == []


async def test_draining_reads_what_the_dead_have_written() -> None:
    with Line() as line:
        line.peer.send(b"".join(encode(n, bytes(100)) for n in range(50)))
        line.peer.close()
        line.channel.drain()
        assert len(line.frames) == 50
        assert line.ends == [None]


async def test_draining_ends_though_somebody_else_writes_on() -> None:
    with Line() as line:

        def write_on(frames: list[Frame]) -> None:
            line.on_frames(frames)
            if len(line.frames) < 1000:
                line.peer.send(encode(2, b"a child's"))

        line.channel._on_frames = write_on
        line.peer.send(encode(1, b"the dead one's"))
        line.channel.drain()
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
            line.channel.drain()  # of a peer that is gone, all is read even so
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


async def test_a_flood_that_is_paused_goes_on_where_it_was() -> None:
    with Line() as line:
        count = 3 * MOST_FRAMES
        line.peer.send(flood(count))
        line.channel.read()
        line.channel.pause()
        for _ in range(10):
            await asyncio.sleep(0)
        assert told(line) == [*range(MOST_FRAMES)]
        line.channel.read()  # reads all the same, since it is asked to
        assert told(line) == [*range(2 * MOST_FRAMES)]
        line.channel.resume()
        async with patience():
            await line.heard(count)
            await line.write(encode(count, b""))
            await line.heard(count + 1)
        assert told(line) == [*range(count + 1)]


async def test_draining_passes_on_all_of_a_flood_and_its_offence() -> None:
    with Line() as line:
        count = 3 * MOST_FRAMES
        line.peer.send(flood(count) + b"\xff" * HEADER_SIZE)
        line.peer.close()
        line.channel.read()
        line.channel.drain()
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
        line.channel.drain()
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


async def test_who_falls_silent_in_the_middle_of_a_frame_has_erred() -> None:
    with Line() as line:
        await line.write(encode(1, b"half")[:-2])
        line.channel.read()
        unfinished_for_long(line.channel)
        [error] = line.ends
        assert (
            str(error)
            == "it began a frame, sent 26 bytes of it, and then nothing for 60 s"
        )


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


async def test_a_channel_that_has_ended_is_not_resumed() -> None:
    with Line() as line:
        line.peer.close()
        async with patience():
            await line.heard(0, ends=1)
        line.channel.pause()
        line.channel.resume()
        for _ in range(10):
            await asyncio.sleep(0)
        assert line.ends == [None]
