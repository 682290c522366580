"""What moves batches between a client and an agent: an interface, and the Unix socket of one machine."""

from __future__ import annotations

import asyncio
import math
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._engine.loop import Alarm, Threads
from asyncpool._observe.control.paths import peer_pid
from asyncpool._remote.memory import BorrowedMemory, LentMemory
from asyncpool._remote.messages import MAX_GREETING, MAX_PIECE, pack_parts
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool.errors import ProtocolError

# Seconds that the other end has to read what was sent before the connection was closed.
_LINGER = 5.0

# Why the other end is gone: what it has done wrong, or what else is known of it.
Why: TypeAlias = Exception | str | None


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
        lent = None if self.lent is None else await self.lent.lend(pickled, wanted)
        if lent is None and wanted():
            return pack_parts(pickled)
        return lent or b""

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
        self.lent = self._lent = LentMemory(loop, threads, self._channel)
        self.borrowed = self._borrowed = BorrowedMemory(loop, threads, self._tell)

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
