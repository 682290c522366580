"""Run the items of a chunk, one by one, and note the outcome of each.

See ``_core/map/chunks.py`` for the log.
"""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import starmap
from time import perf_counter_ns
from types import CoroutineType

from asyncpool._core.base.names import function_name
from asyncpool._core.map.chunks import (
    CHUNK_SIZE,
    FLAT,
    LOG_HEAD,
    NUMBER_SIZE,
    NUMBERS,
    OPEN,
    ChunkResult,
    code_of,
    count_numbers,
    note,
)
from asyncpool._core.pickling.calls import pack_value
from asyncpool._core.pickling.errors import pack_error
from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.wire.page import LOG_START
from asyncpool._worker.api.context import running
from asyncpool._worker.job.coroutines import inner
from asyncpool._worker.job.execute import ours
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from mmap import mmap
    from typing import Any, NoReturn, Protocol

    from asyncpool._worker.job.around import Hook

    class Pen(Protocol):
        def write(self, data: bytes, /) -> object: ...
        def seek(self, where: int, /) -> object: ...


# How many functions of maps a worker remembers.
_MEMORY = 32

_functions: dict[bytes, Callable[..., Any]] = {}


class ChunkLog:
    """The outcomes of the items of a chunk; the same log serves one chunk after the other.

    Args:
        page: The worker page.
        start: The offset of the log on the page.
        pen: Writes there; without one the log uses the page's own position.

    Attributes:
        words: The head of the log, see ``_core/map/chunks.py``.
        columns: Where numbers of each type are noted.
        write: Writes behind what was written before.
        count: How many items there are.
    """

    def __init__(
        self, page: mmap, start: int = LOG_START, pen: Pen | None = None
    ) -> None:
        begin, size = start + LOG_HEAD.size, CHUNK_SIZE * NUMBER_SIZE
        numbers = memoryview(page)[begin : begin + size]
        self.words = memoryview(page)[start:begin].cast("Q")
        self.columns: dict[type, Any] = {
            number: numbers.cast(code)  # type: ignore[call-overload]
            for number, code in NUMBERS.items()
        }
        self.write: Callable[[bytes], object] = (pen or page).write
        self.count = 0
        self._numbers = numbers
        self._start = start
        self._seek: Callable[[int], object] = (pen or page).seek
        self._blank = os.urandom(NUMBER_SIZE)
        self.words[6] = int.from_bytes(self._blank, sys.byteorder)

    def begin(self, job: int, attempt: int, count: int) -> None:
        """Begin a new log for *count* items."""
        words, self.count = self.words, count
        words[0] = words[1] = words[4] = 0
        words[2], words[3] = job, attempt

    def begin_column(self, number: type) -> Any:
        """Return where results of this type are noted; ``None`` if it is no type of numbers."""
        column = self.columns.get(number)
        if column is not None:
            # One more than needed, so that no number of an earlier chunk follows.
            blanks = self._blank * min(self.count + 1, CHUNK_SIZE)
            self._numbers[: len(blanks)] = blanks
            self.words[5], self.words[4] = number is float, OPEN + self.count
        return column

    def end_column(self, done: int) -> None:
        """Have later outcomes written behind the first *done* ones, which are numbers."""
        self.words[0] = done
        self.words[4] = done
        self._seek(self._start + LOG_HEAD.size + done * NUMBER_SIZE)

    def column(self) -> tuple[bytes, str]:
        """Return the numbers that were noted, and the code of their type."""
        numbers, number, blank = self.words[4:]
        if numbers >= OPEN:  # the chunk was cancelled between two of them
            numbers = count_numbers(self._numbers, blank)
        return bytes(self._numbers[: numbers * NUMBER_SIZE]), code_of(number)


def run_chunk(
    log: ChunkLog,
    await_: Callable[[Any], Any],
    packed: bytes,
    items: list[Any],
    *,
    star: bool,
    named: bool,
    max_payload: int,
    hook: Hook | None = None,
) -> ChunkResult:
    """Call a function for each of *items*, until all are done or the chunk is told to stop.

    Args:
        log: Where the outcomes are noted.
        await_: Runs a coroutine to its end.
        packed: The function, pickled.
        items: The arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function travels by name, so that it may be remembered.
        max_payload: The most bytes that a result may have.
        hook: What is entered around each item.
    """
    chunk = Chunk(
        log,
        packed,
        items,
        star=star,
        named=named,
        max_payload=max_payload,
        hook=hook,
    )
    coroutine = chunk.go_on()
    while coroutine is not None:
        try:
            value = await_(coroutine)
        except BaseException as error:
            error.__traceback__ = inner(error.__traceback__)
            coroutine = chunk.go_on(error=error)
        else:
            coroutine = chunk.go_on(value)
    return chunk.result


class Chunk:
    """A chunk that runs, up to the next coroutine that its function returns.

    The arguments are those of :func:`run_chunk`.
    """

    def __init__(
        self,
        log: ChunkLog,
        packed: bytes,
        items: list[Any],
        *,
        star: bool,
        named: bool,
        max_payload: int,
        hook: Hook | None = None,
    ) -> None:
        job = running.get()
        assert job is not None
        self._began = perf_counter_ns()
        self._log = log
        log.begin(job[0], job[1], len(items))
        function = _recall(packed, keep=named)
        running.set((*job[:4], function if named else function_name(function)))
        if hook is not None:
            function = hook.around_items(function)
        calls = starmap(function, items) if star else map(function, items)
        self._result = ChunkResult([], [])
        pack = partial(_pack, max_payload)
        self._steps = _run(calls, log, self._result, pack)

    def go_on(
        self, value: Any = None, error: BaseException | None = None
    ) -> Coroutine[Any, Any, Any] | None:
        """Continue with the outcome of a coroutine; return the next coroutine, if there is one."""
        try:
            # Between two items: those that are done keep their outcomes.
            with suppress(StopIteration, JobCancelled):
                if error is None:
                    return self._steps.send(value)
                return self._steps.throw(error)
        except Exception as broken:  # it is not an item's: the log is broken
            # The item that was not noted has run, and must not count as one that has not begun.
            self._result.outcomes.append((pack_error(broken, skip=ours(broken)), True))
        return None

    @property
    def result(self) -> ChunkResult:
        """The outcomes of the chunk."""
        microseconds = (perf_counter_ns() - self._began) / 1000
        numbers, code = self._log.column()
        return self._result._replace(
            numbers=numbers, code=code, microseconds=microseconds
        )


def _run(
    calls: Iterator[Any], log: ChunkLog, result: ChunkResult, pack: Callable[[Any], Any]
) -> Generator[Coroutine[Any, Any, Any], Any, None]:
    rest = _run_numbers(calls, log)
    if rest is not None:
        yield from _run_others(calls, log, result, pack, rest)


def _run_numbers(calls: Iterator[Any], log: ChunkLog) -> tuple[int, Any, Any] | None:
    """Note results as long as they are numbers of one type.

    Returns:
        How many numbers there are; and the next result and its outcome, if there is one.
    """
    # This runs for each item, so it does as little as possible.
    words = log.words
    number: type | None = None
    column: Any = None
    for done in range(log.count):
        try:
            value = copy_context().run(next, calls)
        except BaseException as error:
            words[1] |= isinstance(error, JobCancelled)
            return done, None, (pack_error(error, skip=ours(error)), True)
        if type(value) is not number:
            number = type(value)
            column = None if done else log.begin_column(number)
            if column is None:
                return done, value, value
        try:
            column[done] = value  # the item counts as done from here on
        except ValueError:  # the number has more than 64 bits
            return done, value, value
        if words[1]:
            log.end_column(done + 1)
            return None
    log.end_column(log.count)
    return None


def _run_others(
    calls: Iterator[Any],
    log: ChunkLog,
    result: ChunkResult,
    pack: Callable[[Any], Any],
    rest: tuple[int, Any, Any],
) -> Generator[Coroutine[Any, Any, Any], Any, None]:
    """Note the outcomes after the numbers; *rest* is the first one, if there is one."""
    # As above: a call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    known, value, outcome = rest
    log.end_column(known)
    for done in range(known, log.count):
        try:
            if done > known:
                outcome = value = copy_context().run(next, calls)
            if type(value) is CoroutineType:
                outcome = value = yield value
            if type(value) not in FLAT:
                outcome = pack(value)
                if isinstance(outcome, OutOfBandPickle):  # it is too large for the log
                    result.tail.append(value)
                    return
            entry = note(outcome)
        except BaseException as error:
            value, outcome = None, (pack_error(error, skip=ours(error)), True)
            entry = note(outcome)
            words[1] |= isinstance(error, JobCancelled)
        try:
            write(entry)
        except ValueError:  # the log is full, so no other item may begin
            add(outcome)
            return
        add(outcome)
        words[0] = done + 1  # the outcome counts as noted from here on
        if words[1]:
            return


def _recall(packed: bytes, *, keep: bool) -> Callable[..., Any]:
    function = _functions.get(packed)
    if function is not None:
        return function
    try:
        loaded: Callable[..., Any] = pickle.loads(packed)
    except BaseException as error:
        return partial(_fail, error)  # so that each item fails with it
    if keep:
        if len(_functions) >= _MEMORY:
            del _functions[next(iter(_functions))]
        _functions[packed] = loaded
    return loaded


def _fail(error: BaseException, *_: object) -> NoReturn:
    raise error


def _pack(max_payload: int, value: object) -> Any:
    data = pack_value(value, max_payload)
    return data if isinstance(data, OutOfBandPickle) else (data,)
