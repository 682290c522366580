"""The wire format of the channels between a pool and its workers.

A channel carries a sequence of frames and nothing else.  A frame is a fixed
header and a payload that this module does not look into::

    0        1        2                 4                                8
    +--------+--------+-----------------+--------------------------------+
    | version|  kind  |     attempt     |              tag               |
    +--------+--------+-----------------+--------------------------------+
    |                           job id (8 bytes)                         |
    +--------------------------------------------------------------------+
    |                       payload length (8 bytes)                     |
    +--------------------------------------------------------------------+
    |  payload ...

Integers are unsigned and big-endian.  What *tag* means depends on the kind; it,
*attempt* and *job id* are zero where they mean nothing.  Both ends always run the
same version of asyncpool, and *version* only turns a mistake in that assumption into
an error instead of a hang.
"""

from __future__ import annotations

import enum
import functools
import struct

from asyncpool._core.records import Record
from asyncpool.errors import ProtocolError

__all__ = [
    "HEADER_SIZE",
    "MAX_ATTEMPTS",
    "MAX_TAG",
    "VERSION",
    "Frame",
    "FrameDecoder",
    "Kind",
    "header",
]

VERSION = 2

_HEADER = struct.Struct("!BBHIQQ")
HEADER_SIZE = _HEADER.size

# What fits in the header's fields.
MAX_ATTEMPTS = 0xFFFF
MAX_TAG = 0xFFFF_FFFF


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
    JOB = 7  # pool: run this; *tag* is the function's number, or 0 if it comes along
    VALUE = 8  # worker: what the job returned; *tag* is how long it took, in us
    ERROR = 9  # worker: what the job raised; *tag* as above
    FUNCTION = 10  # pool: remember this function as number *tag*
    # Control channels of workers again.
    REVOKE = 11  # pool: do not begin the jobs that came in these places
    REVOKED = 12  # worker: these of them will not begin
    # The launcher's channel again.
    SWEEP = 13  # pool: say when nothing is left of dead workers
    SWEPT = 14  # launcher: nothing is


_KINDS = {int(kind): kind for kind in Kind}


class Frame(Record):
    """One message on a channel."""

    kind: Kind
    job: int
    attempt: int
    tag: int
    payload: bytes


# What Frame(...) does, in half of the time.
_frame = functools.partial(tuple.__new__, Frame)


def header(
    kind: Kind, size: int, job: int = 0, attempt: int = 0, tag: int = 0
) -> bytes:
    """Return the header of a frame whose payload has *size* bytes."""
    return _HEADER.pack(VERSION, kind, attempt, tag, job, size)


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
        self._rest = bytearray()
        self._max_payload = max_payload
        self._need = HEADER_SIZE  # bytes without which there is nothing to parse
        self.error: ProtocolError | None = None

    @property
    def pending(self) -> int:
        """Bytes received that do not form a whole frame yet."""
        return len(self._rest)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take *data* and return the frames that it completes, oldest first.

        Raises:
            ProtocolError: If the peer speaks another version, sends an unknown
                kind of frame, or announces a payload above the limit.  Whole frames
                before that are returned first, however the stream was cut.
        """
        self._check()
        if not self._rest:
            frames, end = self._split(bytes(data))
            self._rest += data[end:]
        else:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            frames, end = self._split(bytes(self._rest))
            del self._rest[:end]
        if not frames:
            self._check()
        return frames

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _split(self, data: bytes) -> tuple[list[Frame], int]:
        """Return the whole frames in *data*, and where they end."""
        # Every job passes here twice, so this loop calls nothing that it can avoid.
        frames: list[Frame] = []
        unpack, limit, size = _HEADER.unpack_from, self._max_payload, len(data)
        start, body = 0, HEADER_SIZE
        while body <= size:
            version, code, attempt, tag, job, length = unpack(data, start)
            kind = _KINDS.get(code)
            if version != VERSION or kind is None or length > limit:
                self.error = self._explain(version, code, length)
                break
            end = body + length
            if end > size:
                self._need = end - start
                return frames, start
            frames.append(_frame((kind, job, attempt, tag, data[body:end])))
            start, body = end, end + HEADER_SIZE
        self._need = HEADER_SIZE
        return frames, start

    def _explain(self, version: int, code: int, length: int) -> ProtocolError:
        if version != VERSION:
            return ProtocolError(f"the peer speaks version {version}, not {VERSION}")
        if code not in _KINDS:
            return ProtocolError(f"unknown kind of frame: {code}")
        return ProtocolError(
            f"a payload of {length} bytes exceeds the limit of {self._max_payload}"
        )
