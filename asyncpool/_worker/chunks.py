"""Run the items of a chunk, one by one, and note the outcome of each.

See ``_wire/page.py`` for the log.
"""

from __future__ import annotations

import pickle
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import starmap
from mmap import ALLOCATIONGRANULARITY, mmap
from time import perf_counter_ns
from types import CoroutineType

from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.page import FLAT, LOG_HEAD, LOG_SIZE, ChunkResult, note
from asyncpool._wire.pickling import pack_value
from asyncpool._wire.text import function_name
from asyncpool._worker.api import running
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context
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
        words[0], words[2], words[3] = 0, job, attempt
        if words[1] != job:  # else the pool has told it to stop already
            words[1] = 0
        self._seek(self._first)


class _InContext:
    """Awaits *coroutine*, and takes each of its steps in *context*."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._run = context.run

    def __await__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._run(self._coroutine.send, None)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._run(self._coroutine.throw, *error)


async def call_items(
    runner: JobRunner,
    packed: bytes,
    items: list[Any],
    *,
    star: bool,
    named: bool,
) -> ChunkResult:
    """Call a function for each of *items*, until all are done or the chunk is told to stop.

    The items of a plain function run one after the other, in the first step of this coroutine.
    At the first coroutine of an item it waits for the event loop; there it awaits one after the
    other.

    Args:
        runner: Runs the job that this is.
        packed: The function, pickled.
        items: The arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function travels by name, so that it may be remembered.
    """
    began = turn = perf_counter_ns()
    job = running.get()
    assert job is not None
    lane = runner.by_job[job[:2]]
    log = lane.log
    if log is None:
        log = lane.log = ChunkLog(runner.page_fd, runner.layout.log_offset(lane.index))
    log.begin(*job[:2])
    try:
        function = _recall(packed) if named else pickle.loads(packed)
    except BaseException as error:
        function = partial(_fail, error)  # so that each item fails with it
    running.set((*job[:4], function if named else function_name(function)))
    calls = starmap(function, items) if star else map(function, items)
    result = ChunkResult([], [])
    # A call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    enter, leave, coroutine = runner.hook, None, None
    try:
        for done in range(len(items)):
            context = copy_context()
            try:
                if enter is not None:
                    leave = lane.leave_hook = context.run(enter)
                outcome = value = context.run(next, calls)
                if type(value) is CoroutineType:
                    coroutine = value
                    if lane.steps is None or perf_counter_ns() - turn > _TURN:
                        from asyncio import sleep  # noqa: PLC0415 - most workers need none

                        await sleep(0)
                        turn = perf_counter_ns()
                    assert lane.steps is not None
                    lane.steps.shown = coroutine
                    outcome = value = await _InContext(coroutine, context)
                if leave is not None:
                    context.run(leave, None)
                if type(value) not in FLAT:
                    data = pack_value(value, runner.max_payload)
                    if isinstance(data, OutOfBandPickle):  # it is too large for the log
                        result.tail.append(value)
                        break
                    outcome = (data,)
                entry = note(outcome)
            except BaseException as error:
                if coroutine is not None:
                    coroutine.close()  # it may not have begun
                # No other name may refer to the error: its traceback refers to this frame.
                error = context.run(runner.error_for_caller, lane, error)
                value, outcome = None, (runner.pack_error(error), True)
                entry = note(outcome)
                words[1] |= isinstance(error, JobCancelled)
            try:
                write(entry)
            except ValueError:  # the log is full, so no other item may begin
                add(outcome)
                break
            add(outcome)
            words[0] = done + 1  # the outcome counts as noted from here on
            if words[1]:
                break
    except JobCancelled:
        pass  # between two items: those that are done keep their outcomes
    except Exception as broken:  # it is not an item's: the log is broken
        # The item that was not noted has run, and must not count as one that has not begun.
        add((runner.pack_error(broken), True))
    words[1] = 0  # another attempt is another chunk
    # While coroutines wait, others run.
    jobs = 1 if coroutine is None else len(runner.by_job)
    return result._replace(microseconds=(perf_counter_ns() - began) / 1000 / jobs)


def _fail(error: BaseException, *_: object) -> NoReturn:
    raise error
