"""Segments of shared memory: how many there are, and when one is given up."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from asyncpool._engine.loop import Threads
from asyncpool._engine.segments import Segment, SegmentOwner, Segments, Use
from asyncpool._wire import memory as _memory
from tests.helpers.guards import open_fds
from tests.helpers.large import mapped
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

pytestmark = BOTH_LOOPS

SIZE = 100_000
CLASS = 114_688  # how large a segment for it is


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


class Holder(SegmentOwner):
    """A worker that only takes note."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []
        self.dropped: list[int] = []

    def announce(self, segment: Segment, fd: int) -> None:
        self.announced.append((segment.number, os.fstat(fd).st_size))
        os.close(fd)

    def drop(self, number: int) -> None:
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


async def test_there_are_no_more_than_the_bound_allows(stock: Stock) -> None:
    before = open_fds()
    stock.hands.busy = asyncio.Event()
    making = [
        asyncio.create_task(stock.segments.make(stock.owner, SIZE)) for _ in range(11)
    ]
    await asyncio.sleep(0)
    assert stock.segments.total == 10 * CLASS, "those that are being made count"
    stock.hands.busy.set()
    *_, none = await asyncio.gather(*making)
    assert none is None
    assert open_fds() == before
    assert stock.owner.announced == [(number, CLASS) for number in range(1, 11)]


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
