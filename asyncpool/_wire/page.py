"""The memory that a worker shares with the pool: its layout, heartbeats, and the outcomes of a chunk.

A worker has as many *lanes* as it may run jobs at once.  First comes a table: which job each
lane has begun last.  Then follow, for each lane, the newest heartbeats of its jobs and the
outcomes of the items of a chunk; and, if there are several lanes, the stack of its coroutine,
and the outcome of its last job, which the worker may not have sent.  The stacks of threads come
last, since what ``faulthandler`` writes there may reach the end of the memory.  Memory is used
only where something is written.

There is room for two heartbeats of each job, and the worker writes them in turn.  So one of
them is whole whenever the worker dies.  A record begins with a checksum of the rest.  A SIGKILL
may come in the middle of writing, and so may a reader.  Then the checksum is wrong, and the
record before it counts.

Many small items of a map in one job are a *chunk*.
A job costs about 10 us on either side, whatever it does.  So items of a map that take
less than that travel together.  But the caller sees no difference: each item has an
outcome of its own.  The worker writes the outcome of each item to a *log* before it
begins the next one.  The log is memory that the worker shares with the pool.  When the
worker dies, the pool reads there which items are done.  So it knows that the next item,
and no other, was running.
"""

from __future__ import annotations

import marshal
import struct
from binascii import crc32  # a Python may have been built without zlib
from contextlib import suppress

from asyncpool._wire.messages import MAX_DETAILS
from asyncpool._wire.pickling import FLAT, load_error, load_value
from asyncpool._wire.records import Record
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from typing import Any, Protocol

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
JOB_KEY = struct.Struct("=QQ")

# The log for the items of a chunk.
LOG_SIZE = 131_072

# The text of a stack, after its job and attempt as in the table.
LANE_STACK_SIZE = 16_384

# Job, attempt, kind of the frame, run time and length; the outcome follows.
NOTED = struct.Struct("=QQQQQ")
LANE_OUTCOME_SIZE = 4096
_LANE_SIZE = BEATS_SIZE + LOG_SIZE + LANE_STACK_SIZE + LANE_OUTCOME_SIZE

STACKS_SIZE = 65_536

# More lanes are not useful; use more workers instead.
MAX_LANES = 1024


class PageLayout:
    """Where the lanes are, and what comes after them.

    Args:
        width: How many lanes there are.

    Attributes:
        width: As above.
        stacks: Where the stacks of threads begin.
        size: How large the memory is.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._lanes = -(-width * JOB_KEY.size // 4096) * 4096  # whole pages
        self.stacks = self._lanes + width * _LANE_SIZE
        self.size = self.stacks + STACKS_SIZE

    def begun_offset(self, lane: int) -> int:
        """Return where the job is written that *lane* has begun."""
        return lane * JOB_KEY.size

    def beats_offset(self, lane: int) -> int:
        """Return where the heartbeats of *lane* are."""
        return self._lanes + lane * _LANE_SIZE

    def log_offset(self, lane: int) -> int:
        """Return where the log of *lane* for chunks is."""
        return self.beats_offset(lane) + BEATS_SIZE

    def stack_offset(self, lane: int) -> int:
        """Return where the stack of *lane*'s coroutine is, if there are several lanes."""
        return self.log_offset(lane) + LOG_SIZE

    def outcome_offset(self, lane: int) -> int:
        """Return where the outcome of *lane*'s last job is, if there are several lanes."""
        return self.stack_offset(lane) + LANE_STACK_SIZE


# Heartbeats.


class Beat(Record):
    """One heartbeat.

    Attributes:
        number: Which heartbeat of its lane it is, from 1.
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
        """Return the record."""
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


# The most items of a chunk: items without any work then take a millisecond.
CHUNK_SIZE = 4096

# The head of a log, as words: how many items are done; whether the chunk is to begin no other item;
# which job and attempt it is.  The pool asks a chunk to stop by writing its job number, so that a
# later chunk does not obey; the worker itself writes 1, and only while the chunk runs.  The outcomes
# follow as entries, which takes 0.4 us each.
LOG_HEAD = struct.Struct("=QQQQ")
DONE, STOP, JOB, ATTEMPT = range(4)
_WORD = struct.Struct("=Q")

# The head of an entry: how many bytes follow, and their checksum.  A worker that dies may
# have written anywhere before.  So the pool only accepts what is exactly as the worker
# wrote it.  It never loads garbage, which may ask for any amount of memory.
ENTRY = struct.Struct("=QI")


class ItemError(Record):
    """The outcome of an item that has no result."""

    error: BaseException


# The outcome of an item that is done, if nothing else is known about it.
LOST = ItemError(RuntimeError("lost"))


class ChunkResult(Record):
    """The outcomes of the first items of a chunk, in their order.

    Attributes:
        outcomes: All outcomes but the tail.  Plain immutable values are there as they are.  Other
            values are pickled one by one, each as the only element of a tuple, since objects that
            are pickled together would share parts.  An exception is pickled as the first of two
            elements.
        tail: One more outcome: a value that was too large for the log.
        microseconds: How long the chunk took; of coroutines, the share of one job of those that ran.
    """

    outcomes: list[Any]
    tail: list[Any]
    microseconds: float = 0.0

    def load(self) -> list[Any]:
        """Return the results, with a :class:`ItemError` for each item that has none."""
        found = self.outcomes
        if not set(map(type, found)) <= FLAT:
            found = list(map(_load, found))
        return found + self.tail


def copy_log(memory: Readable, start: int, job: int, attempt: int) -> bytes | None:
    """Return a copy of the log that begins at *start*, if it is of that attempt."""
    log = memory[start : start + LOG_SIZE]
    _, _, *whose = LOG_HEAD.unpack_from(log)
    # It has no more bytes than it needs, since an agent sends it to its client.
    return log.rstrip(b"\0") if whose == [job, attempt] else None


def read_log(log: bytes) -> list[Any]:
    """Return the outcomes in a log that :func:`copy_log` has returned.

    The worker is dead, and may have written anywhere before it died.  From the first
    outcome on that makes no sense, all are :data:`LOST`; so are those of an empty log.
    """
    if not log:
        return [LOST] * CHUNK_SIZE
    log = log.ljust(LOG_SIZE, b"\0")
    found: list[Any] = []
    done, start = min(LOG_HEAD.unpack_from(log)[0], CHUNK_SIZE), LOG_HEAD.size
    with suppress(Exception):  # it is damaged, though its checksum is right, or cut off
        while len(found) < done:
            size, checksum = ENTRY.unpack_from(log, start)
            start += ENTRY.size + size
            data = log[start - size : start]
            if len(data) < size or crc32(data) != checksum:
                break
            found.append(_load(marshal.loads(data)))  # noqa: S302 - as good as a pickle
    return found + [LOST] * (done - len(found))


def note(outcome: Any) -> bytes:
    """Return the entry for an outcome, in the form that it has in a :class:`ChunkResult`."""
    try:
        data = marshal.dumps(outcome, 2)  # pickle would take twice as long
    except ValueError:  # over 2 GB
        data = bytes(LOG_SIZE)  # no log has room for it
    return ENTRY.pack(len(data), crc32(data)) + data


def ask_to_stop(memory: Writable, start: int, job: int) -> None:
    """Let no other item begin of the chunk that *job* is, and whose log begins at *start*."""
    at = start + STOP * _WORD.size
    memory[at : at + _WORD.size] = _WORD.pack(job)


def _load(outcome: Any) -> Any:
    if type(outcome) is not tuple:
        return outcome
    data, *is_error = outcome
    if is_error:
        return ItemError(load_error(data))
    try:
        return load_value(data)
    except JobNotPicklableError as error:
        return ItemError(error)
