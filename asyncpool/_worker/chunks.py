"""Run the items of a chunk, one by one, and note the outcome of each.

See ``_wire/page.py`` for the log.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import starmap
from mmap import ALLOCATIONGRANULARITY, mmap
from time import perf_counter_ns
from types import CoroutineType

from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.page import FLAT, LOG_HEAD, LOG_SIZE, ChunkResult, note
from asyncpool._wire.pickling import pack_error, pack_value
from asyncpool._wire.text import function_name
from asyncpool._worker.api import running
from asyncpool._worker.runner import InContext, Pause, ours
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from typing import Any, NoReturn

    from asyncpool._worker.runner import JobRunner


# Nanoseconds after which the loop has a turn between two items that do not wait.
_TURN = 10_000_000

# A worker remembers so many functions of maps.
_recall = lru_cache(32)(pickle.loads)


class ChunkLog:
    """The outcomes of the items of a chunk; the same log serves one chunk after the other.

    Args:
        page: The descriptor of the worker page.
        start: The offset of the log on the page.

    Attributes:
        words: The head of the log, see ``_wire/page.py``.
        write: Writes behind what was written before.
    """

    def __init__(self, page: int, start: int) -> None:
        # A map of its own, which ends with the log: so it has a position, and fails at the end.
        before = start % ALLOCATIONGRANULARITY
        log = mmap(page, before + LOG_SIZE, offset=start - before)
        self._first = before + LOG_HEAD.size
        self.words = memoryview(log)[before : self._first].cast("Q")
        self.write: Callable[[bytes], object] = log.write
        self._seek: Callable[[int], object] = log.seek

    def begin(self, job: int, attempt: int) -> None:
        """Begin a new log."""
        words = self.words
        words[0] = words[1] = 0
        words[2], words[3] = job, attempt
        self._seek(self._first)


def call_chunk_here(
    runner: JobRunner,
    packed: bytes,
    items: list[Any],
    *,
    star: bool,
    named: bool,
    max_payload: int,
) -> ChunkResult | Coroutine[Any, Any, ChunkResult]:
    """Call a function for each of *items*, until all are done or the chunk is told to stop.

    The items of a plain function run one after the other, without a break.  If the function is
    async, what is returned is a coroutine that awaits its coroutines one after the other.

    Args:
        runner: Runs the job that this is.
        packed: The function, pickled.
        items: The arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function travels by name, so that it may be remembered.
        max_payload: The most bytes that a result may have.
    """
    began = perf_counter_ns()
    job = running.get()
    assert job is not None
    lane = runner.by_job[job[:2]]
    log = lane.log
    if log is None:
        log = lane.log = ChunkLog(runner.page_fd, runner.layout.log(lane.index))
    log.begin(*job[:2])
    function: Callable[..., Any]
    try:
        function = _recall(packed) if named else pickle.loads(packed)
    except BaseException as error:
        function = partial(_fail, error)  # so that each item fails with it
    running.set((*job[:4], function if named else function_name(function)))
    if runner.hook is not None:
        function = runner.hook.around_items(function)
    calls = starmap(function, items) if star else map(function, items)
    result = ChunkResult([], [])
    run = _run(calls, len(items), log, result, max_payload)

    def go_on(
        value: Any = None, error: BaseException | None = None
    ) -> Coroutine[Any, Any, Any] | None:
        """Continue with the outcome of a coroutine; return the next coroutine, if there is one."""
        try:
            # Between two items: those that are done keep their outcomes.
            with suppress(StopIteration, JobCancelled):
                return run.send(value) if error is None else run.throw(error)
        except Exception as broken:  # it is not an item's: the log is broken
            # The item that was not noted has run, and must not count as one that has not begun.
            result.outcomes.append((pack_error(broken, skip=ours(broken)), True))
        return None

    def ended() -> ChunkResult:
        return result._replace(microseconds=(perf_counter_ns() - began) / 1000)

    async def await_items(coroutine: Coroutine[Any, Any, Any] | None) -> ChunkResult:
        steps = lane.steps
        assert steps is not None
        turn = perf_counter_ns()
        while coroutine is not None:
            steps.shown = coroutine
            try:
                if perf_counter_ns() - turn > _TURN:
                    await Pause()
                    turn = perf_counter_ns()
                value = await InContext(coroutine, copy_context())
            except BaseException as error:
                coroutine.close()  # it may not have begun
                # Leave two frames out that are asyncpool's: the await, and the step.
                tb = error.__traceback__
                for _ in range(2):
                    tb = tb and tb.tb_next
                error.__traceback__ = tb
                coroutine = go_on(error=steps.seen(error))
            else:
                coroutine = go_on(value)
        return ended()

    coroutine = go_on()
    return ended() if coroutine is None else await_items(coroutine)


def _run(
    calls: Iterator[Any],
    count: int,
    log: ChunkLog,
    result: ChunkResult,
    max_payload: int,
) -> Generator[Coroutine[Any, Any, Any], Any, None]:
    """Note the outcomes of items; yield the coroutines of those that are async."""
    # A call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    for done in range(count):
        try:
            outcome = value = copy_context().run(next, calls)
            if type(value) is CoroutineType:
                outcome = value = yield value
            if type(value) not in FLAT:
                data = pack_value(value, max_payload)
                if isinstance(data, OutOfBandPickle):  # it is too large for the log
                    result.tail.append(value)
                    return
                outcome = (data,)
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


def _fail(error: BaseException, *_: object) -> NoReturn:
    raise error
