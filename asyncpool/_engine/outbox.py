"""What the pool sends one worker for its jobs, and the large buffers that come back with outcomes.

Ahead of a job goes what the worker lacks for it: its context, its function, its large buffers.
Large buffers travel in segments of shared memory, or, if there is no segment, in AREA frames on
the job channel.  Either way they go ahead of the frame that they belong to.  The worker's half
of this is ``_worker/channels.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from asyncpool._engine.channel import SMALL, Channel
from asyncpool._engine.segments import Segment, SegmentOwner, Use
from asyncpool._wire.buffers import LARGE, OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import (
    HEADER_SIZE,
    VERSION,
    Frame,
    FrameKind,
    header,
    pack_header,
)
from asyncpool._wire.messages import FunctionCache, pack_numbers, unpack_numbers
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._engine.job import PoolJob

# Where the frame of a job ends that is not on the channel yet: beyond all that is ever sent.
NOT_PUT = sys.maxsize

# How many parts of an outcome may be small; a worker of this version sends none.
_SMALL_ONES = 16
_TOO_MANY = "it sent an outcome in more parts than an outcome can have"

# A member of an enum costs 60 ns each time that it is looked up there.
_JOB = FrameKind.JOB


class Outbox(SegmentOwner):
    """What goes to one worker for its jobs; the segments that it sees belong to this.

    Args:
        pool: Has segments, and threads that copy into them.

    Attributes:
        areas: Large buffers that have come, and whose outcome is still to come.
        flush: Sends what was put.
        flush_soon: Sends, at the end of this turn of the loop, what was put until then.
    """

    # Set when the channels are open; nobody sends before that.
    _job_channel: Channel
    flush: Callable[[], None]
    flush_soon: Callable[[], None]

    def __init__(self, pool: Engine) -> None:
        self._spawn, self._segments = pool.tasks.create_task, pool.segments
        self._max_payload = pool.config.worker.max_payload
        # Nothing that a worker can still write into may reach a caller then: outcomes come on
        # the job channel, into memory of this process alone.
        self._untrusted = pool.config.untrusted
        self._functions = FunctionCache()
        self._context = b""  # the context that the worker has now
        self._load: object | None = None
        self.areas: list[memoryview] = []
        self._expected = 0  # bytes of the next outcome
        self._wanting = False

    def connect(self, jobs: Channel, control: Channel) -> None:
        """Send on these channels from now on."""
        self._job_channel, self.control_channel = jobs, control
        self.flush, self.flush_soon = jobs.flush, jobs.flush_soon

    # Jobs.

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken for the worker, counted as :meth:`put_job` does."""
        return self._job_channel.sent_bytes if self.control_channel is not None else 0

    def put_jobs(self, jobs: Iterable[PoolJob[Any]], slot: int) -> None:
        """Put jobs that get an attempt in *slot*; the next flush sends them."""
        channel, known, context = self._job_channel, self._functions, self._context
        end = channel.put_bytes
        for job in jobs:
            # First, since the worker may die of the job at any moment.
            job.attempt = attempt = job.attempt + 1
            job.slot = slot
            payload, number = job.payload, job.function.number
            size = len(payload)
            if (
                number not in known
                or job.context != context
                or job.credit
                or size > SMALL
            ):
                self.put_job(job, payload)
                context, end = self._context, channel.put_bytes
                continue
            # put_job(), inlined: its calls would double the cost.
            channel.small += (
                pack_header(VERSION, _JOB, attempt, number, job.id, size),
                payload,
            )
            channel.put_bytes = job.frame_end = end = end + HEADER_SIZE + size

    def put_job(self, job: PoolJob[Any], payload: bytes) -> None:
        """Put a job, and note where its frame ends; the next flush sends it."""
        channel, number, context = self._job_channel, job.function.number, job.context
        if context != self._context:
            self._context = context
            channel.put(header(FrameKind.CONTEXT, len(context)), context)
        if number and number not in self._functions:
            self._functions.add(number)
            reference = job.function.payload
            head = header(FrameKind.FUNCTION, len(reference), number=number)
            channel.put(head, reference)
        kind, credit = _JOB, job.credit
        if credit:  # it is a stream, and may send so many items
            kind = FrameKind.STREAM
            channel.put(header(FrameKind.CREDIT, 0, number=credit))
        head = pack_header(VERSION, kind, job.attempt, number, job.id, len(payload))
        job.frame_end = channel.put(head, payload)

    # Large buffers, to the worker.

    @property
    def loading(self) -> bool:
        """Whether an out-of-band pickle is on its way to the worker."""
        return self._load is not None

    def load(self, pickled: OutOfBandPickle, send: Callable[[], None]) -> None:
        """Put *pickled* where the worker can see it, then have *send* put its job.

        The large buffers go ahead of what *send* puts on the job channel.  If the load is
        withdrawn meanwhile, or the worker is gone, nothing is sent.
        """
        segment = self._segments.fill_at_once(self, pickled)
        if segment is not None:
            self._put_buffers(pickled, segment)
            send()
        else:
            self._load = load = object()
            self._spawn(self._load_slowly(load, pickled, send))

    def withdraw(self) -> bool:
        """Give up the load that is on its way; return whether there was one."""
        load, self._load = self._load, None
        return load is not None

    async def _load_slowly(
        self, load: object, pickled: OutOfBandPickle, send: Callable[[], None]
    ) -> None:
        segment = await self._segments.fill(
            self, pickled, wanted=lambda: self._load is load
        )
        if self._load is load and not self.closed:
            # At once: Ctrl-C may withdraw the load after any call.
            self._load = None
            self._put_buffers(pickled, segment)
            send()
        elif segment is not None:
            self._segments.free(segment)

    def _put_buffers(self, pickled: OutOfBandPickle, segment: Segment | None) -> None:
        if segment is None:
            for size, pieces in zip(pickled.sizes, pickled.areas, strict=True):
                self._job_channel.put(header(FrameKind.AREA, size))
                for piece in pieces:
                    self._job_channel.put(b"", piece)
        else:
            segment.use = Use.WORKER
            numbers = pack_numbers(pickled.sizes)
            head = header(FrameKind.LENT, len(numbers), number=segment.number)
            self._job_channel.put(head, numbers)

    def close(self) -> None:
        """Give up the segments of the worker, which is gone."""
        self.closed = True
        self.areas = []
        self._segments.forget_all(self)

    # Large buffers, from the worker.

    def complete(self, frame: Frame) -> Frame:
        """Return an outcome or an item together with its large buffers, which have come."""
        self._expected, self._wanting = 0, False
        if not self.areas:
            return frame
        areas, self.areas = self.areas, []
        return frame._replace(payload=ReceivedPickle(frame.payload, areas))

    def take(self, frame: Frame) -> None:
        """Take a frame about large buffers, or about the segment that they are in.

        Raises:
            ProtocolError: If it breaks the protocol.
        """
        segments, number = self._segments, frame.number
        match frame.kind:
            case FrameKind.AREA:
                data = frame.payload
                self._expect(len(data), 1)
                # A bytearray, since the caller of the job may change what it gets.
                area = memoryview(bytearray(data) if type(data) is bytes else data)
                self.areas.append(area)
            case FrameKind.LENT:
                if len(frame.payload) // 8 > self._max_payload // LARGE + _SMALL_ONES:
                    raise ProtocolError(_TOO_MANY)
                sizes = unpack_numbers(frame.payload)
                self._expect(sum(sizes), len(sizes))
                segment = segments.find(self, number, Use.GRANTED)
                view = segments.view(segment, lay_out(sizes)[1])
                self.areas += cut(view, sizes)
            case FrameKind.WANT:
                self._want(frame.job)
            case FrameKind.SEGMENT_RETURNED:
                segments.free(segments.find(self, number, Use.WORKER))
            case FrameKind.LOST:
                segments.forget(segments.find(self, number, Use.WORKER, Use.GRANTED))
            case _:
                raise ProtocolError(f"it sent {frame.kind.name} on its job channel")

    def _expect(self, size: int, parts: int) -> None:
        self._expected += size
        if self._expected > self._max_payload:
            raise ProtocolError(
                f"an outcome of {self._expected} bytes exceeds the limit of "
                f"{self._max_payload}"
            )
        # Each buffer beside the pickle is large: a small one would be inside the pickle.  16,384
        # parts of a byte took Python's garbage collector 10 ms, in this process.
        if len(self.areas) + parts > self._expected // LARGE + _SMALL_ONES:
            raise ProtocolError(_TOO_MANY)

    def _want(self, size: int) -> None:
        # One for each outcome: a worker that asked on and on, and did not read the answers, would
        # fill the memory of this process with them.
        if self._wanting or not 0 < size <= 2 * self._max_payload:
            raise ProtocolError(f"it asked for {size} bytes when it was not allowed to")
        self._wanting = True
        segment = None if self._untrusted else self._segments.take(self, size)
        if segment is not None or self._untrusted:
            self._grant(segment)
        else:
            self._spawn(self._make_and_grant(size))

    async def _make_and_grant(self, size: int) -> None:
        segment = await self._segments.make(self, size)
        if not self.closed:
            self._grant(segment)
        elif segment is not None:
            self._segments.free(segment)

    def _grant(self, segment: Segment | None) -> None:
        assert self.control_channel is not None
        number = 0
        if segment is not None:
            number, segment.use = segment.number, Use.GRANTED
        self.control_channel.put(header(FrameKind.GRANT, 0, number=number))
        self.control_channel.flush()
