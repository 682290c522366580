"""Many small items of a map in one job: a *chunk*.

A job costs some 10 us on either side, whatever it does.  So the items of a map that take
less than that travel together; but nothing that a caller can see is shared by them.  The
worker notes the outcome of each item in a *log*, memory that it shares with the pool,
before it begins the next one.  When it dies, the pool finds there what was done, and knows
that the next item, and no other, was running.
"""

from __future__ import annotations

import io
import marshal
import struct

from asyncpool._core.outcome import load_value
from asyncpool._core.raised import load_error
from asyncpool._core.records import Record
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap
    from typing import Any

__all__ = [
    "CHUNK_SIZE",
    "FLAT",
    "LOG_HEAD",
    "LOG_SIZE",
    "LOST",
    "NUMBERS",
    "NUMBER_SIZE",
    "OPEN",
    "ChunkResult",
    "Failure",
    "ask_to_stop",
    "code_of",
    "count_numbers",
    "install",
    "read_log",
    "run_chunk",
]

# The most items of a chunk: those of no work at all take a millisecond.
CHUNK_SIZE = 4096

# How many items are done, whether no other is to begin, and of which job and attempt; how
# many of the first outcomes are numbers of one type, and which type that is; and what
# stands for no number where these are noted.
LOG_HEAD = struct.Struct("=QQQQQQQ")
_STOP = struct.Struct("=Q")

# The outcomes, and all that is before them.  First come numbers, as the machine writes
# them, which takes 15 ns each; from the first outcome on that is anything else, or has
# more than 64 bits, they follow one by one as marshal writes them, which takes 200 ns.
LOG_SIZE = 131_072

# For how many of the outcomes are numbers: as long as all are.  Until then nothing else is
# noted of them, not even how many are done, which would take as long again: those are done
# that are not blank.  What is blank is drawn at random, so no result is.
OPEN = CHUNK_SIZE + 1

NUMBERS: dict[type, str] = {int: "q", float: "d"}
NUMBER_SIZE = 8


_run: Callable[..., Any] | None = None

# What nobody can change, so that it does not matter who has it too.
FLAT: frozenset[type] = frozenset((int, float, bool, type(None), str, bytes))

# How marshal marks their beginnings, and those of tuples of bytes and True.
_MARKS = frozenset(b"ilgNTFsuaAzZt()r")


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


def read_log(
    memory: mmap | bytes, start: int, job: int, attempt: int
) -> list[Any] | None:
    """Return the outcomes in the log that begins at *start*, if it is of that attempt.

    Its writer is dead, and may have written anywhere before it died: from the first
    outcome on that makes no sense, all are :data:`LOST`.
    """
    done, _, *whose, numbers, number, blank = LOG_HEAD.unpack_from(memory, start)
    if whose != [job, attempt]:
        return None
    done = min(done, CHUNK_SIZE)
    log = memory[start + LOG_HEAD.size : start + LOG_SIZE]
    if numbers == OPEN:
        numbers = done = count_numbers(log[: CHUNK_SIZE * NUMBER_SIZE], blank)
    end = min(done, numbers) * NUMBER_SIZE
    stream = io.BytesIO(log[end:])
    found = _column(log[:end], code_of(number))
    found += map(_load, _read(stream, done - len(found)))
    return found + [LOST] * (done - len(found))


def count_numbers(column: bytes | memoryview, blank: int) -> int:
    """Return how many numbers there are before the first that is blank."""
    words = memoryview(column).cast("Q").tolist()
    return words.index(blank) if blank in words else len(words)


def code_of(number: int) -> str:
    """Return how :mod:`struct` names the type of numbers that the head of a log names."""
    return NUMBERS[float if number else int]


def run_chunk(*args: Any, **kwargs: Any) -> Any:
    """Do what the worker has installed for that; the pool knows nothing of it."""
    assert _run is not None
    return _run(*args, **kwargs)


def install(run: Callable[..., Any]) -> None:
    """Have :func:`run_chunk` do this, in this process."""
    global _run  # noqa: PLW0603 - there is one worker in a process
    _run = run


def ask_to_stop(memory: mmap, start: int) -> None:
    """Have no other item of the chunk begin whose log begins at *start*."""
    _STOP.pack_into(memory, start + _STOP.size, 1)


def _read(stream: io.BytesIO, count: int) -> Iterator[Any]:
    memory = stream.getbuffer()
    for _ in range(count):
        try:
            # Nothing but what is written there: marshal knows less harmless things.
            if memory[stream.tell()] & 0x7F not in _MARKS:
                return
            outcome = marshal.load(stream)  # noqa: S302 - as far as it is pickle
        except (EOFError, ValueError, TypeError, IndexError):
            return
        yield outcome


def _column(numbers: bytes, code: str) -> list[Any]:
    found: list[Any] = memoryview(numbers).cast(code).tolist()  # type: ignore[call-overload]
    return found


def _load(outcome: Any) -> Any:
    match outcome:
        case (bytes(data),):
            try:
                return load_value(data)
            except JobNotPicklableError as error:
                return Failure(error)
        case (bytes(data), _):
            return Failure(load_error(data))
        case _:
            return outcome
