"""How many items may be in progress: the one place where items become jobs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from asyncpool._cli.map.inputs import Item

# In the pool, at the least; short jobs travel ahead to the workers, many at a time.
_ITEMS = 2048
_BYTES = 64 << 20  # of items in the pool
_UNWRITTEN = (
    1 << 16
)  # items that are done, but held back, for the order or for the disk
_UNWRITTEN_BYTES = 256 << 20
_SLICE = 256  # how many are submitted before anybody else has a turn

Submit = Callable[[Item], "asyncio.Future[str]"]


class Window:
    """Keeps the pool busy, and memory bounded, however long the input is.

    Args:
        submit: Makes a job of an item.
        on_settled: Called with each item and its job when the job is done.
        places: How many items the pool can run at once.
    """

    def __init__(
        self,
        submit: Submit,
        on_settled: Callable[[Item, asyncio.Future[str]], None],
        places: int,
    ) -> None:
        self._submit = submit
        self._on_settled = on_settled
        self._items = max(_ITEMS, 2 * places)
        self._stopped = False
        self._change: asyncio.Future[None] | None = None
        self._bytes = 0
        self._unwritten = 0
        self._unwritten_bytes = 0
        self.in_flight = 0

    async def run(self, items: list[Item]) -> None:
        """Submit items while there is room; return when the last one is submitted.

        Raises:
            PoolClosedError: Or whatever else *submit* raises.
        """
        start = 0
        while start < len(items) and not self._stopped:
            if not self._has_room:
                await self._next_change()
                continue
            for item in items[start : start + _SLICE]:
                job = self._submit(item)
                self.in_flight += 1
                self._bytes += len(item.raw)
                job.add_done_callback(functools.partial(self._settled, item))
                start += 1
                if self._bytes > _BYTES:
                    break
            await asyncio.sleep(0)

    async def drained(self) -> None:
        """Wait until no item is in progress, or the window was stopped."""
        while self.in_flight and not self._stopped:
            await self._next_change()

    def stop(self) -> None:
        """End all waits, and submit nothing more."""
        self._stopped = True
        self._wake()

    def hold(self, count: int, size: int) -> None:
        """Count items that are done, with *size* bytes, but not written."""
        self._unwritten += count
        self._unwritten_bytes += size

    def written(self, count: int, size: int) -> None:
        """Count items that are written."""
        self._unwritten -= count
        self._unwritten_bytes -= size
        self._wake()

    @property
    def _has_room(self) -> bool:
        return (
            self.in_flight <= self._items - _SLICE
            and self._bytes <= _BYTES
            and self._unwritten < _UNWRITTEN
            and self._unwritten_bytes < _UNWRITTEN_BYTES
        )

    def _settled(self, item: Item, job: asyncio.Future[str]) -> None:
        self.in_flight -= 1
        self._bytes -= len(item.raw)
        self._on_settled(item, job)
        if self._change is not None and (self._has_room or not self.in_flight):
            self._wake()

    async def _next_change(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None
