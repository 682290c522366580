"""The shared memory of a pool: it makes segments, lends them to workers, and releases them.

The pool and one worker map each segment.  It belongs to that worker for as long as it exists.  A
worker may write where it once was allowed to, perhaps through a stray pointer.  So it can only
damage its own jobs.  All segments are the pool's, and the pool alone decides about them.  A
segment is free, or it is *out*: its content is on its way, or somebody has a view of it.

It costs ten times as much to touch fresh memory as to copy into it.  So the pool keeps free
segments for a while, to use them again.  When it needs room, it drops the ones that have been
free the longest.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asyncpool._engine.channel import Channel
from asyncpool._engine.loop import Alarm, Threads, call_in, shielded
from asyncpool._wire.buffers import OutOfBandPickle, lay_out
from asyncpool._wire.frames import FrameKind, header
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._wire.memory import Memory

# Seconds for which the pool keeps a free segment: a warm one is faster than a new one.
_KEEP = 10.0

# To release this many bytes takes about 0.2 ms.  64 MB take 15 ms, so a thread releases what is
# larger.
_SMALL = 1 << 20


# Two segments whose sizes differ by less than a quarter count as equal.
_STEPS = 4
_SMALLEST = 1 << 16

# A segment is not used for an object that is this many times smaller.
_MOST_WASTE = 4

# Up to this many bytes the event loop's thread copies into a warm segment itself, which takes
# 25 us.  To hand the copy to another thread takes longer.
_AT_ONCE = 1 << 20


def size_class(size: int) -> int:
    """Return the size of a segment for *size* bytes."""
    step = max(_SMALLEST, 1 << (size - 1).bit_length()) // (2 * _STEPS)
    return max(_SMALLEST, -(-size // step) * step)


class Use(enum.Enum):
    """Who uses a segment now."""

    NOBODY = "nobody"
    POOL = "pool"  # the pool writes into it, for a job that is on its way
    WORKER = "worker"  # the worker has a view of a job's arguments
    GRANTED = "granted"  # the worker may put an outcome there
    CALLER = "caller"  # the caller of a job has a view of its outcome


class SegmentOwner:
    """The worker that a segment belongs to, or another process that maps it.

    Attributes:
        control_channel: Where it hears of its segments.
        closed: Whether it is gone.
    """

    control_channel: Channel | None = None
    closed = False

    def announce(self, segment: Segment, fd: int) -> None:
        """Tell it about a new segment, and send the descriptor, which belongs to the channel then."""
        assert self.control_channel is not None
        head = header(FrameKind.SEGMENT, 0, segment.memory.size, number=segment.number)
        self.control_channel.put_descriptor(head, fd)
        self.control_channel.flush()

    def drop(self, number: int) -> None:
        """Tell it to forget a segment."""
        if self.control_channel is not None and not self.closed:
            self.control_channel.put(header(FrameKind.DROP, 0, number=number))
            self.control_channel.flush_soon()


class Segment:
    """One segment.

    Attributes:
        number: Its number, by which the pool and the worker name it.
        owner: The worker that it belongs to.
        memory: Its memory.
        use: Who uses it now.
        free_since: Since when nobody uses it, if that is so.
    """

    __slots__ = ("free_since", "memory", "number", "owner", "use")

    def __init__(self, number: int, owner: SegmentOwner, memory: Memory) -> None:
        self.number, self.owner, self.memory = number, owner, memory
        self.use, self.free_since = Use.POOL, 0.0


class Segments:
    """The segments of one pool.

    Ctrl-C may cancel a job, and so free a segment, between any two calls of a function.  So what
    changes the tables of free segments calls nothing on the way, and nothing iterates over a table
    itself.  A caller may free thousands of segments at once.  So nothing that a job needs iterates
    over all of them.

    Args:
        loop: The pool's loop.
        bound: The most bytes that all of them may have together.
        threads: Make the memory, since that takes 35 ms for 64 MB.

    Attributes:
        total: How many bytes all segments have together, with those that are being made.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bound: int, threads: Threads
    ) -> None:
        self._loop, self._threads, self._bound = loop, threads, bound
        self._numbers = itertools.count(1)
        self._segments: dict[int, Segment] = {}
        # The free ones by number, the one that has been free the longest first.
        self._free: dict[int, Segment] = {}
        # The same ones, by owner and size.
        self._shelves: dict[tuple[SegmentOwner, int], dict[int, Segment]] = {}
        self.total = self._idle = 0  # bytes, in all and that are free
        self._alarm = Alarm(loop, self._trim)

    def take(self, owner: SegmentOwner, size: int) -> Segment | None:
        """Return a warm segment of *owner* for *size* bytes, if there is one."""
        best = size_class(size)
        while best <= _MOST_WASTE * size:
            shelf = self._shelves.get((owner, best))
            if shelf is not None:
                # The one that was freed last, since its memory is the warmest.
                segment = shelf[next(reversed(shelf))]
                self._take_out(segment)
                segment.use = Use.POOL
                return segment
            best = size_class(best + 1)
        return None

    async def make(self, owner: SegmentOwner, size: int) -> Segment | None:
        """Make a segment for *size* bytes and announce it; ``None`` if that is not possible.

        Cancellation:
            Safe: the memory is released.
        """
        size = size_class(size)
        if self.total - self._idle + size > self._bound:
            return None
        while self.total + size > self._bound:
            self._drop(self._free[next(iter(self._free))])
        self.total += size
        made = self._threads.copy(_make, size)
        try:
            fd, memory = await shielded(made)
        except BaseException as error:
            self.total -= size
            if isinstance(error, Exception):  # no memory, no descriptors, no ctypes
                return None
            made.add_done_callback(_unmake)
            raise
        if owner.closed:
            self.total -= size
            os.close(fd)
            return None
        segment = Segment(next(self._numbers), owner, memory)
        self._segments[segment.number] = segment
        owner.announce(segment, fd)
        return segment

    def fill_at_once(
        self, owner: SegmentOwner, pickled: OutOfBandPickle
    ) -> Segment | None:
        """Copy *pickled* into a warm segment of *owner*, if there is one and that takes no time."""
        size = lay_out(pickled.sizes)[1]
        segment = self.take(owner, size) if size <= _AT_ONCE else None
        if segment is not None:
            segment.memory.fill(pickled)
        return segment

    async def fill(
        self, owner: SegmentOwner, pickled: OutOfBandPickle, wanted: Callable[[], bool]
    ) -> Segment | None:
        """Have a thread copy *pickled* into a segment; ``None`` if there can be none.

        If it is not *wanted* any more, nothing is copied.

        Cancellation:
            Safe: if a thread copies into the segment, that stays with the pool.
        """
        size = lay_out(pickled.sizes)[1]
        segment = self.take(owner, size) or await self.make(owner, size)
        if segment is not None and wanted():
            await self._threads.copy(segment.memory.fill, pickled)
        return segment

    def view(self, segment: Segment, size: int) -> memoryview:
        """Return a view of an outcome of *size* bytes that the worker has put there.

        Raises:
            ProtocolError: If the outcome is larger than the segment.
        """
        if size > segment.memory.size:
            raise ProtocolError(
                f"it put {size} bytes into a segment of {segment.memory.size}"
            )
        segment.use = Use.CALLER
        # The garbage collector calls this, in any thread, between any two steps.
        gone = partial(call_in, self._loop, self._on_gone, segment.number)
        return segment.memory.lend(gone)

    def find(self, owner: SegmentOwner, number: int, *uses: Use) -> Segment:
        """Return the segment that *owner* has named.

        Raises:
            ProtocolError: If the worker has no such segment, or its use is none of *uses*.
        """
        segment = self._segments.get(number)
        if segment is None or segment.owner is not owner or segment.use not in uses:
            raise ProtocolError(f"it named segment {number}, which it does not have")
        return segment

    def free(self, segment: Segment) -> None:
        """Take a segment back: keep it for another use, or release it."""
        segment.use = Use.NOBODY
        if segment.owner.closed:
            self.forget(segment)
            return
        if segment.memory.copied:  # by a fork of this process
            self._drop(segment)
            return
        number, size = segment.number, segment.memory.size
        segment.free_since = self._loop.time()
        shelf = self._shelves.setdefault((segment.owner, size), {})
        self._free[number] = shelf[number] = segment
        self._idle += size
        if not self._alarm.is_set:
            self._alarm.set_in(_KEEP)

    def forget(self, segment: Segment) -> None:
        """Release a segment; its memory lasts as long as somebody has a view of it."""
        del self._segments[segment.number]
        if segment.number in self._free:
            self._take_out(segment)
        self.total -= segment.memory.size
        if segment.memory.size > _SMALL and segment.use not in {Use.POOL, Use.CALLER}:
            bag = [segment.memory]
            del segment.memory
            self._threads.copy(bag.clear)  # drops the last reference there

    def forget_all(self, owner: SegmentOwner) -> None:
        """Release the segments of a worker that is gone, except those still in use here."""
        for segment in list(self._segments.values()):
            if segment.owner is owner and segment.use not in {Use.POOL, Use.CALLER}:
                self.forget(segment)

    def close(self) -> None:
        """Release all segments, and ignore views that end later; threads may still do the work."""
        self._alarm.cancel()
        for segment in list(self._segments.values()):
            segment.memory.view = None
            self.forget(segment)

    def _on_gone(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is not None:
            self.free(segment)

    def _trim(self, now: float) -> None:
        for segment in list(self._free.values()):
            if segment.free_since > now - _KEEP:
                self._alarm.set_at(segment.free_since + _KEEP)
                break
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        """Release a segment on both sides."""
        self.forget(segment)
        segment.owner.drop(segment.number)

    def _take_out(self, segment: Segment) -> None:
        """Note that *segment* is not free any more."""
        number, size = segment.number, segment.memory.size
        key = segment.owner, size
        shelf = self._shelves[key]
        del self._free[number], shelf[number]
        self._idle -= size
        if not shelf:
            del self._shelves[key]


def _make(size: int) -> tuple[int, Memory]:
    # Imported here, since only few pools need ctypes.
    from asyncpool._wire.memory import Memory, available, create  # noqa: PLC0415

    if not available():
        raise OSError("memory cannot be sealed here")
    fd = create(size)
    try:
        return fd, Memory(fd, size)
    except BaseException:
        os.close(fd)
        raise


def _unmake(made: asyncio.Future[tuple[int, Memory]]) -> None:
    if not made.cancelled() and not made.exception():
        os.close(made.result()[0])
