"""What a job can find out about itself."""

from __future__ import annotations

from contextvars import ContextVar

from asyncpool._core.records import Record

__all__ = ["CurrentJob", "current_job"]


class CurrentJob(Record):
    """The job that is running here.

    Attributes:
        id: Its number in the pool.
        attempt: Which attempt this is, counting from 1.
    """

    id: int
    attempt: int


# The job's number and attempt: most jobs never ask, so no object is made of them.
running: ContextVar[tuple[int, int] | None] = ContextVar("asyncpool_job", default=None)


def current_job() -> CurrentJob:
    """Return the job that this code runs in.

    Raises:
        RuntimeError: If it does not run in a job of a pool.
    """
    job = running.get()
    if job is None:
        raise RuntimeError("current_job() was called outside a job of a pool")
    return CurrentJob(*job)
