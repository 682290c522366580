"""What moves batches between a client and an agent, and hands their messages to either end.

There is an interface for ways, and the Unix socket of one machine, whose ends lend each other memory.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._engine.loop import Alarm, Threads
from asyncpool._engine.segments import Segment, SegmentOwner, Segments, Use
from asyncpool._observe.control.socket_files import peer_pid
from asyncpool._remote.messages import (
    LENT,
    MAX_GREETING,
    MAX_PIECE,
    Kind,
    Message,
    pack_lent,
    pack_parts,
    unpack_lent,
)
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._wire.memory import Memory

# Seconds that the other end has to read what was sent before the connection was closed.
_LINGER = 5.0

# Why the other end is gone: what it has done wrong, or what else is known of it.
Why: TypeAlias = Exception | str | None


# What may be in memory that the other end has lent.
_MAY_BE_LENT = frozenset((Kind.JOB, Kind.FOLLOWED, Kind.VALUE, Kind.ITEM))


def ignore(_: Why = None) -> None:
    """Do nothing, in place of who hears that the other end is gone."""


def _drop(data: bytes) -> None:
    """Drop what nobody expects."""
    del data


class Carrier(ABC):
    """One end of a way between a client and an agent; it moves bytes, and reads none.

    All that is sent arrives, once and in its order, or the other end is gone.

    Attributes:
        on_bytes: Called with what has come.
        on_gone: Called once when the other process is dead, or lost, or has ended the session.
        certain: Whether all arrives that was sent before this process, or the other one, died.
        process: The other process, if it is on this machine and the system says which it is.
        lent: Memory for large buffers that go to the other end, if the carrier has such.
        borrowed: Likewise for those that come.
        heard_at: When the other end was heard last, on the loop's clock.
        patience: How many seconds it may be silent; infinity if the system tells that it is gone.
    """

    certain = True
    process: int | None = None
    lent: LentMemory | None = None
    borrowed: BorrowedMemory | None = None
    patience = math.inf

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        # Whoever uses the carrier sets these.
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[Why], object] = ignore

    @property
    def may_begin(self) -> bool:
        """Whether the client is there for sure, so that its jobs may begin."""
        return True

    @property
    def own_silence(self) -> float:
        """For how many seconds this end has said nothing, if the other one may mind; else 0."""
        return 0.0

    def pack_at_once(self, pickled: OutOfBandPickle) -> bytes | None:
        """Return what the other end gets as a large object; ``None`` if that takes a while."""
        return self.lent.lend_at_once(pickled) if self.lent else pack_parts(pickled)

    async def pack(self, pickled: OutOfBandPickle, wanted: Callable[[], bool]) -> bytes:
        """Return what the other end gets as a large object; nothing if it is not *wanted* then."""
        packed = self.pack_at_once(pickled)
        if packed is None and self.lent is not None:
            packed = await self.lent.lend(pickled, wanted)
        if packed is None and wanted():
            packed = pack_parts(pickled)
        return packed or b""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """How many of the pieces that were sent the other end has not taken."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send bytes, which arrive as one piece."""

    @abstractmethod
    def close(self) -> None:
        """Send no more, and let the other end know; it gets what was sent."""

    @abstractmethod
    def abort(self) -> None:
        """Do the same, and drop what is still to be sent."""

    def _forget(self) -> None:
        """Tell nobody anything any more."""
        self.on_bytes, self.on_gone = _drop, ignore


class Connection:
    """What one end says to the other by a carrier, and hears of it.

    The method for a message has the name of its kind: that for ``JOB`` is ``_hear_job``.

    Args:
        carrier: Brings batches.
        other: What errors call the other end.

    Attributes:
        carrier: As above.
    """

    def __init__(self, carrier: Carrier, other: str) -> None:
        self.carrier, self._other = carrier, other
        self._put: list[bytes] = []
        self._methods: dict[Kind, Callable[[Message], object]] = {
            kind: method
            for kind in Kind
            if (method := getattr(self, f"_hear_{kind.name.lower()}", None))
        }

    def put(self, message: Message) -> None:
        """Have *message* sent with the next batch."""
        self._put.append(message.pack())

    def _hear(self, messages: list[Message]) -> None:
        """Hear messages, in their order.

        Raises:
            ProtocolError: If one of them breaks the protocol.
        """
        for message in messages:
            method = self._methods.get(message.kind)
            if method is None:
                raise ProtocolError(f"{self._other} sent a {message.kind.name}")
            if message.payload.startswith(LENT) and message.kind in _MAY_BE_LENT:
                # At once: whoever drops what was lent gives it back by that.
                if self.carrier.borrowed is None:
                    text = f"{self._other} lent memory on a carrier that has none"
                    raise ProtocolError(text)
                found = self.carrier.borrowed.read(message.payload)
                method(message._replace(payload=found))
            else:
                method(message)


# Memory that the two ends of a connection lend each other: the large buffers of jobs.
#
# The segments are those of a local pool (``_engine/segments.py``), with the other end in the
# place of a worker.  A client's memory is not handed on to a worker: another worker may have it
# next, and what once could write there would write into that one's arguments.  So the agent
# copies between two warm segments, at the speed of memory.

# The most bytes that one end of a connection lends the other, and the bound that it expects.
MOST_LENT = 1 << 30

# How many bytes a second go through the socket instead, when each of six copies is into fresh memory.
SOCKET_RATE = 1e8


class LentMemory(SegmentOwner):
    """What this end has lent.

    Args:
        threads: Make and fill large segments.
        channel: Where the other end hears of them.

    Attributes:
        closed: Whether the other end is gone.
    """

    def __init__(self, threads: Threads, channel: Channel) -> None:
        self.control_channel, self._bound = channel, MOST_LENT
        self._loop = asyncio.get_running_loop()
        self._segments = Segments(self._loop, MOST_LENT, threads)
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


class _Unmapped:
    """Stands for memory that this process cannot map, so that it is lost as soon as it is used."""

    view, copied = None, True

    def __init__(self, size: int) -> None:
        self.size = size


class BorrowedMemory(Segments):
    """What the other end has lent: its segments, which nobody uses here unless there is a view.

    Args:
        threads: Release what is large.
        tell: Tells the other end of a segment: that it is returned, or lost.
    """

    def __init__(
        self, threads: Threads, tell: Callable[[FrameKind, int], object]
    ) -> None:
        super().__init__(asyncio.get_running_loop(), MOST_LENT, threads)
        self._lender, self._tell = SegmentOwner(), tell

    def add(self, number: int, size: int, fd: int | None) -> None:
        """Take a new segment, and close its descriptor; ``None`` if the kernel has dropped it.

        Raises:
            ProtocolError: If there are too many bytes, or the other end could take them away.
        """
        try:
            if number in self._segments or size < _SMALLEST:
                raise ProtocolError(f"it lent segment {number} of {size} bytes")
            if self.total + size > MOST_LENT:
                raise ProtocolError(f"it lent more than {MOST_LENT} bytes")
            memory: Any = _mapped(fd, size) or _Unmapped(size)
            segment = Segment(number, self._lender, memory)
            self._segments[number], segment.use = segment, Use.NOBODY
            self.total += size
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
        segment, size = self._unused(number), lay_out(sizes)[1]
        if segment is None or size > segment.memory.size:
            raise ProtocolError(f"it named segment {number}, which it has not lent")
        if segment.memory.copied:  # or rather not mapped: no other one would be kept
            self.free(segment)
            return None
        return ReceivedPickle(payload, cut(self.view(segment, size), sizes))

    def drop(self, number: int) -> None:
        """Forget a segment that nobody sees.

        Raises:
            ProtocolError: If there is none.
        """
        segment = self._unused(number)
        if segment is None:
            raise ProtocolError(f"it dropped segment {number}, which it has not back")
        self.forget(segment)

    def free(self, segment: Segment) -> None:
        """Give a segment back, of which there is no view any more."""
        segment.use, kind = Use.NOBODY, FrameKind.SEGMENT_RETURNED
        if segment.memory.copied:  # a fork of this process may write there
            kind = FrameKind.LOST
            self.forget(segment)
        self._tell(kind, segment.number)

    def _unused(self, number: int) -> Segment | None:
        segment = self._segments.get(number)
        return segment if segment and segment.use is Use.NOBODY else None


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


# The carrier of one machine.


class UnixCarrier(Carrier):
    """One end of a Unix socket, for processes of this user only; see :class:`Carrier`.

    The kernel keeps what was sent and not read, also when the sender has died, and tells when it is.
    Large buffers travel in memory, whose descriptors the socket carries.

    Args:
        sock: The socket, connected and non-blocking; the carrier owns it.
        threads: Copy large buffers.
        buffer: What is read into, see :class:`Channel`; ``None`` for one of its own.

    Attributes:
        ended: Done when the socket is closed.
    """

    def __init__(
        self, sock: socket.socket, threads: Threads, buffer: memoryview | None = None
    ) -> None:
        super().__init__()
        loop = self._loop
        self.process = peer_pid(sock)
        self._ends: deque[int] = deque()  # where the pieces end that may be unsent
        self._socket = DescriptorSocket(sock)
        self._open = True
        self._late = Alarm(loop, lambda _: self._cut())
        self.ended: asyncio.Future[None] = loop.create_future()
        self._channel = Channel(
            loop,
            self._socket,
            buffer=memoryview(bytearray(READ_SIZE)) if buffer is None else buffer,
            max_payload=MAX_GREETING,
            on_frames=self._on_frames,
            on_end=self._on_end,
        )
        self.lent = self._lent = LentMemory(threads, self._channel)
        self.borrowed = self._borrowed = BorrowedMemory(threads, self._tell)

    def greeted(self) -> None:
        """Let pieces come that are as large as batches may be."""
        self._channel.allow(MAX_PIECE)

    @property
    def unsent(self) -> int:
        """How many pieces the kernel has not taken, since the other end reads none."""
        while self._ends and self._ends[0] <= self._channel.sent_bytes:
            self._ends.popleft()
        return len(self._ends)

    def send(self, data: bytes) -> None:
        """Send a piece."""
        if self._open:
            end = self._channel.put(header(FrameKind.BATCH, len(data)), data)
            self._channel.flush()
            if end > self._channel.sent_bytes:
                self._ends.append(end)

    def close(self) -> None:
        """Send no more; the other end gets what was sent."""
        if not self._open:
            return
        self._stop()
        if self._channel.unsent:
            self._channel.half_close()
            self._late.set_in(_LINGER)
        else:
            self._cut()

    def abort(self) -> None:
        """Send no more, not even what was sent already and is still here."""
        if self._open:
            self._stop()
        self._cut()

    def _cut(self) -> None:
        self._late.cancel()
        self._channel.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _stop(self) -> None:
        self._open = False
        self._forget()
        self._lent.close()
        self._borrowed.close()

    def _on_frames(self, frames: list[Frame]) -> None:
        self.heard_at = self._loop.time()
        for frame in frames:
            if not self._open:
                return
            try:
                if frame.kind is FrameKind.BATCH:
                    self.on_bytes(bytes(frame.payload))
                else:
                    self._on_memory(frame)
            except BaseException as error:
                # What was lost by that would be waited for: each end says everything once.
                self._on_end(error if isinstance(error, Exception) else None)
                if isinstance(error, ProtocolError):
                    return
                raise
        if self._socket.unwanted and self._open:
            self._on_end(ProtocolError("it sent descriptors with no segment"))

    def _on_memory(self, frame: Frame) -> None:
        number = frame.number
        match frame.kind:
            case FrameKind.SEGMENT:
                if not self._socket.arrived:
                    raise ProtocolError("it sent a segment without a descriptor")
                self._borrowed.add(number, frame.job, self._socket.arrived.popleft())
            case FrameKind.DROP:
                self._borrowed.drop(number)
            case FrameKind.SEGMENT_RETURNED:
                self._lent.returned(number)
            case FrameKind.LOST:
                self._lent.lost(number)
            case other:
                raise ProtocolError(f"it sent {other.name}")

    def _tell(self, kind: FrameKind, number: int) -> None:
        if self._open:
            self._channel.put(header(kind, 0, number=number))
            self._channel.flush_soon()

    def _on_end(self, error: Exception | None) -> None:
        """Say that the other end is gone."""
        if not self._open:
            self._cut()
            return
        gone = self.on_gone
        self.abort()
        gone(error)
