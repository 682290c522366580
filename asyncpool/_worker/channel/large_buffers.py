"""The large buffers of jobs and outcomes: they travel in segments, or in their own frames."""

from __future__ import annotations

import contextlib
import socket

from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    ReceivedPickle,
    cut,
    lay_out,
)
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import pack_numbers, unpack_numbers
from asyncpool._worker.channel.segments import Segments


class LargeBuffers:
    """The large objects of one worker's jobs.

    Args:
        jobs: The job channel.
        segments: The shared memory.

    Attributes:
        in_use: Whether there was a large buffer.  If not, small outcomes need no look here.
    """

    def __init__(self, jobs: socket.socket, segments: Segments) -> None:
        self._jobs = jobs
        self._segments = segments
        self._lent: Frame | None = None
        self._areas: list[memoryview] = []
        self._lost: list[int] = []
        self.in_use = False

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
            areas = self._view(lent.number, unpack_numbers(lent.payload))
        return ReceivedPickle(payload, areas)

    def discard(self) -> None:
        """Drop the buffers of a job that will not begin."""
        self._areas = []
        if self._lent is not None:
            self._segments.returned.append(self._lent.number)
            self._lent = None
            self._jobs.sendall(self._news())

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

    def _put(self, pickled: OutOfBandPickle) -> bytes:
        areas, sizes = pickled.areas, pickled.sizes
        offsets, total = lay_out(sizes)
        self._jobs.sendall(header(FrameKind.WANT, 0, total))
        number = self._segments.wait_for_grant()
        if number:
            with contextlib.suppress(OSError):
                self._segments.memory(number).fill(offsets, areas)
                numbers = pack_numbers(sizes)
                head = header(FrameKind.LENT, len(numbers), tag=number)
                return head + numbers
            self._lost.append(number)
        for size, pieces in zip(sizes, areas, strict=True):
            self._jobs.sendall(header(FrameKind.AREA, size))
            for piece in pieces:
                self._jobs.sendall(piece)
        return b""

    def _news(self) -> bytes:
        """Return the frames that tell the pool which segments are free again."""
        frames = [header(FrameKind.LOST, 0, tag=number) for number in self._lost]
        self._lost.clear()
        returned = self._segments.returned
        while returned:
            number = returned.popleft()
            again = self._segments.take_back(number)
            frames.append(
                header(
                    FrameKind.SEGMENT_RETURNED if again else FrameKind.LOST,
                    0,
                    tag=number,
                )
            )
        return b"".join(frames)

    def _view(self, number: int, sizes: tuple[int, ...]) -> list[memoryview]:
        try:
            whole = self._segments.view(number)
        except OSError:
            self._lost.append(number)
            raise
        return cut(whole, sizes)
