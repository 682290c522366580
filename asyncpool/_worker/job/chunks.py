"""Run the items of a chunk, one by one, and note the outcome of each.

See ``_core/map/chunks.py`` for the log.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import starmap
from time import perf_counter_ns
from types import CoroutineType

from asyncpool._core.base.names import function_name
from asyncpool._core.map.chunks import (
    FLAT,
    LOG_HEAD,
    ChunkResult,
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
        write: Writes behind what was written before.
        count: How many items there are.
    """

    def __init__(
        self, page: mmap, start: int = LOG_START, pen: Pen | None = None
    ) -> None:
        self._first = start + LOG_HEAD.size
        self.words = memoryview(page)[start : self._first].cast("Q")
        self.write: Callable[[bytes], object] = (pen or page).write
        self.count = 0
        self._seek: Callable[[int], object] = (pen or page).seek

    def begin(self, job: int, attempt: int, count: int) -> None:
        """Begin a new log for *count* items."""
        words, self.count = self.words, count
        words[0] = words[1] = 0
        words[2], words[3] = job, attempt
        self._seek(self._first)


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
        return self._result._replace(microseconds=microseconds)


def _run(
    calls: Iterator[Any], log: ChunkLog, result: ChunkResult, pack: Callable[[Any], Any]
) -> Generator[Coroutine[Any, Any, Any], Any, None]:
    """Note the outcomes of items; yield the coroutines of those that are async."""
    # A call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    for done in range(log.count):
        try:
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
