"""Run the items of a chunk, one by one, and note what becomes of each.

See ``_core/chunks.py``.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import starmap
from marshal import dumps
from time import perf_counter_ns
from types import CoroutineType

from asyncpool._core.chunks import (
    CHUNK_SIZE,
    FLAT,
    LOG_HEAD,
    NUMBER_SIZE,
    NUMBERS,
    ChunkResult,
    column_of,
)
from asyncpool._core.outcome import pack_value
from asyncpool._core.page import LOG_START
from asyncpool._core.parcels import Parcel
from asyncpool._core.raised import pack_error
from asyncpool._worker.context import running
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap
    from typing import Any, NoReturn

__all__ = ["Log", "run_chunk"]

# So many functions of maps are remembered.
_MEMORY = 32

_functions: dict[bytes, Callable[..., Any]] = {}


class Log:
    """The outcomes of the items of one chunk after the other.

    Args:
        page: The memory that the worker shares with the pool.

    Attributes:
        words: The head of the log, see ``_core/chunks.py``.
        columns: Where numbers of each type are noted.
        write: Writes behind what was written before.
    """

    def __init__(self, page: mmap) -> None:
        start, size = LOG_START + LOG_HEAD.size, CHUNK_SIZE * NUMBER_SIZE
        numbers = memoryview(page)[start : start + size]
        self.words = memoryview(page)[LOG_START:start].cast("Q")
        self.columns: dict[type, Any] = {
            number: numbers.cast(code)  # type: ignore[call-overload]
            for number, code in NUMBERS.items()
        }
        self.write = page.write
        self._numbers = numbers
        self._seek = page.seek

    def begin(self, job: int, attempt: int) -> None:
        """Begin anew."""
        words = self.words
        words[0] = words[1] = 0
        words[2], words[3] = job, attempt
        words[4], words[5] = CHUNK_SIZE, 0

    def begin_column(self, number: type) -> tuple[type | None, Any]:
        """Take note of the first outcome's type, and tell whether it is a number's.

        Returns:
            That type, or ``None``, and where such numbers are noted.
        """
        column = self.columns.get(number)
        if column is None:
            self.end_column(0)
            return None, None
        self.words[5] = number is float
        return number, column

    def end_column(self, done: int) -> None:
        """Have what comes after the first *done* outcomes written behind them."""
        self.words[4] = done
        self._seek(LOG_START + LOG_HEAD.size + done * NUMBER_SIZE)

    def column(self) -> tuple[bytes, str]:
        """Return the numbers that were noted, and the code of their type."""
        done, *_, numbers, number = self.words
        size, code = column_of(done, numbers, number)
        return bytes(self._numbers[:size]), code


def run_chunk(
    log: Log,
    await_: Callable[[Any], Any],
    packed: bytes,
    items: list[Any],
    *,
    star: bool,
    named: bool,
    max_payload: int,
) -> ChunkResult:
    """Call a function for each of *items*, until all are done or one is to be the last.

    Args:
        log: Where their outcomes are noted.
        await_: Runs a coroutine to its end.
        packed: The function, pickled.
        items: Its arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function may be remembered, since it has no state.
        max_payload: The most bytes that a result may have.
    """
    job = running.get()
    assert job is not None
    began = perf_counter_ns()
    log.begin(job[0], job[1])
    function = _recall(packed, keep=named)
    calls = starmap(function, items) if star else map(function, items)
    result = ChunkResult([], [])
    with suppress(JobCancelled):  # between two items: those that are done are done
        _run(calls, len(items), log, result, partial(_pack, await_, max_payload))
    microseconds = (perf_counter_ns() - began) / 1000
    numbers, code = log.column()
    return result._replace(numbers=numbers, code=code, microseconds=microseconds)


def _run(  # noqa: C901 - for each item; a call of another function would cost a fifth
    calls: Iterator[Any],
    count: int,
    log: Log,
    result: ChunkResult,
    pack: Callable[[Any], tuple[Any, Any]],
) -> None:
    # Whatever is done here is done for each item, so there is as little as possible.
    write, words, add = log.write, log.words, result.outcomes.append
    number: type | None = None
    column: Any = None
    for done in range(1, count + 1):
        value = None
        try:
            outcome = value = copy_context().run(next, calls)
            if type(value) is not number and type(value) not in FLAT:
                value, outcome = pack(value)
        except BaseException as error:
            outcome = (pack_error(error, skip=1), True)
            words[1] |= isinstance(error, JobCancelled)
        if done == 1:
            number, column = log.begin_column(type(outcome))
        if number is not None:
            try:
                if type(outcome) is number:
                    column[done - 1] = outcome
                    words[0] = done
                    if words[1]:
                        return
                    continue
            except ValueError:  # it has more than 64 bits
                pass
            number = None
            log.end_column(done - 1)
        try:
            write(dumps(outcome))
        except ValueError:  # there is no room for it, so no other may begin
            if isinstance(outcome, Parcel):
                result.tail.append(value)
            else:
                add(outcome)
            return
        add(outcome)
        words[0] = done  # only from now on it is noted
        if words[1]:
            return


def _recall(packed: bytes, *, keep: bool) -> Callable[..., Any]:
    function = _functions.get(packed)
    if function is not None:
        return function
    try:
        loaded: Callable[..., Any] = pickle.loads(packed)
    except BaseException as error:
        return partial(_fail, error)  # which is each item's own failure
    if keep:
        if len(_functions) >= _MEMORY:
            del _functions[next(iter(_functions))]
        _functions[packed] = loaded
    return loaded


def _fail(error: BaseException, *_: object) -> NoReturn:
    raise error


def _pack(
    await_: Callable[[Any], Any], max_payload: int, value: object
) -> tuple[Any, Any]:
    """Return the value, which may have to be awaited, and the outcome."""
    if type(value) is CoroutineType:
        value = await_(value)
        if type(value) in FLAT:
            return value, value
    data = pack_value(value, max_payload)
    return value, data if isinstance(data, Parcel) else (data,)
