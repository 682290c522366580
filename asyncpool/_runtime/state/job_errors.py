"""The errors that the pool gives to a job, and what they tell of its worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncpool._core.policies.job_options import begun_attempts
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, Delivery
from asyncpool.errors import (
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
    WorkerHungError,
    WorkerOutOfMemoryError,
    WorkerStartError,
    job_text,
)
from asyncpool.events import Crash

if TYPE_CHECKING:  # the state holds the registry, which makes errors
    from asyncpool._runtime.state.pool_state import PoolState

_ERRORS: dict[CrashKind, type[WorkerCrashedError]] = {
    CrashKind.CRASH: WorkerCrashedError,
    CrashKind.PROTOCOL: WorkerCrashedError,
    CrashKind.FAILED_START: WorkerStartError,
    CrashKind.OUT_OF_MEMORY: WorkerOutOfMemoryError,
    CrashKind.HUNG: WorkerHungError,
}


def stacks_of(job: Job[object], handle: WorkerHandle) -> str:
    """Return the stack of a job that its worker has written, and erase it."""
    parts = (handle.page.stack(job.id, job.attempt), handle.page.read_stacks())
    return "\n".join(part for part in parts if part)


def delivery_of(job: Job[object], handle: WorkerHandle) -> Delivery:
    """Return how far *job*, which was assigned to a worker, has got on its way."""
    if handle.page.begun(job.id, job.attempt):
        return Delivery.STARTED
    # A worker that has a part of the frame cannot begin the job.
    taken = job._frame_end <= handle.outbox.taken
    return Delivery.SENT if taken else Delivery.NEVER_SENT


def crash_error(job: Job[object], delivery: Delivery) -> WorkerCrashedError:
    """Return the error of a job whose worker has crashed."""
    if begun_attempts(attempts=job.attempt, times_returned=job._times_returned):
        delivery = Delivery.STARTED  # in an earlier attempt, if not in this one
    cls = _ERRORS[job._crashes[-1].kind]
    return cls(
        job_id=job.id,
        crashes=job._crashes,
        delivery=delivery,
        function=job._function.name,
    )


def timeout_error(job: Job[object], stack: str = "") -> JobTimeoutError:
    """Return the error of a job that has exceeded a time limit.

    Args:
        job: The job; it is noted there which limit it has exceeded.
        stack: What it did then, if it ran.
    """
    limit = job._exceeded
    assert limit is not None
    seconds = getattr(job._limits, limit)
    attempt = job.attempt if job._began is not None else 0
    return JobTimeoutError(
        job_id=job.id,
        attempt=attempt,
        limit=limit,
        seconds=seconds,
        stack=stack,
        function=job._function.name,
    )


def expire(job: Job[object], now: float) -> JobTimeoutError:
    """Note which of its limits a job has exceeded *now*, and return its error."""
    job._exceeded = job._limits.exceeded(now, running=job._began is not None)
    return timeout_error(job)


def closed_error(job: Job[object], handle: WorkerHandle | None) -> PoolClosedError:
    """Return the error of a job whose pool closes before the job is done.

    Args:
        job: The job.
        handle: The worker that has it, if one has.
    """
    delivery = Delivery.NEVER_SENT if handle is None else delivery_of(job, handle)
    earlier_attempts = job.attempt if handle is None else job.attempt - 1
    if earlier_attempts > 0:
        # It had begun before.  Or it has ended, and its outcome is being unpickled.
        delivery = Delivery.STARTED
    name = job._function.name
    return PoolClosedError(
        f"the pool was closed before {job_text(job.id, name)} was done",
        job_id=job.id,
        function=name,
        delivery=delivery,
    )


def broken_errors(state: PoolState) -> Callable[[Job[object] | None], PoolBrokenError]:
    """Return what makes the errors of a broken pool, for each of its jobs or for a caller.

    All of them tell what is known now.  The pool may have recovered before the last one is made.
    """
    return functools.partial(
        _broken_error,
        state.core.broken or "",
        tuple(state.crashes),
        state.core.lifecycle.retry_in(state.loop.time()),
    )


def _broken_error(
    reason: str,
    crashes: tuple[Crash, ...],
    retry_after: float | None,
    job: Job[object] | None,
) -> PoolBrokenError:
    error = PoolBrokenError(reason=reason, crashes=crashes, retry_after=retry_after)
    if job is not None and crashes[-1].kind is CrashKind.FAILED_START:
        error.__cause__ = WorkerStartError(
            job_id=job.id,
            crashes=crashes[-1:],
            delivery=Delivery.NEVER_SENT,
            function=job._function.name,
        )
    return error
