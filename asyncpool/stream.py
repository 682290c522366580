"""What :meth:`asyncpool.Pool.stream` returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from asyncpool._engine.iteration import Demand, Iteration
from asyncpool._engine.job import Job, StreamJob, attribute_to
from asyncpool._wire.frames import Frame
from asyncpool.errors import JobNotPicklableError

__all__ = ["Stream"]

T = TypeVar("T")


class Stream(Iteration[T]):
    """The items that a generator yields in a worker; :meth:`asyncpool.Pool.stream` makes it.

    Iterate over it with ``async for``, once.  The job is submitted then, or when :meth:`started`
    is awaited.  If the job fails, its error is raised behind the last item.

    You may leave the loop early: that ends the stream, and closes the generator soon.  To close it
    at a certain point, call :meth:`aclose`, or use ``async with contextlib.aclosing(...)``.  An
    iterator that you hold yourself, from ``aiter()``, ends the stream when it is
    garbage-collected.

    To close the generator, ``GeneratorExit`` is raised in it, at its ``yield`` or wherever it
    computes.  If it has not ended after its ``cancel_grace``, the pool kills its worker; nobody
    waits for that.

    Raises:
        RuntimeError: If it is used outside the pool's event loop.

    Cancellation:
        Of the task that iterates: closes the generator.
    """

    _once = "a stream can be iterated over only once"

    def __init__(self, engine: Any, submit: Callable[[], Any]) -> None:
        self._submit = submit
        self._jobs: list[StreamJob] = []
        make = partial(_items, engine.load, submit, self._jobs)
        super().__init__(engine.check_loop, make)

    @property
    def job(self) -> Job[Any] | None:
        """The job that yields the items; ``None`` before it is submitted.

        It tells the attempt, the worker and the progress.  Its result is what the generator
        returns.
        """
        return self._jobs[0] if self._jobs else None

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
        self._check_loop()
        if self._jobs:
            await self._jobs[0].started()
            return
        if self._begun:
            raise RuntimeError("started() is for before the iteration")
        # Not by the generator, which would have ended if the job is refused.
        self._jobs.append(self._submit())
        await anext(self)


# This generator does not know the stream: it must end when the stream is dropped.


async def _items(
    load: Callable[[StreamJob, Frame], Awaitable[Any]],
    submit: Callable[[], Any],
    jobs: list[StreamJob],
    demand: Demand,
) -> AsyncGenerator[Any, None]:
    """Yield the items; ``None`` before them, when the first is there, if the job is submitted."""
    announced = bool(jobs)
    if not announced:
        jobs.append(submit())
    [job] = jobs
    with demand:
        try:
            if announced:
                await job.started()
                yield demand.meet(None)
            while (frame := await job.take()) is not None:
                yield demand.meet(await load(job, frame))
                del frame
            job.result()
        except JobNotPicklableError as error:
            attribute_to(error, job)
            raise
        finally:
            job.cancel()
            _ = job.cancelled() or job.exception()  # retrieved, even if not raised here
