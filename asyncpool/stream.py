"""What :meth:`asyncpool.Pool.stream` returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from asyncpool._core.frames import Frame
from asyncpool._runtime.jobs import Job, StreamJob
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

    Iterate over it with ``async for``, once; nothing is submitted before that.  At the end
    of the items their job's error is raised, if it has one.

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
        """The job that yields the items; ``None`` before the first one is asked for.

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
    loader: Loader, submit: Callable[[], Job[Any]], jobs: list[StreamJob]
) -> AsyncGenerator[Any, None]:
    job = cast("StreamJob", submit())
    jobs.append(job)
    try:
        while (frame := await job.take()) is not None:
            yield await loader.load(job, frame)
            del frame
        job.result()
    except JobNotPicklableError as error:
        if not error.job_id:
            error.job_id, error.attempt = job.id, job.attempt
        raise
    finally:
        job.cancel()
        _ = job.cancelled() or job.exception()  # heard, if not raised here
