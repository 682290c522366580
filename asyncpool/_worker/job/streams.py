"""Send what a job yields, item by item, as far as the pool has given credit for it.

Credit is how many items the pool takes in all.  It comes with the job, and more of it when
the caller has taken some.  Without credit the next item is not even made.
"""

from __future__ import annotations

import socket
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from itertools import count

from asyncpool._core.pickling.calls import pack_value
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._worker.channel.frames_io import send
from asyncpool._worker.channel.large_buffers import LargeBuffers
from asyncpool._worker.job.coroutines import Coroutines
from asyncpool._worker.job.interrupts import Interrupts
from asyncpool.errors import JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterator
    from typing import Any


class StreamClosed(JobCancelled, GeneratorExit):
    """Raised in a generator that is to end while it runs, not while it waits at a ``yield``.

    There it gets ``GeneratorExit``; so whoever handles that need not mind where he is.
    """


class Credit:
    """How many items the pool takes of the stream that runs.

    Attributes:
        listener: Called when there is more, by the thread that has heard of it.
    """

    def __init__(self) -> None:
        self._whose = (0, 0)
        self._limit = 0
        # Rung when there is more; a ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.listener: Callable[[], object] | None = None

    def begin(self, job: int, attempt: int, limit: int) -> None:
        """Begin with the items of another job."""
        self._whose, self._limit = (job, attempt), limit

    def grant(self, job: int, attempt: int, limit: int) -> None:
        """Hear how many items may be sent in all; the job may be over."""
        if (job, attempt) != self._whose:
            return
        self._limit = limit
        if self._bell.empty():
            self._bell.put(None)
        listener = self.listener
        if listener is not None:
            listener()

    def covers(self, number: int) -> bool:
        """Tell whether the item of that number, counted from 0, may be sent."""
        return number < self._limit

    def wait(self, number: int) -> None:
        """Wait until it may."""
        while number >= self._limit:
            self._bell.get()


class Streams:
    """The streams of one worker, one after the other.

    Args:
        jobs: The job channel.
        large_buffers: What large items go beside.
        interrupts: Which may end a job.
        coroutines: What runs async generators.
        credit: How much the pool takes.

    Attributes:
        credit: As above.
        max_payload: The most bytes that an item may have.
        first: The credit of the next stream, to begin with.
    """

    def __init__(
        self,
        jobs: socket.socket,
        large_buffers: LargeBuffers,
        interrupts: Interrupts,
        coroutines: Coroutines,
        credit: Credit,
    ) -> None:
        self._jobs = jobs
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._coroutines = coroutines
        self.credit = credit
        self.max_payload = 0
        self.first = 0

    def run(self, frame: Frame, source: Any) -> Any:
        """Send the items of *source*, what the job in *frame* has returned.

        Returns:
            What a generator returns at its end.

        Raises:
            BaseException: What it raises.
        """
        self.credit.begin(frame.job, frame.attempt, self.first)
        if hasattr(type(source), "__aiter__"):
            drain = self._drain(frame, source)
            return self._coroutines.run(drain, shown=source)
        try:
            iterator = iter(source)
        except TypeError:
            raise not_iterable(source) from None
        try:
            return self._pump(frame, iterator)
        finally:
            close(iterator)

    def _pump(self, frame: Frame, iterator: Iterator[Any]) -> Any:
        interrupts, credit = self._interrupts, self.credit
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
        raise AssertionError

    async def _drain(self, frame: Frame, source: AsyncIterable[Any]) -> None:
        from asyncio import Event, get_running_loop  # noqa: PLC0415 - few jobs need it

        loop, credit, more = get_running_loop(), self.credit, Event()
        credit.listener = lambda: loop.call_soon_threadsafe(more.set)
        items = aiter(source)
        try:
            for number in count():
                while not credit.covers(number):
                    more.clear()
                    if not credit.covers(number):
                        await more.wait()
                try:
                    payload = self._pack(await anext(items), number)
                except StopAsyncIteration:
                    return
                self._send(frame, payload)
                del payload
        finally:
            credit.listener = None
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _pack(self, item: object, number: int) -> bytes | OutOfBandPickle:
        try:
            return pack_value(item, self.max_payload)
        except JobNotPicklableError as error:
            error.add_note(f"It is item {number} of a stream.")
            raise

    def _send(self, frame: Frame, payload: bytes | OutOfBandPickle) -> None:
        ahead = b""
        # In the middle of a frame, nothing may be raised here.
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
