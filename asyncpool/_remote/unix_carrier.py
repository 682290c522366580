"""The carrier for one machine: a Unix socket, for processes of this user only."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from asyncpool._engine.channel import READ_SIZE, Channel, DescriptorSocket
from asyncpool._engine.loop import Alarm, Threads
from asyncpool._observe.control.paths import peer_pid, peer_uid
from asyncpool._remote.borrowed_memory import BorrowedMemory
from asyncpool._remote.carrier import MAX_GREETING, ignore
from asyncpool._remote.lent_memory import LentMemory
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool.errors import ProtocolError

# Seconds that the other end has to read what was sent before the connection was closed.
_LINGER = 5.0


class UnixCarrier:
    """One end of a Unix socket; see :class:`~asyncpool._remote.carrier.Carrier`.

    The kernel keeps what was sent and not read, also when the sender has died, and loses nothing.
    Large buffers travel in memory, whose descriptors the socket carries.

    Args:
        sock: The socket, connected and non-blocking; the carrier owns it.
        threads: Copy large buffers.
        buffer: What is read into, see :class:`Channel`; ``None`` for one of its own.

    Attributes:
        ended: Done when the socket is closed.
    """

    loses = False

    def __init__(
        self, sock: socket.socket, threads: Threads, buffer: memoryview | None = None
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.process: int | None = peer_pid(sock)
        # Whoever uses the carrier sets these.
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[Exception | None], object] = ignore
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
        self._lent = LentMemory(loop, threads, self._channel)
        self._borrowed = BorrowedMemory(loop, threads, self._tell)
        self.lent: LentMemory | None = self._lent
        self.borrowed: BorrowedMemory | None = self._borrowed

    def allow(self, limit: int) -> None:
        """See :class:`~asyncpool._remote.carrier.Carrier`."""
        self._channel.allow(limit)

    def send(self, data: bytes) -> None:
        """See :class:`~asyncpool._remote.carrier.Carrier`."""
        if self._open:
            self._channel.put(header(FrameKind.BATCH, len(data)), data)
            self._channel.flush()

    def close(self) -> None:
        """See :class:`~asyncpool._remote.carrier.Carrier`."""
        if not self._open:
            return
        self._stop()
        if self._channel.unsent:
            self._channel.half_close()
            self._late.set_in(_LINGER)
        else:
            self._cut()

    def abort(self) -> None:
        """See :class:`~asyncpool._remote.carrier.Carrier`."""
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
        self.on_bytes, self.on_gone = _drop, ignore
        self._lent.close()
        self._borrowed.close()

    def _on_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind is FrameKind.BATCH:
                self._pass_on(bytes(frame.payload))
            elif self._open:
                try:
                    self._on_memory(frame)
                except ProtocolError as error:
                    self._on_end(error)
                    return
        if self._socket.unwanted and self._open:
            self._on_end(ProtocolError("it sent descriptors with no segment"))

    def _pass_on(self, data: bytes) -> None:
        try:
            self.on_bytes(data)
        except BaseException as error:
            # What was lost by that would be waited for: each end says everything once.
            self._on_end(error if isinstance(error, Exception) else None)
            raise

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


def is_same_user(sock: socket.socket) -> bool:
    """Tell whether a process of this user is at the other end."""
    try:
        return peer_uid(sock) == os.geteuid()
    except OSError:
        return False


def _drop(data: bytes) -> None:
    """Drop what nobody expects."""
    del data
