"""The newest heartbeats of a worker's jobs, in memory that outlives the worker.

There is room for two records, and the worker writes them in turn.  So one of them is
whole whenever the worker dies.  A record begins with a checksum of the rest.  A SIGKILL
may come in the middle of writing, and so may a reader.  Then the checksum is wrong, and
the record before it counts.
"""

from __future__ import annotations

import struct
from binascii import crc32  # a Python may have been built without zlib

from asyncpool._core.base.records import Record

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncpool._core.wire.page import Readable

# Within this many seconds a worker sends only one HEARTBEAT frame, and after them the
# pool reads the page again.
INTERVAL = 0.1

_SUM = struct.Struct("=I")
_HEAD = struct.Struct("=QQQdI")
_BEGIN = _SUM.size + _HEAD.size

_RECORD_SIZE = 32_768
BEATS_SIZE = 2 * _RECORD_SIZE
MAX_DETAILS = _RECORD_SIZE - _BEGIN


class Beat(Record):
    """One heartbeat.

    Attributes:
        number: Which heartbeat of its worker it is, from 1.
        job: The job.
        attempt: The attempt at it.
        at: When it was, on the clock that all processes of a machine share.
        details: What the job says about itself, pickled.
    """

    number: int
    job: int
    attempt: int
    at: float
    details: bytes

    def pack(self) -> bytes:
        """Return the record, or the payload of a ``BEAT`` frame."""
        number, job, attempt, at, details = self
        body = _HEAD.pack(number, job, attempt, at, len(details)) + details
        return _SUM.pack(crc32(body)) + body


def offset_of(number: int) -> int:
    """Return where in the memory for heartbeats the one with this *number* is written."""
    return number % 2 * _RECORD_SIZE


def unpack(memory: Readable, start: int = 0) -> Beat | None:
    """Return the heartbeat whose record begins at *start*; ``None`` if it is not whole."""
    head = memory[start : start + _BEGIN]
    if len(head) < _BEGIN:
        return None
    [checksum] = _SUM.unpack_from(head)
    *_, size = _HEAD.unpack_from(head, _SUM.size)
    if size > MAX_DETAILS:
        return None
    # It is copied before the checksum, since it may change at any moment.
    body = memory[start + _SUM.size : start + _BEGIN + size]
    if len(body) < _HEAD.size + size or crc32(body) != checksum:
        return None
    number, job, attempt, at, _ = _HEAD.unpack_from(body)
    return Beat(number, job, attempt, at, body[_HEAD.size :])


def has_any(memory: Readable, start: int) -> bool:
    """Tell whether there is a heartbeat in the memory that begins at *start*."""
    first = start + offset_of(1)
    return any(memory[first : first + _BEGIN])


def read(memory: Readable, start: int = 0) -> list[Beat]:
    """Return the heartbeats in the memory that begins at *start*, the older one first."""
    places = (start, start + _RECORD_SIZE)
    return sorted(beat for place in places if (beat := unpack(memory, place)))
