"""The contract of a worker's cargo in the pool: what travels beside its jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    ReceivedPickle,
    dump,
    lay_out,
    loads,
)
from asyncpool._core.wire.frames import HEADER_SIZE, Frame, FrameDecoder, FrameKind
from asyncpool._core.wire.messages import pack_numbers, unpack_numbers
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.large_buffers import BufferLoad, LargeBuffers
from asyncpool._runtime.channel.segments import Segment, Segments, Use
from asyncpool._system.memory import Memory
from tests.helpers.large import Block, filler, pattern
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

LIMIT = 1_000_000


class Channel:
    """What was put into a channel, and what of it was sent."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.sent = 0
        self.descriptors: list[int] = []

    def put(self, head: bytes, payload: bytes | memoryview = b"") -> None:
        self.data += head
        self.data += payload

    def put_descriptor(self, head: bytes, fd: int) -> None:
        self.data += head
        self.descriptors.append(fd)

    def flush(self) -> None:
        self.sent = len(self.data)

    def flush_soon(self) -> None:
        self.flush()

    @property
    def frames(self) -> list[Frame]:
        """What the worker would see."""
        decoder = FrameDecoder(max_payload=1 << 40)
        frames = decoder.feed(bytes(self.data[: self.sent]))
        assert not decoder.pending
        return frames

    @property
    def kinds(self) -> list[FrameKind]:
        return [frame.kind for frame in self.frames]

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)


class Harbour:
    """A cargo, and all that it has to do with."""

    def __init__(
        self, bound: int = 1 << 30, limit: int = LIMIT, *, untrusted: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.threads = Threads(loop)
        self.segments = Segments(loop, bound, self.threads)
        self.jobs, self.control = Channel(), Channel()
        self.tasks: list[asyncio.Task[None]] = []
        self.cargo = LargeBuffers(
            spawn=self.spawn,
            segments=self.segments,
            threads=self.threads,
            max_payload=limit,
            untrusted=untrusted,
        )
        self.cargo.connect(
            self.jobs,  # type: ignore[arg-type] # fakes
            self.control,  # type: ignore[arg-type]
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def settled(self) -> None:
        """Wait until nothing is on its way."""
        tasks, self.tasks = self.tasks, []
        async with patience():
            await asyncio.gather(*tasks)

    def load(self, parcel: OutOfBandPickle) -> BufferLoad:
        """Load a parcel, and put a mark where its job would be."""

        def put() -> None:
            self.jobs.put(b"".join([b"\x02\x07", bytes(HEADER_SIZE - 2)]))
            self.jobs.flush()

        return self.cargo.load(parcel, put)

    def hear(self, *frames: Frame) -> tuple[list[Frame], str | None]:
        return self.cargo.unload(list(frames))

    async def granted(self, size: int) -> Segment:
        """Have the worker ask for a segment, and get one."""
        assert self.hear(want(size)) == ([], None)
        await self.settled()
        segment = self.only(Use.GRANTED)
        assert self.control.frames[-1] == Frame(
            FrameKind.GRANT, 0, 0, segment.number, b""
        )
        return segment

    def only(self, use: Use) -> Segment:
        """Return the one segment that is in this use."""
        [found] = [s for s in self.segments._segments.values() if s.use is use]
        return found

    async def close(self) -> None:
        await self.settled()
        self.segments.close()
        await self.threads.close()
        self.control.close()


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Callable[..., Harbour]]:
    made: list[Harbour] = []

    def make(**options: Any) -> Harbour:
        made.append(Harbour(**options))
        return made[-1]

    yield make
    for harbour in made:
        await harbour.close()


def use_of(segment: Segment) -> Use:
    """Return what it is just now, whatever a type checker knows of it."""
    return segment.use


def was_sent(load: BufferLoad) -> bool:
    return load.done


def is_pending(harbour: Harbour) -> bool:
    return harbour.cargo.pending


def want(size: int) -> Frame:
    return Frame(FrameKind.WANT, size, 0, 0, b"")


def lent(number: int, *sizes: int) -> Frame:
    return Frame(FrameKind.LENT, 0, 0, number, pack_numbers(sizes))


def area(data: bytes | memoryview) -> Frame:
    return Frame(FrameKind.AREA, 0, 0, 0, data)


def value(payload: bytes = b"payload", job: int = 7) -> Frame:
    return Frame(FrameKind.VALUE, job, 1, 33, payload)


def returned(number: int) -> Frame:
    return Frame(FrameKind.SEGMENT_RETURNED, 0, 0, number, b"")


def lost(number: int) -> Frame:
    return Frame(FrameKind.LOST, 0, 0, number, b"")


def there(harbour: Harbour) -> ReceivedPickle:
    """Return what the worker finds that the last job came with."""
    *_, head, job = harbour.jobs.frames
    assert (head.kind, job.kind) == (FrameKind.LENT, FrameKind.JOB)
    segment = harbour.segments._segments[head.number]
    fd = harbour.control.descriptors[-1]
    view = Memory(fd, segment.memory.size).lend(lambda: None)
    sizes = unpack_numbers(head.payload)
    offsets, _ = lay_out(sizes)
    areas = [view[o : o + n] for o, n in zip(offsets, sizes, strict=True)]
    return ReceivedPickle(b"", areas)


# To the worker.


async def test_a_parcel_is_put_where_the_worker_sees_it(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    block = Block(pattern(100_001))
    parcel = dump([block, filler(200_000), Block(pattern(70_000, 1))])
    load = harbour.load(parcel)
    assert not was_sent(load)
    assert harbour.jobs.frames == []  # nothing goes before it is there
    await harbour.settled()
    assert was_sent(load)
    # The worker hears of the segment first, and of what is in it before its job.
    [made] = harbour.control.frames
    segment = harbour.only(Use.WORKER)
    size = segment.memory.size
    assert made == Frame(FrameKind.SEGMENT, size, 0, segment.number, b"")
    assert os.fstat(harbour.control.descriptors[0]).st_size == size
    assert harbour.jobs.kinds == [FrameKind.LENT, FrameKind.JOB]
    assert loads(there(harbour)) == loads(ReceivedPickle(b"", _areas(parcel)))


def _areas(parcel: OutOfBandPickle) -> list[memoryview]:
    return [memoryview(bytearray().join(pieces)) for pieces in parcel.areas]


async def test_what_fits_into_a_warm_segment_is_sent_at_once(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    harbour.load(dump(Block(pattern(1 << 20))))
    await harbour.settled()
    segment = harbour.only(Use.WORKER)
    assert harbour.hear(returned(segment.number)) == ([], None)
    load = harbour.load(dump(Block(pattern(1 << 20, 1))))
    assert was_sent(load)
    assert harbour.tasks == []
    assert harbour.jobs.kinds == [FrameKind.LENT, FrameKind.JOB] * 2
    assert use_of(segment) is Use.WORKER
    assert len(harbour.control.frames) == 1  # it has it already
    assert bytes(there(harbour).stream) == pattern(1 << 20, 1)


async def test_what_is_larger_is_copied_by_a_thread(
    make: Callable[..., Harbour],
) -> None:
    harbour = make(limit=1 << 30)
    for seed in range(2):
        load = harbour.load(dump(Block(pattern((1 << 20) + 1, seed))))
        assert not was_sent(load)
        await harbour.settled()
        assert was_sent(load)
        assert bytes(there(harbour).stream) == pattern((1 << 20) + 1, seed)
        segment = harbour.only(Use.WORKER)
        harbour.hear(returned(segment.number))
    assert len(harbour.control.frames) == 1


async def test_without_memory_the_areas_are_sent(make: Callable[..., Harbour]) -> None:
    harbour = make(bound=0)
    parcel = dump([Block(pattern(100_001)), filler(200_000)])
    load = harbour.load(parcel)
    await harbour.settled()
    assert was_sent(load)
    *areas, job = harbour.jobs.frames
    assert job.kind is FrameKind.JOB
    assert [frame.kind for frame in areas] == [FrameKind.AREA, FrameKind.AREA]
    assert [frame.payload for frame in areas] == [
        b"".join(pieces) for pieces in parcel.areas
    ]
    assert harbour.control.frames == []


@pytest.mark.parametrize("bound", [1 << 30, 0], ids=["shared", "sent"])
async def test_what_is_withdrawn_is_not_sent(
    bound: int, make: Callable[..., Harbour]
) -> None:
    harbour = make(bound=bound)
    load = harbour.load(dump(Block(pattern(100_000))))
    load.withdrawn = True
    await harbour.settled()
    assert not was_sent(load)
    assert harbour.jobs.frames == []
    # Its segment is there for the next one.
    if bound:
        segment = harbour.only(Use.NOBODY)
        assert harbour.load(dump(Block(pattern(100_000, 1)))).done
        assert harbour.only(Use.WORKER) is segment


@pytest.mark.parametrize("bound", [1 << 30, 0], ids=["shared", "sent"])
async def test_nothing_is_sent_to_a_worker_that_is_gone(
    bound: int, make: Callable[..., Harbour]
) -> None:
    harbour = make(bound=bound)
    load = harbour.load(dump(Block(pattern(100_000))))
    harbour.cargo.close()
    await harbour.settled()
    assert not was_sent(load)
    assert harbour.jobs.data == b""
    assert harbour.segments.total == 0


async def test_a_segment_that_is_being_filled_for_the_dead_is_given_up(
    make: Callable[..., Harbour], monkeypatch: pytest.MonkeyPatch
) -> None:
    harbour = make()

    def close_and_fill(segment: Segment, *args: Any) -> None:
        # The thread goes on with what it has, while the worker is buried.
        harbour.cargo.close()
        assert harbour.segments.total == segment.memory.size
        fill(segment, *args)

    fill = Segment.fill
    monkeypatch.setattr(Segment, "fill", close_and_fill)
    load = harbour.load(dump(Block(pattern(100_000))))
    await harbour.settled()
    assert not was_sent(load)
    assert harbour.jobs.data == b""
    assert harbour.segments.total == 0


async def test_a_worker_is_told_what_it_need_not_keep(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    harbour.cargo.drop(5)
    assert harbour.control.frames == [Frame(FrameKind.DROP, 0, 0, 5, b"")]
    harbour.cargo.close()
    harbour.cargo.drop(6)
    assert len(harbour.control.frames) == 1


# From the worker.


async def test_outcomes_without_any_parts_are_as_they_are(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    frames = [value(job=1), value(job=2)._replace(kind=FrameKind.ERROR)]
    assert harbour.hear(*frames) == (frames, None)
    assert not is_pending(harbour)


async def test_an_outcome_in_a_segment_is_put_together(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    segment = await harbour.granted(80_000)
    segment.memory.write(0, [b"one"])
    segment.memory.write(64, [b"three"])
    assert harbour.hear(lent(segment.number, 3, 5)) == ([], None)
    assert is_pending(harbour)
    assert use_of(segment) is Use.CALLER
    [outcome], trouble = harbour.hear(value())
    assert trouble is None
    assert not is_pending(harbour)
    bundle = outcome.payload
    assert isinstance(bundle, ReceivedPickle)
    assert outcome == value()._replace(payload=bundle)
    assert bundle.stream == b"payload"
    assert [bytes(view) for view in bundle.buffers] == [b"one", b"three"]
    # It is the very memory, as long as somebody has a part of it.
    bundle.buffers[1][0] = 255
    segment.memory.write(0, [b"two"])
    part = bundle.buffers[0]
    assert bytes(part) == b"two"
    del outcome, bundle
    await asyncio.sleep(0)
    assert use_of(segment) is Use.CALLER
    del part
    await _until(lambda: use_of(segment) is Use.NOBODY)


async def _until(true: Callable[[], bool]) -> None:
    async with patience():
        while not true():  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)


async def test_an_outcome_in_frames_is_put_together(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    long = memoryview(bytearray(b"long"))
    [outcome], trouble = harbour.hear(area(b"short"), area(long), value(b""))
    assert trouble is None
    assert isinstance(outcome.payload, ReceivedPickle)
    assert outcome.payload.stream == b"short"
    [buffer] = outcome.payload.buffers
    assert bytes(buffer) == b"long"
    buffer[0] = 0  # a caller may change what it gets
    # The parts belong to one outcome and to no other.
    [other], _ = harbour.hear(area(b"other"), value())
    assert [bytes(view) for view in other.payload.buffers] == [b"other"]
    other.payload.buffers[0][:] = b"OTHER"
    assert harbour.hear(value()) == ([value()], None)


async def test_the_outcomes_before_an_offence_count(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    frames, trouble = harbour.hear(value(job=1), lost(5), value(job=2))
    assert frames == [value(job=1)]
    assert trouble == "it named segment 5, which it does not have"


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in FrameKind
        if kind.name
        not in {
            "VALUE",
            "ERROR",
            "ITEM",
            "AREA",
            "LENT",
            "WANT",
            "SEGMENT_RETURNED",
            "LOST",
        }
    ],
)
async def test_other_words_are_an_offence(
    kind: FrameKind, make: Callable[..., Harbour]
) -> None:
    harbour = make()
    frame = Frame(kind, 0, 0, 0, b"")
    assert harbour.hear(frame) == ([], f"it sent {kind.name} on its job channel")


@pytest.mark.parametrize(
    ("frames", "size"),
    [
        ([area(bytes(LIMIT)), area(b"x")], LIMIT + 1),
        ([area(b"x")] * (LIMIT // 100_000) + [area(bytes(LIMIT))], LIMIT + 10),
        ([area(b"x"), lent(99, LIMIT)], LIMIT + 1),
        ([lent(99, LIMIT + 1)], LIMIT + 1),
        ([lent(99, (1 << 64) - 1, 1)], 1 << 64),
    ],
    ids=["one more", "many", "both", "one", "overflow"],
)
async def test_an_outcome_has_a_bound(
    frames: list[Frame], size: int, make: Callable[..., Harbour]
) -> None:
    harbour = make()
    outcomes, trouble = harbour.hear(*frames)
    assert outcomes == []
    assert trouble == f"an outcome of {size} bytes exceeds the limit of {LIMIT}"


@pytest.mark.parametrize(
    "frames",
    [[area(b"")] * 100_000, [lent(1, *[0] * 100_000)], [lent(99, *[1] * LIMIT)]],
    ids=["areas", "sizes", "so many"],
)
async def test_an_outcome_of_nothing_has_a_bound_too(
    frames: list[Frame], make: Callable[..., Harbour]
) -> None:
    """Each part takes memory here, whatever its size."""
    harbour = make(limit=1000)
    await harbour.granted(1000)
    outcomes, trouble = harbour.hear(*frames)
    assert outcomes == []
    assert trouble == "it sent an outcome in more parts than an outcome can have"


async def test_the_bound_is_that_of_each_outcome(make: Callable[..., Harbour]) -> None:
    harbour = make()
    for _ in range(3):
        outcomes, trouble = harbour.hear(area(bytes(LIMIT)), value())
        assert (len(outcomes), trouble) == (1, None)


# Segments for outcomes.


async def test_who_asks_gets_a_segment_or_is_told_that_there_is_none(
    make: Callable[..., Harbour],
) -> None:
    harbour = make(bound=200_000)
    first = await harbour.granted(100_000)
    harbour.hear(lent(first.number, 10), value())
    assert harbour.control.kinds == [FrameKind.SEGMENT, FrameKind.GRANT]
    # A warm one is granted at once.
    await _until(lambda: use_of(first) is Use.NOBODY)
    assert harbour.hear(want(90_000)) == ([], None)
    assert harbour.tasks == []
    assert harbour.control.frames[2:] == [Frame(FrameKind.GRANT, 0, 0, 1, b"")]
    [kept], _ = harbour.hear(lent(1, 10), value())
    # No room is no offence.
    assert harbour.hear(want(150_000)) == ([], None)
    await harbour.settled()
    assert harbour.control.frames[3:] == [Frame(FrameKind.GRANT, 0, 0, 0, b"")]
    assert harbour.segments.total <= 200_000
    assert len(kept.payload.buffers[0]) == 10


@pytest.mark.parametrize("size", [0, 2 * LIMIT + 1, (1 << 64) - 1])
async def test_who_asks_for_what_nobody_needs_offends(
    size: int, make: Callable[..., Harbour]
) -> None:
    harbour = make()
    text = f"it asked for {size} bytes when it was not allowed to"
    assert harbour.hear(want(size)) == ([], text)
    assert harbour.tasks == []
    assert harbour.segments.total == 0


async def test_who_asks_twice_offends(make: Callable[..., Harbour]) -> None:
    harbour = make()
    text = "it asked for 9 bytes when it was not allowed to"
    assert harbour.hear(want(9), want(9)) == ([], text)
    await harbour.settled()
    assert harbour.segments.total == 65_536


async def test_who_asks_for_more_than_it_uses_offends(
    make: Callable[..., Harbour],
) -> None:
    """Else it could have all of the pool's memory, and do nothing with it."""
    harbour = make()
    await harbour.granted(100_000)
    text = "it asked for 100000 bytes when it was not allowed to"
    assert harbour.hear(want(100_000)) == ([], text)
    await harbour.settled()


async def test_who_is_not_trusted_gets_no_segment_and_no_second_answer(
    make: Callable[..., Harbour],
) -> None:
    """Else it could change an outcome after the caller has it."""
    harbour = make(untrusted=True)
    assert harbour.hear(want(100_000)) == ([], None)
    assert harbour.tasks == []
    assert harbour.control.frames == [Frame(FrameKind.GRANT, 0, 0, 0, b"")]
    # It sends the outcome in frames, and may then ask for the next one.
    [outcome], trouble = harbour.hear(area(bytes(100_000)), value())
    assert (len(outcome.payload.buffers[0]), trouble) == (100_000, None)
    text = "it asked for 9 bytes when it was not allowed to"
    assert harbour.hear(want(9), want(9)) == ([], text)
    assert harbour.segments.total == 0


async def test_who_was_refused_a_segment_may_not_ask_on_and_on(
    make: Callable[..., Harbour],
) -> None:
    """Else the answers, which it need not read, would fill the memory of this process."""
    harbour = make(bound=0)
    assert harbour.hear(want(9)) == ([], None)
    await harbour.settled()
    text = "it asked for 9 bytes when it was not allowed to"
    assert harbour.hear(want(9)) == ([], text)


async def test_a_dead_worker_gets_no_segment(make: Callable[..., Harbour]) -> None:
    harbour = make()
    assert harbour.hear(want(100_000)) == ([], None)
    harbour.cargo.close()
    await harbour.settled()
    assert harbour.control.data == b""
    assert harbour.segments.total == 0


async def test_what_was_begun_is_let_go_of_when_the_worker_is_gone(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    segment = await harbour.granted(100_000)
    harbour.hear(lent(segment.number, 10), area(b"more"))
    assert is_pending(harbour)
    harbour.cargo.close()
    assert not is_pending(harbour)
    await _until(lambda: harbour.segments.total == 0)


@pytest.mark.parametrize(
    ("use", "speaks"),
    [
        (Use.NOBODY, ()),
        (Use.POOL, ()),
        (Use.WORKER, (FrameKind.SEGMENT_RETURNED, FrameKind.LOST)),
        (Use.GRANTED, (FrameKind.LENT, FrameKind.LOST)),
        (Use.CALLER, ()),
    ],
)
async def test_a_worker_speaks_of_what_it_has(
    use: Use, speaks: tuple[FrameKind, ...], make: Callable[..., Harbour]
) -> None:
    for kind in (FrameKind.LENT, FrameKind.SEGMENT_RETURNED, FrameKind.LOST):
        if (use, kind) == (Use.GRANTED, FrameKind.SEGMENT_RETURNED):
            continue  # it may; it never does
        harbour = make()
        segment = await harbour.granted(100_000)
        segment.use = use
        frame = Frame(kind, 0, 0, segment.number, b"")
        _, trouble = harbour.hear(frame)
        text = f"it named segment {segment.number}, which it does not have"
        assert trouble == (None if kind in speaks else text)


async def test_what_comes_back_is_free_and_what_is_lost_is_gone(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    harbour.load(dump(Block(pattern(100_000))))
    await harbour.settled()
    segment = harbour.only(Use.WORKER)
    assert harbour.hear(returned(segment.number), value()) == ([value()], None)
    assert use_of(segment) is Use.NOBODY
    assert harbour.load(dump(Block(pattern(100_000)))).done
    assert harbour.hear(lost(segment.number)) == ([], None)
    assert harbour.segments.total == 0
