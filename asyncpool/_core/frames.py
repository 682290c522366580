"""The wire format of the channels between a pool and its workers.

A channel carries a sequence of frames and nothing else.  A frame is a fixed
header and a payload that this module does not look into::

    0        1        2                 4
    +--------+--------+-----------------+-----------------------------------+
    | version|  kind  |     attempt     |        job id (8 bytes)        ...
    +--------+--------+-----------------+-----------------------------------+
    |   payload length (8 bytes)     ...|  payload ...

Integers are unsigned and big-endian; *attempt* and *job id* are zero in frames
that belong to no job.  Both ends always run the same version of asyncpool, and
*version* only turns a mistake in that assumption into an error instead of a hang.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from asyncpool.errors import ProtocolError

__all__ = [
    "HEADER_SIZE",
    "MAX_ATTEMPTS",
    "VERSION",
    "Frame",
    "FrameDecoder",
    "Kind",
    "header",
]

VERSION = 1

_HEADER = struct.Struct("!BBHQQ")
HEADER_SIZE = _HEADER.size

# What fits in the header's field.
MAX_ATTEMPTS = 0xFFFF


class Kind(enum.IntEnum):
    """What a frame means."""

    # Control channels, of workers and of the launcher.
    CONFIG = 1  # pool: who you are and how to begin
    HELLO = 2  # worker, launcher: ready
    FAILED = 3  # worker, launcher: something outside any job went wrong
    # The launcher's channel; *job* is the number of the request.
    LAUNCH = 4  # pool: start a worker on the descriptors that come with this
    LAUNCHED = 5  # launcher: it has this pid
    EXITED = 6  # launcher: it ended, with this status
    # Job channels.
    JOB = 7  # pool: run this
    VALUE = 8  # worker: what the job returned
    ERROR = 9  # worker: what the job raised


_KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """One message on a channel."""

    kind: Kind
    job: int
    attempt: int
    payload: bytes


def header(kind: Kind, size: int, job: int = 0, attempt: int = 0) -> bytes:
    """Return the header of a frame whose payload has *size* bytes."""
    return _HEADER.pack(VERSION, kind, attempt, job, size)


class FrameDecoder:
    """Turn a stream of bytes, cut anywhere, back into frames.

    After a :exc:`ProtocolError` the stream has no known frame boundary any more:
    close the channel, do not feed it again.

    Args:
        max_payload: Largest payload to accept, in bytes.  It is checked against
            the header, before any of the payload is kept.

    Attributes:
        error: What is wrong with the stream behind the frames returned so far.
    """

    def __init__(self, *, max_payload: int) -> None:
        self._buffer = bytearray()
        self._max_payload = max_payload
        self._need = HEADER_SIZE  # bytes without which there is nothing to parse
        self.error: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """Bytes received that do not form a whole frame yet."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take *data* and return the frames that it completes, oldest first.

        Raises:
            ProtocolError: If the peer speaks another version, sends an unknown
                kind of frame, or announces a payload above the limit.  Whole frames
                before that are returned first, however the stream was cut.
        """
        if self.error is not None:
            raise self.error
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._need:
            return []
        frames: list[Frame] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while True:
                self._need = HEADER_SIZE
                if size - start < HEADER_SIZE:
                    break
                try:
                    kind, attempt, job, length = self._parse_header(buffer, start)
                except ProtocolError as error:
                    self.error = error
                    break
                end = start + HEADER_SIZE + length
                if end > size:
                    self._need = HEADER_SIZE + length
                    break
                payload = bytes(view[start + HEADER_SIZE : end])
                frames.append(Frame(kind, job, attempt, payload))
                start = end
        del buffer[:start]
        if self.error is not None and not frames:
            raise self.error
        return frames

    def _parse_header(
        self, buffer: bytearray, start: int
    ) -> tuple[Kind, int, int, int]:
        version, code, attempt, job, length = _HEADER.unpack_from(buffer, start)
        if version != VERSION:
            raise ProtocolError(f"the peer speaks version {version}, not {VERSION}")
        kind = _KINDS.get(code)
        if kind is None:
            raise ProtocolError(f"unknown kind of frame: {code}")
        if length > self._max_payload:
            raise ProtocolError(
                f"a payload of {length} bytes exceeds the limit of {self._max_payload}"
            )
        return kind, attempt, job, length
