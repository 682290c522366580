"""The ways to have functions called that a pool and its views have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from asyncpool._api.map_caller import MapCaller
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._runtime.base.arguments import not_callable
from asyncpool._runtime.job.job import Job
from asyncpool.session import WorkerSession
from asyncpool.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")


class Caller(MapCaller):
    """What calls functions: once, for many items, for what they yield, in every worker."""

    __slots__ = ()

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
        returns.  Jobs begin in the order of the calls, but for those whose large
        arguments are still being pickled.

        Args:
            fn: Any callable.  One that can be imported travels by name, also from a
                script with an ``if __name__ == "__main__":`` guard; lambdas, closures
                and what else is defined in ``__main__`` travel by value.  If it is
                an ``async def`` function, the worker awaits what it returns, in an event
                loop that it keeps.
            *args: Its arguments.  They are pickled before this returns, unless they
                are large: what is then changed before its last attempt has begun may
                reach it.
            **kwargs: Its keyword arguments.

        Returns:
            A :class:`asyncpool.Job`.  Awaiting it raises what *fn* raised, with the
            worker's traceback as its cause; :exc:`JobNotPicklableError` if
            something cannot cross; :exc:`JobRaisedError` around ``SystemExit`` and
            the like; :exc:`WorkerCrashedError` if the worker died of it, or was found hung;
            :exc:`JobTimeoutError` if its time is over;
            :exc:`PoolClosedError` or :exc:`PoolBrokenError` if the pool ended first.

        Raises:
            PoolClosedError: If the pool is closed or was never started.
            PoolBrokenError: If no worker can be kept alive.
            PoolFullError: If *max_queued* jobs are waiting.
            RuntimeError: If called outside the pool's event loop.
            ValueError: If the job is to have a lease that another one still has.

        Cancellation:
            Cancelling the job, or the task that awaits it, takes a queued job out
            of the queue at no cost.  In a running one :exc:`JobCancelled` is raised;
            see *on_cancel* in :meth:`Pool.options`.
        """
        return self._submit(fn, args, kwargs, self._options)

    @overload
    def stream(
        self,
        fn: Callable[P, Iterable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Stream[R]: ...

    @overload
    def stream(
        self,
        fn: Callable[P, AsyncIterable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Stream[R]: ...

    def stream(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Stream[Any]:
        """Run a generator function in a worker; return its items, for ``async for``.

        They come as they are made.  The worker makes them ahead, but no more than the
        option *buffer* says; then it waits, so that who takes them slowly needs no memory
        for them.  It does nothing else until the generator has ended: streams that are
        never taken to their end hold up a worker each.

        The stream is one job with the options of :meth:`Pool.options`: *timeout* is for all
        of it, each item counts as a heartbeat, and there is another attempt only as long as
        none of the items was taken.

        Args:
            fn: A generator function, an async one, or whatever returns an iterator.
            *args: Its arguments, see :meth:`Pool.submit`.
            **kwargs: Its keyword arguments.

        Returns:
            A :class:`asyncpool.Stream`.  Iterating over it raises what submitting and
            awaiting a job would.

        Raises:
            TypeError: If *fn* is not callable.
            PoolClosedError: If the pool was never started.

        Cancellation:
            Closes the generator: it gets ``GeneratorExit``.  So does leaving the loop.
        """
        if not callable(fn):
            raise not_callable("stream", fn)
        options = replace(self._options, form="stream")
        return Stream(
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
        """Run ``fn(*args, **kwargs)`` once in every worker, those to come included.

        In a worker that is there it runs between two jobs: after what the worker has in
        flight, before anything else.  A worker that is started later runs it after the
        initializer, before it is ready; a broadcast that fails there is a failed start.  In
        each, broadcasts run in their order, but *of the same function only the last one is
        remembered*: the same by module, name and line, whatever the arguments.

        Args:
            fn: Any callable, as in :meth:`submit`.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What it has returned in each worker, by slot, when all have run it that were up
            or starting.

        Raises:
            BroadcastError: If it has failed in some of them, by raising, or because the
                worker died of it, or its time was over; it has the results of the others.
                It is not remembered then, and an earlier one of the same function still is.
            JobNotPicklableError: If the call cannot be pickled.
            ValueError: If what is remembered would have more than 64 MiB when pickled; or
                in a view with a *key* or a *lease*.
            PoolClosedError: If the pool is closed, or is before all have run it.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Takes it back where it has not begun, interrupts it where it has, and it is not
            remembered; what it has done elsewhere is done.

        Concurrency:
            Any number of broadcasts may be under way; all workers run them in the same
            order, that of the calls as a rule: large arguments take a while to pickle.
        """
        return await self._broadcast(fn, args, kwargs, self._options)

    def worker(
        self,
        *,
        timeout: float | None = None,
        fresh: bool = True,
        on_restart: Callable[[], Any] | None = None,
    ) -> WorkerSession:
        """Return a worker to oneself, for ``async with pool.worker() as worker``.

        Entering the context waits for an idle worker: first come, first served, and before
        the jobs of the queue.  Until the context is left that worker runs nothing but what
        is submitted to it (and broadcasts), so that its calls may keep state between them.
        Rolls, resizes, :meth:`Pool.retire` and limits of workers, exact ones too, wait for the
        end of the session, and so does a pool that closes.  *Jobs of the pool wait while all
        workers are somebody's own*, and a task that asks for a second worker while it has one
        may wait for ever.

        Args:
            timeout: Seconds that it may take until a worker is free; ``None`` for any time.
            fresh: Whether the worker ends with the session, and a new one takes its place,
                so that nobody finds what the session has left in it.  ``False`` gives it
                back as it is, which saves a start.
            on_restart: A function without arguments (see :func:`functools.partial`), sync or
                async.  If the worker dies the session goes on in a new one, when this has
                been called there and has rebuilt the state.  The call that was running fails
                all the same.  If this raises, or the worker dies while it runs, the session is
                over.
                ``None``: the session is over when its worker dies.

        Returns:
            A :class:`WorkerSession`, whose calls have the options of :meth:`Pool.options`.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If *timeout* is negative, or in a view with *max_attempts*,
                *priority*, a *key* or a *lease*.
            TimeoutError: When the context is entered, if no worker was free in time.
            PoolFullError: Then, if *max_queued* jobs and others are waiting.
            PoolClosedError: Then, if the pool is closed, was never started, or closes
                before a worker is free, without finishing all.
            PoolBrokenError: Then, if no worker can be kept alive.
            RuntimeError: Then, outside the pool's event loop.

        Cancellation:
            Of the wait: safe.  Whoever has just got a worker gives it to the next one.
            Inside the context: cancels the calls of the session.
        """
        return WorkerSession(
            self._running_supervisor,
            self._options,
            timeout=timeout,
            fresh=fresh,
            on_restart=on_restart,
        )
