"""A run of a map: its items are drawn, become jobs, and each gets its outcome.

The items of a *batch* follow one another.  A batch is complete when each of its items has an
outcome.  It begins as one job.  That job may end before all of its items are done, since one
item takes long, or has killed the worker.  Then the other items go on in other jobs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import resource
import sys
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from asyncpool import errors
from asyncpool._core.deadlines import RecentCount
from asyncpool._core.functions import BUDGET, UNKNOWN_COST, travels_by_name
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.job import ChunkJob, PoolJob
from asyncpool._engine.loop import ThreadPool
from asyncpool._wire.page import CHUNK_SIZE, LOST, ItemError
from asyncpool._wire.pickling import dumps_call, unpicklable
from asyncpool._wire.scripts import Abroad
from asyncpool._wire.text import function_name
from asyncpool._worker.api import run_chunk


class Batch:
    """Items that follow one another, and their outcomes.

    Attributes:
        first: The index of the first item.
        items: The items.
        outcomes: A result or a :class:`ItemError` for each item that has one.
        open: How many items have none.
    """

    __slots__ = ("first", "items", "open", "outcomes")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first, self.items, self.open = first, items, len(items)
        self.outcomes: list[Any] = [None] * len(items)


class Part(NamedTuple):
    """Items of a batch that travel as one job.

    Attributes:
        batch: The batch.
        offset: The index of the first item in the batch.
        length: How many items there are.
        attempts: How many attempts there were at a single item that is to be a job, and no chunk.
    """

    batch: Batch
    offset: int
    length: int
    attempts: int | None = None


# How long a map goes on before other code has the loop, in seconds.  To unpickle all that one round
# of the stall watch brings may take 40 ms, and to pickle all items that may be drawn 15 ms.
TURN = 0.001

# How many microseconds a job of several items should take: a hundred times what the
# pool adds to it, and a sixteenth of what a worker may have in flight.
TARGET = BUDGET / 16

# A chunk is at most this many times as large as the one whose run time set its size.
_GROWTH = 16

# The least cost that an item may count with.
_LEAST = 0.25

# How many microseconds of work are under way for each worker: what it has in flight,
# and as much in the queue.
_AHEAD = 2 * BUDGET

# The fewest items under way for each worker, however long they take: a few more than it
# needs, since the first item may take longer than the others, and results keep the
# order.
_FEWEST = 4

# The most bytes under way, of calls and results as they travel: the memory of large items is what
# bounds a map, and not their time.  All the same, each lane has an item, and each worker the next.
_BYTES = 64 << 20

# If nobody knows how long items take, as many as have ended in so many seconds are under way
# besides.  Where a job is a long way off, that keeps short items coming.
_SPAN = 0.1


class Pace:
    """How many items of one map make a job, and how many of them are under way at once.

    Args:
        chunksize: How many items make a job; ``None`` for as many as suit the pool.
        buffersize: How many items may be under way; ``None`` for as many as keep
            the pool busy.
        lanes: How many jobs each worker runs at once.
    """

    def __init__(
        self,
        chunksize: int | None = None,
        buffersize: int | None = None,
        lanes: int = 1,
    ) -> None:
        self._chunksize, self._buffersize, self._lanes = chunksize, buffersize, lanes
        self._cost = self._size = 0.0  # of an item; 0 if nobody knows
        self._learned_from, self._ends, self._recent = 1, RecentCount(_SPAN), 0

    def note(self, items: int, microseconds: float) -> None:
        """Record that *items* items have taken *microseconds* in one worker."""
        self._cost = _estimate(self._cost, max(microseconds / items, _LEAST))
        self._learned_from = max(self._learned_from, items)

    def weigh(self, size: float) -> None:
        """Record that call and result of an item have had *size* bytes."""
        self._size = _estimate(self._size, size)

    def ended(self, now: float) -> None:
        """Record that an item has ended *now*, in seconds, and nobody knows how long it took."""
        self._ends.add()
        self._recent = self._ends.at(now)

    def window(self, workers: int) -> int:
        """Return how many items may be under way with this number of workers."""
        if self._buffersize is not None:
            return self._buffersize
        items = workers * _FEWEST * self._lanes
        if self._cost:
            items = max(items, workers * math.ceil(_AHEAD / self._cost))
        else:
            items += self._recent
        most = int(_BYTES / max(self._size, 1.0))
        return min(items, max(most, workers * (self._lanes + 1)))

    def size(self, workers: int) -> int:
        """Return how many items the next job should have."""
        size = self._chunksize
        if size is None:
            if not self._cost or self.is_slow:
                return 1
            size = min(int(TARGET / self._cost), _GROWTH * self._learned_from)
        # Each lane should have at least two jobs, one of which waits.
        most = self.window(workers) // (2 * workers * self._lanes)
        return max(1, min(size, most, CHUNK_SIZE))

    @property
    def is_slow(self) -> bool:
        """Whether items take so long that each travels by itself."""
        return self._cost > TARGET / 2


def _estimate(known: float, new: float) -> float:
    """Return what an item costs after a new measurement: more counts at once, less step by step.

    A chunk that takes too long delays other jobs, and one that is too large takes their memory.
    """
    return new if new > known else known + (new - known) / 4


# With a shorter timeout for each item, chunks have one item: to find out that an item is long
# takes too much of the time of those behind it.
_SHORTEST_TIMEOUT = 0.1

# So many slow items travel for each one that tells how long it took.  In a chunk a large result
# is pickled twice.
_PROBE_EVERY = 32


class MapHold:
    """Holds the pool of a map open, until all items are drawn and done.

    Args:
        name: What logs call the function of the map.

    Attributes:
        name: As above.
        under_way: How many items are drawn and not yielded.
    """

    # The jobs of the map refer to it, and not to its MapRun, which refers to them.
    def __init__(self, name: str) -> None:
        self.name, self.under_way = name, 0

    def __str__(self) -> str:
        return f"a map of {self.name}, {self.under_way} items under way"


class MapRun:
    """One run of a map, with enough items in jobs to keep the pool busy.

    Args:
        engine: The pool.
        function: What is called with each item.
        iterables: Where the items come from.
        star: Whether an item is a tuple of arguments.
        chunksize: How many items travel as one job; ``None`` lets the pool choose.
        buffersize: How many items may be drawn and not yielded; ``None`` lets the pool choose.
        options: The options of each call.
        submit: Submits a job.
        ordered: Whether batches come in the order of their items.

    Raises:
        ValueError: If items are to share a job, and none may.
        TypeError: If one of the iterables is not iterable.
    """

    def __init__(
        self,
        engine: Any,  # an engine, whose types are no public matter
        function: Callable[..., Any],
        iterables: tuple[Any, ...],
        *,
        star: bool,
        chunksize: int | None,
        buffersize: int | None,
        options: JobOptions,
        submit: Callable[..., PoolJob[Any]],
        ordered: bool = True,
    ) -> None:
        self._engine, self._submit, self._ordered = engine, submit, ordered
        self._function, self._star = function, star
        self._packed: bytes | None = None
        with Abroad() if engine.is_remote else nullcontext():
            # A pool that is data only sends each item by itself.
            if options.codec is None:
                with suppress(Exception):  # each job by itself says what is wrong
                    self._packed = dumps_call(function)
            self._named = travels_by_name(function)
        alone = (
            engine.fresh
            or self._packed is None
            # Each item has these for itself.
            or options.heartbeat_timeout is not None
            or options.lease is not None
            or (options.timeout is not None and options.timeout < _SHORTEST_TIMEOUT)
        )
        if engine.fresh and chunksize not in {None, 1}:
            raise ValueError(
                f"chunksize is {chunksize}, and in a pool with fresh=True each item has a worker "
                "of its own"
            )
        # max_jobs counts each item, unless the user asks for chunks.
        if alone or (engine.counts_jobs and chunksize is None):
            chunksize = 1
        self._pace = Pace(chunksize, buffersize, engine.concurrency)
        # A remote job does not tell how long it took, nor one beside others its share of the time,
        # but the result of a chunk does.
        self._probes = (engine.is_remote or engine.concurrency > 1) and not alone
        self._slow_singles = itertools.count(1)
        self._hold = MapHold(function_name(function))
        self._each = replace(options, hold=self._hold)
        name = self._hold.name
        self._together = replace(self._each, max_attempts=1, via="map", name=name)
        self._loop = asyncio.get_running_loop()
        # The source, and the end of each batch, set it.
        self._news = asyncio.Event()
        self._source = open_source(iterables, self._news.set)
        # If ordered, all batches in their order; else those that are complete, as they come.
        self._ready: deque[Batch] = deque()
        self._next = self._incomplete = 0  # the index of an item; batches
        self._jobs: set[PoolJob[Any]] = set()
        # Parts that the pool's queue has no room for.
        self._held: deque[Part] = deque()
        # Chunks that have come back, and that nobody has looked at yet.
        self._returned: deque[tuple[Part, float, ChunkJob[Any]]] = deque()
        self._ended = False

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches, each when it is complete.

        Raises:
            BaseException: What the source has raised, once all items before it are done.

        Cancellation:
            Cancels the open jobs.
        """
        source, hold, until = self._source, self._hold, time.monotonic() + TURN
        try:
            self._engine.holds.hold(hold)
            while True:
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + TURN
                drew_all = self._draw(until)
                self._release_if_done()
                if self._ready and not self._ready[0].open:
                    yield (batch := self._ready.popleft())
                    hold.under_way -= len(batch.items)
                elif source.exhausted and not hold.under_way:
                    break
                elif drew_all and self._held and not self._jobs:
                    await self._engine.admission.room()
                    self._send_held()
                elif drew_all:
                    self._news.clear()
                    await self._news.wait()
            if source.error is not None:
                raise source.error
        finally:
            self._ended = True
            self._held.clear()
            for job in list(self._jobs):
                job.cancel()
            self._engine.holds.release(hold)
            await source.aclose()

    def _draw(self, until: float) -> bool:
        """Draw and submit items; return whether to wait now, since there is no room for more.

        Args:
            until: When other code is to have the loop.
        """
        source, hold, workers = self._source, self._hold, self._engine.most_workers
        while not source.exhausted and not self._held:
            size = self._pace.size(workers)
            room = self._pace.window(workers) - hold.under_way
            is_full = room < size and hold.under_way
            if is_full or not (items := source.draw(size, room)):
                break
            batch = Batch(self._next, items)
            if self._ordered:
                self._ready.append(batch)
            self._incomplete += 1
            hold.under_way += len(items)
            self._next += len(items)
            self._send(Part(batch, 0, len(items)))
            if time.monotonic() > until:
                return False
        return True

    def _release_if_done(self) -> None:
        """Let the pool close if it is not needed, though the caller may not have all results."""
        if self._source.exhausted and not self._incomplete:
            self._engine.holds.release(self._hold)

    # The way of items to jobs.

    def _send(self, part: Part) -> None:
        """Submit *part*, or keep it until the queue has room."""
        if self._held:
            self._held.append(part)
            return
        items = part.batch.items[part.offset : part.offset + part.length]
        # One item travels as a chunk if that tells how long it took.
        is_chunk = part.length > 1 or (
            self._probes
            and part.attempts is None
            and (not self._pace.is_slow or next(self._slow_singles) % _PROBE_EVERY == 0)
        )
        if is_chunk and self._engine.are_stored(items, star=self._star):
            self._send_each(part)
            return
        try:
            if is_chunk:
                chunk = self._packed, items
                how = {"star": self._star, "named": self._named}
                job = self._submit(run_chunk, chunk, how, self._together)
            else:
                try:
                    args = tuple(items[0] if self._star else items)
                except Exception as error:  # noqa: BLE001 - the item's own code
                    self._fail(part, error)
                    return
                options = self._each
                if part.attempts:
                    options = replace(options, prior_attempts=part.attempts)
                job = self._submit(self._function, args, {}, options)
        except errors.PoolFullError:
            self._held.append(part)
            self._news.set()  # perhaps no job is open whose end would wake the map
        except errors.AsyncPoolError as error:  # the pool has ended
            self._fail(part, error)
        except (SystemExit, KeyboardInterrupt) as error:
            # It may come from a signal handler, so it goes on; but nothing may wait for the part.
            self._fail(part, unpicklable(error))
            raise
        else:
            self._jobs.add(job)
            # The call is gone when the job is done.
            job.add_done_callback(partial(self._on_done, part, len(job.payload)))

    def _send_held(self) -> None:
        """Submit the parts that the queue had no room for."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self._send(held.popleft())
        self._held += held

    def _send_each(self, part: Part) -> None:
        """Submit each item of *part* as a job of its own."""
        for offset in range(part.offset, part.offset + part.length):
            self._send(Part(part.batch, offset, 1, attempts=0))

    # The way of items back from jobs.

    def _on_done(self, part: Part, size: int, job: PoolJob[Any]) -> None:
        self._jobs.discard(job)
        size_of_call = (size + job.call_size) / part.length
        # Asked for in any case, or asyncio would complain that nobody has retrieved it.
        error = None if job.cancelled() else job.exception()
        if self._ended:
            return
        if job.cancelled():
            self._fail(part, asyncio.CancelledError())
        elif isinstance(job, ChunkJob):
            if not self._returned:
                self._loop.call_soon(self._unload)
            self._returned.append((part, size_of_call, job))
        else:
            self._pace.weigh(size_of_call + job.outcome_size)
            outcome = job.result() if error is None else ItemError(error)
            self._settle(part, [outcome])
            cost = job.function.traits.cost
            if cost < UNKNOWN_COST and not self._probes:
                self._pace.note(1, cost)
            else:
                self._pace.ended(self._loop.time())
        if self._held:
            self._send_held()

    def _unload(self) -> None:
        """Take the outcomes of chunks, as many as there is time for in one iteration of the loop."""
        until = time.monotonic() + TURN
        try:
            while self._returned and not self._ended:
                self._on_chunk(*self._returned.popleft())
                if time.monotonic() > until:
                    break
        finally:  # a signal's exception may leave, too
            if self._returned and not self._ended:
                self._loop.call_soon(self._unload)

    def _on_chunk(self, part: Part, size_of_call: float, job: ChunkJob[Any]) -> None:
        error = job.exception()
        if error is None:
            result = job.result()
            outcomes = result.load()
            self._pace.note(len(outcomes), result.microseconds)
            # The first large result ends a chunk, so it has fewer results than calls.
            self._pace.weigh(size_of_call + job.outcome_size / len(outcomes))
        elif job.found is not None:
            # The item that ran last has ended the chunk, so it gets the chunk's error.
            outcomes = [ItemError(error) if one is LOST else one for one in job.found]
            outcomes = [*outcomes, ItemError(error)][: part.length]
        else:
            # None of the items has begun, since a chunk that has begun notes each outcome.
            if _is_of_all(error):
                self._fail(part, error)
            else:  # alone, each item shows whether it is the cause
                self._send_each(part)
            return
        job.function.figures.items += len(outcomes)
        if self._each.max_attempts == 1 or ItemError not in set(map(type, outcomes)):
            self._settle(part, outcomes)
        else:
            for offset, outcome in enumerate(outcomes, part.offset):
                item = Part(part.batch, offset, 1, attempts=1)
                if type(outcome) is ItemError and self._again(outcome.error):
                    self._send(item)
                else:
                    self._settle(item, [outcome])
        # Those that were not begun.
        begin, end = part.offset + len(outcomes), part.offset + part.length
        while begin < end:
            count = min(self._pace.size(self._engine.most_workers), end - begin)
            self._send(Part(part.batch, begin, count))
            begin += count

    def _again(self, error: BaseException) -> bool:
        """Return whether an item gets another attempt after its first."""
        policy = self._each
        if isinstance(error, errors.WorkerCrashedError):
            return policy.after_crash(error.crashes[-1].kind, attempt=1)
        return policy.after_exception(error, attempt=1)

    def _fail(self, part: Part, error: BaseException) -> None:
        self._settle(part, [ItemError(error)] * part.length)

    def _settle(self, part: Part, outcomes: list[Any]) -> None:
        """Store the outcomes of the first items of *part*."""
        batch = part.batch
        batch.outcomes[part.offset : part.offset + len(outcomes)] = outcomes
        batch.open -= len(outcomes)
        if not batch.open:
            self._incomplete -= 1
            if not self._ordered:
                self._ready.append(batch)
            self._release_if_done()
            self._news.set()


def _is_of_all(error: BaseException) -> bool:
    """Return whether the error of a chunk is also the error of each of its items."""
    if isinstance(error, errors.JobNotPicklableError):
        return error.direction == "result"
    if isinstance(error, errors.WorkerCrashedError):
        return isinstance(error, errors.NodeLostError)  # there is no other node
    return isinstance(error, errors.AsyncPoolError)


# Where the items of a map come from: sync and async iterables, drawn step by step.

# How many items of a plain iterator the loop draws between two looks at the clock.
_AT_ONCE = 64

# If a step of the iterator takes more seconds than that, and waits, a thread draws the other items.
# It hands over what it has as often.  A step that only computes, or that is slow since other
# programs have the cores, leaves the iterator where it is.
_LONG = 0.01
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def _use() -> tuple[int, float]:
    """Return how often this thread has gone to sleep, and its CPU time."""
    return resource.getrusage(_WHOSE).ru_nvcsw, time.thread_time()


def _is_bound(items: object, depth: int = 4) -> bool:
    """Tell whether an iterator, or one below it, uses sqlite3, which works in one thread only."""
    sqlite = sys.modules.get("sqlite3")
    if sqlite is None or isinstance(items, (sqlite.Connection, sqlite.Cursor)):
        return sqlite is not None
    # Of a generator also what its loops iterate over.
    return depth > 0 and any(
        _is_bound(it, depth - 1)
        for it in gc.get_referents(items)
        if isinstance(it, (Iterator, tuple, sqlite.Connection))
    )


class Source:
    """Where the items of a map come from, in their order.

    Args:
        on_news: Called when a thread or a task has drawn items, or when there will be no more.

    Attributes:
        error: The exception that has ended the items, if there was one.
    """

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news, self._ended = on_news, False
        self._found: list[Any] = []
        self.error: BaseException | None = None

    @property
    def exhausted(self) -> bool:
        """Whether there are no more items to draw."""
        return self._ended and not self._found

    def _take(self, count: int) -> list[Any]:
        found = self._found[:count]
        del self._found[:count]
        return found


class SyncSource(Source):
    """Items of a plain iterator.

    The event loop draws them, and nothing else runs meanwhile.  So if a step takes long, because
    the iterator reads files, say, a thread draws the other items.

    Args:
        items: The iterator.
        on_news: As above.
    """

    def __init__(self, items: Iterator[Any], on_news: Callable[[], None]) -> None:
        super().__init__(on_news)
        self._items, self._begun = items, False
        self._run: Callable[..., Any] = copy_context().run
        # None of the pool's threads: the iterator may never come back from its next step.
        self._thread: ThreadPool | None = None
        self._drawing: asyncio.Future[None] | None = None

    def draw(self, count: int, room: int) -> list[Any]:
        """Return up to *count* items; draw no more than *room* items ahead."""
        if self._drawing is not None and not self._drawing.done():
            return []
        if self._drawing is None and not self._found and not self._ended:
            if self._thread is not None:
                draw = partial(self._run, self._draw, room, _LONG)
                self._drawing = self._thread.call(draw)
                self._drawing.add_done_callback(lambda _: self._on_news())
                return []
            self._run(self._draw, count, TURN)
            if isinstance(self.error, SystemExit | KeyboardInterrupt):
                raise self.error
        self._drawing = None
        return self._take(count)

    def _draw(self, count: int, seconds: float) -> None:
        """Draw *count* items, or as many as there is time for."""
        found, now = self._found, time.monotonic()
        until = now + seconds
        try:
            while not self._ended:
                waits, used = _use()
                goal = min(count, len(found) + (1 if self._thread else _AT_ONCE))
                # What it has found before an error stays there.
                found.extend(itertools.islice(self._items, goal - len(found)))
                # Never set to false: aclose() may have ended it meanwhile.
                if len(found) < goal:
                    self._ended = True
                before, now = now, time.monotonic()
                # The first step may only open what the others read.
                slow = now - before > _LONG and self._thread is None
                if slow:  # another thread that has the GIL makes it wait too
                    others, computed = _use()
                    slow = others > waits and computed - used < (now - before) / 4
                if slow and self._begun and not _is_bound(self._items):
                    loop = asyncio.get_running_loop()
                    self._thread = ThreadPool(loop, "draw", most=1)
                self._begun = True
                if len(found) == count or now > until:
                    break
        except BaseException as error:  # noqa: BLE001 - the iterable's
            # This is no await, so even a CancelledError is an error of the iterator's.
            self.error, self._ended = error, True
            if self._thread is not None:
                error.add_note(_DRAWN_BY_A_THREAD)

    async def aclose(self) -> None:
        """Draw no more, and close async iterables; nobody waits for a thread."""
        self._ended = True  # behind its next step, a thread draws no more
        if self._thread is not None:
            self._thread.close()


_DRAWN_BY_A_THREAD = (
    "A thread drew this item of a map, since others took long: if that must be done in the "
    "event loop's thread, make the input an async generator."
)


class AsyncSource(Source):
    """Items of async iterators, drawn by a task of its own.

    Args:
        each: The iterators; of several, the items are tuples.
        on_news: As above.
    """

    def __init__(
        self, each: list[AsyncIterator[Any]], on_news: Callable[[], None]
    ) -> None:
        super().__init__(on_news)
        self._each, self._room, self._closing = each, 0, False
        self._may_draw = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="asyncpool inputs of a map")

    def draw(self, count: int, room: int) -> list[Any]:
        """See :class:`SyncSource`."""
        found = self._take(count)
        self._room = room - len(found)
        if self._room > len(self._found):
            self._may_draw.set()
        return found

    async def aclose(self) -> None:
        """See :class:`SyncSource`."""
        self._closing = True
        self._task.cancel()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()  # again, while the task closes the iterator
            raise
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        try:
            while not self._closing:
                if self._room <= len(self._found):
                    self._may_draw.clear()
                    await self._may_draw.wait()
                else:
                    item = tuple([await anext(items) for items in self._each])
                    self._found.append(item if len(self._each) > 1 else item[0])
                    self._on_news()
        except StopAsyncIteration:
            pass
        except (asyncio.CancelledError, Exception) as error:
            # If the iterator itself was cancelled, items may be missing: that is an error.
            if self._closing and isinstance(error, asyncio.CancelledError):
                raise
            self.error = error
        finally:
            try:
                # Here, in the task that has iterated: a cancel scope around a yield belongs to it.
                for items in self._each:
                    if (close := getattr(items, "aclose", None)) is not None:
                        await close()
            finally:
                self._ended = True
                self._on_news()


def open_source(
    iterables: tuple[Any, ...], on_news: Callable[[], None]
) -> SyncSource | AsyncSource:
    """Return a source of the items of *iterables*; of tuples, if there are several.

    Raises:
        TypeError: If one of them is not iterable.
    """
    if not any(isinstance(items, AsyncIterable) for items in iterables):
        [items, *more] = iterables
        source = zip(items, *more, strict=False) if more else iter(items)
        return SyncSource(source, on_news)
    each = [
        aiter(items) if isinstance(items, AsyncIterable) else _wrap(items)
        for items in iterables
    ]
    return AsyncSource(each, on_news)


async def _wrap(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item
