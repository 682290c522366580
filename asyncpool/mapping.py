"""What :meth:`asyncpool.Pool.map` returns, and what it yields."""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from asyncpool._dataclass import dataclass
from asyncpool._engine.admission import MapHold
from asyncpool._engine.batches import (
    Batch,
    BatchRunner,
    Part,
    Task,
    TimeSlice,
    open_source,
)
from asyncpool._engine.iteration import Demand, HomeIterator, Iteration
from asyncpool._wire.page import Failure
from asyncpool._wire.text import function_name

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine

__all__ = ["Map", "Outcome", "Plan"]


# Call a function on many items, with enough of them in jobs to keep the pool busy.


class MapRun:
    """One run of a map.

    Args:
        plan: What the map is to do.
        news: The source, and the end of each batch, set it.
        ordered: Whether batches come in the order of their items.
    """

    def __init__(self, plan: Plan, news: asyncio.Event, *, ordered: bool) -> None:
        self._backend: Engine = plan.backend
        self._hold = MapHold(function_name(plan.task.function))
        self._source = open_source(plan.iterables, news.set)
        self._news = news
        # If ordered, all batches in their order; else those that are complete, as they come.
        self._ready: deque[Batch] = deque()
        self._ordered = ordered
        self._runner = BatchRunner(
            plan.backend,
            plan.task,
            chunksize=plan.chunk,
            buffersize=plan.window,
            hold=self._hold,
            on_complete=partial(
                _take_note, None if ordered else self._ready, news, self._hold
            ),
            on_held=news.set,
        )
        self._pace = self._runner.pace
        self._open = 0  # batches that were begun and not yielded
        self._next = 0

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches, each when it is complete.

        Raises:
            BaseException: What the source has raised, once all items before it are done.

        Cancellation:
            Cancels the open jobs.
        """
        source, time_slice = self._source, TimeSlice()
        try:
            self._backend.draining.hold(self._hold)
            while True:
                if time_slice.over:
                    await asyncio.sleep(0)
                    time_slice = TimeSlice()
                drew_all = self._draw(time_slice)
                if source.exhausted:
                    self._hold.drawn()
                batch = self._take()
                if batch is not None:
                    yield batch
                    self._hold.under_way -= len(batch.items)
                elif source.exhausted and not self._open:
                    break
                elif drew_all:
                    await self._wait()
            if source.error is not None:
                raise source.error
        finally:
            self._runner.stop()
            self._hold.release()
            await source.aclose()

    def _draw(self, time_slice: TimeSlice) -> bool:
        """Draw and submit items; return whether to wait now, since there is no room for more."""
        source, workers = self._source, self._backend.most_workers
        while not source.exhausted and not self._runner.full:
            size = self._pace.size(workers)
            room = self._pace.window(workers) - self._hold.under_way
            if room < size and self._hold.under_way:
                break
            items = source.draw(size, room)
            if not items:
                break
            batch = Batch(self._next, items)
            if self._ordered:
                self._ready.append(batch)
            self._open += 1
            self._hold.begin()
            self._hold.under_way += len(items)
            self._next += len(items)
            self._runner.send(Part(batch, 0, len(items)))
            if time_slice.over:
                return False
        return True

    def _take(self) -> Batch | None:
        """Return the next batch, if it is complete."""
        if not self._ready or self._ready[0].open:
            return None
        self._open -= 1
        return self._ready.popleft()

    async def _wait(self) -> None:
        if self._runner.full and not self._runner.running:
            await self._backend.admission.room()
            self._runner.send_held()
        else:
            self._news.clear()
            await self._news.wait()


# A function, since a method would refer to the run, and the run to what calls it: a cycle.
def _take_note(
    ready: deque[Batch] | None, news: asyncio.Event, hold: MapHold, batch: Batch
) -> None:
    if ready is not None:
        ready.append(batch)
    hold.done()
    news.set()


R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """The outcome of one item of a map.

    Attributes:
        index: Which item it was, counting from 0.
        item: The item; a tuple, if there are several arguments.
        error: Why there is no result, or ``None``.
    """

    index: int
    item: Any
    error: BaseException | None
    _value: R | None

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.error is None

    def result(self) -> R:
        """Return the result.

        Raises:
            BaseException: The error, if there is one.
        """
        if self.error is not None:
            raise self.error
        return cast("R", self._value)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a map needs to begin.

    Attributes:
        backend: The pool.
        task: What the map does with each item.
        iterables: Where the items come from.
        chunk: How many items travel as one job; ``None`` lets the pool choose.
        window: How many items may be drawn and not yielded; ``None`` lets the pool choose.
    """

    backend: Any  # an engine, whose types are no public matter
    task: Task
    iterables: tuple[Any, ...]
    chunk: int | None
    window: int | None


class Map(Generic[R]):
    """The results of a function for many items; :meth:`asyncpool.Pool.map` makes it.

    Await it for a list, or iterate over it with ``async for``, once.  The map draws and submits
    nothing before that.  Results come in the order of the items.  The first error is raised in
    the place of its result, with a note that says which item it was.

    You may leave the loop early: that ends the map, and cancels its jobs soon.  To have them
    cancelled at a certain point, close it (:meth:`aclose`, or
    ``async with contextlib.aclosing(...)``).  An iterator that you hold yourself, from ``aiter()``,
    ends the map when it is garbage-collected.

    Raises:
        RuntimeError: If it is used outside the pool's event loop.

    Cancellation:
        Of the task that iterates, or awaits: cancels the jobs of the map.
    """

    def __init__(
        self, plan: Plan, *, ordered: bool = True, telling: bool = False
    ) -> None:
        self._plan = plan
        self._ordered = ordered
        self._telling = telling
        self._iteration: Iteration[R] = Iteration(plan.backend.check_home)
        self._begun = False

    def unordered(self) -> Map[R]:
        """Return the same map, but with the results as they come."""
        return Map(self._plan, ordered=False, telling=self._telling)

    def outcomes(self) -> Map[Outcome[R]]:
        """Return the same map, but with an :class:`Outcome` for each item.

        So no error ends the map, and each outcome says which item it belongs to.
        """
        return Map(self._plan, ordered=self._ordered, telling=True)

    def __aiter__(self) -> AsyncIterator[R]:
        self._plan.backend.check_home()
        iteration = self._iteration
        if iteration.is_taken or iteration.iterator is None:
            self._begin()
        return iteration.take()  # one that anext() has begun goes on

    if not TYPE_CHECKING:  # checkers see by themselves that there is none

        def __iter__(self) -> Iterator[R]:
            raise TypeError("a map is no plain iterable: use 'async for', or await it")

    def __anext__(self) -> Awaitable[R]:
        """Return an awaitable of the next result."""
        iterator = self._iteration.iterator
        if iterator is None:
            self._plan.backend.check_home()
            iterator = self._begin()
        return iterator.__anext__()

    def __await__(self) -> Generator[Any, None, list[R]]:
        self._plan.backend.check_home()
        return _all(self._pieces()).__await__()

    async def aclose(self) -> None:
        """Cancel the jobs of the map, and draw no more items.

        A map that has not begun never does.

        Raises:
            RuntimeError: Outside the pool's event loop, or while a task waits for the next
                result: cancel that task.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        self._plan.backend.check_home()
        if not self._begun:
            self._begin()
        await self._iteration.aclose()

    def __len__(self) -> int:
        """Return how many results there will be.

        Raises:
            TypeError: If the length of one of the iterables is not known.
        """
        iterables = self._plan.iterables
        if not all(hasattr(items, "__len__") for items in iterables):
            raise TypeError("it has no length: that of its inputs is not known")
        return min(map(len, iterables))

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __length_hint__(self) -> int:
        hints = [operator.length_hint(items, -1) for items in self._plan.iterables]
        known = [hint for hint in hints if hint >= 0]
        return min(known) if known else NotImplemented

    # The iteration.

    def _begin(self) -> HomeIterator[R]:
        return self._iteration.begin(_flat(self._pieces(), self._iteration.demand))

    def _pieces(self) -> AsyncGenerator[Iterable[R], None]:
        """Return an iterator over some results at a time; the last may end in an error."""
        if self._begun:
            raise RuntimeError(
                "a map can be iterated over, or awaited, only once, and not after aclose()"
            )
        self._begun = True
        return _read(self._plan, ordered=self._ordered, telling=self._telling)


# None of these knows the map, which may hold the iteration: that must end when the map is dropped.


async def _flat(
    pieces: AsyncGenerator[Iterable[R], None], demand: Demand
) -> AsyncGenerator[R, None]:
    demand.begin()
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                for result in demand.meet(piece):
                    yield result
    except asyncio.CancelledError:
        demand.cancelled()
        raise


async def _all(pieces: AsyncGenerator[Iterable[R], None]) -> list[R]:
    found: list[R] = []
    async with aclosing(pieces):
        async for piece in pieces:
            found.extend(piece)
    return found


async def _read(
    plan: Plan, *, ordered: bool, telling: bool
) -> AsyncGenerator[Iterable[Any], None]:
    run = MapRun(plan, asyncio.Event(), ordered=ordered)
    async with aclosing(run.batches()) as batches:
        async for batch in batches:
            if telling:
                yield _outcomes(batch)
            else:
                yield _until_failure(batch) if batch.failed else batch.outcomes


def _outcomes(batch: Batch) -> Iterator[Outcome[Any]]:
    for index, (item, found) in enumerate(
        zip(batch.items, batch.outcomes, strict=True), batch.first
    ):
        if type(found) is Failure:
            yield Outcome(index, item, found.error, None)
        else:
            yield Outcome(index, item, None, found)


def _until_failure(batch: Batch) -> Iterator[Any]:
    for index, found in enumerate(batch.outcomes, batch.first):
        if type(found) is Failure:
            found.error.add_note(f"It is the error of item {index} of a map.")
            raise found.error
        yield found
