"""What :meth:`asyncpool.Pool.stream` returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.job.job import Job, StreamJob, claim
from asyncpool.errors import JobNotPicklableError

__all__ = ["Loader", "Stream"]

T = TypeVar("T")


class Loader(Protocol):
    """What a stream needs of its pool."""

    def load(self, job: Job[Any], frame: Frame, /) -> Awaitable[Any]:
        """Return the item in *frame*."""
        ...

    def check_home(self) -> None:
        """Check that this is the pool's event loop."""


class Stream(Generic[T]):
    """The items that a generator yields in a worker; :meth:`asyncpool.Pool.stream` makes it.

    Iterate over it with ``async for``, once; nothing is submitted before that, or before
    :meth:`started` is awaited.  At the end of the items their job's error is raised, if it has
    one.

    Whoever leaves the loop early need do nothing: the generator is closed when the
    iteration is dropped.  To have that done at a certain point, close it
    (:meth:`aclose`, or ``async with contextlib.aclosing(...)``).

    Raises:
        RuntimeError: If it is used outside the pool's event loop.

    Cancellation:
        Of the task that iterates: closes the generator.
    """

    def __init__(self, loader: Loader, submit: Callable[[], Job[Any]]) -> None:
        self._loader = loader
        self._submit = submit
        self._iteration: AsyncGenerator[T, None] | None = None
        self._looped = False
        self._jobs: list[StreamJob] = []

    @property
    def job(self) -> Job[Any] | None:
        """The job that yields the items; ``None`` before it is submitted.

        It tells its attempt, its worker and its progress, and its result is what the
        generator returns.
        """
        return self._jobs[0] if self._jobs else None

    def __aiter__(self) -> AsyncIterator[T]:
        self._loader.check_home()
        if self._looped:
            raise RuntimeError("a stream can be iterated over only once")
        self._looped = True
        return self._begin()

    def __anext__(self) -> Awaitable[T]:
        """Return an awaitable of the next item."""
        self._loader.check_home()
        return self._begin().__anext__()

    async def started(self) -> None:
        """Submit the job, and return when its first item is there, or it has ended without.

        Then what is refused, is too late, or fails before its first item is known before
        anything is done with an item: before the status of a response is sent, say.  The
        item is taken by the iteration, later.

        Raises:
            PoolFullError, PoolClosedError, PoolBrokenError: If the job is refused.  Nothing
                was submitted then, and this may be called again.
            BaseException: The error that the job has ended with before any item.
            RuntimeError: If an iterator was made, and was not asked for an item yet.

        Cancellation:
            Closes the generator.

        Concurrency:
            Any number of tasks may wait; the first one is the one whose cancellation counts.
        """
        if self._jobs:
            await self._jobs[0].started()
            return
        if self._iteration is not None:
            raise RuntimeError("started() is for before the iteration")
        items = _items(self._loader, self._submit, self._jobs, announced=True)
        self._iteration = items
        try:
            await anext(items)
        except BaseException:
            if not self._jobs:
                self._iteration = None
            raise

    async def aclose(self) -> None:
        """Close the generator, and take no more.

        Where it waits at a ``yield``, or computes, ``GeneratorExit`` is raised.  If it has
        not ended after its ``cancel_grace``, its worker is killed; nobody waits for that.

        Cancellation:
            Safe: what is left is done when the iteration is dropped.
        """
        self._loader.check_home()
        if self._iteration is not None:
            await self._iteration.aclose()

    def _begin(self) -> AsyncGenerator[T, None]:
        """Return the iteration, which is begun if there is none."""
        if self._iteration is None:
            self._iteration = _items(self._loader, self._submit, self._jobs)
        return self._iteration


# It does not know the stream: it must end when that is dropped.


async def _items(
    loader: Loader,
    submit: Callable[[], Job[Any]],
    jobs: list[StreamJob],
    *,
    announced: bool = False,
) -> AsyncGenerator[Any, None]:
    """Yield the items; and before them, if that is to be *announced*, ``None``."""
    job = cast("StreamJob", submit())
    jobs.append(job)
    try:
        if announced:
            await job.started()
            yield None
        while (frame := await job.take()) is not None:
            yield await loader.load(job, frame)
            del frame
        job.result()
    except JobNotPicklableError as error:
        claim(error, job)
        raise
    finally:
        job.cancel()
        _ = job.cancelled() or job.exception()  # heard, if not raised here
