"""Maps, as a pool and its views have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, overload

from asyncpool._core.limits import JobOptions
from asyncpool._runtime.arguments import check_int
from asyncpool._runtime.jobs import Job
from asyncpool._runtime.mapping import Crew, Task
from asyncpool.mapping import Map, Plan

__all__ = ["Calling", "Mapper"]

R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")
AnyIterable: TypeAlias = Iterable[A] | AsyncIterable[A]


class Calling(NamedTuple):
    """How calls are made.

    Attributes:
        crew: Who makes them.
        options: What each of them has.
        submit: Submits one.
    """

    crew: Crew
    options: JobOptions
    submit: Callable[..., Job[Any]]


class Mapper(ABC):
    """What calls a function for many items."""

    __slots__ = ()

    @abstractmethod
    def _calling(self) -> Calling:
        """Return how that is done.

        Raises:
            PoolClosedError: If there is no pool that was started.
        """

    @overload
    def map(
        self,
        fn: Callable[[A], R],
        items: AnyIterable[A],
        /,
        *,
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], R],
        items: AnyIterable[A],
        more: AnyIterable[B],
        /,
        *,
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], R],
        items: AnyIterable[A],
        more: AnyIterable[B],
        still_more: AnyIterable[C],
        /,
        *,
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., R],
        items: AnyIterable[Any],
        more: AnyIterable[Any],
        still_more: AnyIterable[Any],
        even_more: AnyIterable[Any],
        /,
        *iterables: AnyIterable[Any],
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[R]: ...

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: AnyIterable[Any],
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[Any]:
        """Run *fn* on each item; return what is awaited, or iterated over, for the results.

        ``await pool.map(fn, items)`` is the list of all results, in order; ``async for
        result in pool.map(fn, items)`` yields them one by one, as soon as it is their
        turn, with :meth:`Map.unordered` as they come, and with :meth:`Map.outcomes`
        together with errors.  With several iterables, *fn* gets an item of each, until
        the shortest ends.

        Each item is a call with the options of :meth:`Pool.options`: it has attempts, a
        timeout and an error of its own.  Short ones travel together, but a crash costs
        only the one that was running.

        Args:
            fn: Any callable.  One that travels by value (see :meth:`Pool.submit`) is pickled
                once, when the iteration begins.
            *iterables: The items; iterables or async iterables, which may be endless.
                They are drawn from only as results are taken.
            window: How many items may be drawn whose results were not taken yet; by
                default as many as keep the workers busy.
            chunk: How many items travel together; by default as many as take a
                millisecond.

        Raises:
            TypeError: If *fn* is not callable, or there is no iterable.
            ValueError: If *window* or *chunk* is not positive.
            PoolClosedError: If the pool is closed or was never started.

        Cancellation:
            Cancels all that is under way; so does leaving the loop.
        """
        several = len(iterables) > 1
        return self._map(fn, iterables, star=several, window=window, chunk=chunk)

    def starmap(
        self,
        fn: Callable[[*Ts], R],
        items: AnyIterable[tuple[*Ts]],
        /,
        *,
        window: int | None = None,
        chunk: int | None = None,
    ) -> Map[R]:
        """Like :meth:`map`, for items that are tuples of arguments."""
        return self._map(fn, (items,), star=True, window=window, chunk=chunk)

    def _map(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Any, ...],
        *,
        star: bool,
        window: int | None,
        chunk: int | None,
    ) -> Map[Any]:
        if not callable(fn):
            raise TypeError(f"map() takes a callable first, not {fn!r}")
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        for items in iterables:
            if not isinstance(items, Iterable | AsyncIterable):
                raise TypeError(f"map() takes iterables, not {items!r}")
        for name, value in (("window", window), ("chunk", chunk)):
            if value is not None:
                check_int(name, value, at_least=1)
        crew, options, submit = self._calling()
        return Map(
            Plan(crew, Task(fn, star, options, submit), iterables, chunk, window)
        )
