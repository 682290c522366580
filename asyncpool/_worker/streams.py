"""Send the items that a job yields, as far as the pool has given credit.

*Credit* is the number of items that the pool accepts in all.  The first credit comes with
the job, and more when the caller has taken items.  Without credit the generator does not
even make the next item.
"""

from __future__ import annotations

from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from itertools import count
from types import CoroutineType

from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Iterator
    from typing import Any

    from asyncpool._worker.runner import JobRunner, Lane


class StreamClosed(JobCancelled, GeneratorExit):
    """Raised in a generator that is to end while it computes.

    While it waits at a ``yield``, it gets a plain ``GeneratorExit``.  This exception is a
    ``GeneratorExit`` too, so a generator can handle both in the same way.
    """


class Credit:
    """How many items the pool takes of a stream.

    Args:
        limit: So many.
        loop: The event loop that the stream waits in; without one it blocks its thread.
    """

    def __init__(self, limit: int, loop: AbstractEventLoop | None) -> None:
        self.limit = limit
        self._loop = loop
        # The control thread rings when there is more; a ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        if loop is not None:
            from asyncio import Event  # noqa: PLC0415 - few jobs need it

            self._more = Event()

    def raise_to(self, limit: int) -> None:
        """Hear, in any thread, how many there may be."""
        self.limit = limit
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._more.set)
        elif self._bell.empty():
            self._bell.put(None)

    async def wait(self, number: int) -> None:
        """Wait until the item of that number, counted from 0, may be sent."""
        while number >= self.limit:
            if self._loop is None:
                self._bell.get()
                continue
            self._more.clear()
            if number >= self.limit:
                await self._more.wait()


async def send_items(runner: JobRunner, lane: Lane, source: Any, credit: Credit) -> Any:
    """Send the items of *source*, which a job has returned, one by one.

    Args:
        runner: Runs the job.
        lane: Where it runs.
        source: An iterable or an async iterable, or a coroutine that returns one.
        credit: How many may be sent.

    Returns:
        The value that the generator returns at its end.

    Raises:
        BaseException: Whatever the generator raises.
    """
    if type(source) is CoroutineType:
        source = await source
    if lane.steps is not None:
        lane.steps.shown = source
    end: type[StopIteration | StopAsyncIteration]
    items: Any
    if hasattr(type(source), "__aiter__"):
        items, is_async, end = aiter(source), True, StopAsyncIteration
    else:
        try:
            items, is_async, end = iter(source), False, StopIteration
        except TypeError:
            raise TypeError(
                "stream() takes a function that returns an iterator or an async "
                f"iterator, such as a generator function; this one has returned {source!r}"
            ) from None
    try:
        for number in count():
            if number >= credit.limit:
                await credit.wait(number)
            try:
                item = await anext(items) if is_async else _next(runner, lane, items)
            except end as last:
                return getattr(last, "value", None)
            runner.send_item(lane, item, number)
            del item
    finally:
        close = getattr(items, "aclose" if is_async else "close", None)
        if close is not None:
            closing = close()
            if is_async:
                await closing


def _next(runner: JobRunner, lane: Lane, items: Iterator[Any]) -> Any:
    """Return the next item, whose computation can be interrupted, also in the event loop."""
    interrupts = runner.control.interrupts
    before, interrupts.error = interrupts.running, StreamClosed
    try:
        interrupts.begin(lane.sequence)
        return next(items)
    finally:
        interrupts.running, interrupts.error = before, JobCancelled
