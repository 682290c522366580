"""The ways to have functions called that pools and bound pools have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from asyncpool._api.map_caller import MapCaller
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.base.arguments import not_callable, not_picklable
from asyncpool._runtime.job.job import Job
from asyncpool.session import WorkerSession
from asyncpool.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")


class Caller(MapCaller):
    """What calls functions: once, for many items, for what they yield, in every worker."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

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
        if not callable(fn):
            raise not_callable("stream", fn)
        options = replace(self._options, via="stream")
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
        self,
        *,
        timeout: float | None = None,
        fresh: bool = True,
    ) -> WorkerSession:
        """Return a session: ``async with pool.worker() as worker`` has a worker to itself.

        Entering the context waits for an idle worker: first come, first served, and before
        the jobs of the queue.  Until the context is left, that worker runs only the calls of the
        session (and broadcasts), so the calls may keep state between them.
        Rolls, resizes, :meth:`Pool.retire` and limits of workers, exact ones too, wait for the
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
        return WorkerSession(
            self._running_supervisor,
            self._options,
            timeout=timeout,
            fresh=fresh,
        )
