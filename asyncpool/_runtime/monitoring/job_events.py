"""Make the events of jobs, for those who listen to them and for traces."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

from asyncpool._runtime.base.job_tracer import Attempt
from asyncpool._runtime.job.job import Job
from asyncpool.enums import JobOutcome
from asyncpool.events import JobEnded, JobQueued, JobStarted

# What JobQueued(...) and so on do, in half of the time.
_job_queued = partial(tuple.__new__, JobQueued)  # pyright: ignore[reportUnknownMemberType] - of a bare tuple
_job_started = partial(tuple.__new__, JobStarted)  # pyright: ignore[reportUnknownMemberType]
_job_ended = partial(tuple.__new__, JobEnded)  # pyright: ignore[reportUnknownMemberType]


def job_queued(job: Job[Any], at: float) -> JobQueued:
    """Return that a job waits for an attempt since *at*."""
    return _job_queued((job.id, job._title, job._options.via, job.attempt, at))


def job_started(job: Job[Any], slot: int, at: float) -> JobStarted:
    """Return that an attempt has begun in *slot* at *at*."""
    return _job_started((job.id, job._title, job.attempt, slot, at))


def job_ended(job: Job[Any], outcome: JobOutcome, attempt: Attempt | None) -> JobEnded:
    """Return that a job has ended just now; *attempt* is ``None`` if its last has not begun."""
    now, slot, run = monotonic(), None, 0.0
    wait = now - job._queued_at
    if attempt is not None:
        slot, queued, began, known = attempt
        run = now - began if known is None else known
        wait = began - queued
    if wait < 0.0:  # noqa: PLR1730 - max() takes 100 ns
        wait = 0.0
    number, attempts = job.id, job.attempt
    return _job_ended((number, job._title, outcome, attempts, slot, wait, run, now))
