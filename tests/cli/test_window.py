"""How many items of ``asyncpool map`` are read, under way, and held back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from asyncpool._cli.map.inputs import Item
from asyncpool._cli.map.run import Drawn, ReadAhead, Window
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize(("places", "least"), [(2, 1000), (5000, 5000)])
async def test_no_place_stays_empty_for_want_of_items(places: int, least: int) -> None:
    jobs: list[asyncio.Future[str]] = []

    def submit(_: Item) -> asyncio.Future[str]:
        jobs.append(asyncio.get_running_loop().create_future())
        return jobs[-1]

    window = Window(submit, lambda _, __: None, places)
    items = [Item(n, b"", 0) for n in range(20_000)]
    running = asyncio.create_task(window.run(items))
    before = -1
    while len(jobs) > before:  # until it waits
        before = len(jobs)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert least <= len(jobs) <= max(2048, 2 * places)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("count", "size"), [(1 << 16, 0), (1, 256 << 20)], ids=["items", "bytes"]
)
async def test_nothing_is_drawn_while_too_much_is_not_written(
    count: int, size: int
) -> None:
    begun: list[int] = []

    def submit(item: Item) -> asyncio.Future[str]:
        begun.append(item.number)
        return asyncio.get_running_loop().create_future()

    window = Window(submit, lambda _, __: None, 2)
    window.hold(count, size)
    running = asyncio.create_task(window.run([Item(0, b"", 0)]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert begun == []
    window.written(count, size)
    await running
    assert begun == [0]


class Large(bytes):
    """What debug logs need not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "large"


async def test_large_items_are_few_at_a_time() -> None:
    jobs: list[asyncio.Future[str]] = []

    def submit(_: Item) -> asyncio.Future[str]:
        jobs.append(asyncio.get_running_loop().create_future())
        return jobs[-1]

    window = Window(submit, lambda _, __: None, 2)
    large = Large(10 << 20)
    running = asyncio.create_task(window.run([Item(n, large, 0) for n in range(20)]))
    for expected in (7, 8, 9):  # beyond 64 MB there is no room
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(jobs) == expected
        jobs[expected - 7].set_result("")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_the_input_is_read_no_more_than_a_little_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = threading.Semaphore(0)

    class Room(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - as it is
            if not super().acquire(blocking=False):
                blocked.release()
                return super().acquire(blocking, timeout)
            return True

    def portions() -> Iterator[Drawn]:
        for number in range(100):
            drawn.append(number)
            yield Drawn(consumed=number)

    drawn: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Semaphore", Room)
        reader = ReadAhead(portions())
    for taken in range(3):
        assert await asyncio.to_thread(blocked.acquire, timeout=PATIENCE)
        assert drawn == list(range(5 + taken))
        portion = await reader.next()
        assert portion is not None
        assert portion.consumed == taken
    reader.stop()
