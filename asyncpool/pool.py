"""The pool: what a service holds, and the ways to have functions called that it has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import WRAPPER_ASSIGNMENTS, partial, wraps
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

from asyncpool._core import checks
from asyncpool._core.endings import Finish
from asyncpool._core.options import (
    OPTIONS,
    JobOptions,
    OnCancel,
    Options,
    RestartPolicy,
    WorkerLimits,
    changed,
)
from asyncpool._dataclass import dataclass, replace
from asyncpool._engine.deaths import CrashCallback
from asyncpool._engine.engine import Engine, PoolLife
from asyncpool._engine.hub import EventStream, PoolHub
from asyncpool._engine.job import Job, PoolJob
from asyncpool._engine.loop import other_loop_error, shielded
from asyncpool._engine.machine import (
    DEFAULT_LAUNCHER,
    check_platform,
    least_and_most,
    not_picklable,
)
from asyncpool._engine.options import EngineConfig, OutputMode, pool_config
from asyncpool._wire.records import Later
from asyncpool._wire.text import function_name
from asyncpool.enums import RunState
from asyncpool.events import CloseSummary, Event, JobEvent, RollResult
from asyncpool.stats import PoolStats

if TYPE_CHECKING:
    from concurrent.futures import Future

    from asyncpool import mapping, session, stream
    from asyncpool._wire.formats import Codec
    from asyncpool._worker.api import CurrentJob
    from asyncpool.mapping import Map
    from asyncpool.profile import Profile
    from asyncpool.sandbox import Sandbox
    from asyncpool.session import WorkerSession
    from asyncpool.stream import Stream
else:
    mapping = Later("asyncpool.mapping")
    session = Later("asyncpool.session")
    stream = Later("asyncpool.stream")

# How callers hear of what happens in a pool or a cluster.


class EventSource:
    """Something whose events anybody can hear."""

    __slots__ = ()

    _life: PoolLife  # a pool whose workers belong to agents has a _Life in its place

    def _on_listener(self) -> None:
        """Hear that somebody listens from now on."""

    def _hub_for_listener(self) -> PoolHub:
        """Return the hub, for somebody who listens from now on."""
        self._life.check_loop()
        self._on_listener()
        return self._life.hub

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
        checks.at_least(1)("buffer", buffer)
        return self._hub_for_listener().listen(buffer)

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Have *listener* called with each event from now on, as soon as it happens.

        It is called in the event loop, between the steps of the pool or cluster, so it must be
        quick and must not wait.  What it raises is logged.

        Raises:
            TypeError: If *listener* cannot be called.
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        checks.called("add_listener", listener)
        self._hub_for_listener().add_listener(listener)

    def remove_listener(self, listener: Callable[..., object]) -> int:
        """Call *listener* no more, and return how often it had been added.

        Raises:
            RuntimeError: If the pool or cluster was started in another event loop.
        """
        self._life.check_loop()
        return self._life.hub.remove_listener(listener)


class JobEventSource(EventSource):
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
        checks.at_least(1)("buffer", buffer)
        return self._hub_for_listener().listen_to_jobs(buffer)

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
        checks.called("add_job_listener", listener)
        self._hub_for_listener().add_job_listener(listener)


# The ways to have functions called.

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Ts = TypeVarTuple("Ts")
Items: TypeAlias = Iterable[A] | AsyncIterable[A]
Async: TypeAlias = Coroutine[Any, Any, A]


class Sizes(TypedDict, total=False):
    """How many items a map draws ahead, and how many travel together; see :meth:`Pool.map`."""

    buffersize: int | None
    chunksize: int | None


P = ParamSpec("P")
R = TypeVar("R")


# What other libraries call an option of pools.
_NAMESAKES = {
    "max_workers": "workers=...",
    "processes": "workers=...",
    "n_jobs": "workers=...",
    "mp_context": "launcher=...",
    "maxtasksperchild": "worker_limits=WorkerLimits(max_jobs=...)",
    "max_tasks_per_child": "worker_limits=WorkerLimits(max_jobs=...)",
}


def _where(name: str) -> str:
    """Return where an argument belongs that was given in a wrong place, for its error."""
    if name in OPTIONS:
        return f": as an option of each job it goes into options({name}=...)"
    return f": it is Pool({_NAMESAKES[name]})" if name in _NAMESAKES else ""


def _with_hints(init: Callable[P, None]) -> Callable[P, None]:
    """Wrap a constructor: its error for an option of something else says where that belongs."""
    own = cast("FunctionType", init).__kwdefaults__ or {}

    @wraps(init, (*WRAPPER_ASSIGNMENTS, "__kwdefaults__"))
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given.keys() - own:
            if hint := _where(name):
                raise TypeError(f"Pool() takes no {name}={hint}")
        init(*args, **given)

    return checked


class Submitter:
    """Something that functions are submitted to: a pool, or a session's worker."""

    __slots__ = ()

    _options: JobOptions
    _life: PoolLife

    def _running_engine(self) -> Engine:
        """Return the engine.

        Raises:
            PoolClosedError: If there is no pool that was started.
        """
        return self._life.engine or self._life.running()

    def _submit(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        """Submit a call with *options*, whatever those of this caller are."""
        if not callable(fn):  # asked here too, since a call costs each job time
            checks.called("submit", fn)
        engine, lease = self._running_engine(), options.lease
        submit = engine.traffic.submit
        if lease is None:
            return submit(fn, args, kwargs, options)
        return engine.leases.submit(lease[1], submit, fn, args, kwargs, options)

    @overload
    def submit(
        self, fn: Callable[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
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
        if type(fn) is FunctionType and options.lease is None:  # as _submit() does
            engine = self._life.engine or self._life.running()
            return engine.traffic.submit(fn, args, kwargs, options)
        return self._submit(fn, args, kwargs, options)

    def stream(
        self, fn: Callable[P, Items[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[R]:
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
        checks.called("stream", fn)
        options = replace(self._options, via="stream")
        return stream.Stream(
            self._running_engine(), partial(self._submit, fn, args, kwargs, options)
        )


class PoolSubmitter(Submitter):
    """The ways to run functions in a pool: also map, broadcast, worker."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

    @overload
    def submit_threadsafe(
        self, fn: Callable[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...

    @overload
    def submit_threadsafe(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...

    def submit_threadsafe(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Call :meth:`submit` from another thread than that of the pool's event loop.

        It is to :meth:`submit` as :func:`asyncio.run_coroutine_threadsafe` is to a coroutine.

        Returns:
            A :class:`concurrent.futures.Future`, whose ``result(timeout)`` the thread may wait
            for.  It raises what :meth:`submit` and awaiting the job raise.

        Raises:
            PoolClosedError: If the pool was never started.
            RuntimeError: If the pool's event loop runs in this thread, which would wait for
                itself, or is closed.

        Cancellation:
            Cancelling the future cancels the job.
        """

        async def call() -> Any:
            return await self.submit(fn, *args, **kwargs)

        home = self._running_engine().loop
        if home.is_closed():
            raise other_loop_error("the pool", home)
        if asyncio._get_running_loop() is home:  # noqa: SLF001 - no exception if there is none
            raise RuntimeError(
                "submit_threadsafe() is for other threads: in the pool's event loop use submit()"
            )
        return asyncio.run_coroutine_threadsafe(call(), home)

    @overload
    async def broadcast(
        self, fn: Callable[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
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
        several broadcasts of one function, later workers run only the last.*  Module and name
        tell a function from others, not the arguments.

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
        checks.called("broadcast", fn)
        broadcasts = self._life.open_engine().broadcasts
        return await broadcasts.broadcast((fn, args, kwargs), self._options)

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
        return session.WorkerSession(self, timeout=timeout, fresh=fresh)

    @overload
    def map(
        self, fn: Callable[[A], Async[R]], items: Items[A], /, **sizes: Unpack[Sizes]
    ) -> Map[R]: ...

    @overload
    def map(
        self, fn: Callable[[A], R], items: Items[A], /, **sizes: Unpack[Sizes]
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], Async[R]],
        items: Items[A],
        more: Items[B],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], R],
        items: Items[A],
        more: Items[B],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], Async[R]],
        items: Items[A],
        more: Items[B],
        still_more: Items[C],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B, C], R],
        items: Items[A],
        more: Items[B],
        still_more: Items[C],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Async[R]],
        items: Items[Any],
        more: Items[Any],
        still_more: Items[Any],
        even_more: Items[Any],
        /,
        *iterables: Items[Any],
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., R],
        items: Items[Any],
        more: Items[Any],
        still_more: Items[Any],
        even_more: Items[Any],
        /,
        *iterables: Items[Any],
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Items[Any],
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
                The map draws from them only as you take results.  If a plain iterator has to
                wait for more than 10 ms for an item, a thread draws the rest, unless the map sees
                that it uses ``sqlite3``.
            buffersize: How many items the map draws ahead of the results that you have taken.
                By default as many as keep the workers busy; once the map knows how large calls and
                results are, they have no more than 64 MiB, but at least two items for each worker.
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
        return self._map("map", fn, iterables, buffersize, chunksize, others)

    @overload
    def starmap(
        self,
        fn: Callable[[*Ts], Async[R]],
        items: Items[tuple[*Ts]],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    @overload
    def starmap(
        self,
        fn: Callable[[*Ts], R],
        items: Items[tuple[*Ts]],
        /,
        **sizes: Unpack[Sizes],
    ) -> Map[R]: ...

    def starmap(
        self,
        fn: Callable[..., Any],
        items: Items[tuple[Any, ...]],
        /,
        *,
        buffersize: int | None = None,
        chunksize: int | None = None,
        **others: object,
    ) -> Map[Any]:
        """Like :meth:`map`, for items that are tuples of arguments."""
        return self._map("starmap", fn, (items,), buffersize, chunksize, others)

    def _map(
        self,
        verb: str,
        fn: Callable[..., Any],
        iterables: tuple[Any, ...],
        buffersize: int | None,
        chunksize: int | None,
        others: Iterable[str],
    ) -> Map[Any]:
        for name in others:
            raise TypeError(f"{verb}() takes no {name}={_where(name)}")
        checks.called(verb, fn)
        if not iterables:
            raise TypeError("map() takes at least one iterable")
        for items in iterables:
            # A future is an iterable of itself, which is nobody's wish.
            if asyncio.isfuture(items) or not isinstance(
                items, Iterable | AsyncIterable
            ):
                raise TypeError(f"{verb}() takes iterables, not {items!r}")
        for name, value in (("buffersize", buffersize), ("chunksize", chunksize)):
            checks.optional(checks.at_least(1))(name, value)
        engine = self._running_engine()
        run = partial(
            mapping.MapRun,
            engine,
            fn,
            iterables,
            star=verb == "starmap" or len(iterables) > 1,
            chunksize=chunksize,
            buffersize=buffersize,
            options=self._options,
            submit=self._submit,
        )
        return mapping.Map(run)


# What pools and clusters let their owner see of their workers, and do to them.


class Supervised(EventSource):
    """Something that keeps workers alive: a pool or a cluster."""

    __slots__ = ()

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
        checks.at_least(0)("slot", slot)
        self._life.open_engine().replacement.retire(slot)

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
        checks.at_least(0)("slot", slot)
        self._life.running_here().replacement.kill(slot)


class SupervisedPool(Supervised):
    """What a pool lets its owner, and commands, see and do."""

    __slots__ = ()

    _config: EngineConfig

    def stats(self) -> PoolStats:
        """Return the figures of the pool: how it stands, and what happened since its start.

        It takes some 30 us for each worker, whose CPU time and memory are read.  Any thread
        may call it.
        """
        engine = self._life.engine
        if engine is not None:
            return engine.stats()
        state = RunState.CLOSED if self._life.closed_unused else RunState.NEW
        return PoolStats(state=state, workers=self._config.workers[0])

    async def stacks(self, *, slot: int | None = None) -> dict[int, str]:
        """Return the Python stacks of what the workers run now, by slot.

        The jobs go on meanwhile, see :meth:`Job.stack`.  A text has the stack of each job of the
        worker, the innermost call first, and of each thread that was started there.  That of a
        worker that starts shows its initializer, and that of an idle one is empty.  If a worker has
        not answered within two seconds, the text says so.

        Args:
            slot: The only slot that is meant; ``None`` for all.

        Raises:
            NoWorkerError: If there is no worker in *slot*.  The error names the slots with one.
            TypeError: If *slot* is no int.
            ValueError: If *slot* is negative.
            PoolClosedError: If the pool was never started.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: it has no effect on the jobs.
        """
        checks.optional(checks.at_least(0))("slot", slot)
        return await self._life.running_here().stacks.of_workers(slot)

    async def profile(
        self,
        seconds: float,
        *,
        slot: int | None = None,
        function: Callable[..., Any] | str | None = None,
        rate: float = 100.0,
    ) -> Profile:
        """Sample for some time what the workers do, and return where the time of jobs went.

        A thread in each worker looks *rate* times a second at the stack of the running job.  It
        lives only as long as the profile is being taken, and needs no rights.  Workers that
        become ready meanwhile join in.  A worker that ends meanwhile costs its last samples,
        and the profile says so (``ProfiledWorker.complete``).

        Args:
            seconds: For how long, 3600 at the most.
            slot: Sample only the worker in this slot, and its replacement if that is there too.
            function: Count only jobs of this function: the function, its name as in
                ``stats()``, or the end of the name from a dot on.
            rate: How many samples a second, 1 to 1000.

        Raises:
            ProfileInProgressError: If a profile of this pool is being taken already.
            NoWorkerError: If no worker is ready in *slot*.  The error names the slots with one.
            ValueError: If an argument is out of range.
            TypeError: If an argument is of the wrong type.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Ends the samplers.

        Concurrency:
            One profile at a time.
        """
        from asyncpool._wire import profile  # noqa: PLC0415 - few take one

        longest, most = profile.MAX_SECONDS, profile.MAX_RATE
        checks.PERIOD("seconds", seconds)
        if not seconds <= longest:
            raise ValueError(f"seconds must be at most {longest}, not {seconds}")
        rates = checks.NUMBER.within(f"from 1 to {most}", lambda n: 1 <= n <= most)
        rates("rate", rate)
        checks.optional(checks.at_least(0))("slot", slot)
        name = function_name(function) if callable(function) else function
        checks.Argument((str, type(None)), "a function or its name")("function", name)
        if name == "":
            raise ValueError("function must not be empty")
        request = profile.ProfileRequest(float(seconds), float(rate), name or "")
        return await self._life.open_engine().profiles.take(request, slot)

    async def resize(self, workers: int | tuple[int, int]) -> None:
        """Change the number of workers: to *workers*, or to between the two if it is a pair.

        Returns once that many workers are ready and the surplus ones have ended.  Those that have
        no job end at once, the others when they have finished theirs.  If starts have failed, the
        pool tries the next one at once.

        Raises:
            ResizeError: If workers do not start: as many starts have failed in a row as break a
                pool that has no worker.  The pool goes on trying.
            ValueError: If *workers* is less than 1.
            TypeError: If *workers* is neither an int nor a pair of ints.
            PoolClosedError: If the pool is closed, or closes before it has that size.
            PoolBrokenError: If the pool is broken; its size stays as it is.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the pool goes on towards that size, as it does after an error.

        Concurrency:
            The last call counts, and all return when the pool has that size.  A start that fails
            is an error of the calls that were made before it began.
        """
        least, most = least_and_most(workers)
        engine = self._life.open_engine()
        await engine.replacement.resize(least, most)

    async def roll(self) -> RollResult:
        """Replace every worker by a fresh one, as many at a time as *max_surge* allows.

        Each worker goes on working until its replacement is ready, finishes its job, and ends.
        If a replacement does not become ready the roll ends there: the other workers stay,
        and the result says so.  If starts have failed, or the pool is broken, the pool tries the
        next start at once.

        Raises:
            RollInProgressError: If the pool is being rolled already.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If the pool has given up for good.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the roll goes on.
        """
        return await shielded(self._life.open_engine(retrying=True).replacement.roll())


# A pool with options for the jobs that are submitted through it.


@dataclass(frozen=True, slots=True)
class BoundPool(PoolSubmitter):
    """A pool together with options for its jobs; :meth:`Pool.options` makes it."""

    _pool: PoolSubmitter
    _options: JobOptions

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return another bound pool, with *changes* to the options of this one."""
        return BoundPool(self._pool, changed(self._options, changes))

    @property
    def _life(self) -> PoolLife:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._pool._life  # noqa: SLF001


class _Unowned(SupervisedPool):
    """A pool without its finalizer, for what must not keep it: if its owner drops it, that is noticed."""

    def __init__(self, config: EngineConfig, life: PoolLife) -> None:
        self.name, self._config, self._life = config.name, config, life


_FINISH = {"all": Finish.ALL, "running": Finish.RUNNING, "none": Finish.NOTHING}


class Pool(PoolSubmitter, SupervisedPool, JobEventSource):
    """Supervised worker processes, and a queue before them.

    Use it as an async context manager, or call :meth:`start` and :meth:`close`,
    from any tasks of one event loop.  Leaving the context waits for all
    jobs, however long they take, unless there is a *close_timeout*.  If an exception leaves the
    context, the jobs fail and the running ones are made to end.  If a pool is garbage-collected
    without being closed, it finishes its jobs and ends, and says so in the log and by a
    :exc:`ResourceWarning`.

    Args: Workers
        workers: How many workers; ``None`` means the CPUs that this process may use, by its
            affinity and its cgroup's quota.  A pair, such as ``(2, 16)``, lets the pool
            grow while jobs wait, and shrink when workers have been idle.
        idle_timeout: Seconds after which an idle worker ends, if *workers* allows fewer.
        concurrency: How many async functions each worker runs at once, 1 to 1024.  A plain
            function holds up the other jobs of its worker, and a crash takes all of them.
        worker_loop: The event loop that async functions run in, one in each worker.

    Args: Start of workers
        launcher: ``"forkserver"`` forks workers from a clean process that has imported
            *preload*; ``"spawn"`` starts a new interpreter for each, which takes some
            50 ms longer.  The default is ``"spawn"`` on macOS, else ``"forkserver"``.
        preload: Modules that workers find already imported.  With ``"forkserver"`` they are
            imported once and must not leave threads behind; with ``"spawn"`` each worker
            imports them before it calls *initializer*.
        initializer: Called in each new worker before its first job; may be async.  Jobs
            read from :func:`asyncpool.worker_state` what it puts there.
        initargs: The arguments of *initializer*.  Queues, locks, pipes and other objects of
            :mod:`multiprocessing` may be among them; the pool keeps them until it is closed.
        around: A hook around each job: a function that a worker calls with the
            :class:`CurrentJob`, and that returns a context manager, or the name of such a
            function, ``"package.module:name"``, which workers import.  The worker enters the
            context manager, calls the job's function, and exits the context manager with what the
            function raised; that is for each attempt, each item of a map, and the whole of a
            stream.  A hook that fails fails the job with a :exc:`HookError`.  It cannot suppress
            an exception of the job.
        worker_env: Environment variables of workers, beside those of this process: a mapping, or a
            function of the slot (``current_job().slot``) that returns one, such as
            ``lambda slot: {"CUDA_VISIBLE_DEVICES": str(slot)}``.  They are set before workers
            import anything of yours.  A mapping holds for the launcher too, and for *preload*
            there.  With a function each worker imports *preload* and the script for itself, as
            with ``"spawn"``.  The pool calls it in this process at each start of a worker.
        start_timeout: Seconds that a worker has to become ready.  If it does not, its crash has
            the stack of what it was importing or initializing.
        ready: What :meth:`start` and ``async with`` wait for: ``"any"`` means one ready
            worker, ``"all"`` the least number of workers.  With ``"all"`` the start also
            fails after as many failed starts in a row as *restart_policy* allows.

    Args: Crashes and replacements
        restart_policy: When a dead worker is replaced, and when the pool gives up.
        worker_limits: When the pool replaces workers by fresh ones, and what the kernel allows
            them.
        fresh: Whether each job has a new worker, which ends after it, so that nothing that a job
            leaves behind in its process is there for the next one, but for what it has written
            into memory that a module of *preload* shares.  New workers are forked ahead of need;
            see ``docs/state.md``.
        max_surge: How many workers there may be beyond their number while some are replaced.
        max_unavailable: How many workers may be missing meanwhile.  With ``max_surge=0,
            max_unavailable=1`` a worker ends before its replacement is started, which helps
            where memory is too small for both.
        ping_timeout: Seconds that a worker may go without answering the pool's pings.  After
            that it counts as hung, and the pool kills and replaces it.  A thread of the worker
            answers, so only C code that keeps the GIL for that long prevents an answer.
            ``None`` for no pings.
        on_crash: Called with a :class:`asyncpool.Crash` once for each unplanned death of a
            worker; may be async.  What it raises is logged.

    Args: Jobs
        timeout: As in :meth:`options`; for every job that has no value of its own.
        queue_timeout: Likewise.
        heartbeat_timeout: Likewise.
        on_cancel: Likewise.
        cancel_grace: Likewise.
        max_queued: How many jobs, and callers of :meth:`worker`, may wait; ``None`` for no bound.
        propagate: Context variables whose values jobs see as they are when :meth:`submit` is
            called.  Give the variable itself, if it is an attribute of an importable module, or
            its name, ``"package.module:name"``.  The values are pickled with each call
            (64 KiB at the most).
        close_timeout: Seconds that jobs have when the context is left.  After that the pool kills
            the workers, see :meth:`close`.  ``None`` for no limit.

    Args: Data only
        codec: How calls and outcomes become bytes: ``"json"``, ``"msgspec"`` (by msgspec, read as
            the types of the function's annotations; the extra ``msgspec``) or a :class:`Codec`.
            ``None`` for pickle.  With a codec, nothing that a worker sends is unpickled, functions
            travel by name, and what is no plain data is refused.
        functions: The functions that workers may call: functions, or names such as
            ``"package.module:name"`` and ``"package.module:*"``.  ``None`` for all.
        errors: Classes of exceptions that jobs raise and that are made anew here, by their
            constructor.  All others come as a :exc:`RemoteError`.

    Args: Sandbox
        sandbox: What workers may reach, if not all that the service may; see :class:`Sandbox`.
            Linux only.  A worker shuts itself in after the imports of *preload*, which must leave
            no threads and no descriptors behind, and before *initializer*.  Modules that are
            neither installed nor in a folder of *read* must be in *preload*.

    Args: Memory
        max_message_size: The most bytes that a call or a result may have when pickled; ``None``
            for no bound but memory.
        max_shared_memory: The most bytes that the pool shares with its workers, for large
            buffers (of arrays, say) in arguments and results.  Results that callers keep count
            too.  Buffers beyond that are sent instead, some ten times slower.  0 for none.

    Args: Logs
        name: What logs, metrics and commands call the pool; ``"pool-1"``, ``"pool-2"`` and so on
            by default.
        worker_output: Where the lines that workers print go.  ``"log"`` sends them to the logger
            ``asyncpool.worker``, or to this process's own streams if logging is not
            configured.  ``"inherit"`` always sends them to the streams.  With either, the records
            of a worker's loggers go to the loggers of the same names here.
        trace: A file that the pool writes while it lives, and that https://ui.perfetto.dev
            shows: what each worker did when, how long jobs waited, retries and crashes.
            It grows by some 500 bytes for each job.  An older trace in that file is replaced.
        max_traced: How many jobs a second the trace shows, so that a busy pool stays fast; ``None``
            for all.  It always shows jobs that fail, change their worker, or run for a second.
        control: Whether commands such as ``asyncpool status`` find the pool, by a Unix socket in a
            folder that only this user can enter.  Each process of this user may then see what the
            pool does, kill its workers, and change their number.  A text is the name that
            commands find it by, instead of *name*; a path, with a slash, is where the socket is.
            Such a name has 1 to 64 of A-Z, a-z, 0-9, ``.``, ``-``, ``_`` and ``:``, and begins
            with neither ``.`` nor ``-``.
            ``None`` means what the environment variable ``ASYNCPOOL_CONTROL`` says: ``1`` or
            ``0``, which is the default.

    Raises:
        UnsupportedPlatformError: If this platform cannot run a pool, or cannot enforce *sandbox*.
        ValueError: If an argument is out of range, *initargs* too large (64 MiB), or
            a variable to *propagate* cannot be found.
        TypeError: If an argument is of the wrong type.
        JobNotPicklableError: If *initializer*, *initargs* or *around* cannot be pickled, or has
            no name in a pool with a *codec*.
        ImportError: If the package of *codec* is not installed.
    """

    @_with_hints
    def __init__(
        self,
        workers: int | tuple[int, int] | None = None,
        *,
        idle_timeout: float = 60.0,
        concurrency: int = 1,
        worker_loop: Literal["asyncio", "uvloop"] = "asyncio",
        launcher: Literal["forkserver", "spawn"] = DEFAULT_LAUNCHER,
        preload: Iterable[str] = (),
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        around: Callable[[CurrentJob], AbstractContextManager[Any]] | str | None = None,
        worker_env: Mapping[str, str]
        | Callable[[int], Mapping[str, str]]
        | None = None,
        start_timeout: float = 30.0,
        ready: Literal["any", "all"] = "any",
        restart_policy: RestartPolicy | None = None,
        worker_limits: WorkerLimits | None = None,
        fresh: bool = False,
        max_surge: int = 1,
        max_unavailable: int = 0,
        ping_timeout: float | None = 30.0,
        on_crash: CrashCallback | None = None,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        on_cancel: OnCancel = "interrupt",
        cancel_grace: float = 2.0,
        max_queued: int | None = None,
        propagate: Iterable[ContextVar[Any] | str] = (),
        close_timeout: float | None = None,
        codec: Literal["json", "msgspec"] | Codec | None = None,
        functions: Iterable[Callable[..., Any] | str] | None = None,
        errors: Iterable[type[BaseException]] = (),
        sandbox: Sandbox | None = None,
        max_message_size: int | None = 1 << 30,
        max_shared_memory: int = 1 << 30,
        name: str | None = None,
        worker_output: OutputMode = "log",
        trace: str | os.PathLike[str] | None = None,
        max_traced: int | None = 3000,
        control: bool | str | os.PathLike[str] | None = None,
    ) -> None:
        check_platform()
        self._config = pool_config(locals())  # by the names of the signature
        self.name: str = self._config.name
        self._options = self._config.job_options
        self._control = self._config.control  # a command may give one
        self._life: PoolLife = PoolLife("pool", self.name)

    async def start(self) -> None:
        """Start the workers, and return when the first one or all are ready; see *ready*.

        Raises:
            PoolBrokenError: If no worker can be started, or with ``ready="all"`` one cannot.
                The error has the crashes.
            PoolClosedError: If the pool is closed, or closes.
            RuntimeError: If it was started in another event loop, or by a script that a
                worker imports.
            OSError: If the file of *trace* cannot be written, or holds something else, or the
                socket cannot be made whose path *control* is.

        Cancellation:
            Closes the pool.

        Concurrency:
            Further calls wait for the first one.
        """
        await self._life.start(self._begin)

    async def _begin(self) -> EngineConfig:
        """Return what the engine is told, and begin what watches it before it starts."""
        # Few pools are watched, and the pool itself knows nothing of who does.
        if self._control is not None or self._config.trace is not None:
            from asyncpool._observe.control.pool_control import open_beside  # noqa: PLC0415

            unowned = _Unowned(self._config, self._life)
            await open_beside(unowned, self._config, self._control)
        return self._config

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return a bound pool, whose jobs have these options.

        Args: Time
            timeout: Seconds that each attempt may run.
            queue_timeout: Seconds that the job may wait for its first attempt.
            deadline: When the job must be done, on the event loop's clock
                (``loop.time() + seconds``); no attempt begins or goes on after that.
            heartbeat_timeout: Seconds that an attempt may go without a heartbeat
                (:func:`asyncpool.heartbeat`), from its begin on.  Then it counts as hung, and
                its worker is killed.  The job has another attempt if *max_attempts* and
                *retry_on* (``"hung"``) allow that, or fails with :exc:`WorkerHungError`.

        Args: Cancellation
            on_cancel: What becomes of a running job that is cancelled.  ``"interrupt"``
                (the default) raises :exc:`JobCancelled` in it, and its worker is killed if it has
                not ended after *cancel_grace*; ``"kill"`` kills the worker at once;
                ``"wait"`` lets it run to its end and drops its outcome.
            cancel_grace: Seconds that an interrupted job has to end; 2 by default.

        Args: Retry
            max_attempts: How often a worker may start the job; 1 by default.  More only
                for jobs that may safely run twice.
            retry_on: After what there is another attempt: kinds of crash, as members of
                :class:`asyncpool.enums.CrashKind` or as strings, and types of exceptions that
                the function raises.  ``"crash"`` and ``"hung"`` by default; an out-of-memory
                kill would most likely happen again.  :exc:`JobTimeoutError` stands for its
                *timeout*.

        Args: Retirement
            retire_on: Types of exceptions, or their names (``"shop.DeviceError"``), after which the
                worker cannot be trusted any more.  If the job raises one of them, its caller gets
                it as always, and the worker retires as after :func:`asyncpool.retire_worker`: it
                runs no other job, those that it had received go to other workers, and the pool
                starts another worker at once.  That holds for each attempt, each item of a map and
                each worker of a broadcast; it ends a session.  Subclasses count, as in an
                ``except`` clause.  Errors of the pool itself, such as :exc:`JobTimeoutError`, do
                not count; a job that is interrupted raises :exc:`JobCancelled`.  None by default.

        Args: Placement
            priority: Jobs with a lower number leave the queue first, and jobs with equal
                numbers in the order of their calls.  But at least one of every 64 jobs that leave
                the queue is the job that has waited longest.  0 by default.
            key: Ties the job to a worker.  Jobs with equal keys go to the same worker as long
                as it lives, and then to the worker that replaces it.  Different keys are spread
                over all workers.  A job with a key waits for its worker even while others are
                idle.  When the number of workers changes, only the keys move that have to.  The
                key is any hashable value, such as a str, an int or a tuple of these, but no
                object that equals nothing but itself.  ``None`` for no key.
            lease: A pair, a :class:`LeaseKeeper` and a lease of it.  The keeper keeps the
                lease as long as the job is queued or running, and the job is cancelled if
                the lease is lost.  A job that is cancelled and still runs has its lease
                until it has ended, or its worker is dead.  Only one job at a time has a
                lease: for another one, ``submit`` raises :exc:`ValueError`.

        Args: Data only
            codec: As that of the pool, which must have one.

        Args: Streams
            prefetch: How many items of a stream may wait for its caller; 16 by default.

        ``None`` stands for no limit.  A job whose time is over fails with
        :exc:`JobTimeoutError`.  A running job is made to end as if it were cancelled (but
        ``"wait"`` counts as ``"interrupt"``), and fails when it has ended.

        Raises:
            ValueError: If a value is out of range or a kind unknown.
            TypeError: If a value is of the wrong type, *key* is not hashable or equals nothing
                but itself, or an option is unknown.
        """
        return BoundPool(self, changed(self._options, changes))

    async def close(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the jobs, not the wait
        finish: Literal["all", "running", "none"] = "all",
    ) -> CloseSummary:
        """Take no more jobs, finish the jobs that *finish* names, and end every worker.

        A pool that finishes ``"all"`` jobs works on as an open pool does: it grows,
        replaces workers, retries jobs and ends jobs whose time is over.  It also finishes maps
        that have begun, with the items that they have not drawn yet, and streams and broadcasts.
        Every 10 s a record of the logger ``asyncpool`` says what the pool waits for.

        Then the pool asks the workers to stop, sends them SIGTERM, and then SIGKILL to their whole
        process groups.  When *timeout* is over, the pool kills the workers that are left, and
        their jobs fail with :exc:`PoolClosedError`.

        Args:
            timeout: Seconds until then; ``None`` for no limit.
            finish: Which jobs to finish: ``"all"``, only the ``"running"`` ones (queued jobs
                fail at once), or ``"none"``.

        Returns:
            How many jobs finished and failed meanwhile, and how many workers the pool had to
            kill by SIGKILL.

        Raises:
            ValueError: If an argument is out of range.
            TypeError: If *timeout* is no number.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the close goes on without the caller.

        Concurrency:
            Any number of tasks may call it, and all get the same result.  The strictest
            *finish* and the earliest end count.
        """
        checks.one_of(tuple(_FINISH))("finish", finish)
        checks.TIMEOUT("timeout", timeout)
        return await self._life.close(_FINISH[finish], timeout)

    async def __aenter__(self) -> Self:
        """Start the pool, see :meth:`start`."""
        await self.start()
        return self

    async def __aexit__(
        self, _: object, error: BaseException | None, __: object
    ) -> None:
        """Close the pool: finish all jobs, or none if an exception leaves the context.

        The jobs have the pool's *close_timeout*.  If an exception or a cancellation leaves, all
        jobs fail with :exc:`asyncpool.errors.PoolClosedError`.  Running jobs end as if they were
        cancelled: they may clean up for their *cancel_grace*.

        Raises:
            RuntimeError: If the pool was started in another event loop; it goes on.

        Cancellation:
            Kills the workers that are left, and returns when they have ended.
        """
        await self._life.exit_context(
            error, partial(self.close, timeout=self._config.close_timeout)
        )

    def __del__(self) -> None:
        life: PoolLife | None = getattr(self, "_life", None)
        if life is not None:  # or an argument was refused
            life.dropped(self)

    def __repr__(self) -> str:
        s = self.stats()
        return (
            f"<Pool {self.name} {s.state}: {s.idle + s.busy}/{s.workers} workers, "
            f"{s.idle} idle, {s.busy} busy, {s.queued} waiting>"
        )

    @property
    def _is_started(self) -> bool:
        return self._life.engine is not None
