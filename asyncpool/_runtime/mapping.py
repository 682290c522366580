"""Run a function on many items, with as many of them under way as keep the pool busy.

The items of a *batch* follow one another, and it is complete when all of them have an
outcome.  It begins as one job.  But a job of several items may come back with a part of
them done, since one has taken long, or has killed the worker; the others then go on in
other jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from asyncpool._core.attempts import AttemptPolicy
from asyncpool._core.chunks import LOST, Failure, run_chunk
from asyncpool._core.functions import travels_by_name
from asyncpool._core.limits import JobOptions
from asyncpool._core.outcome import dumps
from asyncpool._core.pace import Pace
from asyncpool._core.profiles import UNKNOWN
from asyncpool._runtime.jobs import ChunkJob, Job
from asyncpool._runtime.sources import Source
from asyncpool.errors import (
    AsyncPoolError,
    JobNotPicklableError,
    JobTimeoutError,
    PoolFullError,
    WorkerCrashedError,
)

__all__ = ["Batch", "Crew", "Mapping", "Task"]

# With less time for each item, none may wait behind others until it is seen to be long.
_SHORTEST_TIMEOUT = 0.1


class Crew(Protocol):
    """What a map needs of its pool."""

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        ...

    @property
    def concurrency(self) -> int:
        """How many jobs each worker runs at once."""
        ...

    @property
    def max_payload(self) -> int:
        """The most bytes of a result."""
        ...

    async def room(self) -> None:
        """Wait until the queue, which was full, has room."""


class Task(NamedTuple):
    """What is done with each item.

    Attributes:
        function: What is called.
        star: Whether an item is a tuple of its arguments.
        options: What each call is to have.
        submit: Submits a job.
    """

    function: Callable[..., Any]
    star: bool
    options: JobOptions
    submit: Callable[..., Job[Any]]


class Batch:
    """Items that follow one another, and what has become of them.

    Attributes:
        first: The index of the first one.
        items: The items.
        outcomes: A result or a :class:`Failure` for each that has one.
        open: How many have none.
        failed: Whether there is any failure among the outcomes.
    """

    __slots__ = ("failed", "first", "items", "open", "outcomes")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.first = first
        self.items = items
        self.outcomes: list[Any] = []
        self.open = len(items)
        self.failed = False

    def settle(self, offset: int, outcomes: list[Any], *, failed: bool) -> None:
        """Take note of the outcomes of the items from *offset* on."""
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
    """Items of a batch that are done in one job.

    Attributes:
        batch: The batch.
        offset: The first of them.
        count: How many.
        begun: How many attempts there were at the only one.
    """

    batch: Batch
    offset: int
    count: int
    begun: int = 0


class Mapping:
    """One run of a map.

    Args:
        crew: The pool.
        task: What is done with each item.
        source: Where the items come from.
        news: Set by the source when there is something new.
        chunk: How many items go together; ``None`` for what fits the pool.
        window: How many items may be under way; ``None`` for what fits the pool.
        ordered: Whether batches come in their order.
    """

    def __init__(
        self,
        crew: Crew,
        task: Task,
        source: Source,
        news: asyncio.Event,
        *,
        chunk: int | None,
        window: int | None,
        ordered: bool,
    ) -> None:
        self._crew = crew
        self._task = task
        self._source = source
        self._news = news
        self._ordered = ordered
        self._packed = _pack(task.function)
        self._named = travels_by_name(task.function)
        alone = self._packed is None or not _may_share(task.options)
        lanes = crew.concurrency
        self._pace = Pace(chunk=chunk, window=window, alone=alone, lanes=lanes)
        self._together = replace(task.options, attempts=AttemptPolicy(), form="chunk")
        # All of them in their order, or those that are complete in theirs.
        self._line: deque[Batch] = deque()
        self._open = 0  # batches that were not taken yet
        self._next = 0
        self._under_way = 0
        self._jobs: set[Job[Any]] = set()
        self._held: deque[Part] = deque()
        self._ended = False

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches, each when it is complete.

        Raises:
            BaseException: What drawing items has raised, when all before it is done.

        Cancellation:
            Cancels the jobs that are under way.
        """
        source = self._source
        try:
            while True:
                self._draw()
                batch = self._take()
                if batch is not None:
                    yield batch
                    self._under_way -= len(batch.items)
                elif source.exhausted and not self._open:
                    break
                else:
                    await self._wait()
            if source.error is not None:
                raise source.error
        finally:
            self._ended = True
            self._held.clear()
            for job in list(self._jobs):
                job.cancel()
            await source.aclose()

    def _draw(self) -> None:
        """Begin with as many items as there is room for."""
        source, workers = self._source, self._crew.most_workers
        while not source.exhausted and not self._held:
            size = self._pace.size(workers)
            room = self._pace.window(workers) - self._under_way
            if room < size and self._under_way:
                return
            items = source.draw(size, room)
            if not items:
                return
            batch = Batch(self._next, items)
            if self._ordered:
                self._line.append(batch)
            self._open += 1
            self._under_way += len(items)
            self._next += len(items)
            self._send(Part(batch, 0, len(items)))

    def _take(self) -> Batch | None:
        """Return the batch that is next, if it is complete."""
        if not self._line or self._line[0].open:
            return None
        self._open -= 1
        return self._line.popleft()

    async def _wait(self) -> None:
        if self._held and not self._jobs:
            await self._crew.room()
            self._send_held()
        else:
            self._news.clear()
            await self._news.wait()

    # Into jobs.

    def _send(self, part: Part) -> None:
        if self._held:
            self._held.append(part)
            return
        try:
            job = self._submit(part)
        except PoolFullError:
            self._held.append(part)
        except AsyncPoolError as error:  # there is no pool any more
            self._fail(part, Failure(error))
        else:
            self._jobs.add(job)
            job.add_done_callback(partial(self._on_done, part))

    def _submit(self, part: Part) -> Job[Any]:
        function, star, options, submit = self._task
        items = part.batch.items[part.offset : part.offset + part.count]
        if part.count > 1:
            names = {
                "star": star,
                "named": self._named,
                "max_payload": self._crew.max_payload,
            }
            return submit(run_chunk, (self._packed, items), names, self._together)
        [item] = items
        if part.begun:
            options = replace(options, begun=part.begun)
        return submit(function, tuple(item) if star else (item,), {}, options)

    def _send_held(self) -> None:
        """Send what the queue had no room for."""
        held, self._held = self._held, deque()
        while held and not self._held:
            self._send(held.popleft())
        self._held += held

    def _send_rest(self, part: Part, done: int) -> None:
        """Send what was not begun of *part*."""
        offset, end = part.offset + done, part.offset + part.count
        while offset < end:
            count = min(self._pace.size(self._crew.most_workers), end - offset)
            self._send(Part(part.batch, offset, count))
            offset += count

    # And out of them.

    def _on_done(self, part: Part, job: Job[Any]) -> None:
        self._jobs.discard(job)
        if self._ended:
            _ = job.cancelled() or job.exception()  # heard, and nobody's concern now
        elif job.cancelled():
            self._fail(part, Failure(asyncio.CancelledError()))
        elif isinstance(job, ChunkJob):
            self._on_chunk(part, job)
        else:
            error = job.exception()
            outcome = job.result() if error is None else Failure(error)
            failed = error is not None
            self._settle(part.batch, part.offset, [outcome], failed=failed)
            cost = job.function.profile.cost
            if cost < UNKNOWN:
                self._pace.note(1, cost)
        if self._held:
            self._send_held()

    def _on_chunk(self, part: Part, job: ChunkJob[Any]) -> None:
        error = job.exception()
        if error is None:
            result = job.result()
            outcomes = result.load()
            self._pace.note(len(outcomes), result.microseconds)
            if result.plain:
                self._settle(part.batch, part.offset, outcomes, failed=False)
            else:
                self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif job.found is not None:
            # The next one is what it was ended by, or for.
            outcomes = [Failure(error) if one is LOST else one for one in job.found]
            outcomes = [*outcomes, Failure(error)][: part.count]
            self._take_in(part, outcomes)
            self._send_rest(part, len(outcomes))
        elif _is_of_all(error):
            self._fail(part, Failure(error))
        else:
            # None has begun, since whatever ends a chunk that has is noted as an outcome.
            # Each by itself shows whose fault it is.
            for offset in range(part.offset, part.offset + part.count):
                self._send(Part(part.batch, offset, 1))

    def _take_in(self, part: Part, outcomes: list[Any]) -> None:
        """Take note of outcomes; what is to be tried again is sent alone."""
        once = self._task.options.attempts.max_attempts == 1
        failed = _any_failed(outcomes)
        if once or not failed:
            self._settle(part.batch, part.offset, outcomes, failed=failed)
            return
        for offset, outcome in enumerate(outcomes, part.offset):
            if type(outcome) is Failure and self._again(outcome.error):
                self._send(Part(part.batch, offset, 1, begun=1))
            else:
                failed = type(outcome) is Failure
                self._settle(part.batch, offset, [outcome], failed=failed)

    def _again(self, error: BaseException) -> bool:
        """Tell whether there is another attempt after the first."""
        policy = self._task.options.attempts
        if isinstance(error, WorkerCrashedError):
            kind = error.crashes[-1].kind
            return policy.after_crash(
                kind=kind, delivery="started", attempt=1, returns=0
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
            if not self._ordered:
                self._line.append(batch)
            self._news.set()


def _any_failed(outcomes: list[Any]) -> bool:
    return Failure in set(map(type, outcomes))


def _pack(function: Callable[..., Any]) -> bytes | None:
    try:
        return dumps(function)
    except Exception:  # noqa: BLE001 - each job by itself says what is wrong
        return None


def _may_share(options: JobOptions) -> bool:
    """Tell whether calls that go together can each have what they are to have."""
    limits = options.limits
    patient = limits.timeout is None or limits.timeout >= _SHORTEST_TIMEOUT
    return patient and limits.heartbeat_timeout is None and options.lease is None


def _is_of_all(error: BaseException) -> bool:
    """Tell whether what a job of several items has come to is what each has come to."""
    if isinstance(error, JobNotPicklableError):
        return error.direction == "result"
    return isinstance(error, AsyncPoolError | JobTimeoutError) and not isinstance(
        error, WorkerCrashedError
    )
