"""Send the items that a job yields, as far as the pool has given credit.

*Credit* is the number of items that the pool accepts in all.  The first credit comes with
the job, and more when the caller has taken items.  Without credit the generator does not
even make the next item.
"""

from __future__ import annotations

import socket
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from itertools import count

from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._worker.channel.frames_io import send
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job_ending.interrupts import Interrupts
from asyncpool.errors import JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterable
    from typing import Any


class StreamClosed(JobCancelled, GeneratorExit):
    """Raised in a generator that is to end while it computes.

    While it waits at a ``yield``, it gets a plain ``GeneratorExit``.  This exception is a
    ``GeneratorExit`` too, so a generator can handle both in the same way.
    """


class Credit:
    """How many items the pool takes of a stream that waits in its thread.

    Args:
        limit: So many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The control thread rings when there is more; a ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def raise_to(self, limit: int) -> None:
        """Hear, in any thread, how many there may be."""
        self._limit = limit
        if self._bell.empty():
            self._bell.put(None)

    def wait(self, number: int) -> None:
        """Wait until the item of that number, counted from 0, may be sent."""
        while number >= self._limit:
            self._bell.get()


class AwaitedCredit:
    """How many items the pool takes of a stream that waits in the event loop.

    Args:
        limit: So many.
        loop: The loop.
    """

    def __init__(self, limit: int, loop: AbstractEventLoop) -> None:
        from asyncio import Event  # noqa: PLC0415 - few jobs need it

        self._limit = limit
        self._loop = loop
        self._more = Event()

    def raise_to(self, limit: int) -> None:
        """Hear, in any thread, how many there may be."""
        self._limit = limit
        self._loop.call_soon_threadsafe(self._more.set)

    async def wait(self, number: int) -> None:
        """Wait until the item of that number, counted from 0, may be sent."""
        while number >= self._limit:
            self._more.clear()
            if number >= self._limit:
                await self._more.wait()


class Streams:
    """The streams of one worker, one after the other.

    Args:
        jobs: The job channel.
        large_buffers: Send the large buffers of items.
        interrupts: End a running job.
        coroutines: Run async generators.

    Attributes:
        max_payload: The most bytes that an item may have.
        first: The credit of the next stream, to begin with.
        serializer: How items travel.
    """

    def __init__(
        self,
        jobs: socket.socket,
        large_buffers: LargeBuffers,
        interrupts: Interrupts,
        coroutines: Coroutines,
    ) -> None:
        self._jobs = jobs
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._coroutines = coroutines
        # The credit of each running stream, by job and attempt.
        self._credits: dict[tuple[int, int], Credit | AwaitedCredit] = {}
        self.max_payload = 0
        self.first = 0
        self.serializer: WorkerSerializer = PICKLE_WORKER

    def run(self, frame: Frame, source: Any) -> Any:
        """Send the items of *source*, which the job in *frame* has returned.

        Returns:
            The value that the generator returns at its end.

        Raises:
            BaseException: Whatever the generator raises.
        """
        whose = frame.job, frame.attempt
        try:
            if hasattr(type(source), "__aiter__"):
                there = AwaitedCredit(self.first, self._coroutines.loop())
                self._credits[whose] = there
                drain = self.drain(frame, source, there)
                return self._coroutines.run(drain, shown=source)
            credit = self._credits[whose] = Credit(self.first)
            return self._pump(frame, source, credit)
        finally:
            self._credits.pop(whose, None)

    def grant(self, job: int, attempt: int, limit: int) -> None:
        """Note how many items a stream may send in all; its job may be over already."""
        credit = self._credits.get((job, attempt))
        if credit is not None:
            credit.raise_to(limit)

    def _pump(self, frame: Frame, source: Any, credit: Credit) -> Any:
        try:
            iterator = iter(source)
        except TypeError:
            raise not_iterable(source) from None
        interrupts = self._interrupts
        try:
            for number in count():
                credit.wait(number)
                interrupts.error = StreamClosed
                try:
                    payload = self._pack(next(iterator), number)
                except StopIteration as end:
                    return end.value
                finally:
                    interrupts.error = JobCancelled
                self._send(frame, payload)
                del payload
        finally:
            close(iterator)

    async def drain(
        self, frame: Frame, source: AsyncIterable[Any], credit: AwaitedCredit
    ) -> None:
        """Send the items of an async iterable, in the event loop."""
        items = aiter(source)
        try:
            for number in count():
                await credit.wait(number)
                try:
                    payload = self._pack(await anext(items), number)
                except StopAsyncIteration:
                    return
                self._send(frame, payload)
                del payload
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _pack(self, item: object, number: int) -> bytes | OutOfBandPickle:
        try:
            return self.serializer.pack_item(item, self.max_payload)
        except JobNotPicklableError as error:
            error.add_note(f"It is item {number} of a stream.")
            raise

    def _send(self, frame: Frame, payload: bytes | OutOfBandPickle) -> None:
        ahead = b""
        # Nothing may be raised here, in the middle of a frame.
        self._interrupts.hold()
        try:
            if self._large_buffers.in_use or type(payload) is not bytes:
                ahead, payload = self._large_buffers.put(payload)
            head = header(FrameKind.ITEM, len(payload), frame.job, frame.attempt)
            send(self._jobs, ahead + head, payload)
        finally:
            self._interrupts.release()


def not_iterable(source: object) -> TypeError:
    """Return the error for a job whose result has no items."""
    return TypeError(
        "stream() takes a function that returns an iterator or an async "
        f"iterator, such as a generator function; this one has returned {source!r}"
    )


def close(iterator: Any) -> None:
    """Close a generator, or whatever can be."""
    end = getattr(iterator, "close", None)
    if end is not None:
        end()
