"""Memory that this end of a connection fills, and that the other end maps: the large buffers of jobs.

The segments are those of a local pool (``_engine/segments.py``), with the other end in the
place of a worker.  A client's memory is not handed on to a worker: another worker may have it
next, and what once could write there would write into that one's arguments.  So the agent
copies between two warm segments, at the speed of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncpool._engine.channel import Channel
from asyncpool._engine.loop import Threads
from asyncpool._engine.segments import Segment, SegmentOwner, Segments, Use
from asyncpool._remote.lent_parts import LentParts
from asyncpool._wire.buffers import OutOfBandPickle

# The most bytes that one end of a connection lends the other, and the bound that it expects.
MOST_LENT = 1 << 30


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
        self._segments = Segments(loop, MOST_LENT, threads)

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

        Cancellation:
            Safe.
        """
        segment = await self._segments.fill(self, pickled, wanted)
        if segment is None or self.closed:
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

    def lost(self, number: int) -> None:
        """Hear that the other end cannot map a segment, or cannot give it back.

        Raises:
            ProtocolError: If there is no such segment.
        """
        self._segments.forget(self._segments.find(self, number, Use.WORKER))

    def close(self) -> None:
        """Lend nothing more."""
        self.closed = True
        self._segments.close()


def _named(segment: Segment, pickled: OutOfBandPickle) -> bytes:
    segment.use = Use.WORKER  # the other end's
    return LentParts(segment.number, pickled.sizes, pickled.payload).pack()
