"""What :meth:`asyncpool.Pool.map` returns, and what it yields."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from asyncpool._dataclass import dataclass
from asyncpool._engine.batches import Batch, MapRun
from asyncpool._engine.iteration import Demand, Iteration
from asyncpool._wire.page import ItemError
from asyncpool._wire.text import function_name

__all__ = ["Map", "MapRun", "Outcome"]


R = TypeVar("R")


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


def _outcomes(batch: Batch) -> Iterator[Outcome[Any]]:
    for index, (item, found) in enumerate(
        zip(batch.items, batch.outcomes, strict=True), batch.first
    ):
        error = found.error if type(found) is ItemError else None
        yield Outcome(index, item, error, None if error is not None else found)


def _results(batch: Batch) -> Iterable[Any]:
    """Return the results; the iterator raises the first error in its place."""
    if ItemError not in set(map(type, batch.outcomes)):
        return batch.outcomes
    return _until_failure(batch)


def _until_failure(batch: Batch) -> Iterator[Any]:
    for index, found in enumerate(batch.outcomes, batch.first):
        if type(found) is ItemError:
            found.error.add_note(f"It is the error of item {index} of a map.")
            raise found.error
        yield found


class Map(Iteration[R]):
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

    _once = "a map can be iterated over, or awaited, only once, and not after aclose()"

    def __init__(
        self,
        run: partial[MapRun],
        present: Callable[[Batch], Iterable[R]] = _results,
    ) -> None:
        engine, self._function, self._iterables = run.args
        super().__init__(engine.check_loop, partial(_each, run, present))
        self._run, self._present = run, present

    def __del__(self) -> None:
        if not (self._used or sys.is_finalizing()):
            name = function_name(self._function)
            text = f"a map of {name} was never awaited or iterated over"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    def unordered(self) -> Map[R]:
        """Return the same map, but with the results as they come."""
        self._used = True
        return Map(partial(self._run, ordered=False), self._present)

    def outcomes(self) -> Map[Outcome[R]]:
        """Return the same map, but with an :class:`Outcome` for each item.

        So no error ends the map, and each outcome says which item it belongs to.
        """
        self._used = True
        return Map(self._run, _outcomes)

    if not TYPE_CHECKING:  # checkers see by themselves that there is none

        def __iter__(self) -> Iterator[R]:
            raise TypeError("a map is no plain iterable: use 'async for', or await it")

    def __await__(self) -> Generator[Any, None, list[R]]:
        self._check_loop()
        if self._begun:
            raise RuntimeError(self._once)
        self._begun, self._held = True, None
        return _all(self._run, self._present).__await__()

    def __len__(self) -> int:
        """Return how many results there will be.

        Raises:
            TypeError: If the length of one of the iterables is not known.
        """
        if not all(hasattr(items, "__len__") for items in self._iterables):
            raise TypeError("it has no length: that of its inputs is not known")
        return min(map(len, self._iterables))

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __length_hint__(self) -> int:
        hints = [operator.length_hint(items, -1) for items in self._iterables]
        known = [hint for hint in hints if hint >= 0]
        return min(known) if known else NotImplemented


# Neither knows the map, which holds the iteration: that must end when the map is dropped.


async def _each(
    make: Callable[[], MapRun], present: Callable[[Batch], Iterable[R]], demand: Demand
) -> AsyncGenerator[R, None]:
    with demand:
        async with aclosing(make().batches()) as batches:
            async for batch in batches:
                for result in demand.meet(present(batch)):
                    yield result


async def _all(
    make: Callable[[], MapRun], present: Callable[[Batch], Iterable[R]]
) -> list[R]:
    found: list[R] = []
    async with aclosing(make().batches()) as batches:
        async for batch in batches:
            found.extend(present(batch))
    return found
