"""Run the items of a chunk, one by one, and note what becomes of each.

See ``_core/chunks.py``.  To note one takes 0.3 us.
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

from asyncpool._core.chunks import FLAT, LOG_HEAD, ChunkResult
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
        write: Writes behind what was written before.
    """

    def __init__(self, page: mmap) -> None:
        head = memoryview(page)[LOG_START : LOG_START + LOG_HEAD.size]
        self.words = head.cast("Q")
        self.write = page.write
        self._seek = page.seek

    def begin(self, job: int, attempt: int) -> None:
        """Begin anew."""
        words = self.words
        words[0] = words[1] = 0
        words[2], words[3] = job, attempt
        self._seek(LOG_START + LOG_HEAD.size)


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
    return result._replace(microseconds=microseconds)


def _run(
    calls: Iterator[Any],
    count: int,
    log: Log,
    result: ChunkResult,
    pack: Callable[[Any], tuple[Any, Any]],
) -> None:
    # Whatever is done here is done for each item, so there is as little as possible.
    write, words, add = log.write, log.words, result.outcomes.append
    for done in range(1, count + 1):
        value = None
        try:
            outcome = value = copy_context().run(next, calls)
            if type(value) not in FLAT:
                value, outcome = pack(value)
        except BaseException as error:
            outcome = (pack_error(error, skip=1), True)
            words[1] |= isinstance(error, JobCancelled)
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
