"""The memory that a worker shares with the pool: its layout, and the heartbeats in it.

First comes which job the worker has begun.  The newest heartbeats of its jobs follow,
then the outcomes of the items of a chunk.  The stacks of its threads come last, since
what ``faulthandler`` writes there may reach the end of the memory.  Memory is used only
where something is written.

A worker that runs several jobs at once has *lanes* before the stacks.  A table says
which job each lane has begun last.  The rest follows for each lane, also with the stack
of its coroutine, and with the outcome of its last job, which the worker may not have
sent.  The parts for one job, at the beginning, are not used then.

There is room for two heartbeats of each job, and the worker writes them in turn.  So one of
them is whole whenever the worker dies.  A record begins with a checksum of the rest.  A SIGKILL
may come in the middle of writing, and so may a reader.  Then the checksum is wrong, and the
record before it counts.
"""

from __future__ import annotations

import struct
from binascii import crc32  # a Python may have been built without zlib

from asyncpool._core.base.records import Record
from asyncpool._core.wire.messages import MAX_DETAILS

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Protocol

    class Readable(Protocol):
        """The memory, or a copy of it, of which slices are taken."""

        def __getitem__(self, where: slice, /) -> bytes: ...

    class Writable(Protocol):
        """The memory, of which slices are overwritten."""

        def __setitem__(self, where: slice, data: bytes, /) -> None: ...


# Within this many seconds a worker sends only one HEARTBEAT frame, and after them the
# pool reads the page again.
BEAT_INTERVAL = 0.1

_BEAT_SUM = struct.Struct("=I")
_BEAT_HEAD = struct.Struct("=QQQdI")
_BEAT_BEGIN = _BEAT_SUM.size + _BEAT_HEAD.size

_BEAT_SIZE = _BEAT_BEGIN + MAX_DETAILS
BEATS_SIZE = 2 * _BEAT_SIZE

# A job and an attempt.
BEGUN = struct.Struct("=QQ")

BEATS_START = 4096
LOG_START = BEATS_START + BEATS_SIZE
# The size of the log for the items of a chunk, and the size of all that is before it.
LOG_SIZE = 131_072
# Without lanes.
STACKS_START = LOG_START + LOG_SIZE
STACKS_SIZE = 65_536
PAGE_SIZE = STACKS_START + STACKS_SIZE

# The text of a stack, after its job and attempt as in the table.
LANE_STACK_SIZE = 16_384

# The outcome, after its job and attempt, the kind of its frame, its run time and its
# length.
NOTED = struct.Struct("=QQQQQ")
LANE_OUTCOME_SIZE = 4096
_LANE_SIZE = BEATS_SIZE + LOG_SIZE + LANE_STACK_SIZE + LANE_OUTCOME_SIZE

# More lanes are not useful; use more workers instead.
MAX_LANES = 1024


class PageLayout:
    """Where the lanes are, and what comes after them.

    Args:
        width: How many lanes there are; one needs none.

    Attributes:
        width: As above.
        table: Where the table begins that says which job each lane has begun.
        stacks: Where the stacks of threads begin.
        size: How large the memory is.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.table, self._lanes, self.stacks = 0, BEATS_START, STACKS_START
        if width > 1:
            self.table = STACKS_START
            self._lanes = STACKS_START + _in_whole_pages(width * BEGUN.size)
            self.stacks = self._lanes + width * _LANE_SIZE
        self.size = self.stacks + STACKS_SIZE

    def begun(self, lane: int) -> int:
        """Return where the job is written that *lane* has begun."""
        return self.table + lane * BEGUN.size

    def beats(self, lane: int) -> int:
        """Return where the heartbeats of *lane* are."""
        return self._lanes + lane * _LANE_SIZE

    def log(self, lane: int) -> int:
        """Return where the log of *lane* for chunks is."""
        return self.beats(lane) + BEATS_SIZE

    def stack(self, lane: int) -> int:
        """Return where the stack of *lane*'s coroutine is, if there are several lanes."""
        return self.log(lane) + LOG_SIZE

    def outcome(self, lane: int) -> int:
        """Return where the outcome of *lane*'s last job is, if there are several lanes."""
        return self.stack(lane) + LANE_STACK_SIZE


def _in_whole_pages(size: int) -> int:
    return -(-size // 4096) * 4096


# Heartbeats.


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
        body = _BEAT_HEAD.pack(number, job, attempt, at, len(details)) + details
        return _BEAT_SUM.pack(crc32(body)) + body


def beat_offset(number: int) -> int:
    """Return where in the memory for heartbeats the one with this *number* is written."""
    return number % 2 * _BEAT_SIZE


def unpack_beat(memory: Readable, start: int = 0) -> Beat | None:
    """Return the heartbeat whose record begins at *start*; ``None`` if it is not whole."""
    head = memory[start : start + _BEAT_BEGIN]
    if len(head) < _BEAT_BEGIN:
        return None
    [checksum] = _BEAT_SUM.unpack_from(head)
    *_, size = _BEAT_HEAD.unpack_from(head, _BEAT_SUM.size)
    if size > MAX_DETAILS:
        return None
    # It is copied before the checksum, since it may change at any moment.
    body = memory[start + _BEAT_SUM.size : start + _BEAT_BEGIN + size]
    if len(body) < _BEAT_HEAD.size + size or crc32(body) != checksum:
        return None
    number, job, attempt, at, _ = _BEAT_HEAD.unpack_from(body)
    return Beat(number, job, attempt, at, body[_BEAT_HEAD.size :])


def has_beats(memory: Readable, start: int) -> bool:
    """Tell whether there is a heartbeat in the memory that begins at *start*."""
    first = start + beat_offset(1)
    return any(memory[first : first + _BEAT_BEGIN])


def read_beats(memory: Readable, start: int = 0) -> list[Beat]:
    """Return the heartbeats in the memory that begins at *start*, the older one first."""
    places = (start, start + _BEAT_SIZE)
    return sorted(beat for place in places if (beat := unpack_beat(memory, place)))
