"""The contract of a worker's cargo: what comes and goes beside its jobs."""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpool._core.pickling.calls import pack_job
from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    ReceivedPickle,
    dump,
    lay_out,
    loads,
)
from asyncpool._core.wire.frames import Frame, FrameDecoder, FrameKind
from asyncpool._core.wire.messages import pack_numbers, unpack_numbers
from asyncpool._system.memory import Memory, create
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.channel.segments import Segments
from tests.helpers import jobs, large
from tests.helpers.guards import open_fds
from tests.helpers.large import Block, filler, mapped, pattern
from tests.worker.by_hand import Door, Worker, encode

SIZE = 400_000


class Socket:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def sendall(self, data: bytes | memoryview) -> None:
        self.sent += data

    def frames(self) -> list[Frame]:
        """Return what was sent since the last call."""
        data, self.sent = bytes(self.sent), bytearray()
        return frames_in(data)


def frames_in(data: bytes) -> list[Frame]:
    decoder = FrameDecoder(max_payload=1 << 40)
    frames = decoder.feed(data)
    assert not decoder.pending
    return frames


class Dock:
    """A cargo, and all the memory as the pool sees it."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.socket = Socket()
        self.cargo = LargeBuffers(
            self.socket,  # type: ignore[arg-type] # a fake
            self.segments,
        )
        self.memories: dict[int, Memory] = {}

    def bring(self, number: int, size: int = SIZE) -> None:
        """Make a new segment, and have it arrive."""
        fd = create(size)
        self.memories[number] = Memory(fd, size)
        self.segments.arrive(number, fd, size)

    def areas(self, number: int, *sizes: int) -> list[bytes]:
        """Return what is in a segment, as the pool sees it."""
        view = self.memories[number].lend(lambda: None)
        offsets, _ = lay_out(sizes)
        pairs = zip(offsets, sizes, strict=True)
        return [bytes(view[offset : offset + size]) for offset, size in pairs]

    def lend(self, number: int, *areas: bytes) -> None:
        """Put areas into a segment, and have the worker hear of that."""
        offsets, _ = lay_out(map(len, areas))
        for offset, area in zip(offsets, areas, strict=True):
            self.memories[number].write(offset, [area])
        payload = pack_numbers([len(area) for area in areas])
        self.cargo.take(Frame(FrameKind.LENT, 0, 0, number, payload))

    def send_area(self, data: bytes | memoryview) -> None:
        self.cargo.take(Frame(FrameKind.AREA, 0, 0, 0, data))

    def news(self) -> list[Frame]:
        """Return what the next outcome brings along."""
        ahead, payload = self.cargo.put(b"outcome")
        assert payload == b"outcome"
        return frames_in(ahead)

    def close(self) -> None:
        for number in self.memories:
            self.segments.drop(number)


@pytest.fixture
def dock() -> Iterator[Dock]:
    found = Dock()
    yield found
    found.close()


def want(size: int) -> Frame:
    return Frame(FrameKind.WANT, size, 0, 0, b"")


def returned(number: int) -> Frame:
    return Frame(FrameKind.SEGMENT_RETURNED, 0, 0, number, b"")


def lost(number: int) -> Frame:
    return Frame(FrameKind.LOST, 0, 0, number, b"")


def bundle(found: Any) -> ReceivedPickle:
    assert isinstance(found, ReceivedPickle)
    return found


# Arguments.


def test_what_comes_alone_stays_as_it_is(dock: Dock) -> None:
    assert dock.cargo.complete(b"payload") == b"payload"
    assert not dock.cargo.in_use


def test_what_was_lent_is_added(dock: Dock) -> None:
    dock.bring(7)
    dock.lend(7, b"one", b"three")
    assert dock.cargo.in_use
    found = bundle(dock.cargo.complete(b"payload"))
    assert found.stream == b"payload"
    assert [bytes(view) for view in found.buffers] == [b"one", b"three"]
    found.buffers[0][:] = b"ONE"  # a job may change its arguments
    assert dock.areas(7, 3, 5) == [b"ONE", b"three"]
    # It is for this job and no other.
    assert dock.cargo.complete(b"next") == b"next"


def test_a_long_stream_is_the_first_area(dock: Dock) -> None:
    dock.bring(7)
    dock.lend(7, b"stream", b"buffer")
    found = bundle(dock.cargo.complete(b""))
    assert bytes(found.stream) == b"stream"
    assert [bytes(view) for view in found.buffers] == [b"buffer"]


def test_what_was_sent_is_added(dock: Dock) -> None:
    long = memoryview(bytearray(b"long"))
    for data in (b"short", long):
        dock.send_area(data)
    assert dock.cargo.in_use
    found = bundle(dock.cargo.complete(b"payload"))
    assert [bytes(view) for view in found.buffers] == [b"short", b"long"]
    for view in found.buffers:
        view[0] = 0
    assert bytes(long) == b"\0ong"  # what is long is not copied
    assert dock.cargo.complete(b"next") == b"next"


def test_memory_that_cannot_be_seen_is_said_and_is_the_jobs_error(dock: Dock) -> None:
    dock.segments.arrive(7, None, SIZE)
    dock.cargo.take(Frame(FrameKind.LENT, 0, 0, 7, pack_numbers([10])))
    with pytest.raises(OSError, match="Too many open files") as caught:
        dock.cargo.complete(b"payload")
    assert caught.value.errno == errno.EMFILE
    # The next job has nothing to do with that.
    assert dock.cargo.complete(b"next") == b"next"
    assert dock.news() == [lost(7)]
    assert dock.news() == []


def test_what_came_for_a_job_that_does_not_begin_is_forgotten(dock: Dock) -> None:
    dock.bring(7)
    dock.lend(7, b"one")
    dock.cargo.discard()
    # The pool hears of that at once: there may be no outcome for a while.
    assert dock.socket.frames() == [returned(7)]
    assert dock.cargo.complete(b"next") == b"next"
    assert dock.news() == []
    dock.send_area(b"two")
    dock.cargo.discard()
    assert dock.cargo.complete(b"next") == b"next"
    assert dock.news() == []


def test_nothing_to_forget_is_no_news(dock: Dock) -> None:
    dock.cargo.discard()
    assert dock.news() == []


# What is told.


def test_memory_is_returned_when_nothing_of_an_argument_is_left(dock: Dock) -> None:
    for number in (7, 8):
        dock.bring(number)
    dock.lend(7, b"one", b"three")
    found = bundle(dock.cargo.complete(b""))
    first, [second] = found.stream, found.buffers
    del found
    assert dock.news() == []
    del first
    assert dock.news() == []
    del second
    assert dock.news() == [returned(7)]
    assert dock.news() == []
    for number in (8, 7):
        dock.lend(number, b"x")
        dock.cargo.complete(b"")
    gc.collect()
    assert dock.news() == [returned(8), returned(7)]


def test_memory_that_a_copy_of_the_worker_has_too_is_not_used_again(
    dock: Dock,
) -> None:
    for number in (7, 8):
        dock.bring(number)
    dock.lend(7, b"one")
    found = bundle(dock.cargo.complete(b"payload"))
    dock.segments.after_fork()
    dock.lend(8, b"two")
    dock.cargo.complete(b"payload")
    # What came after the fork is nobody else's.
    assert dock.news() == [returned(8)]
    there_were = mapped()
    del found
    assert dock.news() == [lost(7)]
    assert mapped() == there_were - 1
    dock.lend(8, b"three")
    dock.cargo.complete(b"payload")
    assert dock.news() == [returned(8)]


# Outcomes.


def test_a_small_outcome_goes_as_it_is(dock: Dock) -> None:
    assert dock.cargo.put(b"outcome") == (b"", b"outcome")
    assert dock.socket.frames() == []
    assert not dock.cargo.in_use


def test_an_outcome_goes_into_the_segment_that_is_granted(dock: Dock) -> None:
    value = [Block(pattern(70_001)), filler(200_000), Block(pattern(66_000, 1))]
    parcel = dump(value)
    sizes = [sum(map(len, pieces)) for pieces in parcel.areas]
    dock.bring(7)
    dock.segments.grant(7)
    ahead, payload = dock.cargo.put(parcel)
    assert dock.socket.frames() == [want(lay_out(sizes)[1])]
    [lent] = frames_in(ahead)
    assert (lent.kind, lent.number, payload) == (FrameKind.LENT, 7, b"")
    assert unpack_numbers(lent.payload) == tuple(sizes)
    areas = [memoryview(area) for area in dock.areas(7, *sizes)]
    assert loads(ReceivedPickle(payload, areas)) == value
    assert dock.cargo.in_use
    # It is no view: the pool has it now.
    assert dock.news() == []


def test_an_outcome_with_a_short_stream_carries_that_itself(dock: Dock) -> None:
    value = Block(pattern(70_001))
    dock.bring(7)
    dock.segments.grant(7)
    ahead, payload = dock.cargo.put(dump(value))
    [lent] = frames_in(ahead)
    assert unpack_numbers(lent.payload) == (70_001,)
    areas = [memoryview(area) for area in dock.areas(7, 70_001)]
    assert loads(ReceivedPickle(payload, areas)) == value


def test_an_outcome_is_sent_if_there_is_no_segment(dock: Dock) -> None:
    value = [Block(pattern(70_001)), filler(200_000)]
    dock.segments.grant(0)
    ahead, payload = dock.cargo.put(dump(value))
    asked, *areas = dock.socket.frames()
    assert asked.kind is FrameKind.WANT
    assert [frame.kind for frame in areas] == [FrameKind.AREA] * 2
    assert (ahead, payload) == (b"", b"")
    views = [memoryview(frame.payload) for frame in areas]
    assert loads(ReceivedPickle(payload, views)) == value
    assert dock.news() == []


def test_an_outcome_is_sent_if_the_segment_cannot_be_seen(dock: Dock) -> None:
    value = Block(pattern(70_001))
    dock.segments.arrive(7, None, SIZE)
    dock.segments.grant(7)
    ahead, payload = dock.cargo.put(dump(value))
    _, area = dock.socket.frames()
    assert area == Frame(FrameKind.AREA, 0, 0, 0, bytes(pattern(70_001)))
    assert frames_in(ahead) == [lost(7)]
    assert loads(ReceivedPickle(payload, [memoryview(area.payload)])) == value
    assert dock.news() == []


def test_an_outcome_lets_go_of_the_argument_that_it_is(dock: Dock) -> None:
    """The result is what came as an argument, and has no other owner."""
    before = open_fds()
    dock.bring(7)
    dock.bring(8)
    parcel = dump(Block(pattern(70_001)))
    dock.lend(7, *(b"".join(pieces) for pieces in parcel.areas))
    outcome = dump(loads(bundle(dock.cargo.complete(parcel.payload))))
    gc.collect()
    assert dock.news() == []
    dock.segments.grant(8)
    ahead, _ = dock.cargo.put(outcome)
    first, lent = frames_in(ahead)
    assert first == returned(7)
    assert (lent.kind, lent.number) == (FrameKind.LENT, 8)
    assert dock.areas(8, 70_001) == [bytes(pattern(70_001))]
    assert isinstance(outcome, OutOfBandPickle)
    assert open_fds() == before


def test_news_come_with_large_outcomes_too_before_their_areas(dock: Dock) -> None:
    for number in (7, 8):
        dock.bring(number)
    dock.lend(7, b"one")
    dock.cargo.complete(b"")
    dock.segments.grant(8)
    ahead, _ = dock.cargo.put(dump(Block(pattern(70_001))))
    assert [(f.kind, f.number) for f in frames_in(ahead)] == [
        (FrameKind.SEGMENT_RETURNED, 7),
        (FrameKind.LENT, 8),
    ]
    assert dock.news() == []


# A worker as a whole.


def large_job(number: int, block: Block) -> tuple[list[bytes], bytes]:
    """Return the areas of a job that looks at a block, and the frame of the job."""
    parcel = pack_job(large.checksum, (block,), {})
    assert isinstance(parcel, OutOfBandPickle)
    areas = [b"".join(pieces) for pieces in parcel.areas]
    return areas, encode(FrameKind.JOB, parcel.payload, number, 1)


def test_what_was_sent_for_a_revoked_job_is_not_for_the_next_one(
    worker: Worker, door: Door
) -> None:
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    door.release()
    assert worker.result() == (1, "go")
    for number in (2, 3):
        areas, job = large_job(number, Block(pattern(70_000, number)))
        worker.write(*(encode(FrameKind.AREA, area) for area in areas), job)
    assert worker.result() == (3, large.checksum(Block(pattern(70_000, 3))))


def test_what_was_lent_for_a_revoked_job_is_returned(
    worker: Worker, door: Door
) -> None:
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    for number in (2, 3):
        fd = create(SIZE)
        head = encode(FrameKind.SEGMENT, b"", job=SIZE, tag=number + 10)
        socket.send_fds(worker.control, [head], [fd])
        [area], job = large_job(number, Block(pattern(70_000, number)))
        Memory(fd, SIZE).write(0, [area])
        os.close(fd)
        payload = pack_numbers([len(area)])
        worker.write(encode(FrameKind.LENT, payload, tag=number + 10), job)
    door.release()
    assert worker.result() == (1, "go")
    told = [worker.heard(worker.jobs) for _ in range(2)]
    assert {frame.number for frame in told if frame is not None} == {12, 13}
    assert [frame.kind for frame in told if frame is not None] == [
        FrameKind.SEGMENT_RETURNED
    ] * 2
    assert worker.result() == (3, large.checksum(Block(pattern(70_000, 3))))
