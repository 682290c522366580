"""Many small items of a map in one job: a *chunk*.

A job costs about 10 us on either side, whatever it does.  So items of a map that take
less than that travel together.  But the caller sees no difference: each item has an
outcome of its own.  The worker writes the outcome of each item to a *log* before it
begins the next one.  The log is memory that the worker shares with the pool.  When the
worker dies, the pool reads there which items are done.  So it knows that the next item,
and no other, was running.
"""

from __future__ import annotations

import pickle
import struct
from binascii import crc32  # a Python may have been built without zlib

from asyncpool._core.base.records import Record
from asyncpool._core.pickling.calls import load_value
from asyncpool._core.pickling.errors import load_error
from asyncpool._core.wire.page import LOG_SIZE
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from asyncpool._core.wire.page import Readable, Writable

# The most items of a chunk: items without any work then take a millisecond.
CHUNK_SIZE = 4096

# The head of a log: how many items are done; whether no other item may begin; which job
# and attempt it is.  The outcomes follow as entries, which takes 0.4 us each.
LOG_HEAD = struct.Struct("=QQQQ")
_STOP = struct.Struct("=Q")

# The head of an entry: its kind, how many bytes follow, and their checksum.  A worker
# that dies may have written anywhere before.  So the pool only accepts what is exactly
# as the worker wrote it.  It never unpickles garbage, which may ask for any amount of
# memory.
ENTRY = struct.Struct("=BQI")
_VALUE, _ERROR = 1, 2  # both pickled

_run: Callable[..., Any] | None = None

# The kinds of plain values, and how each becomes bytes; pickle would take twice as
# long.
_INT, _FLOAT, _BOOL = struct.Struct("=q"), struct.Struct("=d"), struct.Struct("=?")
_PLAIN: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (3, _INT.pack),
    float: (4, _FLOAT.pack),
    bool: (5, _BOOL.pack),
    type(None): (6, _BOOL.pack),
    str: (7, str.encode),
    bytes: (8, bytes),
}

# Types whose values nobody can change, so that others may have them too.
FLAT: frozenset[type] = frozenset(_PLAIN)


class Failure(Record):
    """The outcome of an item that has no result."""

    error: BaseException


# The outcome of an item that is done, if nothing else is known about it.
LOST = Failure(RuntimeError("lost"))


class ChunkResult(Record):
    """The outcomes of the first items of a chunk, in their order.

    Attributes:
        outcomes: All outcomes but the tail.  Plain immutable values are there as they are.  Other values are pickled one by one, each as the only
            element of a tuple, since objects that are pickled together would share
            parts.  An exception is pickled as the first of two elements.
        tail: One more outcome: a value that was too large for the log.
        microseconds: How long the chunk took.
    """

    outcomes: list[Any]
    tail: list[Any]
    microseconds: float = 0.0

    def load(self) -> list[Any]:
        """Return the results, with a :class:`Failure` for each item that has none."""
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
    done = min(LOG_HEAD.unpack_from(log)[0], CHUNK_SIZE)
    found = [*_entries(log[LOG_HEAD.size :], done)]
    return found + [LOST] * (done - len(found))


def note(outcome: Any) -> bytes:
    """Return the entry for an outcome, in the form that it has in a :class:`ChunkResult`."""
    data: bytes
    if type(outcome) is tuple:
        data, kind = outcome[0], _VALUE if len(outcome) == 1 else _ERROR
    else:
        kind, pack = _PLAIN[type(outcome)]
        try:
            data = pack(outcome)
        except (struct.error, UnicodeError):  # over 64 bits, or half a surrogate pair
            kind, data = _VALUE, pickle.dumps(outcome, 5)
    return ENTRY.pack(kind, len(data), crc32(data, kind)) + data


def run_chunk(*args: Any, **kwargs: Any) -> Any:
    """Call what the worker has installed for this; the pool does not know it."""
    assert _run is not None
    return _run(*args, **kwargs)


def install(run: Callable[..., Any]) -> None:
    """Let :func:`run_chunk` call *run* in this process."""
    global _run  # noqa: PLW0603 - a process has one worker
    _run = run


def ask_to_stop(memory: Writable, start: int) -> None:
    """Let no other item begin of the chunk whose log begins at *start*."""
    memory[start + _STOP.size : start + 2 * _STOP.size] = _STOP.pack(1)


def _entries(log: bytes, count: int) -> Iterator[Any]:
    """Yield the first *count* outcomes in the entries, and stop at one that is damaged."""
    end = 0
    for _ in range(count):
        start = end + ENTRY.size
        if start > len(log):
            return
        kind, size, checksum = ENTRY.unpack_from(log, end)
        end = start + size
        data = log[start:end]
        # The checksum includes the kind, too.
        if kind not in _LOADERS or len(data) < size or crc32(data, kind) != checksum:
            return
        try:
            outcome = _LOADERS[kind](data)
        except (struct.error, UnicodeError):  # its checksum is right all the same
            return
        yield outcome


def _load(outcome: Any) -> Any:
    match outcome:
        case (bytes(data),):
            return _load_value(data)
        case (bytes(data), _):
            return _load_error(data)
        case _:
            return outcome


def _load_value(data: bytes) -> Any:
    try:
        return load_value(data)
    except JobNotPicklableError as error:
        return Failure(error)


def _load_error(data: bytes) -> Failure:
    return Failure(load_error(data))


_LOADERS: dict[int, Callable[[bytes], Any]] = {
    _VALUE: _load_value,
    _ERROR: _load_error,
    3: lambda data: _INT.unpack(data)[0],
    4: lambda data: _FLOAT.unpack(data)[0],
    5: lambda data: _BOOL.unpack(data)[0],
    6: lambda _: None,
    7: bytes.decode,
    8: bytes,
}
