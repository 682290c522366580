"""Pools with options for their jobs, and the ways to have functions called that pools have too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import isfuture
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from asyncpool._core.base.records import Later
from asyncpool._core.policies.job_options import OPTIONS, JobOptions, Options, changed
from asyncpool._dataclass import dataclass, replace
from asyncpool._runtime.base.arguments import check_called, check_int, not_picklable
from asyncpool._runtime.base.pool_hub import EventStream
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.pool.engine import Engine
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool.events import Event, JobEvent

if TYPE_CHECKING:
    from asyncpool import mapping, session, stream
    from asyncpool._runtime.map import batch_runner
    from asyncpool.mapping import Map
    from asyncpool.session import WorkerSession
    from asyncpool.stream import Stream
else:
    batch_runner = Later("asyncpool._runtime.map.batch_runner")
    mapping = Later("asyncpool.mapping")
    session = Later("asyncpool.session")
    stream = Later("asyncpool.stream")

# How callers hear of what happens in a pool or a cluster.


class Listened:
    """Something whose events anybody can hear."""

    __slots__ = ()

    # It has the ``hub``, and a ``check_loop()``; each class knows its type.
    _life: Any

    def _listening(self) -> None:
        """Hear that somebody listens from now on."""

    def events(self, *, buffer: int = 1000) -> EventStream[Event]:
        """Return an async iterator over the events from now on.

        Called before the start, it misses none.  Each iterator has its own buffer for *buffer*
        events.  A full buffer drops the oldest event and counts it in ``dropped``.  The iterator
        ends with the pool or cluster.

        Raises:
            TypeError: If *buffer* is no int.
            ValueError: If it is less than 1.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        check_int("buffer", buffer, at_least=1)
        self._life.check_loop()
        stream: EventStream[Event] = self._life.hub.listen(buffer)
        self._listening()
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Have *listener* called with each event from now on, as soon as it happens.

        It is called in the event loop, between the steps of the pool or cluster, so it must be
        quick and must not wait.  What it raises is logged.

        Raises:
            TypeError: If *listener* cannot be called.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        check_called("add_listener", listener)
        self._life.check_loop()
        self._life.hub.add_listener(listener)
        self._listening()

    def remove_listener(self, listener: Callable[..., object]) -> int:
        """Call *listener* no more, and return how often it had been added.

        Raises:
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        self._life.check_loop()
        count: int = self._life.hub.remove_listener(listener)
        return count


class JobsListened(Listened):
    """Something with jobs whose events anybody can hear."""

    __slots__ = ()

    def job_events(self, *, buffer: int = 10_000) -> EventStream[Event | JobEvent]:
        """Return an async iterator over the events of the pool and of its jobs from now on.

        It is as that of :meth:`events`, and has :class:`asyncpool.events.JobQueued`,
        :class:`~asyncpool.events.JobStarted` and :class:`~asyncpool.events.JobEnded` for each
        job, in this order.  While nobody listens to jobs, nothing is done for these events.

        Raises:
            TypeError: If *buffer* is no int.
            ValueError: If it is less than 1.
            RuntimeError: If the pool was started in another event loop.
        """
        check_int("buffer", buffer, at_least=1)
        self._life.check_loop()
        stream: EventStream[Event | JobEvent] = self._life.hub.listen_to_jobs(buffer)
        self._listening()
        return stream

    def add_job_listener(self, listener: Callable[[Event | JobEvent], object]) -> None:
        """Have *listener* called with each event of the pool and of its jobs from now on.

        As with :meth:`add_listener` it must be quick: it is called three times for each job.
        That of :class:`~asyncpool.events.JobQueued` comes from within ``submit``, in the
        caller's context.  It may submit jobs, which no worker gets before the next turn of the
        loop.

        Raises:
            TypeError: If *listener* cannot be called.
            RuntimeError: If the pool was started in another event loop.
        """
        check_called("add_job_listener", listener)
        self._life.check_loop()
        self._life.hub.add_job_listener(listener)
        self._listening()


# The ways to have functions called.

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")
AnyIterable: TypeAlias = Iterable[A] | AsyncIterable[A]


class Sizes(TypedDict, total=False):
    """How many items a map draws ahead, and how many travel together; see :meth:`Pool.map`."""

    buffersize: int | None
    chunksize: int | None


P = ParamSpec("P")
R = TypeVar("R")


class Caller(ABC):
    """What calls functions: once, for many items, for what they yield, in every worker."""

    __slots__ = ()

    _options: JobOptions

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

    @abstractmethod
    def _running_supervisor(self) -> Engine:
        """Return what makes the calls.

        Raises:
            PoolClosedError: If there is no pool that was started.
        """

    def _submit(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Submit a call with *options*, whatever those of this caller are."""
        if not callable(fn):  # asked here too, since a call costs each job time
            check_called("submit", fn)
        supervisor = self._running_supervisor()
        if options.lease is None:
            return supervisor.traffic.submit(fn, args, kwargs, options)
        submit = partial(supervisor.traffic.submit, fn, args, kwargs, options)
        return supervisor.leases.submit(options.lease, submit)

    @abstractmethod
    async def _broadcast(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        """Make a call in every worker."""

    @overload
    def submit(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[R]: ...

    @overload
    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Run ``fn(*args, **kwargs)`` in a worker; return a future of its result.

        Nothing is awaited: the job is on its way, or in the queue, when this
        returns.  Jobs go to the workers in the order of the calls, but for those whose
        large arguments are still being pickled.

        Args:
            fn: Any callable.  One that can be imported travels by name, also from a
                script with an ``if __name__ == "__main__":`` guard.  Lambdas, closures
                and other functions of ``__main__`` travel by value.  If it is
                an ``async def`` function, the worker awaits its coroutine, in an event
                loop that it keeps.
            *args: Its arguments.  They are pickled before this returns.  Large arguments are
                pickled later: a change before the last attempt has begun may reach the job.
            **kwargs: Its keyword arguments.

        Returns:
            A :class:`asyncpool.Job`.  Awaiting it raises what *fn* raised, with the
            worker's traceback as its cause.  It raises :exc:`JobNotPicklableError` if the call
            or its outcome cannot be pickled; :exc:`JobRaisedError` around ``SystemExit`` and
            the like; :exc:`WorkerCrashedError` if the worker died or hung while it ran the job;
            :exc:`JobTimeoutError` if the job's time is over;
            :exc:`PoolClosedError` or :exc:`PoolBrokenError` if the pool ended first.

        Raises:
            PoolClosedError: If the pool is closed or was never started.
            PoolBrokenError: If no worker can be kept alive.
            PoolFullError: If *max_queued* jobs are waiting.
            RuntimeError: If called outside the pool's event loop.
            ValueError: If another job still has the *lease* of this one.

        Cancellation:
            Cancelling the job, or the task that awaits it, takes a queued job out
            of the queue at no cost.  A running job gets :exc:`JobCancelled`;
            see *on_cancel* in :meth:`Pool.options`.
        """
        options = self._options
        # As _submit() does, at once.
        if options.lease is None and (type(fn) is FunctionType or callable(fn)):
            return self._running_supervisor().traffic.submit(fn, args, kwargs, options)
        return self._submit(fn, args, kwargs, options)

    @overload
    def stream(
        self, fn: Callable[P, Iterable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[R]: ...

    @overload
    def stream(
        self, fn: Callable[P, AsyncIterable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[R]: ...

    def stream(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Stream[Any]:
        """Run a generator function in a worker; return its items, for ``async for``.

        The items come as the generator yields them.  The worker is ahead of the caller by
        *prefetch* items at the most (see :meth:`Pool.options`); then it waits, so a slow caller
        needs no memory for them.  The worker does nothing else until the generator has ended:
        each stream that is not read to its end occupies a worker.

        The stream is one job with the options of :meth:`Pool.options`.  Its *timeout* is for the
        whole stream, each item counts as a heartbeat, and there is another attempt only as long
        as no item was taken.

        Args:
            fn: A generator function, an async one, or any function that returns an iterator.
            *args: Its arguments, see :meth:`Pool.submit`.
            **kwargs: Its keyword arguments.

        Returns:
            A :class:`asyncpool.Stream`.  Iterating over it raises the errors of
            :meth:`submit` and of awaiting a job.

        Raises:
            TypeError: If *fn* is not callable.
            PoolClosedError: If the pool was never started.

        Cancellation:
            Closes the generator by ``GeneratorExit``, and so does leaving the loop.
        """
        check_called("stream", fn)
        options = replace(self._options, via="stream")
        return stream.Stream(
            self._running_supervisor(), partial(self._submit, fn, args, kwargs, options)
        )

    @overload
    async def broadcast(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> dict[int, R]: ...

    @overload
    async def broadcast(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> dict[int, R]: ...

    async def broadcast(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> dict[int, Any]:
        """Run ``fn(*args, **kwargs)`` once in every worker, later workers included.

        A worker that is up runs it after the jobs that it has in flight, and before any other.
        A worker that starts later runs it after the initializer, before it is ready.  If it fails
        there, the start counts as failed.  Every worker runs broadcasts in their order.  *Of
        several broadcasts of one function, later workers run only the last.*  Module, name and
        line tell a function from others, not the arguments.

        Args:
            fn: Any callable, as in :meth:`submit`.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of each worker, by slot, once all workers that were up or starting have
            run it.

        Raises:
            BroadcastError: If *fn* raised in some workers, a worker died of it, or its time
                was over.  The error has the results of the others.  Later workers do not run
                this broadcast then, but an earlier one of the same function, if there was one.
            JobNotPicklableError: If the call cannot be pickled.
            ValueError: If all calls for later workers together have more than 64 MiB when
                pickled, or in a bound pool with a *key* or a *lease*.
            PoolClosedError: If the pool is closed, or closes before all workers have run it.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Takes the call back from workers that have not begun it, and interrupts it in the
            others.  Later workers do not run it.  What it has done elsewhere stays done.

        Concurrency:
            Any number of broadcasts may be in progress.  All workers run them in the same
            order.  It is the order of the calls, unless large arguments take a while to pickle.
        """
        return await self._broadcast(fn, args, kwargs, self._options)

    def worker(
        self, *, timeout: float | None = None, fresh: bool = True
    ) -> WorkerSession:
        """Return a session: ``async with pool.worker() as worker`` has a worker to itself.

        Entering the context waits for an idle worker: first come, first served, and before
        the jobs of the queue.  Until the context is left, that worker runs only the calls of the
        session (and broadcasts), so the calls may keep state between them.
        Rolls, resizes, :meth:`Pool.retire` and limits of workers wait for the
        end of the session, and so does a pool that closes and finishes all jobs.  *Jobs of the
        pool wait while all workers belong to sessions*, and a task that asks for a second worker
        while it has one may wait for ever.

        Args:
            timeout: Seconds to wait for a free worker; ``None`` for no limit.
            fresh: Whether the worker ends with the session, and a new one takes its place,
                so that no other job finds the state of the session.  ``False`` gives the
                worker back as it is, which saves a start.

        Returns:
            A :class:`WorkerSession`, whose calls have the options of :meth:`Pool.options`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If *timeout* is negative, or in a bound pool with *max_attempts*,
                *priority*, a *key* or a *lease*.
            TimeoutError: On entering the context, if no worker was free in time.
            PoolFullError: On entering, if *max_queued* jobs and sessions wait already.
            PoolClosedError: On entering, if the pool is closed or was never started, or if it
                closes, without finishing all jobs, before a worker is free.
            PoolBrokenError: On entering, if no worker can be kept alive.
            RuntimeError: On entering, outside the pool's event loop.

        Cancellation:
            While it waits: safe.  If the session has just got a worker, the pool gives it to the
            next one.  Inside the context: cancels the calls of the session.
        """
        return session.WorkerSession(
            self._running_supervisor,
            self._options,
            timeout=timeout,
            fresh=fresh,
        )

    @overload
    def map(
        self,
        fn: Callable[[A], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self, fn: Callable[[A], R], items: AnyIterable[A], /, **sizes: Unpack[Sizes]
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        more: AnyIterable[B],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], R],
        items: AnyIterable[A],
        more: AnyIterable[B],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], Coroutine[Any, Any, R]],
        items: AnyIterable[A],
        more: AnyIterable[B],
        still_more: AnyIterable[C],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], R],
        items: AnyIterable[A],
        more: AnyIterable[B],
        still_more: AnyIterable[C],
        /,
        **sizes: Unpack[Sizes],
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
        **sizes: Unpack[Sizes],
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
        **sizes: Unpack[Sizes],
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
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def starmap(
        self,
        fn: Callable[[*Ts], R],
        items: AnyIterable[tuple[*Ts]],
        /,
        **sizes: Unpack[Sizes],
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
        check_called(verb, fn)
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        for items in iterables:
            # A future is an iterable of itself, which is nobody's wish.
            if isfuture(items) or not isinstance(items, Iterable | AsyncIterable):
                raise TypeError(f"{verb}() takes iterables, not {items!r}")
        for name, value in (("buffersize", buffersize), ("chunksize", chunksize)):
            if value is not None:
                check_int(name, value, at_least=1)
        task = batch_runner.Task(fn, star, self._options, self._submit)
        supervisor = self._running_supervisor()
        plan = mapping.Plan(supervisor, task, iterables, chunksize, buffersize)
        return mapping.Map(plan)


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


# What pools and clusters let their owner see of their workers, and do to them.


class Supervised(Listened):
    """Something that keeps workers alive: a pool or a cluster."""

    __slots__ = ()

    _life: SupervisorRunner

    def retire(self, slot: int) -> None:
        """Replace the worker in *slot* by a fresh one.

        The old worker goes on until its replacement is ready.  Then it gets nothing new,
        finishes the jobs or connections that it has, and ends.  In a pool it has the ``drain_timeout`` of the
        *worker_limits* for that, in a cluster the *reload_drain_timeout*.  Workers that reach a
        limit are replaced in the same way.

        The call returns at once: the events :class:`asyncpool.events.Retiring` and
        :class:`asyncpool.events.Exited` tell the rest.  It changes nothing for a worker that
        is leaving already.  The worker of a session (:meth:`asyncpool.Pool.worker`) leaves
        when the session is over.

        Raises:
            NoWorkerError: If no worker is ready in *slot*.  The error names the slots with one.
            TypeError: If *slot* is no int.
            ValueError: If *slot* is negative.
            PoolClosedError: If the pool or cluster is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        check_int("slot", slot, at_least=0)
        self._life.open().replacement.retire_from(slot)

    def kill(self, slot: int) -> None:
        """Kill the worker in *slot* by SIGKILL, with all processes that it has started.

        A fresh worker takes its place at once.  This is no crash: *on_crash* is not called,
        the restart policy does not count it, and the event is
        :class:`asyncpool.events.Exited`, whose *detail* says that somebody called this.

        The work of the worker ends as with a crash.  A job has another attempt if
        *max_attempts* and *retry_on* (``"crash"``) allow that, or fails with
        :exc:`WorkerCrashedError`.  A session (:meth:`asyncpool.Pool.worker`) has lost its
        worker.  The connections of a worker of a cluster are cut.

        Raises:
            NoWorkerError: If *slot* has no worker that is ready or draining.  The error names
                the slots that have one.
            TypeError: If *slot* is no int.
            ValueError: If it is negative.
            PoolClosedError: If the pool or cluster was never started.
            RuntimeError: If it was started in another event loop.
        """
        check_int("slot", slot, at_least=0)
        self._life.running_here().replacement.kill(slot)


# A pool with options for the jobs that are submitted through it.


@dataclass(frozen=True, slots=True)
class BoundPool(Caller):
    """A pool together with options for its jobs; :meth:`Pool.options` makes it."""

    _pool: Caller
    _options: JobOptions

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return another bound pool, with *changes* to the options of this one."""
        return BoundPool(self._pool, changed(self._options, changes))

    def _running_supervisor(self) -> Engine:
        return self._pool._running_supervisor()  # noqa: SLF001

    async def _broadcast(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        return await self._pool._broadcast(fn, args, kwargs, options)  # noqa: SLF001
