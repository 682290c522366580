"""The ways to have functions called for many items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import isfuture
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, overload

from asyncpool._core.policies.job_options import OPTIONS, JobOptions
from asyncpool._runtime.base.arguments import check_int, not_callable
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.map.batches import Task
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool.mapping import Map, Plan

R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")
AnyIterable: TypeAlias = Iterable[A] | AsyncIterable[A]


class MapCaller(ABC):
    """What calls functions for many items."""

    __slots__ = ()

    _options: JobOptions

    @abstractmethod
    def _running_supervisor(self) -> Supervisor:
        """Return what makes the calls.

        Raises:
            PoolClosedError: If there is no pool that was started.
        """

    def _submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Submit a call with *options*, whatever those of this caller are."""
        if not callable(fn):
            raise not_callable("submit", fn)
        supervisor = self._running_supervisor()
        if options.lease is None:
            return supervisor.traffic.submit(fn, args, kwargs, options)
        submit = partial(supervisor.traffic.submit, fn, args, kwargs, options)
        return supervisor.leases.submit(options.lease, submit)

    @overload
    def map(
        self,
        fn: Callable[[A], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A], R],
        items: AnyIterable[A],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        more: AnyIterable[B],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], R],
        items: AnyIterable[A],
        more: AnyIterable[B],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        more: AnyIterable[B],
        still_more: AnyIterable[C],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
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
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, R]],
        items: AnyIterable[Any],
        more: AnyIterable[Any],
        still_more: AnyIterable[Any],
        even_more: AnyIterable[Any],
        /,
        *iterables: AnyIterable[Any],
        buffersize: int | None = None,
        chunksize: int | None = None,
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
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: AnyIterable[Any],
        buffersize: int | None = None,
        chunksize: int | None = None,
        **others: object,
    ) -> Map[Any]:
        """Run *fn* on each item; return an awaitable, and async iterable, of the results.

        ``await pool.map(fn, items)`` is the list of all results, in order.  ``async for
        result in pool.map(fn, items)`` yields them one by one, in order.  With
        :meth:`Map.unordered` they come as soon as they are there, and with :meth:`Map.outcomes`
        together with errors.  With several iterables, *fn* gets an item of each, until
        the shortest ends.

        Each item is a call with the options of :meth:`Pool.options`: it has attempts, a
        timeout and an error of its own.  Short calls travel together, but a crash costs
        only the call that was running.

        Args:
            fn: Any callable.  A function that travels by value (see :meth:`Pool.submit`) is pickled
                once, when the iteration begins.
            *iterables: The items; iterables or async iterables, which may be endless.
                The map draws from them only as you take results.
            buffersize: How many items the map draws ahead of the results that you have taken.
                By default as many as keep the workers busy.
            chunksize: How many items travel together at the most, and never more than 4096;
                fewer travel if they take long.  By default as many as take a millisecond.
            **others: There are no others.  The error for one says where it belongs.

        Raises:
            TypeError: If *fn* is not callable, or there is no iterable.
            ValueError: If *buffersize* or *chunksize* is not positive.
            PoolClosedError: If the pool is closed or was never started.

        Cancellation:
            Cancels the jobs of the map, and so does leaving the loop.
        """
        _refuse("map", others)
        several = len(iterables) > 1
        return self._map(
            fn, iterables, star=several, buffersize=buffersize, chunksize=chunksize
        )

    @overload
    def starmap(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, R]],
        items: AnyIterable[tuple[*Ts]],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    @overload
    def starmap(
        self,
        fn: Callable[[*Ts], R],
        items: AnyIterable[tuple[*Ts]],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
    ) -> Map[R]: ...

    def starmap(
        self,
        fn: Callable[..., Any],
        items: AnyIterable[tuple[Any, ...]],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
        **others: object,
    ) -> Map[Any]:
        """Like :meth:`map`, for items that are tuples of arguments."""
        _refuse("starmap", others)
        return self._map(
            fn, (items,), star=True, buffersize=buffersize, chunksize=chunksize
        )

    def _map(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Any, ...],
        *,
        star: bool,
        buffersize: int | None,
        chunksize: int | None,
    ) -> Map[Any]:
        verb = "starmap" if star else "map"
        if not callable(fn):
            raise not_callable(verb, fn)
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        for items in iterables:
            # A future is an iterable of itself, which is nobody's wish.
            if isfuture(items) or not isinstance(items, Iterable | AsyncIterable):
                raise TypeError(f"{verb}() takes iterables, not {items!r}")
        for name, value in (("buffersize", buffersize), ("chunksize", chunksize)):
            if value is not None:
                check_int(name, value, at_least=1)
        task = Task(fn, star, self._options, self._submit)
        return Map(
            Plan(self._running_supervisor(), task, iterables, chunksize, buffersize)
        )


def _refuse(verb: str, others: dict[str, object]) -> None:
    """Refuse keywords that a map does not have, and say which it has instead.

    Raises:
        TypeError: If there are any.
    """
    for name in others:
        hint = ""
        if name in OPTIONS:
            hint = f": as an option of each job it goes into options({name}=...)"
        raise TypeError(f"{verb}() takes no {name}={hint}")
