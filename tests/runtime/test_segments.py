"""The contract of a pool's shared memory: each piece is somebody's, and comes back."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.segments import Segment, Segments, Use
from asyncpool._system import memory as _memory
from asyncpool.errors import ProtocolError
from tests.helpers.guards import open_fds
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

SIZE = 100_000
CLASS = 114_688  # how large a segment for it is


class Timer:
    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clockwork:
    """As much of a loop as segments need, with a time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []
        self.soon: list[Callable[[], object]] = []
        self.is_closed = False

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], object]) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def call_later(self, delay: float, call: Callable[[], object]) -> Timer:
        return self.call_at(self.now + delay, call)

    def call_soon_threadsafe(self, call: Callable[..., object], *args: object) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.soon.append(lambda: call(*args))

    def turn(self) -> int:
        """Make the calls that are due, and return how many of them came from views."""
        calls, self.soon = self.soon, []
        for call in calls:
            call()
        return len(calls)

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = [t for t in self.timers if not t.cancelled and t.when <= until]
            if not due:
                break
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.call()
        self.now = until

    @property
    def waiting(self) -> list[float]:
        """When the timers go off that are set."""
        return [timer.when for timer in self.timers if not timer.cancelled]


class Hands:
    """Threads that do each call at once, or never."""

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


class Owner:
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

    def __init__(self, bound: int) -> None:
        self.clock = Clockwork()
        self.hands = Hands()
        self.owner = Owner()
        self.segments = Segments(
            self.clock,  # type: ignore[arg-type] # a fake
            bound,
            self.hands,  # type: ignore[arg-type] # a fake
        )

    async def make(self, size: int = SIZE, owner: Owner | None = None) -> Segment:
        segment = await self.segments.make(owner or self.owner, size)
        assert segment is not None
        await self.hands.idle()  # until the loop has let go of it
        return segment

    async def free(self, size: int = SIZE, owner: Owner | None = None) -> Segment:
        """Make a segment that nobody has."""
        segment = await self.make(size, owner)
        self.segments.free(segment)
        return segment

    async def granted(self) -> Segment:
        segment = await self.make()
        segment.use = Use.GRANTED
        return segment


@pytest.fixture
def stock() -> Iterator[Stock]:
    found = Stock(bound=10 * CLASS)
    yield found
    found.segments.close()
    assert found.segments.total == 0
    assert found.segments._segments == {}
    assert found.clock.waiting == []


def use_of(segment: Segment) -> Use:
    """Return what it is just now, whatever a type checker knows of it."""
    return segment.use


def mapped() -> int:
    with Path("/proc/self/maps").open() as maps:
        return sum("/memfd:asyncpool (" in line for line in maps)


# How they are made.


async def test_a_segment_is_made_and_announced(stock: Stock) -> None:
    before = open_fds()
    segment = await stock.make()
    assert (segment.number, segment.owner) == (1, stock.owner)
    assert (segment.use, segment.memory.size) == (Use.POOL, CLASS)
    assert stock.owner.announced == [(1, CLASS)]
    assert stock.segments.total == CLASS
    other = await stock.make(65_536)
    assert (other.number, other.memory.size) == (2, 65_536)
    assert stock.owner.announced == [(1, CLASS), (2, 65_536)]
    assert stock.segments.total == CLASS + 65_536
    assert open_fds() == before


async def test_areas_are_put_where_they_belong(stock: Stock) -> None:
    segment = await stock.make()
    segment.fill([0, 64], [[b"one"], [b"t", memoryview(b"w"), b"o"]])
    view = segment.memory.lend(lambda: None)
    assert bytes(view[:70]) == b"one" + bytes(61) + b"two" + bytes(3)
    with pytest.raises(ValueError, match="shorter"):
        segment.fill([0, 64], [[b"one"]])


async def test_there_are_no_more_than_the_bound_allows(stock: Stock) -> None:
    made = [await stock.make() for _ in range(10)]
    assert await stock.segments.make(stock.owner, 1) is None
    assert stock.segments.total == 10 * CLASS
    assert len(stock.owner.announced) == 10
    # What is free makes room, and its worker is told.
    stock.segments.free(made[3])
    assert await stock.segments.make(stock.owner, CLASS + 1) is None
    assert stock.owner.dropped == []
    assert (await stock.make()).number == 11
    assert stock.owner.dropped == [4]
    assert stock.segments.total == 10 * CLASS


async def test_those_that_are_being_made_count(stock: Stock) -> None:
    stock.hands.busy = asyncio.Event()
    making = [
        asyncio.create_task(stock.segments.make(stock.owner, SIZE)) for _ in range(11)
    ]
    await asyncio.sleep(0)
    assert stock.segments.total == 10 * CLASS
    stock.hands.busy.set()
    made = await asyncio.gather(*making)
    assert [segment is None for segment in made] == [False] * 10 + [True]


@pytest.mark.parametrize(
    "broken", ["memfd_create", "ftruncate", "posix_fallocate"], ids=str
)
async def test_what_cannot_be_made_is_none(
    broken: str, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = open_fds()
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, refuse)
        assert await stock.segments.make(stock.owner, SIZE) is None
    assert open_fds() == before
    assert (stock.segments.total, stock.owner.announced) == (0, [])
    await stock.make()


async def test_what_cannot_be_mapped_is_none(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    before = open_fds()
    monkeypatch.setattr(_memory, "Memory", refuse)
    assert await stock.segments.make(stock.owner, SIZE) is None
    assert open_fds() == before
    assert stock.segments.total == 0


async def test_there_is_none_where_memory_cannot_be_sealed(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memory, "available", lambda: False)
    assert await stock.segments.make(stock.owner, SIZE) is None
    assert stock.segments.total == 0


async def test_whatever_is_broken_there_is_none(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(size: int) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(_memory, "create", fail)
    assert await stock.segments.make(stock.owner, SIZE) is None
    assert stock.segments.total == 0


async def test_a_worker_that_is_gone_meanwhile_gets_none(stock: Stock) -> None:
    before, maps = open_fds(), mapped()
    stock.hands.busy = asyncio.Event()
    making = asyncio.create_task(stock.segments.make(stock.owner, SIZE))
    await asyncio.sleep(0)
    stock.owner.closed = True
    stock.segments.forget_all(stock.owner)
    stock.hands.busy.set()
    assert await making is None
    assert (stock.segments.total, stock.owner.announced) == (0, [])
    assert open_fds() == before
    assert mapped() == maps


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
        making = asyncio.create_task(segments.make(Owner(), SIZE))
        while not began.is_set():  # noqa: ASYNC110 - a thread tells no loop
            await asyncio.sleep(0)
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


# How they are used again.


async def test_a_free_one_is_taken_again_by_its_worker_only(stock: Stock) -> None:
    segment, other = await stock.free(), Owner()
    assert use_of(segment) is Use.NOBODY
    assert stock.segments.take(other, SIZE) is None
    assert stock.segments.take(stock.owner, CLASS + 1) is None
    assert stock.segments.take(stock.owner, CLASS) is segment
    assert use_of(segment) is Use.POOL
    assert stock.segments.take(stock.owner, SIZE) is None  # it is out
    assert len(stock.owner.announced) == 1


async def test_what_is_free_for_long_is_given_up(stock: Stock) -> None:
    await stock.free()
    stock.clock.advance(4)
    second = await stock.free()
    busy = await stock.make()
    stock.clock.advance(5.9)
    assert stock.owner.dropped == []
    stock.clock.advance(0.2)
    assert stock.owner.dropped == [1]
    assert stock.segments.total == 2 * CLASS
    stock.clock.advance(3.8)
    assert stock.owner.dropped == [1]
    stock.clock.advance(0.2)
    assert stock.owner.dropped == [1, 2]
    assert second.number == 2
    # What somebody has is never given up, and nothing is left to look for.
    stock.clock.advance(1000)
    assert stock.segments.total == CLASS
    assert use_of(busy) is Use.POOL
    assert stock.clock.waiting == []
    # The next one that is free sets the clock again.
    stock.segments.free(busy)
    stock.clock.advance(10.1)
    assert stock.owner.dropped == [1, 2, 3]


async def test_what_is_taken_again_is_not_given_up(stock: Stock) -> None:
    segment = await stock.free()
    for _ in range(10):
        stock.clock.advance(6)
        assert stock.segments.take(stock.owner, SIZE) is segment
        stock.segments.free(segment)
    assert stock.owner.dropped == []
    stock.clock.advance(10.1)
    assert stock.owner.dropped == [1]


async def test_what_is_given_up_is_unmapped(stock: Stock) -> None:
    before = mapped()
    segment = await stock.free()
    assert mapped() == before + 1
    del segment
    stock.clock.advance(11)
    assert mapped() == before


async def test_what_is_large_is_given_up_by_a_thread(stock: Stock) -> None:
    stock.segments = Segments(
        stock.clock,  # type: ignore[arg-type] # fakes
        1 << 30,
        stock.hands,  # type: ignore[arg-type]
    )
    before = mapped()
    await stock.free(3 << 20)
    await stock.free(1 << 20)
    granted = await stock.make(4 << 20)
    granted.use = Use.GRANTED
    view = stock.segments.view(granted, 4 << 20)
    stock.hands.busy = asyncio.Event()
    del granted
    stock.clock.advance(11)
    assert stock.segments.total == 4 << 20
    # What is small is gone at once, what is large in a while.
    assert mapped() == before + 2
    stock.hands.busy.set()
    await stock.hands.idle()
    assert mapped() == before + 1
    # And what somebody sees when he lets go of it.
    stock.segments.close()
    await stock.hands.idle()
    assert bytes(view[-3:]) == bytes(3)
    del view
    assert mapped() == before


@pytest.mark.parametrize("use", [Use.WORKER, Use.GRANTED, Use.NOBODY])
async def test_what_is_large_and_was_a_dead_workers_is_given_up_by_a_thread(
    use: Use, stock: Stock
) -> None:
    stock.segments = Segments(
        stock.clock,  # type: ignore[arg-type] # fakes
        1 << 30,
        stock.hands,  # type: ignore[arg-type]
    )
    before = mapped()
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


async def test_what_is_being_filled_is_never_taken_from_who_fills_it(
    stock: Stock,
) -> None:
    stock.segments = Segments(
        stock.clock,  # type: ignore[arg-type] # fakes
        1 << 30,
        stock.hands,  # type: ignore[arg-type]
    )
    segment = await stock.make(3 << 20)
    stock.owner.closed = True
    stock.segments.forget_all(stock.owner)
    stock.segments.close()
    await stock.hands.idle()
    segment.fill([0], [[b"filled"]])
    assert bytes(segment.memory.lend(lambda: None)[:6]) == b"filled"


# Views.


async def test_a_view_that_ends_frees_its_segment_in_the_loop(stock: Stock) -> None:
    segment = await stock.granted()
    view = stock.segments.view(segment, SIZE)
    assert use_of(segment) is Use.CALLER
    assert len(view) == CLASS
    part = view[3:5]
    del view
    assert stock.clock.turn() == 0
    del part
    # Whoever lets go may be any thread, in the middle of anything.
    assert use_of(segment) is Use.CALLER
    assert stock.clock.turn() == 1
    assert use_of(segment) is Use.NOBODY
    assert stock.segments.take(stock.owner, SIZE) is segment


async def test_what_a_copy_of_this_process_sees_is_not_used_again(stock: Stock) -> None:
    seen, other = await stock.granted(), await stock.granted()
    view = stock.segments.view(seen, SIZE)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    later = stock.segments.view(other, SIZE)  # nobody has a copy of this one
    del view, later
    assert stock.clock.turn() == 2
    assert stock.owner.dropped == [seen.number]
    assert stock.segments.take(stock.owner, SIZE) is other
    assert stock.segments.take(stock.owner, SIZE) is None
    assert stock.segments.total == CLASS


@pytest.mark.parametrize("size", [0, 1, CLASS])
async def test_a_view_may_be_as_large_as_its_segment(size: int, stock: Stock) -> None:
    segment = await stock.granted()
    assert stock.segments.view(segment, size)
    assert stock.clock.turn() == 1


async def test_a_view_may_not_be_larger_than_its_segment(stock: Stock) -> None:
    segment = await stock.granted()
    with pytest.raises(ProtocolError) as caught:
        stock.segments.view(segment, CLASS + 1)
    assert str(caught.value) == f"it put {CLASS + 1} bytes into a segment of {CLASS}"
    assert use_of(segment) is Use.GRANTED


async def test_a_view_may_end_after_the_loop(stock: Stock) -> None:
    segment = await stock.granted()
    view = stock.segments.view(segment, SIZE)
    stock.clock.is_closed = True
    del view  # quietly
    gc.collect()
    stock.clock.is_closed = False
    assert stock.clock.turn() == 0


async def test_the_end_of_a_view_is_heard_once(stock: Stock) -> None:
    segment = await stock.granted()
    for _ in range(3):
        view = stock.segments.view(segment, SIZE)
        del view
        assert stock.clock.turn() == 1
        assert stock.clock.turn() == 0
        assert stock.segments.take(stock.owner, SIZE) is segment
        segment.use = Use.GRANTED


# Whose they are.


async def test_a_worker_may_speak_of_its_own_segments_only(stock: Stock) -> None:
    segment, find = await stock.granted(), stock.segments.find
    assert find(stock.owner, 1, Use.GRANTED) is segment
    assert find(stock.owner, 1, Use.WORKER, Use.GRANTED) is segment
    for owner, number, uses in (
        (Owner(), 1, list(Use)),
        (stock.owner, 2, list(Use)),
        (stock.owner, 0, list(Use)),
        (stock.owner, 1, [Use.WORKER]),
        (stock.owner, 1, [use for use in Use if use is not Use.GRANTED]),
        (stock.owner, 1, []),
    ):
        with pytest.raises(ProtocolError) as caught:
            find(owner, number, *uses)
        assert str(caught.value) == (
            f"it named segment {number}, which it does not have"
        )


async def test_what_a_dead_worker_had_is_given_up(stock: Stock) -> None:
    other = Owner()
    theirs = await stock.free(owner=other)
    view = stock.segments.view(await stock.granted(), SIZE)
    in_use = {use: await stock.make() for use in (Use.POOL, Use.WORKER, Use.GRANTED)}
    for use, segment in in_use.items():
        segment.use = use
    await stock.free()
    before = mapped()
    total = stock.segments.total
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
    stock.clock.turn()
    assert stock.segments.total == CLASS
    # Nobody is told: there is nobody.
    assert stock.owner.dropped == []
    assert mapped() == before - 5


async def test_what_a_worker_has_lost_is_given_up(stock: Stock) -> None:
    before = mapped()
    segment = await stock.granted()
    stock.segments.forget(segment)
    del segment
    assert (stock.segments.total, mapped()) == (0, before)
    assert stock.owner.dropped == []
    with pytest.raises(ProtocolError):
        stock.segments.find(stock.owner, 1, Use.GRANTED)


# The end.


async def test_views_outlive_the_pool_and_nobody_hears_of_their_end() -> None:
    stock, before = Stock(bound=10 * CLASS), mapped()
    view = stock.segments.view(await stock.granted(), SIZE)
    view[:3] = b"abc"
    await stock.free()
    stock.segments.close()
    assert stock.segments.total == 0
    assert stock.clock.waiting == []
    assert bytes(view[:3]) == b"abc"
    assert mapped() == before + 1
    del view
    assert mapped() == before
    assert stock.clock.turn() == 0


async def test_a_view_may_end_in_the_moment_before_the_pool() -> None:
    stock = Stock(bound=10 * CLASS)
    view = stock.segments.view(await stock.granted(), SIZE)
    del view
    stock.segments.close()
    assert stock.clock.turn() == 1
    assert stock.segments.total == 0


async def test_a_pool_without_large_objects_has_nothing_to_close() -> None:
    stock = Stock(bound=0)
    assert stock.segments.take(stock.owner, 1) is None
    assert await stock.segments.make(stock.owner, 1) is None
    stock.segments.close()
