"""What :meth:`asyncpool.Pool.stream` returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from asyncpool._engine.engine import Engine
from asyncpool._engine.iteration import Demand, Iteration
from asyncpool._engine.job import Job, StreamJob, attribute_to
from asyncpool.errors import JobNotPicklableError

__all__ = ["Stream"]

T = TypeVar("T")


class Stream(Generic[T]):
    """The items that a generator yields in a worker; :meth:`asyncpool.Pool.stream` makes it.

    Iterate over it with ``async for``, once.  The job is submitted then, or when :meth:`started`
    is awaited.  If the job fails, its error is raised behind the last item.

    You may leave the loop early: that ends the stream, and closes the generator soon.  To close it
    at a certain point, call :meth:`aclose`, or use ``async with contextlib.aclosing(...)``.  An
    iterator that you hold yourself, from ``aiter()``, ends the stream when it is
    garbage-collected.

    Raises:
        RuntimeError: If it is used outside the pool's event loop.

    Cancellation:
        Of the task that iterates: closes the generator.
    """

    def __init__(self, supervisor: Any, submit: Callable[[], Job[Any]]) -> None:
        self._supervisor = supervisor
        self._submit = submit
        self._jobs: list[StreamJob] = []
        self._iteration: Iteration[T] = Iteration(
            supervisor.check_loop,
            partial(_items, supervisor, submit, self._jobs),
            "a stream can be iterated over only once",
        )

    @property
    def job(self) -> Job[Any] | None:
        """The job that yields the items; ``None`` before it is submitted.

        It tells the attempt, the worker and the progress.  Its result is what the generator
        returns.
        """
        return self._jobs[0] if self._jobs else None

    def __aiter__(self) -> AsyncIterator[T]:
        return self._iteration.take()

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item."""
        return self._iteration.anext()

    async def started(self) -> None:
        """Submit the job, and return when its first item is there, or it has ended without one.

        So you learn that the job was refused, was too late or has failed before you use an item:
        before you send the status of a response, say.  The iteration takes that item later.

        Raises:
            PoolFullError, PoolClosedError, PoolBrokenError: If the job is refused.  Nothing
                was submitted then, and this may be called again.
            BaseException: The error of the job, if it ended before any item.
            RuntimeError: If an iterator was made but has not been asked for an item yet.

        Cancellation:
            Closes the generator.

        Concurrency:
            Any number of tasks may wait.  Only the cancellation of the first one closes the
            generator.
        """
        self._supervisor.check_loop()
        if self._jobs:
            await self._jobs[0].started()
            return
        if self._iteration.begun:
            raise RuntimeError("started() is for before the iteration")
        make = partial(_items, self._supervisor, self._submit, self._jobs)
        items = self._iteration.begin(partial(make, announced=True))
        try:
            await anext(items)
        except BaseException:
            if not self._jobs:
                self._iteration.withdraw()
            raise

    async def aclose(self) -> None:
        """Close the generator, and take no more items.

        ``GeneratorExit`` is raised in the generator, at its ``yield`` or wherever it computes.  If
        it has not ended after its ``cancel_grace``, the pool kills its worker; this function does
        not wait for that.  A stream that has not begun never does.

        Raises:
            RuntimeError: Outside the pool's event loop, or while a task waits for the next
                item: cancel that task.

        Cancellation:
            Safe: the rest is done when the iteration is garbage-collected.
        """
        await self._iteration.aclose()


# This generator does not know the stream: it must end when the stream is dropped.


async def _items(
    supervisor: Engine,
    submit: Callable[[], Job[Any]],
    jobs: list[StreamJob],
    demand: Demand,
    *,
    announced: bool = False,
) -> AsyncGenerator[Any, None]:
    """Yield the items; if *announced*, yield ``None`` before them, when the first is there."""
    job = cast("StreamJob", submit())
    jobs.append(job)
    demand.begin()
    try:
        if announced:
            await job.started()
            yield demand.meet(None)
        while (frame := await job.take()) is not None:
            yield demand.meet(await supervisor.load(job, frame))
            del frame
        job.result()
    except asyncio.CancelledError:
        demand.cancelled()
        raise
    except JobNotPicklableError as error:
        attribute_to(error, job)
        raise
    finally:
        job.cancel()
        _ = job.cancelled() or job.exception()  # retrieved, even if not raised here
