"""The large buffers of one worker's jobs, on their way to the worker and back.

They travel in segments of shared memory, or, if there is no segment, in AREA frames on the
job channel.  Either way they go ahead of the frame that they belong to.  The worker's half
of this is ``_worker/channel.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    ReceivedPickle,
    cut,
    lay_out,
)
from asyncpool._core.pickling.reducers import LARGE
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import pack_numbers, unpack_numbers
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.segments import Segment, Segments, Use
from asyncpool.errors import ProtocolError

# Up to this many bytes the event loop's thread copies into a warm segment itself, which takes
# 25 us.  To hand the copy to another thread takes longer.
_AT_ONCE = 1 << 20

# How many parts of an outcome may be small; a worker of this version sends none.
_SMALL_ONES = 16
_TOO_MANY = "it sent an outcome in more parts than an outcome can have"


# The frames whose large buffers come ahead of them.
_WHOLE = frozenset((FrameKind.VALUE, FrameKind.ERROR, FrameKind.ITEM))


class BufferLoad:
    """An out-of-band pickle on its way into a segment.

    Attributes:
        withdrawn: Whether the pool has given the load up.
        done: Whether the worker has been sent it.
    """

    __slots__ = ("done", "withdrawn")

    def __init__(self) -> None:
        self.withdrawn = self.done = False

    def withdraw(self) -> bool:
        """Give the load up; return whether that was still possible."""
        self.withdrawn = not self.done
        return self.withdrawn


class LargeBuffers:
    """Moves the large buffers of one worker's jobs.

    Args:
        spawn: Starts a task that the pool waits for.
        segments: The pool's segments.
        threads: The pool's threads, which copy into segments.
        max_payload: The most bytes that an outcome may have.
        untrusted: Whether nothing that a worker can still write into may reach a caller.  Then
            outcomes come on the job channel, into memory of this process alone.

    Attributes:
        closed: Whether the worker is gone.
    """

    def __init__(
        self,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        segments: Segments,
        threads: Threads,
        max_payload: int,
        untrusted: bool = False,
    ) -> None:
        self._spawn = spawn
        self._segments = segments
        self._threads = threads
        self._max_payload = max_payload
        self._untrusted = untrusted
        self._jobs: Channel | None = None
        self._control: Channel | None = None
        self._areas: list[memoryview] = []
        self._expected = 0
        self._wanting = False
        self.closed = False

    def connect(self, jobs: Channel, control: Channel) -> None:
        """Send on these channels from now on."""
        self._jobs, self._control = jobs, control

    # To the worker.

    def load(self, pickled: OutOfBandPickle, send: Callable[[], None]) -> BufferLoad:
        """Put *pickled* where the worker can see it, then call *send*.

        The large buffers go ahead of what *send* puts on the job channel.  If the load is
        withdrawn meanwhile, or the worker is gone, nothing is sent.
        """
        load = BufferLoad()
        size = lay_out(pickled.sizes)[1]
        segment = self._segments.take(self, size)
        if segment is not None and size <= _AT_ONCE:
            self._fill(segment, pickled)
            load.done = True
            self._send(pickled, segment, send)
        else:
            self._spawn(self._load_slowly(load, pickled, segment, size, send))
        return load

    async def _load_slowly(
        self,
        load: BufferLoad,
        pickled: OutOfBandPickle,
        segment: Segment | None,
        size: int,
        send: Callable[[], None],
    ) -> None:
        if segment is None:
            segment = await self._segments.make(self, size)
        if segment is not None and not load.withdrawn:
            # If this task is cancelled here, the thread writes on, so the segment stays its own.
            await self._threads.copy(self._fill, segment, pickled)
        # Set before the check: Ctrl-C may withdraw the load between any two steps.
        load.done = True
        if not load.withdrawn and not self.closed:
            self._send(pickled, segment, send)
            return
        load.done = False
        if segment is not None:
            self._segments.free(segment)

    @staticmethod
    def _fill(segment: Segment, pickled: OutOfBandPickle) -> None:
        segment.fill(lay_out(pickled.sizes)[0], pickled.areas)

    def _send(
        self,
        pickled: OutOfBandPickle,
        segment: Segment | None,
        send: Callable[[], None],
    ) -> None:
        assert self._jobs is not None
        if segment is None:
            for size, pieces in zip(pickled.sizes, pickled.areas, strict=True):
                self._jobs.put(header(FrameKind.AREA, size))
                for piece in pieces:
                    self._jobs.put(b"", piece)
        else:
            segment.use = Use.WORKER
            numbers = pack_numbers(pickled.sizes)
            head = header(FrameKind.LENT, len(numbers), tag=segment.number)
            self._jobs.put(head, numbers)
        send()

    def announce(self, segment: Segment, fd: int) -> None:
        """Tell the worker about a new segment, and send its descriptor."""
        assert self._control is not None
        self._control.put_descriptor(
            header(FrameKind.SEGMENT, 0, segment.memory.size, tag=segment.number), fd
        )
        self._control.flush()

    def drop(self, number: int) -> None:
        """Tell the worker to forget a segment."""
        if self._control is not None and not self.closed:
            self._control.put(header(FrameKind.DROP, 0, tag=number))
            self._control.flush_soon()

    # From the worker.

    @property
    def pending(self) -> bool:
        """Whether large buffers have come whose outcome is still to come."""
        return bool(self._areas)

    def unload(self, frames: list[Frame]) -> tuple[list[Frame], str | None]:
        """Put outcomes and items together with their large buffers; take notes about segments.

        Returns:
            The outcomes and items; and, if the worker broke the protocol, how it did.  The
            frames behind that one are dropped.
        """
        outcomes: list[Frame] = []
        for frame in frames:
            if frame.kind in _WHOLE:
                outcomes.append(self._complete(frame))
                continue
            try:
                self._take(frame)
            except ProtocolError as error:
                return outcomes, str(error)
        return outcomes, None

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.AREA:
                data = frame.payload
                self._expect(len(data), 1)
                # A bytearray, since the caller of the job may change what it gets.
                area = memoryview(bytearray(data) if type(data) is bytes else data)
                self._areas.append(area)
            case FrameKind.LENT:
                if len(frame.payload) // 8 > self._max_payload // LARGE + _SMALL_ONES:
                    raise ProtocolError(_TOO_MANY)
                sizes = unpack_numbers(frame.payload)
                self._expect(sum(sizes), len(sizes))
                segment = self._segments.find(self, frame.number, Use.GRANTED)
                view = self._segments.view(segment, lay_out(sizes)[1])
                self._areas += cut(view, sizes)
            case FrameKind.WANT:
                self._want(frame.job)
            case FrameKind.SEGMENT_RETURNED:
                self._segments.free(self._segments.find(self, frame.number, Use.WORKER))
            case FrameKind.LOST:
                uses = Use.WORKER, Use.GRANTED
                self._segments.forget(self._segments.find(self, frame.number, *uses))
            case _:
                raise ProtocolError(f"it sent {frame.kind.name} on its job channel")

    def _complete(self, frame: Frame) -> Frame:
        self._expected = 0
        self._wanting = False
        if not self._areas:
            return frame
        areas, self._areas = self._areas, []
        return frame._replace(payload=ReceivedPickle(frame.payload, areas))

    def close(self) -> None:
        """Give up the segments of the worker, which is gone."""
        self.closed = True
        self._areas = []
        self._segments.forget_all(self)

    def _expect(self, size: int, parts: int) -> None:
        self._expected += size
        if self._expected > self._max_payload:
            raise ProtocolError(
                f"an outcome of {self._expected} bytes exceeds the limit of "
                f"{self._max_payload}"
            )
        # Each buffer beside the pickle is large: a small one would be inside the pickle.  16,384
        # parts of a byte took Python's garbage collector 10 ms, in this process.
        if len(self._areas) + parts > self._expected // LARGE + _SMALL_ONES:
            raise ProtocolError(_TOO_MANY)

    def _want(self, size: int) -> None:
        # One for each outcome: a worker that asked on and on, and did not read the answers, would
        # fill the memory of this process with them.
        if self._wanting or not 0 < size <= 2 * self._max_payload:
            raise ProtocolError(f"it asked for {size} bytes when it was not allowed to")
        self._wanting = True
        if self._untrusted:
            self._grant(None)
            return
        segment = self._segments.take(self, size)
        if segment is not None:
            self._grant(segment)
            return
        self._spawn(self._make_and_grant(size))

    async def _make_and_grant(self, size: int) -> None:
        segment = await self._segments.make(self, size)
        if not self.closed:
            self._grant(segment)
        elif segment is not None:
            self._segments.free(segment)

    def _grant(self, segment: Segment | None) -> None:
        assert self._control is not None
        number = 0
        if segment is not None:
            number, segment.use = segment.number, Use.GRANTED
        self._control.put(header(FrameKind.GRANT, 0, tag=number))
        self._control.flush()
