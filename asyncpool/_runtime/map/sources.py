"""Where the items of a map come from: sync and async iterables, drawn step by step."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from asyncpool._runtime.map.batches import TimeSlice

# How many items of a plain iterator are drawn between two looks at the clock.
_AT_ONCE = 256


class Source(Protocol):
    """Items, in their order.

    Attributes:
        error: The exception that has ended the items, if there was one.
        exhausted: Whether there are no more items to draw.
        drawn: How many items the source has drawn from the iterables, and has not given out.
    """

    error: BaseException | None

    @property
    def exhausted(self) -> bool: ...

    @property
    def drawn(self) -> int: ...

    def draw(self, count: int, room: int) -> list[Any]:
        """Return up to *count* items; draw no more than *room* items ahead."""
        ...

    async def aclose(self) -> None:
        """Draw no more, and close the iterables."""


class SyncSource:
    """Items of a plain iterator; see :class:`Source`."""

    drawn = 0

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self.error: BaseException | None = None
        self.exhausted = False

    def draw(self, count: int, room: int) -> list[Any]:
        """See :class:`Source`."""
        del room  # this source draws nothing ahead
        found: list[Any] = []
        turn = TimeSlice()
        try:
            while len(found) < count:
                before = len(found)
                few = min(count - before, _AT_ONCE)
                found.extend(itertools.islice(self._items, few))
                if len(found) - before < few:
                    self.exhausted = True
                    break
                if turn.over:  # the iterator is slow, so other code must have the loop
                    break
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the iterable's
            # This is no await, so even a CancelledError is an error of the iterator's.
            self.error, self.exhausted = error, True
        return found

    async def aclose(self) -> None:
        """See :class:`Source`."""


class AsyncSource:
    """Items of an async iterator, drawn by a task of its own; see :class:`Source`.

    Args:
        items: The iterator.
        on_news: Called when there is an item, or when there will be no more.
    """

    def __init__(self, items: AsyncIterator[Any], on_news: Callable[[], None]) -> None:
        self._items = items
        self._on_news = on_news
        self._found: deque[Any] = deque()
        self._room = 0
        self._may_draw = asyncio.Event()
        self._ended = False
        self._closing = False
        self.error: BaseException | None = None
        self._task = asyncio.create_task(self._run(), name="asyncpool inputs of a map")

    @property
    def exhausted(self) -> bool:
        """See :class:`Source`."""
        return self._ended and not self._found

    @property
    def drawn(self) -> int:
        """See :class:`Source`."""
        return len(self._found)

    def draw(self, count: int, room: int) -> list[Any]:
        """See :class:`Source`."""
        found = [self._found.popleft() for _ in range(min(count, len(self._found)))]
        self._room = room - len(found)
        if self._room > len(self._found):
            self._may_draw.set()
        return found

    async def aclose(self) -> None:
        """See :class:`Source`."""
        self._closing = True
        self._task.cancel()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()  # again, while the task closes the iterator
            raise
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        try:
            while not self._closing:
                if self._room <= len(self._found):
                    self._may_draw.clear()
                    await self._may_draw.wait()
                    continue
                self._found.append(await anext(self._items))
                self._on_news()
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError as error:
            # If the iterator itself was cancelled, items may be missing: that is an error.
            if self._closing:
                raise
            self.error = error
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
        finally:
            try:
                # Here, in the task that has iterated: a cancel scope around a yield belongs to it.
                await _close(self._items)
            finally:
                self._ended = True
                self._on_news()


def open_source(iterables: tuple[Any, ...], on_news: Callable[[], None]) -> Source:
    """Return a source of the items of *iterables*; of tuples, if there are several.

    Raises:
        TypeError: If one of them is not iterable.
    """
    if any(isinstance(items, AsyncIterable) for items in iterables):
        each = [_aiter(items) for items in iterables]
        return AsyncSource(each[0] if len(each) == 1 else _zip(each), on_news)
    return SyncSource(
        iter(iterables[0] if len(iterables) == 1 else zip(*iterables, strict=False))
    )


def _aiter(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    return aiter(items) if isinstance(items, AsyncIterable) else _wrap(items)


async def _wrap(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def _zip(each: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
    try:
        while True:
            found: list[Any] = []
            for items in each:
                try:
                    found.append(await anext(items))
                except StopAsyncIteration:
                    return
            yield tuple(found)
    finally:
        for items in each:
            await _close(items)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
