"""Many small items of a map in one job: a *chunk*.

A job costs some 10 us on either side, whatever it does.  So the items of a map that take
less than that travel together; but nothing that a caller can see is shared by them.  The
worker notes the outcome of each item in a *log*, memory that it shares with the pool,
before it begins the next one.  When it dies, the pool finds there what was done, and knows
that the next item, and no other, was running.
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

# The most items of a chunk: those of no work at all take a millisecond.
CHUNK_SIZE = 4096

# How many items are done, whether no other is to begin, and of which job and attempt; how
# many of the first outcomes are numbers of one type, and which type that is; and what
# stands for no number where these are noted.
LOG_HEAD = struct.Struct("=QQQQQQQ")
_STOP = struct.Struct("=Q")

# Behind that come the outcomes.  First come numbers, as the machine writes them, which takes
# 15 ns each; from the first outcome on that is anything else, or has more than 64 bits, they
# follow one by one as entries, which takes 0.4 us.

# What each of the others begins with: its kind, how many bytes follow, and their checksum.
# A worker that dies may have written anywhere before.  So nothing counts that is not as it
# was noted, and no garbage is unpickled, which may ask for any amount of memory.
ENTRY = struct.Struct("=BQI")
_VALUE, _ERROR = 1, 2  # both pickled

# For how many of the outcomes are numbers: as long as all are, and with how many items
# there are added to it.  Until then nothing else is noted of them, not even how many are
# done, which would take as long again: those are done that are not blank.  What is blank is
# drawn at random, so no result is.
OPEN = CHUNK_SIZE + 1

NUMBERS: dict[type, str] = {int: "q", float: "d"}
NUMBER_SIZE = 8


_run: Callable[..., Any] | None = None

# The kinds of plain values, and what makes bytes of them; pickle would take twice as long.
_INT, _FLOAT, _BOOL = struct.Struct("=q"), struct.Struct("=d"), struct.Struct("=?")
_PLAIN: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (3, _INT.pack),
    float: (4, _FLOAT.pack),
    bool: (5, _BOOL.pack),
    type(None): (6, _BOOL.pack),
    str: (7, str.encode),
    bytes: (8, bytes),
}

# What nobody can change, so that it does not matter who has it too.
FLAT: frozenset[type] = frozenset(_PLAIN)


class Failure(Record):
    """What an item has come to that has no result."""

    error: BaseException


# The outcome of an item that is done, of which nothing else is known.
LOST = Failure(RuntimeError("lost"))


class ChunkResult(Record):
    """What a chunk has come to: the outcomes of its first items, in their order.

    Attributes:
        outcomes: Those that follow the numbers: plain immutable values as they are;
            others pickled one by one, since objects that are pickled together would
            have parts in common, as the only element of a tuple; and what was raised,
            as the first of two.
        tail: One more, a value that was too large to be noted.
        numbers: The first outcomes, as far as they are numbers of one type.
        code: How :mod:`struct` names that type.
        microseconds: How long it took.
    """

    outcomes: list[Any]
    tail: list[Any]
    numbers: bytes = b""
    code: str = "q"
    microseconds: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether there are only numbers."""
        return not self.outcomes and not self.tail

    def load(self) -> list[Any]:
        """Return the results, and a :class:`Failure` for what is none."""
        found = self.outcomes
        if not set(map(type, found)) <= FLAT:
            found = list(map(_load, found))
        return _column(self.numbers, self.code) + found + self.tail


def read_log(memory: Readable, start: int, job: int, attempt: int) -> list[Any] | None:
    """Return the outcomes in the log that begins at *start*, if it is of that attempt.

    Its writer is dead, and may have written anywhere before it died: from the first
    outcome on that makes no sense, all are :data:`LOST`.
    """
    log = memory[start : start + LOG_SIZE]
    done, _, *whose, numbers, number, blank = LOG_HEAD.unpack_from(log)
    if whose != [job, attempt]:
        return None
    done = min(done, CHUNK_SIZE)
    log = log[LOG_HEAD.size :]
    if numbers >= OPEN:
        # A number has no checksum, but what is behind the last one was to be blank.
        size = min(numbers - OPEN + 1, CHUNK_SIZE) * NUMBER_SIZE
        numbers = done = count_numbers(log[:size], blank)
        rest = _column(log[done * NUMBER_SIZE : size], "Q")
        if done < CHUNK_SIZE and set(rest) != {blank}:
            return [LOST] * CHUNK_SIZE  # nobody knows which were done
    end = min(done, numbers) * NUMBER_SIZE
    found = _column(log[:end], code_of(number))
    found += _entries(log[end:], done - len(found))
    return found + [LOST] * (done - len(found))


def count_numbers(column: bytes | memoryview, blank: int) -> int:
    """Return how many numbers there are before the first that is blank."""
    words = memoryview(column).cast("Q").tolist()
    return words.index(blank) if blank in words else len(words)


def code_of(number: int) -> str:
    """Return how :mod:`struct` names the type of numbers that the head of a log names."""
    return NUMBERS[float if number else int]


def note(outcome: Any) -> bytes:
    """Return the entry of an outcome, which is as it is in a :class:`ChunkResult`."""
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
    """Do what the worker has installed for that; the pool knows nothing of it."""
    assert _run is not None
    return _run(*args, **kwargs)


def install(run: Callable[..., Any]) -> None:
    """Have :func:`run_chunk` do this, in this process."""
    global _run  # noqa: PLW0603 - there is one worker in a process
    _run = run


def ask_to_stop(memory: Writable, start: int) -> None:
    """Have no other item of the chunk begin whose log begins at *start*."""
    memory[start + _STOP.size : start + 2 * _STOP.size] = _STOP.pack(1)


def _entries(log: bytes, count: int) -> Iterator[Any]:
    """Yield the first *count* outcomes in the entries, up to one that is damaged."""
    end = 0
    for _ in range(count):
        start = end + ENTRY.size
        if start > len(log):
            return
        kind, size, checksum = ENTRY.unpack_from(log, end)
        end = start + size
        data = log[start:end]
        # The kind, too, is part of the sum.
        if kind not in _LOADERS or len(data) < size or crc32(data, kind) != checksum:
            return
        try:
            outcome = _LOADERS[kind](data)
        except (struct.error, UnicodeError):  # somebody has forged it
            return
        yield outcome


def _column(numbers: bytes, code: str) -> list[Any]:
    found: list[Any] = memoryview(numbers).cast(code).tolist()  # type: ignore[call-overload]
    return found


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
