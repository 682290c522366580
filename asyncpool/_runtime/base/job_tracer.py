"""What follows some of the jobs of a pool itself, not through events, such as for spans."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from asyncpool.enums import JobOutcome


class Attempt(NamedTuple):
    """An attempt at a job.

    Attributes:
        slot: The slot of its worker.
        queued: Since when the job had waited for it, by :func:`time.monotonic`.
        began: When it began, on the same clock.
        run: How many seconds its function ran; ``None`` if the worker has not said that.
    """

    slot: int
    queued: float
    began: float
    run: float | None


def waited_since(job: Any, attempt: Attempt | None) -> float:
    """Return since when a job has waited for *attempt*, or waits if that has not begun."""
    since: float = job._queued_at if attempt is None else attempt.queued
    return since


class JobTracer(Protocol):
    """Something that follows some of the jobs.

    It is called in the loop, for each new job, for each step of those that any tracer follows,
    and for each failure of the others, so that it can tell of these too.  It raises nothing.  If
    it begins to follow a job, it says so by :meth:`PoolHub.follow`.  A job is a
    :class:`asyncpool.Job`, which this room does not know.
    """

    def queued(self, job: Any, /) -> None:
        """Take note of a new job; it may set the trace context of the job."""
        ...

    def sending(self, job: Any, slot: int, /) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        ...

    def given_back(self, job: Any, /) -> None:
        """Take note that a worker has not begun a job, which waits again."""
        ...

    def again(self, job: Any, error: BaseException, attempt: Attempt | None, /) -> None:
        """Take note that an attempt has failed, and that the job waits for the next one.

        *attempt* is ``None`` if it had not begun.
        """
        ...

    def ended(
        self,
        job: Any,
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Take note of the end of a job; *error* is what its caller gets."""
        ...
