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
    "ChunkResult",
    "Failure",
    "ask_to_stop",
    "install",
    "read_log",
    "run_chunk",
]

# The most items of a chunk: those of no work at all take a millisecond.
CHUNK_SIZE = 4096

# How many items are done, whether no other is to begin, and of which job and attempt.
LOG_HEAD = struct.Struct("=QQQQ")
_STOP = struct.Struct("=Q")

# The outcomes, one by one as marshal writes them, and all that is before them.
LOG_SIZE = 131_072


_run: Callable[..., ChunkResult] | None = None

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
        outcomes: Plain immutable values as they are; others pickled one by one, since
            objects that are pickled together would have parts in common, as the only
            element of a tuple; and what was raised, as the first of two.
        tail: One more, a value that was too large to be noted.
        microseconds: How long it took.
    """

    outcomes: list[Any]
    tail: list[Any]
    microseconds: float = 0.0

    def load(self) -> list[Any]:
        """Return the results, and a :class:`Failure` for what is none."""
        found = self.outcomes
        if not set(map(type, found)) <= FLAT:
            found = list(map(_load, found))
        return found + self.tail


def read_log(
    memory: mmap | bytes, start: int, job: int, attempt: int
) -> list[Any] | None:
    """Return the outcomes in the log that begins at *start*, if it is of that attempt.

    Its writer is dead, and may have written anywhere before it died: from the first
    outcome on that makes no sense, all are :data:`LOST`.
    """
    done, _, *whose = LOG_HEAD.unpack_from(memory, start)
    if whose != [job, attempt] or done > CHUNK_SIZE:
        return None
    stream = io.BytesIO(memory[start + LOG_HEAD.size : start + LOG_SIZE])
    found = list(map(_load, _read(stream, done)))
    return found + [LOST] * (done - len(found))


def run_chunk(*args: Any, **kwargs: Any) -> ChunkResult:
    """Do what the worker has installed for that; the pool knows nothing of it."""
    assert _run is not None
    return _run(*args, **kwargs)


def install(run: Callable[..., ChunkResult]) -> None:
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
