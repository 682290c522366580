"""Shared memory and large buffers: each piece is somebody's, is bounded, and comes back."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    dump,
)
from asyncpool._core.wire.frames import HEADER_SIZE, Frame, FrameDecoder, FrameKind
from asyncpool._core.wire.messages import pack_numbers
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.large_buffers import BufferLoad, LargeBuffers
from asyncpool._runtime.channel.segments import Segment, Segments, Use
from asyncpool._system import memory as _memory
from asyncpool.errors import ProtocolError
from tests.helpers import virtual_time
from tests.helpers.guards import open_fds
from tests.helpers.large import Block, mapped, pattern
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

SIZE = 100_000
CLASS = 114_688  # how large a segment for it is
LIMIT = 1_000_000


class Hands:
    """Threads that do each call at once, or when they have time."""

    def __init__(self) -> None:
        self.busy: asyncio.Event | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    def copy(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        call = asyncio.ensure_future(self._copy(function, *args))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def idle(self) -> None:
        """Wait until all calls are made."""
        while self._calls:
            await asyncio.wait(self._calls)
        await asyncio.sleep(0)

    async def _copy(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.busy is not None:
            await self.busy.wait()
        return function(*args)


class Holder:
    """A worker that only takes note."""

    def __init__(self) -> None:
        self.closed = False
        self.announced: list[tuple[int, int]] = []
        self.dropped: list[int] = []

    def announce(self, segment: Segment, fd: int, /) -> None:
        self.announced.append((segment.number, os.fstat(fd).st_size))
        os.close(fd)

    def drop(self, number: int, /) -> None:
        self.dropped.append(number)


class Stock:
    """Segments, and all that they have to do with."""

    def __init__(self, bound: int = 10 * CLASS) -> None:
        self.hands, self.owner = Hands(), Holder()
        self.segments = Segments(
            asyncio.get_running_loop(),
            bound,
            self.hands,  # type: ignore[arg-type] # a fake
        )

    async def make(self, size: int = SIZE, owner: Holder | None = None) -> Segment:
        segment = await self.segments.make(owner or self.owner, size)
        assert segment is not None
        await self.hands.idle()  # until the loop has let go of it
        return segment

    async def free(self, size: int = SIZE, owner: Holder | None = None) -> Segment:
        """Make a segment that nobody has."""
        segment = await self.make(size, owner)
        self.segments.free(segment)
        return segment

    async def granted(self) -> Segment:
        segment = await self.make()
        segment.use = Use.GRANTED
        return segment


@pytest_asyncio.fixture
async def stock() -> AsyncIterator[Stock]:
    found = Stock()
    yield found
    found.segments.close()
    await found.hands.idle()
    assert found.segments.total == 0
    assert found.segments._segments == {}


def use_of(segment: Segment) -> Use:
    """Return what it is just now, whatever a type checker knows of it."""
    return segment.use


async def until(true: Callable[[], bool]) -> None:
    async with patience():
        while not true():  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)


# Segments.


async def test_there_are_no_more_than_the_bound_allows(stock: Stock) -> None:
    before = open_fds()
    stock.hands.busy = asyncio.Event()
    making = [
        asyncio.create_task(stock.segments.make(stock.owner, SIZE)) for _ in range(11)
    ]
    await asyncio.sleep(0)
    assert stock.segments.total == 10 * CLASS, "those that are being made count"
    stock.hands.busy.set()
    *made, none = await asyncio.gather(*making)
    assert none is None
    assert open_fds() == before
    assert stock.owner.announced == [(number, CLASS) for number in range(1, 11)]
    # What is free makes room, and its worker is told.
    assert made[3] is not None
    stock.segments.free(made[3])
    assert await stock.segments.make(stock.owner, CLASS + 1) is None
    assert stock.segments.take(Holder(), SIZE) is None, "it is another worker's"
    assert stock.owner.dropped == []
    assert (await stock.make()).number == 11
    assert stock.owner.dropped == [4]
    assert stock.segments.total == 10 * CLASS


@pytest.mark.parametrize(
    ("module", "broken"),
    [
        (os, "memfd_create"),
        (os, "ftruncate"),
        (os, "posix_fallocate"),
        (_memory, "Memory"),
        (_memory, "available"),
    ],
)
async def test_what_cannot_be_made_is_none(
    module: object, broken: str, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        if broken == "available":
            return False
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = open_fds()
    with monkeypatch.context() as patch:
        patch.setattr(module, broken, refuse)
        assert await stock.segments.make(stock.owner, SIZE) is None
    assert open_fds() == before
    assert (stock.segments.total, stock.owner.announced) == (0, [])
    await stock.make()


async def test_to_give_up_the_wait_gives_the_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a thread is in the middle of making it."""
    create, began, gate = _memory.create, threading.Event(), threading.Event()

    def create_slowly(size: int) -> int:
        began.set()
        gate.wait(PATIENCE)
        return create(size)

    monkeypatch.setattr(_memory, "create", create_slowly)
    loop = asyncio.get_running_loop()
    threads = Threads(loop)
    segments = Segments(loop, 10 * CLASS, threads)
    before, maps = open_fds(), mapped()
    async with patience():
        making = asyncio.create_task(segments.make(Holder(), SIZE))
        await until(began.is_set)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        gate.set()
        await threads.close()
    assert segments.total == 0
    segments.close()
    left = {fd: to for fd, to in open_fds().items() if fd not in before}
    for fd in left:
        with suppress(OSError):
            os.close(fd)
    assert left == {}
    assert mapped() == maps


async def test_what_is_free_for_long_is_given_up() -> None:
    async def main() -> None:
        stock, maps = Stock(), mapped()

        async def pass_by(seconds: float) -> None:
            over = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(seconds, over.set_result, None)
            await over

        await stock.free()
        await pass_by(4)
        await stock.free()
        busy, again = await stock.make(), await stock.make(2 * SIZE)
        for _ in range(2):  # what is taken again is not given up
            stock.segments.free(again)
            await pass_by(2.9)
            assert stock.segments.take(stock.owner, 2 * SIZE) is again
        assert stock.owner.dropped == []
        await pass_by(0.3)
        assert stock.owner.dropped == [1]
        await pass_by(4.2)
        assert stock.owner.dropped == [1, 2]
        # What somebody has is never given up; the next one that is free sets the clock again.
        await pass_by(1000)
        assert mapped() == maps + 2
        stock.segments.free(busy)
        del busy
        await pass_by(10.1)
        assert stock.owner.dropped == [1, 2, 3]
        assert mapped() == maps + 1
        del again
        stock.segments.close()

    await asyncio.to_thread(virtual_time.run, main())


@pytest.mark.parametrize("use", [Use.WORKER, Use.GRANTED, Use.NOBODY])
async def test_what_is_large_and_was_a_dead_workers_is_given_up_by_a_thread(
    use: Use,
) -> None:
    stock, before = Stock(1 << 30), mapped()
    segment = await stock.free(3 << 20)
    segment.use = use
    del segment
    stock.hands.busy = asyncio.Event()
    stock.owner.closed = True
    stock.segments.forget_all(stock.owner)
    assert stock.segments.total == 0
    assert mapped() == before + 1
    stock.hands.busy.set()
    await stock.hands.idle()
    assert mapped() == before
    stock.segments.close()


async def test_a_view_that_ends_frees_its_segment_in_the_loop(stock: Stock) -> None:
    segment = await stock.granted()
    with pytest.raises(ProtocolError, match="it put 114689 bytes into a segment of 11"):
        stock.segments.view(segment, CLASS + 1)
    for _ in range(2):
        segment.use = Use.GRANTED
        view = stock.segments.view(segment, CLASS)
        assert use_of(segment) is Use.CALLER
        part = view[3:5]
        del view
        await asyncio.sleep(0)
        # Whoever lets go may be any thread, in the middle of anything.
        del part
        assert use_of(segment) is Use.CALLER
        await until(lambda: use_of(segment) is Use.NOBODY)
        assert stock.segments.take(stock.owner, SIZE) is segment
        assert stock.segments.take(stock.owner, SIZE) is None  # it is out


async def test_what_a_copy_of_this_process_sees_is_not_used_again(stock: Stock) -> None:
    seen, other = await stock.granted(), await stock.granted()
    view = stock.segments.view(seen, SIZE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    later = stock.segments.view(other, SIZE)  # nobody has a copy of this one
    del view, later
    await until(lambda: use_of(other) is Use.NOBODY)
    assert stock.owner.dropped == [seen.number]
    assert stock.segments.take(stock.owner, SIZE) is other
    assert stock.segments.total == CLASS


async def test_what_a_dead_worker_had_is_given_up(stock: Stock) -> None:
    theirs = await stock.free(owner=Holder())
    view = stock.segments.view(await stock.granted(), SIZE)
    in_use = {use: await stock.make() for use in (Use.POOL, Use.WORKER, Use.GRANTED)}
    for use, segment in in_use.items():
        segment.use = use
    await stock.free()
    before, total = mapped(), stock.segments.total
    stock.owner.closed = True
    stock.segments.forget_all(stock.owner)
    # What is being filled, and what a caller has, are still needed.
    assert stock.segments.total == total - 3 * CLASS
    assert use_of(theirs) is Use.NOBODY
    in_use.clear()
    del segment
    assert mapped() == before - 3
    stock.segments.free(stock.segments._segments[3])
    assert bytes(view[:3]) == bytes(3)
    del view
    await until(lambda: stock.segments.total == CLASS)
    # Nobody is told: there is nobody.
    assert stock.owner.dropped == []
    assert mapped() == before - 5


# What goes to a worker, and comes from it.


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

    flush_soon = flush

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


class Harbour:
    """The large buffers of one worker, and all that they have to do with."""

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
        assert self.control.frames[-1] == granted(segment.number)
        return segment

    def only(self, use: Use) -> Segment:
        """Return the one segment that is in this use."""
        [found] = [s for s in self.segments._segments.values() if s.use is use]
        return found

    async def close(self) -> None:
        await self.settled()
        self.segments.close()
        await self.threads.close()
        for fd in self.control.descriptors:
            os.close(fd)


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Callable[..., Harbour]]:
    made: list[Harbour] = []

    def make(**options: Any) -> Harbour:
        made.append(Harbour(**options))
        return made[-1]

    yield make
    for harbour in made:
        await harbour.close()


def want(size: int) -> Frame:
    return Frame(FrameKind.WANT, size, 0, 0, b"")


def granted(number: int) -> Frame:
    return Frame(FrameKind.GRANT, 0, 0, number, b"")


def lent(number: int, *sizes: int) -> Frame:
    return Frame(FrameKind.LENT, 0, 0, number, pack_numbers(sizes))


def area(data: bytes | memoryview) -> Frame:
    return Frame(FrameKind.AREA, 0, 0, 0, data)


def value(payload: bytes = b"payload", job: int = 7) -> Frame:
    return Frame(FrameKind.VALUE, job, 1, 33, payload)


async def test_what_fits_into_a_warm_segment_is_sent_at_once(
    make: Callable[..., Harbour],
) -> None:
    harbour = make(limit=1 << 30)
    for seed, size in enumerate([1 << 20, 1 << 20, (1 << 20) + 1]):
        load = harbour.load(dump(Block(pattern(size, seed))))
        assert load.done is (seed == 1)  # which was warm, and small enough
        await harbour.settled()
        assert load.done
        # What is in a segment is told before its job.
        assert harbour.jobs.kinds == [FrameKind.LENT, FrameKind.JOB] * (seed + 1)
        segment = harbour.only(Use.WORKER)
        found = bytes(segment.memory.lend(lambda: None))
        assert found.startswith(bytes(pattern(size, seed)))
        back = Frame(FrameKind.SEGMENT_RETURNED, 0, 0, segment.number, b"")
        assert harbour.hear(back) == ([], None)
        assert use_of(segment) is Use.NOBODY
    assert {*harbour.control.kinds} == {FrameKind.SEGMENT}


@pytest.mark.parametrize("bound", [1 << 30, 0], ids=["shared", "sent"])
@pytest.mark.parametrize("gone", [True, False])
async def test_nothing_is_sent_that_nobody_wants_or_can_hear(
    bound: int,
    make: Callable[..., Harbour],
    gone: bool,  # noqa: FBT001
) -> None:
    harbour = make(bound=bound)
    load = harbour.load(dump(Block(pattern(100_000))))
    if gone:
        harbour.cargo.close()
    else:
        load.withdrawn = True
    await harbour.settled()
    assert not load.done
    assert harbour.jobs.frames == []
    if bound and not gone:
        # Its segment is there for the next one.
        segment = harbour.only(Use.NOBODY)
        assert harbour.load(dump(Block(pattern(100_000, 1)))).done
        assert harbour.only(Use.WORKER) is segment
    else:
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
    assert not load.done
    assert harbour.jobs.data == b""
    assert harbour.segments.total == 0


async def test_an_outcome_in_frames_is_put_together(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    for _ in range(2):  # the bound is that of each outcome
        frames = area(b"short"), area(bytes(LIMIT - 5)), value(b"")
        [outcome], trouble = harbour.hear(*frames)
        assert trouble is None
        assert outcome.payload.stream == b"short"
        outcome.payload.buffers[0][0] = 1  # a caller may change what it gets
    assert harbour.hear(value()) == ([value()], None)


OFFENCES: dict[str, tuple[list[Frame], str]] = {
    "too much in all": (
        [area(bytes(LIMIT)), area(b"x")],
        f"an outcome of {LIMIT + 1} bytes exceeds the limit of {LIMIT}",
    ),
    "too much, sent and lent": (
        [area(b"x"), lent(99, LIMIT)],
        f"an outcome of {LIMIT + 1} bytes exceeds the limit of {LIMIT}",
    ),
    "too much to count": (
        [lent(99, (1 << 64) - 1, 1)],
        f"an outcome of {1 << 64} bytes exceeds the limit of {LIMIT}",
    ),
    "asks for nothing": ([want(0)], "it asked for 0 bytes when it"),
    "asks for too much": (
        [want(2 * LIMIT + 1)],
        f"it asked for {2 * LIMIT + 1} bytes when it was not allowed to",
    ),
    "asks twice": ([want(9), want(9)], "it asked for 9 bytes when it"),
    "names what it has not": (
        [value(job=1), Frame(FrameKind.LOST, 0, 0, 5, b""), value(job=2)],
        "it named segment 5, which it does not have",
    ),
    "another word": ([granted(0)], "it sent GRANT on its job channel"),
    # Each part takes memory here, whatever its size.
    "areas of nothing": ([area(b"")] * 100_000, "it sent an outcome in more parts"),
    "parts of nothing": ([lent(1, *[0] * 100_000)], "it sent an outcome in more parts"),
    "parts of a byte": ([lent(99, *[1] * LIMIT)], "it sent an outcome in more parts"),
}


@pytest.mark.parametrize("name", OFFENCES)
async def test_offences(name: str, make: Callable[..., Harbour]) -> None:
    frames, text = OFFENCES[name]
    harbour = make(bound=0)
    outcomes, trouble = harbour.hear(*frames)
    assert str(trouble).startswith(text)
    # The outcomes before it count.
    assert outcomes == [frame for frame in frames[:1] if frame.kind is FrameKind.VALUE]


async def test_who_asks_gets_a_segment_or_is_told_that_there_is_none(
    make: Callable[..., Harbour],
) -> None:
    harbour = make(bound=200_000)
    first = await harbour.granted(100_000)
    # Nobody has two: else it could have all of the memory, and do nothing with it.
    _, trouble = harbour.hear(want(100_000))
    assert trouble == "it asked for 100000 bytes when it was not allowed to"
    harbour.hear(lent(first.number, 10), value())
    assert harbour.control.kinds == [FrameKind.SEGMENT, FrameKind.GRANT]
    # A warm one is granted at once.
    await until(lambda: use_of(first) is Use.NOBODY)
    assert harbour.hear(want(90_000)) == ([], None)
    assert harbour.tasks == []
    assert harbour.control.frames[2:] == [granted(1)]
    [kept], _ = harbour.hear(lent(1, 10), value())
    # No room is no offence, but who was refused may not ask on and on.
    assert harbour.hear(want(150_000)) == ([], None)
    await harbour.settled()
    assert harbour.control.frames[3:] == [granted(0)]
    assert harbour.segments.total <= 200_000
    assert harbour.hear(want(9))[1]
    assert len(kept.payload.buffers[0]) == 10


async def test_who_is_not_trusted_gets_no_segment_and_no_second_answer(
    make: Callable[..., Harbour],
) -> None:
    """Else it could change an outcome after the caller has it."""
    harbour = make(untrusted=True)
    assert harbour.hear(want(100_000)) == ([], None)
    assert harbour.tasks == []
    assert harbour.control.frames == [granted(0)]
    # It sends the outcome in frames, and may then ask for the next one.
    [outcome], trouble = harbour.hear(area(bytes(100_000)), value())
    assert (len(outcome.payload.buffers[0]), trouble) == (100_000, None)
    assert harbour.hear(want(9)) == ([], None)
    assert harbour.segments.total == 0


async def test_nothing_is_left_of_a_worker_that_is_gone(
    make: Callable[..., Harbour],
) -> None:
    harbour = make()
    segment = await harbour.granted(100_000)
    harbour.hear(lent(segment.number, 10), area(b"more"))
    harbour.cargo.drop(5)
    assert harbour.control.kinds[2:] == [FrameKind.DROP]
    harbour.cargo.close()
    assert not harbour.cargo.pending
    await until(lambda: harbour.segments.total == 0)
    harbour.cargo.drop(6)  # nobody is told
    late = make()
    assert late.hear(want(100_000)) == ([], None)
    late.cargo.close()
    await late.settled()
    assert not late.control.data
    assert late.segments.total == 0
    assert len(harbour.control.frames) == 3
