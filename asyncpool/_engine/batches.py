"""The items of a map: how they become jobs, and how each gets its outcome.

The items of a *batch* follow one another.  A batch is complete when each of its items has an
outcome.  It begins as one job.  That job may end before all of its items are done, since one
item takes long, or has killed the worker.  Then the other items go on in other jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._core.deadlines import RecentCount
from asyncpool._core.functions import BUDGET, UNKNOWN, travels_by_name
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.admission import MapHold
from asyncpool._engine.job import ChunkJob, PoolJob
from asyncpool._wire.buffers import dumps_call
from asyncpool._wire.page import CHUNK_SIZE, LOST, Failure, run_chunk
from asyncpool._wire.pickling import unpicklable
from asyncpool._wire.scripts import Abroad
from asyncpool._wire.text import function_name
from asyncpool.enums import Delivery
from asyncpool.errors import (
    AsyncPoolError,
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    PoolFullError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine

# The items of a map that follow one another, and their outcomes.
#
# Also for how long a map goes on before other code has the loop.


class Task(NamedTuple):
    """What a map does with each item.

    Attributes:
        function: What is called.
        star: Whether an item is a tuple of arguments.
        options: The options of each call.
        submit: Submits a job.
    """

    function: Callable[..., Any]
    star: bool
    options: JobOptions
    submit: Callable[..., PoolJob[Any]]

    def arguments(self, item: Any) -> tuple[Any, ...]:
        """Return the arguments of the call for *item*.

        Raises:
            TypeError: If it should be several, and is not iterable; or what its iterator raises.
        """
        return tuple(item) if self.star else (item,)


class Batch:
    """Items that follow one another, and their outcomes.

    Attributes:
        first: The index of the first item.
        items: The items.
        outcomes: A result or a :class:`Failure` for each item that has one.
        open: How many items have none.
        failed: Whether any outcome is a failure.
    """

    __slots__ = ("failed", "first", "items", "open", "outcomes")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first = first
        self.items = items
        self.outcomes: list[Any] = []
        self.open = len(items)
        self.failed = False

    def settle(self, offset: int, outcomes: list[Any], *, failed: bool) -> None:
        """Store the outcomes of the items from *offset* on."""
        self.open -= len(outcomes)
        self.failed |= failed
        if len(outcomes) == len(self.items):
            self.outcomes = outcomes
            return
        if not self.outcomes:
            self.outcomes = [None] * len(self.items)
        self.outcomes[offset : offset + len(outcomes)] = outcomes


@dataclass(frozen=True, slots=True)
class Part:
    """Items of a batch that travel as one job.

    Attributes:
        batch: The batch.
        offset: The index of the first item in the batch.
        count: How many items there are.
        attempts: How many attempts there were, if it is a single item.
        alone: Whether it is a single item that is to be a job, and no chunk.
    """

    batch: Batch
    offset: int
    count: int
    attempts: int = 0
    alone: bool = False

    @property
    def items(self) -> list[Any]:
        """The items."""
        return self.batch.items[self.offset : self.offset + self.count]


# Seconds.  To unpickle all that one round of the stall watch brings may take 40 ms, and to
# pickle all items that may be drawn 15 ms.
TURN = 0.001


class TimeSlice:
    """The part of one turn of the loop that a map may use, from now on."""

    def __init__(self) -> None:
        self._until = time.monotonic() + TURN

    @property
    def over(self) -> bool:
        """Whether other code should have the loop now."""
        return time.monotonic() > self._until


# How many items of a map make a job, and how many of them are under way at once.

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

# If nobody knows how long items take, as many as have ended in so many seconds are under way
# besides.  Where a job is a long way off, that keeps short items coming.
_SPAN = 0.1


class Pace:
    """The pace of one map.

    Args:
        chunksize: How many items make a job; ``None`` for as many as suit the pool.
        buffersize: How many items may be under way; ``None`` for as many as keep
            the pool busy.
        alone: Whether each item must be a job of its own.
        lanes: How many jobs each worker runs at once.
    """

    def __init__(
        self,
        *,
        chunksize: int | None,
        buffersize: int | None,
        alone: bool = False,
        lanes: int = 1,
    ) -> None:
        self._lanes = lanes
        self._chunk = 1 if alone else chunksize
        self._buffersize = buffersize
        self._cost: float | None = None
        self._learned_from = 1
        self._ends = RecentCount(_SPAN)
        self._recent: int = 0

    def note(self, items: int, microseconds: float) -> None:
        """Record that *items* items have taken *microseconds* in one worker."""
        cost = max(microseconds / items, _LEAST)
        known = self._cost
        # A longer time counts at once: a chunk that takes too long delays other jobs.
        if known is None or cost > known:
            self._cost = cost
        else:
            self._cost = known + (cost - known) / 4
        self._learned_from = max(self._learned_from, items)

    def ended(self, now: float) -> None:
        """Record that an item has ended *now*, in seconds, and nobody knows how long it took."""
        self._ends.add()
        self._recent = self._ends.at(now)

    def window(self, workers: int) -> int:
        """Return how many items may be under way with this number of workers."""
        if self._buffersize is not None:
            return self._buffersize
        some = _FEWEST * self._lanes
        if self._cost is None:
            return workers * some + self._recent
        return workers * max(some, math.ceil(_AHEAD / self._cost))

    def size(self, workers: int) -> int:
        """Return how many items the next job should have."""
        size = self._chunk or self._fitting()
        # Each lane should have at least two jobs, one of which waits.
        most = self.window(workers) // (2 * workers * self._lanes)
        return max(1, min(size, most, CHUNK_SIZE))

    @property
    def is_slow(self) -> bool:
        """Whether items take so long that each travels by itself."""
        return self._cost is not None and self._cost > TARGET / 2

    def _fitting(self) -> int:
        if self._cost is None or self.is_slow:
            return 1
        size = int(TARGET / self._cost)
        return min(size, _GROWTH * self._learned_from)


# With a shorter timeout for each item, chunks have one item: to find out that an item is long
# takes too much of the time of those behind it.
_SHORTEST_TIMEOUT = 0.1

# So many slow items travel for each one that tells how long it took.  In a chunk a large result
# is pickled twice.
_PROBE_EVERY = 32


class BatchRunner:
    """Runs the batches of one map.

    Args:
        backend: The pool.
        task: What the map does with each item.
        chunksize: How many items travel as one job; ``None`` lets the pool choose.
        buffersize: How many items may be drawn and not yielded; ``None`` lets the pool choose.
        hold: Keeps the pool open meanwhile.
        on_complete: Called with a batch when all of its items have an outcome.
        on_held: Called when a part must wait for room in the queue.

    Attributes:
        pace: Decides how many items travel as one job, and how many are drawn.
    """

    def __init__(
        self,
        backend: Engine,
        task: Task,
        *,
        chunksize: int | None,
        buffersize: int | None,
        hold: MapHold,
        on_complete: Callable[[Batch], None],
        on_held: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._task = task = task._replace(options=replace(task.options, hold=hold))
        self._on_complete = on_complete
        self._on_held = on_held
        # A pool that is data only sends each item by itself.
        data_only = task.options.codec is not None
        with Abroad() if backend.is_remote else nullcontext():
            self._packed = None if data_only else _pack(task.function)
            self._named = travels_by_name(task.function)
        self._name = function_name(task.function)
        alone = backend.fresh or self._packed is None or not _may_share(task.options)
        self._probes = backend.is_remote and not alone
        self._singles = 0
        if backend.fresh and chunksize not in {None, 1}:
            raise ValueError(
                f"chunksize is {chunksize}, and in a pool with fresh=True each item has a worker "
                "of its own"
            )
        if backend.counts_jobs and chunksize is None:
            chunksize = 1  # max_jobs counts each item, unless the user asks for chunks
        self.pace = Pace(
            chunksize=chunksize,
            buffersize=buffersize,
            alone=alone,
            lanes=backend.concurrency,
        )
        self._together = replace(
            task.options,
            max_attempts=1,
            via="map",
            name=self._name,
        )
        self._jobs: set[PoolJob[Any]] = set()
        self._held: deque[Part] = deque()
        # Chunks that have come back, and that nobody has looked at yet.
        self._returned: deque[tuple[Part, ChunkJob[Any]]] = deque()
        self._unloading = False
        self._loop = asyncio.get_running_loop()
        self._ended = False

    @property
    def full(self) -> bool:
        """Whether a part waits for room in the pool's queue."""
        return bool(self._held)

    @property
    def running(self) -> bool:
        """Whether any job of the map is open."""
        return bool(self._jobs)

    def stop(self) -> None:
        """Cancel the open jobs, and send nothing more."""
        self._ended = True
        self._held.clear()
        for job in list(self._jobs):
            job.cancel()

    def send(self, part: Part) -> None:
        """Submit *part*, or keep it until the queue has room."""
        if self._held:
            self._held.append(part)
            return
        is_chunk = part.count > 1 or (self._probes and self._is_probe(part))
        if is_chunk and self._backend.are_stored(part.items, star=self._task.star):
            self._send_each(part)
            return
        args: tuple[Any, ...] = ()
        if not is_chunk:
            try:
                args = self._task.arguments(part.items[0])
            except Exception as error:  # noqa: BLE001 - the item's own code may run
                self._fail(part, Failure(error))
                return
        try:
            job = self._submit_chunk(part) if is_chunk else self._submit(part, args)
        except PoolFullError:
            self._held.append(part)
            self._on_held()  # perhaps no job is open whose end would wake the map
        except AsyncPoolError as error:  # the pool has ended
            self._fail(part, Failure(error))
        except (SystemExit, KeyboardInterrupt) as error:
            # It may come from a signal handler, so it goes on; but nothing may wait for the part.
            self._fail(part, Failure(unpicklable(error)))
            raise
        else:
            self._jobs.add(job)
            job.add_done_callback(partial(self._on_done, part))

    def _is_probe(self, part: Part) -> bool:
        """Tell whether a single item travels as a chunk, whose result tells how long it took.

        A remote job does not tell that.
        """
        if part.alone:
            return False
        if not self.pace.is_slow:
            return True
        self._singles += 1
        return self._singles % _PROBE_EVERY == 0

    def _submit_chunk(self, part: Part) -> PoolJob[Any]:
        names = {
            "star": self._task.star,
            "named": self._named,
            "max_payload": self._backend.max_payload,
        }
        args = self._packed, part.items
        return self._task.submit(run_chunk, args, names, self._together)

    def _submit(self, part: Part, args: tuple[Any, ...]) -> PoolJob[Any]:
        options = self._task.options
        if part.attempts:
            options = replace(options, begun=part.attempts)
        return self._task.submit(self._task.function, args, {}, options)

    def send_held(self) -> None:
        """Submit the parts that the queue had no room for."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self.send(held.popleft())
        self._held += held

    def _send_each(self, part: Part) -> None:
        """Submit each item of *part* as a job of its own."""
        for offset in range(part.offset, part.offset + part.count):
            self.send(Part(part.batch, offset, 1, alone=True))

    def _send_rest(self, part: Part, done: int) -> None:
        """Submit the items of *part* that were not begun."""
        offset, end = part.offset + done, part.offset + part.count
        while offset < end:
            count = min(self.pace.size(self._backend.most_workers), end - offset)
            self.send(Part(part.batch, offset, count))
            offset += count

    # The way of items back from jobs.

    def _on_done(self, part: Part, job: PoolJob[Any]) -> None:
        self._jobs.discard(job)
        if self._ended:
            _ = (
                job.cancelled() or job.exception()
            )  # marks it as retrieved; nobody needs it
        elif job.cancelled():
            self._fail(part, Failure(asyncio.CancelledError()))
        elif isinstance(job, ChunkJob):
            job.exception()  # marks it as retrieved, even if nobody looks at it later
            self._returned.append((part, job))
            if not self._unloading:
                self._unloading = True
                self._loop.call_soon(self._unload)
        else:
            error = job.exception()
            outcome = job.result() if error is None else Failure(error)
            failed = error is not None
            self._settle(part.batch, part.offset, [outcome], failed=failed)
            cost = job.function.traits.cost
            if cost < UNKNOWN:
                self.pace.note(1, cost)
            else:
                self.pace.ended(self._loop.time())
        if self._held:
            self.send_held()

    def _unload(self) -> None:
        """Take the outcomes of chunks, as many as there is time for in one turn of the loop."""
        turn = TimeSlice()
        self._unloading = False
        while self._returned and not self._ended:
            self._on_chunk(*self._returned.popleft())
            if turn.over:
                self._unloading = True
                self._loop.call_soon(self._unload)
                break

    def _on_chunk(self, part: Part, job: ChunkJob[Any]) -> None:
        error, figures = job.exception(), job.function.figures
        if error is None:
            result = job.result()
            outcomes = result.load()
            figures.items += len(outcomes)
            self.pace.note(len(outcomes), result.microseconds)
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif job.found is not None:
            # The item that ran last has ended the chunk, so it gets the chunk's error.
            outcomes = [Failure(error) if one is LOST else one for one in job.found]
            outcomes = [*outcomes, Failure(error)][: part.count]
            figures.items += len(outcomes)
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif _is_of_all(error):
            self._fail(part, Failure(error))
        else:
            # None of the items has begun, since a chunk that has begun notes each outcome.  Alone,
            # each item shows whether it is the cause.
            self._send_each(part)

    def _take_in(self, part: Part, outcomes: list[Any]) -> None:
        """Take outcomes; send each item that is to be tried again as a job of its own."""
        once = self._task.options.max_attempts == 1
        failed = _any_failed(outcomes)
        if once or not failed:
            self._settle(part.batch, part.offset, outcomes, failed=failed)
            return
        for offset, outcome in enumerate(outcomes, part.offset):
            if type(outcome) is Failure and self._again(outcome.error):
                self.send(Part(part.batch, offset, 1, attempts=1, alone=True))
            else:
                failed = type(outcome) is Failure
                self._settle(part.batch, offset, [outcome], failed=failed)

    def _again(self, error: BaseException) -> bool:
        """Return whether an item gets another attempt after its first."""
        policy = self._task.options
        if isinstance(error, WorkerCrashedError):
            kind = error.crashes[-1].kind
            return policy.after_crash(
                kind=kind, delivery=Delivery.STARTED, attempt=1, times_returned=0
            )
        return policy.after_exception(error, attempt=1)

    def _fail(self, part: Part, failure: Failure) -> None:
        outcomes = [failure] * part.count
        self._settle(part.batch, part.offset, outcomes, failed=True)

    def _settle(
        self, batch: Batch, offset: int, outcomes: list[Any], *, failed: bool
    ) -> None:
        batch.settle(offset, outcomes, failed=failed)
        if not batch.open:
            self._on_complete(batch)


def _any_failed(outcomes: list[Any]) -> bool:
    return Failure in set(map(type, outcomes))


def _pack(function: Callable[..., Any]) -> bytes | None:
    try:
        return dumps_call(function)
    except Exception:  # noqa: BLE001 - each job by itself says what is wrong
        return None


def _may_share(options: JobOptions) -> bool:
    """Return whether items may share a job, though each has the options for itself."""
    patient = options.timeout is None or options.timeout >= _SHORTEST_TIMEOUT
    return patient and options.heartbeat_timeout is None and options.lease is None


def _is_of_all(error: BaseException) -> bool:
    """Return whether the error of a chunk is also the error of each of its items."""
    if isinstance(error, JobNotPicklableError):
        return error.direction == "result"
    if isinstance(error, NodeLostError):
        return True  # there is no other node
    return isinstance(error, AsyncPoolError | JobTimeoutError) and not isinstance(
        error, WorkerCrashedError
    )


# Where the items of a map come from: sync and async iterables, drawn step by step.

# How many items of a plain iterator are drawn between two looks at the clock.
_AT_ONCE = 256


class SyncSource:
    """Items of a plain iterator, in their order.

    Attributes:
        error: The exception that has ended the items, if there was one.
        exhausted: Whether there are no more items to draw.
        drawn: How many items it has drawn from the iterables, and has not given out.
    """

    drawn = 0

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self.error: BaseException | None = None
        self.exhausted = False

    def draw(self, count: int, room: int) -> list[Any]:
        """Return up to *count* items; draw no more than *room* items ahead."""
        del room  # this source draws nothing ahead
        found: list[Any] = []
        turn = TimeSlice()
        try:
            while len(found) < count:
                before = len(found)
                few = min(count - before, _AT_ONCE)
                found.extend(itertools.islice(self._items, few))
                if len(found) - before < few:
                    self.exhausted = True
                    break
                if turn.over:  # the iterator is slow, so other code must have the loop
                    break
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the iterable's
            # This is no await, so even a CancelledError is an error of the iterator's.
            self.error, self.exhausted = error, True
        return found

    async def aclose(self) -> None:
        """Draw no more, and close the iterables."""


class AsyncSource:
    """Items of an async iterator, drawn by a task of its own; as :class:`SyncSource` else.

    Args:
        items: The iterator.
        on_news: Called when there is an item, or when there will be no more.
    """

    def __init__(self, items: AsyncIterator[Any], on_news: Callable[[], None]) -> None:
        self._items = items
        self._on_news = on_news
        self._found: deque[Any] = deque()
        self._room = 0
        self._may_draw = asyncio.Event()
        self._ended = False
        self._closing = False
        self.error: BaseException | None = None
        self._task = asyncio.create_task(self._run(), name="asyncpool inputs of a map")

    @property
    def exhausted(self) -> bool:
        """See :class:`SyncSource`."""
        return self._ended and not self._found

    @property
    def drawn(self) -> int:
        """See :class:`SyncSource`."""
        return len(self._found)

    def draw(self, count: int, room: int) -> list[Any]:
        """See :class:`SyncSource`."""
        found = [self._found.popleft() for _ in range(min(count, len(self._found)))]
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
                    continue
                self._found.append(await anext(self._items))
                self._on_news()
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError as error:
            # If the iterator itself was cancelled, items may be missing: that is an error.
            if self._closing:
                raise
            self.error = error
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
        finally:
            try:
                # Here, in the task that has iterated: a cancel scope around a yield belongs to it.
                await _close(self._items)
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
    if any(isinstance(items, AsyncIterable) for items in iterables):
        each = [_aiter(items) for items in iterables]
        return AsyncSource(each[0] if len(each) == 1 else _zip(each), on_news)
    return SyncSource(
        iter(iterables[0] if len(iterables) == 1 else zip(*iterables, strict=False))
    )


def _aiter(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    return aiter(items) if isinstance(items, AsyncIterable) else _wrap(items)


async def _wrap(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def _zip(each: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
    try:
        while True:
            found: list[Any] = []
            for items in each:
                try:
                    found.append(await anext(items))
                except StopAsyncIteration:
                    return
            yield tuple(found)
    finally:
        for items in each:
            await _close(items)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
