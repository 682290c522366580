"""The shared memory of a pool: made here, lent to workers, taken back, given up.

Each segment is mapped by the pool and by one worker.  Which of them there are and may
be is the ledger's business (``_core/pickling/segments.py``); this is the memory itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from asyncpool._core.pickling.segments import SegmentLedger, size_class
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.base.threads import Threads
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._system.memory import Memory

# Seconds that a free segment is kept, since it is warm.
_KEEP = 10.0

# To give up as much takes some 0.2 ms; 64 MB take 15, and so a thread does it.
_SMALL = 1 << 20


class Use(enum.Enum):
    """Who has a segment just now."""

    NOBODY = "nobody"
    POOL = "pool"  # what goes into it is on its way
    WORKER = "worker"  # it has a view of a job's arguments
    GRANTED = "granted"  # the worker may put an outcome there
    CALLER = "caller"  # somebody here has a view of an outcome


class SegmentOwner(Protocol):
    """The worker that a segment belongs to."""

    closed: bool

    def announce(self, segment: Segment, fd: int, /) -> None:
        """Send the worker a new segment; the descriptor is handed over."""

    def drop(self, number: int, /) -> None:
        """Have the worker forget a segment."""


class Segment:
    """One segment.

    Attributes:
        number: Its name.
        owner: Whose it is.
        memory: What is in it.
        use: Who has it.
        copied: Whether another process may have views of it, by a fork of this one.
    """

    __slots__ = ("copied", "memory", "number", "owner", "use")

    def __init__(self, number: int, owner: SegmentOwner, memory: Memory) -> None:
        self.number = number
        self.owner = owner
        self.memory = memory
        self.use = Use.POOL
        self.copied = False

    def fill(
        self,
        offsets: Iterable[int],
        areas: Iterable[Sequence[bytes | memoryview]],
    ) -> None:
        """Copy *areas*, each in pieces, to these *offsets*."""
        self.memory.fill(offsets, areas)


class Segments:
    """The segments of one pool.

    Args:
        loop: The pool's loop.
        bound: The most bytes that all of them may have together.
        threads: Where memory is made, since that takes 35 ms for 64 MB.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bound: int, threads: Threads
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._ledger = SegmentLedger(bound)
        self._segments: dict[int, Segment] = {}
        self._alarm = Alarm(loop, self._trim)
        _living.add(self)

    @property
    def total(self) -> int:
        """How many bytes all segments have."""
        return self._ledger.total

    def take(self, owner: SegmentOwner, size: int) -> Segment | None:
        """Return a warm segment of *owner* for *size* bytes, if there is one."""
        number = self._ledger.take(owner, size)
        if number is None:
            return None
        segment = self._segments[number]
        segment.use = Use.POOL
        return segment

    async def make(self, owner: SegmentOwner, size: int) -> Segment | None:
        """Make a segment for *size* bytes and announce it; ``None`` if that cannot be.

        Cancellation:
            Safe: the memory is given back.
        """
        size = size_class(size)
        number, dropped = self._ledger.add(owner, size)
        for other in dropped:
            self._drop(other)
        if number is None:
            return None
        made = self._threads.copy(_make, size)
        try:
            fd, memory = await shielded(made)
        except Exception:  # noqa: BLE001 - no memory, no descriptors, no ctypes
            self._ledger.forget(number)
            return None
        except BaseException:
            self._ledger.forget(number)
            made.add_done_callback(_unmake)
            raise
        if owner.closed:
            self._ledger.forget(number)
            os.close(fd)
            return None
        segment = self._segments[number] = Segment(number, owner, memory)
        owner.announce(segment, fd)
        return segment

    def view(self, segment: Segment, size: int) -> memoryview:
        """Return a view of an outcome of *size* bytes that a worker has put there.

        Raises:
            ProtocolError: If it is larger than the segment.
        """
        if size > segment.memory.size:
            raise ProtocolError(
                f"it put {size} bytes into a segment of {segment.memory.size}"
            )
        segment.use = Use.CALLER
        return segment.memory.lend(partial(self._tell_gone, segment.number))

    def find(self, owner: SegmentOwner, number: int, *uses: Use) -> Segment:
        """Return the segment that *owner* speaks of.

        Raises:
            ProtocolError: If it has no such segment, or it is not in one of *uses*.
        """
        segment = self._segments.get(number)
        if segment is None or segment.owner is not owner or segment.use not in uses:
            raise ProtocolError(f"it spoke of segment {number}, which it does not have")
        return segment

    def free(self, segment: Segment) -> None:
        """Take a segment back, to use it again or to give it up."""
        segment.use = Use.NOBODY
        if segment.owner.closed:
            self.forget(segment)
            return
        if segment.copied:
            self._ledger.forget(segment.number)
            self._drop(segment.number)
            return
        self._ledger.free(segment.number, self._loop.time())
        if not self._alarm.is_set:
            self._alarm.set_in(_KEEP)

    def forget(self, segment: Segment) -> None:
        """Give a segment up; its memory lasts as long as there are views of it."""
        del self._segments[segment.number]
        self._ledger.forget(segment.number)
        self._release(segment)

    def forget_all(self, owner: SegmentOwner) -> None:
        """Give up what belongs to a worker that is gone, less what is still in use."""
        for segment in list(self._segments.values()):
            if segment.owner is owner and segment.use not in {Use.POOL, Use.CALLER}:
                self.forget(segment)

    def after_fork(self) -> None:
        """Use nothing again of which a copy of this process has views."""
        for segment in self._segments.values():
            segment.copied = segment.copied or segment.use is Use.CALLER

    def close(self) -> None:
        """Give up everything, and hear of nothing any more; threads may still do it."""
        self._alarm.cancel()
        for segment in list(self._segments.values()):
            segment.memory.forget_view()
            self.forget(segment)

    def _tell_gone(self, number: int) -> None:
        # In any thread, and in the middle of anything.
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_gone, number)

    def _on_gone(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is not None:
            self.free(segment)

    def _trim(self, now: float) -> None:
        for number in self._ledger.free_since(now - _KEEP):
            if self._segments[number].use is Use.NOBODY:
                self._ledger.forget(number)
                self._drop(number)
        since = self._ledger.next_free_since()
        if since is not None:
            self._alarm.set_at(since + _KEEP)

    def _drop(self, number: int) -> None:
        """Have a free segment forgotten that the ledger has forgotten already."""
        segment = self._segments.pop(number)
        segment.owner.drop(number)
        self._release(segment)

    def _release(self, segment: Segment) -> None:
        seen_here = segment.use in {Use.POOL, Use.CALLER}
        if segment.memory.size > _SMALL and not seen_here:
            bag = [segment.memory]
            del segment.memory
            self._threads.copy(bag.clear)  # the last reference goes there


_living: WeakSet[Segments] = WeakSet()


def _after_fork() -> None:
    for segments in list(_living):
        segments.after_fork()


os.register_at_fork(after_in_parent=_after_fork)


def _make(size: int) -> tuple[int, Memory]:
    # Few pools need ctypes.
    from asyncpool._system.memory import Memory, available, create  # noqa: PLC0415

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
