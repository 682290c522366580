"""Memory that the two ends of a connection lend each other: the large buffers of jobs.

The segments are those of a local pool (``_engine/segments.py``), with the other end in the
place of a worker.  A client's memory is not handed on to a worker: another worker may have it
next, and what once could write there would write into that one's arguments.  So the agent
copies between two warm segments, at the speed of memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asyncpool._engine.channel import Channel
from asyncpool._engine.loop import Threads, call_in
from asyncpool._engine.segments import Segment, SegmentOwner, Segments, Use
from asyncpool._remote.messages import pack_lent, unpack_lent
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import FrameKind
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._wire.memory import Memory

# The most bytes that one end of a connection lends the other, and the bound that it expects.
MOST_LENT = 1 << 30

# How many bytes a second go through the socket instead, when each of six copies is into fresh memory.
SOCKET_RATE = 1e8


class LentMemory(SegmentOwner):
    """What this end has lent.

    Args:
        loop: The loop of the connection.
        threads: Make and fill large segments.
        control_channel: Where the other end hears of them.

    Attributes:
        closed: Whether the other end is gone.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: Threads, channel: Channel
    ) -> None:
        self.control_channel = channel
        self._loop, self._bound = loop, MOST_LENT
        self._segments = Segments(loop, MOST_LENT, threads)
        self._came_back = asyncio.Event()

    def lend_at_once(self, pickled: OutOfBandPickle) -> bytes | None:
        """Put *pickled* into warm memory, if there is some and that takes no time.

        Returns:
            What the other end reads with :meth:`BorrowedMemory.read`.
        """
        segment = self._segments.fill_at_once(self, pickled)
        return None if segment is None else _named(segment, pickled)

    async def lend(
        self, pickled: OutOfBandPickle, wanted: Callable[[], bool]
    ) -> bytes | None:
        """Put *pickled* into memory; ``None`` if there is none, or if it is not *wanted* then.

        If all memory is lent, it waits until some comes back, but no longer than the socket would
        take, which blocks the loops of both ends meanwhile.

        Cancellation:
            Safe.
        """
        late = self._loop.time() + len(pickled) / SOCKET_RATE
        fits = lay_out(pickled.sizes)[1] <= self._bound
        while (segment := await self._segments.fill(self, pickled, wanted)) is None:
            if self.closed or not (fits and wanted() and self._segments.total):
                return None  # nothing is lent that could come back
            self._came_back.clear()
            try:
                async with asyncio.timeout_at(late):
                    await self._came_back.wait()
            except TimeoutError:
                return None
        if self.closed:
            return None
        if not wanted():
            self._segments.free(segment)
            return None
        return _named(segment, pickled)

    def returned(self, number: int) -> None:
        """Hear that the other end has no view of a segment any more.

        Raises:
            ProtocolError: If it had none.
        """
        self._segments.free(self._segments.find(self, number, Use.WORKER))
        self._came_back.set()

    def lost(self, number: int) -> None:
        """Hear that the other end cannot map a segment, or cannot give it back.

        Raises:
            ProtocolError: If there is no such segment.
        """
        self._segments.forget(self._segments.find(self, number, Use.WORKER))
        self._came_back.set()

    def close(self) -> None:
        """Lend nothing more."""
        self.closed = True
        self._segments.close()
        self._came_back.set()


def _named(segment: Segment, pickled: OutOfBandPickle) -> bytes:
    segment.use = Use.WORKER  # the other end's
    return pack_lent(segment.number, pickled.sizes, pickled.payload)


# The smallest segment; with the bound of all of them it bounds their number.
_SMALLEST = 1 << 16


class _Borrowed:
    __slots__ = ("memory", "seen", "size")

    def __init__(self, size: int, memory: Memory | None) -> None:
        self.size = size
        self.memory = memory
        self.seen = False


class BorrowedMemory:
    """What the other end has lent.

    Args:
        loop: The loop of the connection.
        threads: Release what is large.
        tell: Tells the other end of a segment: that it is returned, or lost.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        tell: Callable[[FrameKind, int], object],
    ) -> None:
        self._loop, self._threads, self._tell = loop, threads, tell
        self._segments: dict[int, _Borrowed] = {}
        self._total = 0

    def add(self, number: int, size: int, fd: int | None) -> None:
        """Take a new segment, and close its descriptor; ``None`` if the kernel has dropped it.

        Raises:
            ProtocolError: If there are too many bytes, or the other end could take them away.
        """
        try:
            if number in self._segments or size < _SMALLEST:
                raise ProtocolError(f"it lent segment {number} of {size} bytes")
            if self._total + size > MOST_LENT:
                raise ProtocolError(f"it lent more than {MOST_LENT} bytes")
            self._segments[number] = _Borrowed(size, _mapped(fd, size))
            self._total += size
        finally:
            if fd is not None:
                os.close(fd)

    def read(self, data: bytes) -> ReceivedPickle | None:
        """Return what *data* names, see :meth:`LentMemory.lend`; ``None`` if it cannot be had.

        The other end gets the segment back when the last view of it is gone.

        Raises:
            ProtocolError: If it names what was not lent.
        """
        number, sizes, payload = unpack_lent(data)
        found = self._segments.get(number)
        if found is None or found.seen or lay_out(sizes)[1] > found.size:
            raise ProtocolError(f"it named segment {number}, which it has not lent")
        if found.memory is None:
            self._forget(number)
            self._tell(FrameKind.LOST, number)
            return None
        found.seen = True
        # The garbage collector calls this, in any thread, between any two steps.
        gone = partial(call_in, self._loop, self._on_gone, number)
        view = found.memory.lend(gone)
        return ReceivedPickle(payload, cut(view, sizes))

    def drop(self, number: int) -> None:
        """Forget a segment that nobody sees.

        Raises:
            ProtocolError: If there is none.
        """
        found = self._segments.get(number)
        if found is None or found.seen:
            raise ProtocolError(f"it dropped segment {number}, which it has not back")
        self._forget(number)

    def close(self) -> None:
        """Forget all; the views that there are last as long as they are used."""
        for number, found in [*self._segments.items()]:
            if found.memory is not None:
                found.memory.view = None
            self._forget(number)

    def _forget(self, number: int) -> None:
        found = self._segments.pop(number)
        self._total -= found.size
        if found.memory is not None and found.size > _SMALLEST and not found.seen:
            bag = [found.memory]
            found.memory = None
            self._threads.copy(bag.clear)  # drops the last reference there

    def _on_gone(self, number: int) -> None:
        found = self._segments.get(number)
        if found is None:
            return
        found.seen = False
        kind = FrameKind.SEGMENT_RETURNED
        if found.memory is not None and found.memory.copied:
            # A fork of this process may write there.
            kind = FrameKind.LOST
            self._forget(number)
        self._tell(kind, number)


def _mapped(fd: int | None, size: int) -> Memory | None:
    """Return the memory behind *fd*; ``None`` if it cannot be mapped.

    Raises:
        ProtocolError: If it could be taken away.
    """
    # Imported here, since only few programs need ctypes.
    from asyncpool._wire.memory import Memory, is_sealed  # noqa: PLC0415

    if fd is None:
        return None
    if not is_sealed(fd, size):
        raise ProtocolError(f"it lent memory that is not {size} bytes, or not sealed")
    try:
        return Memory(fd, size, later=True)
    except OSError:
        return None
