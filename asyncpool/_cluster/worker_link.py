"""The link: frames and descriptors between a worker that serves and its master.

It uses the worker's job channel, which the worker's event loop reads and writes.  Each frame with
a descriptor is one message of the socket.  The kernel ends a read behind the bytes that a
descriptor came with.  So the n-th descriptor belongs to the n-th frame that carries one, wherever
a read ends.  If this process may open no more descriptors, the kernel drops the descriptor, and
says so in the result of the read.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import sys
import termios
from collections import deque

from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.posix import receive_fds
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from asyncpool._cluster.server_worker import ServerWorker

_READ_SIZE = 65_536
# Each read brings one descriptor at most.  After these reads the rest of the loop has its turn.
_READS_PER_TURN = 16

# From this many unsent bytes on, the worker reads nothing that may need an answer.
_MOST_UNSENT = 262_144

# Errors by which the kernel says that too many descriptors are on their way.  It counts those
# of each user.
_TOO_MANY = {errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}
_RETRY_AFTER = 0.05  # seconds

_INT = 4  # bytes in the kernel's answer

# Seconds between two looks whether the pool has read all.
_LOOK_AGAIN = 0.01

_CARRIERS = {FrameKind.LISTEN, FrameKind.HANDLE}


class MasterLink:
    """The worker's end of the link.

    Args:
        sock: The job channel; the link owns it from now on.
        max_payload: The most bytes that a frame from the pool may carry.
        owner: Hears of all that comes.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_payload: int,
        owner: ServerWorker,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._decoder = FrameDecoder(max_payload=max_payload)
        self._owner = owner
        # None stands for a descriptor that the kernel has dropped.
        self._arrived: deque[int | None] = deque()
        self._unsent: deque[tuple[bytes | memoryview, int | None]] = deque()
        self._size = 0
        self._totals: dict[FrameKind, bytes] = {}
        self._flushing = self._writing = self._reading = False
        self._ended = self._closed = False
        self._room: asyncio.Future[None] | None = None
        sock.setblocking(False)
        self._read_on()

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    @property
    def unsent(self) -> int:
        """How many bytes the pool has not taken yet."""
        return self._size

    def put(self, frame: bytes, descriptor: int | None = None) -> None:
        """Send a frame behind the others; in this turn of the loop, if the socket takes it.

        The link owns the *descriptor*, and closes it.
        """
        if self._closed:
            if descriptor is not None:
                os.close(descriptor)
            return
        self._unsent.append((frame, descriptor))
        self._size += len(frame)
        if not self._writing:
            self._send()

    def note(self, kind: FrameKind, payload: bytes = b"", job: int = 0) -> None:
        """Send a frame once in this turn; of several of its kind, only the last one is sent."""
        self._totals[kind] = header(kind, len(payload), job) + payload
        if not self._flushing and not self._writing and not self._closed:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def until_sent(self) -> None:
        """Wait until the pool has taken nearly all."""
        while self._size > _MOST_UNSENT and not self._closed:
            await self._wait_for_room()

    async def flushed(self) -> None:
        """Wait until the kernel has taken all, or the pool is gone."""
        self._flush()
        while self._writing and not self._closed:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    async def until_read(self) -> None:
        """Wait until the pool has read all, or is gone.

        After the end of this process the pool reads all the rest in one go, even if it has few
        descriptors left.  So the wait comes first.
        """
        await self.flushed()
        while not self._closed and _unread(self._socket):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_AGAIN)

    def close(self) -> None:
        """Close everything; nothing is called after this."""
        self._ended = True
        self._stop()
        while self._arrived:
            descriptor = self._arrived.popleft()
            if descriptor is not None:
                os.close(descriptor)
        self._socket.close()

    def _read_on(self) -> None:
        if not self._reading and not self._ended:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._read)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _read(self) -> None:
        for _ in range(_READS_PER_TURN):
            try:
                frames = self._receive()
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, ProtocolError) as error:
                self._end(error if isinstance(error, ProtocolError) else None)
                return
            if frames is None:
                self._end(None)
                return
            for frame in frames:
                if not self._hand_on(frame):
                    return
            if self._decoder.error is not None:
                self._end(self._decoder.error)
                return
            if self._size > _MOST_UNSENT:
                self._pause()
                return

    def _receive(self) -> list[Frame] | None:
        """Read once; return ``None`` at the end."""
        target = self._decoder.target
        if target is not None:
            # No descriptor came with these bytes, and the read ends before any that have one.
            size = self._socket.recv_into(target)
            return self._decoder.fill(size) if size else None
        data, fds, lost = receive_fds(self._socket, _READ_SIZE, 1)
        self._arrived += fds or ([None] if lost else [])
        if len(fds) > 1:
            raise ProtocolError("the pool sent several descriptors with one frame")
        return self._decoder.feed(data) if data else None

    def _hand_on(self, frame: Frame) -> bool:
        descriptor = None
        if frame.kind in _CARRIERS:
            if not self._arrived:
                self._end(ProtocolError(f"{frame.kind.name} came without a descriptor"))
                return False
            descriptor = self._arrived.popleft()
        try:
            self._owner.on_frame(frame, descriptor)
        except ProtocolError as error:
            self._end(error)
        return not self._ended

    def _end(self, error: ProtocolError | None) -> None:
        if not self._ended:
            self._ended = True
            self._pause()
            self._owner.on_end(error)

    def _flush(self) -> None:
        self._flushing = False
        if not self._writing and not self._closed:
            self._send()

    def _send(self) -> None:
        """Send what the socket takes now; the rest follows when it takes more."""
        try:
            self._send_all()
        except (BlockingIOError, InterruptedError):
            self._write_later()
        except OSError as error:
            if error.errno in _TOO_MANY:
                self._stop_writing()
                self._writing = True
                self._loop.call_later(_RETRY_AFTER, self._retry)
            else:
                # The pool is gone.  The control channel notices that too, and acts on it.
                self._stop()
                self._loop.call_soon(self._end, None)
        else:
            self._stop_writing()
            self._read_on()
        if not self._writing or self._size <= _MOST_UNSENT:
            self._wake()

    def _send_all(self) -> None:
        while self._unsent or self._totals:
            if not self._unsent:
                frame = b"".join(self._totals.values())
                self._totals.clear()
                self._unsent.append((frame, None))
                self._size += len(frame)
            data, descriptor = self._unsent[0]
            if descriptor is None:
                sent = self._socket.send(data)
            else:
                # The kernel sends the descriptor with the first byte: if it took any, it took both.
                sent = socket.send_fds(self._socket, [data], [descriptor])
                os.close(descriptor)
            self._size -= sent
            if sent < len(data):
                self._unsent[0] = memoryview(data)[sent:], None
            else:
                self._unsent.popleft()

    def _write_later(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._send)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _retry(self) -> None:
        if not self._closed:
            self._writing = False
            self._send()

    def _stop(self) -> None:
        """Send and read no more."""
        if self._closed:
            return
        self._closed = True
        self._pause()
        self._stop_writing()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        self._unsent.clear()
        self._totals.clear()
        self._size = 0
        self._wake()


def _unread(sock: socket.socket) -> int:
    """Return how many bytes the other side has not read; 0 if that is not known."""
    try:
        unread = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_INT))
    except OSError:
        return 0
    return int.from_bytes(unread, sys.byteorder)
