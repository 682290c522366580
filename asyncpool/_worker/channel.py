"""The worker's ends of the channels: whole frames, and the large buffers that travel beside them.

Large buffers travel in segments, the shared memory that the pool has made for this worker, or in
frames of their own.  Descriptors arrive on the control channel, so the control thread receives the
segments.  The main thread uses them, and waits for a segment that is still on its way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from collections import deque
from functools import partial

from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.messages import pack_numbers, unpack_numbers

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from asyncpool._wire.memory import Memory


def receive(
    sock: socket.socket, decoder: FrameDecoder, *, wait: bool = True
) -> list[Frame] | None:
    """Wait for whole frames, or only return those that have come; ``None`` means the end."""
    while True:
        if decoder.target is not None:
            size = sock.recv_into(decoder.target)
            frames = decoder.fill(size)
        else:
            data = sock.recv(65536)
            size = len(data)
            frames = decoder.feed(data) if data else []
        if frames:
            return frames
        if not (wait and size):
            return [] if size else None


# Up to here one system call and a copy are cheaper than two system calls.
SMALL = 65_536


def send(sock: socket.socket, head: bytes, payload: bytes) -> None:
    """Send a frame."""
    if len(payload) <= SMALL:
        sock.sendall(head + payload)
    else:
        sock.sendall(head)
        sock.sendall(payload)


class LargeBuffers:
    """The large objects of one worker's jobs, and the segments that they travel in, by number.

    Args:
        jobs: The job channel.

    Attributes:
        in_use: Whether there was a large buffer.  If not, small outcomes need no look here.
    """

    def __init__(self, jobs: socket.socket) -> None:
        self._job_socket = jobs
        self.in_use = False
        # The control thread rings after it has changed one of the next two.  Each change is
        # one step under the GIL, so no lock is needed.  A ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._arrived: dict[int, tuple[int | None, int]] = {}
        self._grants: deque[int] = deque()
        self._mapped: dict[int, Memory] = {}
        # What the pool is to be told of: segments without any view left, and others that this
        # process cannot map.
        self._unsent: deque[tuple[FrameKind, int]] = deque()
        # What has come ahead of the next job.
        self._lent: Frame | None = None
        self._areas: list[memoryview] = []

    # The control thread.

    def arrive(self, number: int, fd: int | None, size: int) -> None:
        """Take a new segment, whose descriptor may have been lost on its way."""
        self._arrived[number] = fd, size
        self._bell.put(None)

    def grant(self, number: int) -> None:
        """Note which segment the pool has granted for an outcome; 0 for none."""
        self._grants.append(number)
        self._bell.put(None)

    def drop(self, number: int) -> None:
        """Forget segment *number*, which the main thread has no view of."""
        self._mapped.pop(number, None)
        fd, _ = self._arrived.pop(number, (None, 0))
        if fd is not None:
            os.close(fd)

    # The main thread.

    def take(self, frame: Frame) -> None:
        """Keep a buffer that comes before the job that it belongs to."""
        self.in_use = True
        if frame.kind is FrameKind.AREA:
            data = frame.payload
            # A job may change its arguments, wherever they come from.
            area = memoryview(bytearray(data)) if type(data) is bytes else data
            self._areas.append(area)
        else:
            self._lent = frame

    def complete(
        self, payload: bytes | memoryview
    ) -> bytes | memoryview | ReceivedPickle:
        """Return the payload of the next job together with the buffers that came before it.

        Raises:
            OSError: If this process cannot get at the memory.
        """
        if self._lent is None and not self._areas:
            return payload
        areas, self._areas = self._areas, []
        lent, self._lent = self._lent, None
        if lent is not None:
            # Of the main thread, at any moment, or another one's: it must not do more.
            returned = FrameKind.SEGMENT_RETURNED, lent.number
            at_end = partial(self._unsent.append, returned)
            try:
                whole = self._memory(lent.number).lend(at_end)
            except OSError:
                self._unsent.append((FrameKind.LOST, lent.number))
                raise
            areas = cut(whole, unpack_numbers(lent.payload))
        return ReceivedPickle(payload, areas)

    def discard(self) -> None:
        """Drop the buffers of a job that will not begin."""
        self._areas = []
        if self._lent is not None:
            self._unsent.append((FrameKind.SEGMENT_RETURNED, self._lent.number))
            self._lent = None
            self._job_socket.sendall(self._news())

    def put(self, outcome: bytes | OutOfBandPickle) -> tuple[bytes, bytes]:
        """Send the buffers of an outcome, or copy them into shared memory.

        Returns:
            The bytes to send before its frame, and the payload of the frame.
        """
        if type(outcome) is bytes:
            return self._news(), outcome
        assert isinstance(outcome, OutOfBandPickle)
        self.in_use = True
        payload, ahead = outcome.payload, self._put(outcome)
        outcome.buffers.clear()  # it may be all that keeps a view of the arguments
        return self._news() + ahead, payload

    def wait_for_grant(self) -> int:
        """Wait for the segment that an outcome may go to; return its number, 0 for none."""
        while not self._grants:
            self._bell.get()
        return self._grants.popleft()

    def _put(self, pickled: OutOfBandPickle) -> bytes:
        areas, sizes = pickled.areas, pickled.sizes
        self._job_socket.sendall(header(FrameKind.WANT, 0, lay_out(sizes)[1]))
        if number := self.wait_for_grant():
            with contextlib.suppress(OSError):
                self._memory(number).fill(pickled)
                numbers = pack_numbers(sizes)
                head = header(FrameKind.LENT, len(numbers), number=number)
                return head + numbers
            self._unsent.append((FrameKind.LOST, number))
        for size, pieces in zip(sizes, areas, strict=True):
            self._job_socket.sendall(header(FrameKind.AREA, size))
            for piece in pieces:
                self._job_socket.sendall(piece)
        return b""

    def _memory(self, number: int) -> Memory:
        """Return segment *number*, and wait for it if it is on its way.

        Raises:
            OSError: If this process may open no more descriptors, or has no room.
        """
        memory = self._mapped.get(number)
        if memory is not None:
            return memory
        while number not in self._arrived:
            self._bell.get()
        fd, size = self._arrived.pop(number)
        if fd is None:
            text = "the shared memory of a job cannot be received"
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {text}")
        from asyncpool._wire.memory import Memory  # noqa: PLC0415 - few jobs need ctypes

        try:
            memory = self._mapped[number] = Memory(fd, size)
        finally:
            os.close(fd)
        return memory

    def _news(self) -> bytes:
        """Return the frames that tell the pool which segments are free again, or lost."""
        news = b""
        while self._unsent:
            kind, number = self._unsent.popleft()
            memory = self._mapped.get(number)
            if memory is not None and memory.copied:  # by a fork of a job
                kind = FrameKind.LOST
                del self._mapped[number]
            news += header(kind, 0, number=number)
        return news
