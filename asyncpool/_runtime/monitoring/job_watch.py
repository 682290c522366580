"""What is told of jobs to those who listen to them, or trace them; nothing is done if nobody does.

The pool does not hear when a job begins in its worker.  But a worker begins its next job
when it has ended the one before, and that it tells; so the begin of a job is known as soon
as anything else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any, NamedTuple

from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.job.job import Job
from asyncpool.enums import JobOutcome
from asyncpool.events import JobEnded, JobQueued, JobStarted


class _Attempt(NamedTuple):
    """The last attempt at a job: where and when it began, and how long it ran if it is over."""

    slot: int
    began: float
    run: float | None


class JobWatch:
    """Publishes the events of jobs.

    Its methods are called only while ``hub.watched`` is true: the caller looks, since a
    call costs as much as a tenth of a short job.

    Args:
        hub: Where the events go.

    Attributes:
        hub: As above.
    """

    def __init__(self, hub: PoolHub) -> None:
        self.hub = hub
        self._attempts: dict[int, _Attempt] = {}
        # Of jobs that end while nobody listens, nobody would forget them.
        hub.on_unwatched = self._attempts.clear

    def queued(self, job: Job[Any]) -> None:
        """Tell that a job waits for its first attempt."""
        if self.hub.tracer is not None:
            self.hub.tracer.queued(job)
        if self.hub.listened:
            self._queued(job)

    def again(self, job: Job[Any], error: BaseException) -> None:
        """Tell that an attempt has failed with *error*, and that the job waits for the next."""
        if job.id in self.hub.traced and self.hub.tracer is not None:
            self.hub.tracer.again(job, error)
        if self.hub.listened:
            self._queued(job)

    def sending(self, job: Job[Any], slot: int) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        if job.id in self.hub.traced and self.hub.tracer is not None:
            self.hub.tracer.sending(job, slot)

    def _queued(self, job: Job[Any]) -> None:
        self._attempts.pop(job.id, None)
        if not self.hub.followed:
            return
        self.hub.publish_job(
            JobQueued(
                job_id=job.id,
                function=job._title,
                via=job._options.via,
                attempts=job.attempt,
                at=job._queued_at,
            )
        )

    def running(self, jobs: Iterable[Job[Any]], slot: int, at: float) -> None:
        """Tell which of *jobs*, those that run in *slot*, have begun since the last look."""
        for job in jobs:
            if job.id not in self._attempts:
                self._began(job, slot, at)

    def ran(self, job: Job[Any], slot: int, run: float, at: float) -> None:
        """Take note of an attempt that was over at *at*, after *run* seconds."""
        if job.id in self.hub.traced and self.hub.tracer is not None:
            self.hub.tracer.ran(job, run)
        if not self.hub.listened:
            return
        known = self._attempts.get(job.id)
        began = at - run
        if known is None:
            self._began(job, slot, began)
        self._attempts[job.id] = _Attempt(slot, began, run)

    def given_back(self, job: Job[Any]) -> None:
        """Take note that a job has not begun after all."""
        if job.id in self.hub.traced and self.hub.tracer is not None:
            self.hub.tracer.given_back(job)
        if job.id in self._attempts:
            self._queued(job)

    def ended(
        self, job: Job[Any], outcome: JobOutcome, error: BaseException | None = None
    ) -> None:
        """Tell how a job has ended, and with which *error* if there is one."""
        if job.id in self.hub.traced and self.hub.tracer is not None:
            self.hub.tracer.ended(job, outcome, error)
        if self.hub.listened:
            self._ended(job, outcome)

    def _ended(self, job: Job[Any], outcome: JobOutcome) -> None:
        now, slot, run = monotonic(), None, 0.0
        began = now
        attempt = self._attempts.pop(job.id, None)
        if attempt is not None:
            slot, began = attempt.slot, attempt.began
            run = now - began if attempt.run is None else attempt.run
        self.hub.publish_end(
            JobEnded(
                job_id=job.id,
                function=job._title,
                outcome=outcome,
                attempts=job.attempt,
                slot=slot,
                wait=max(0.0, began - job._queued_at),
                run=run,
                at=now,
            )
        )

    def _began(self, job: Job[Any], slot: int, at: float) -> None:
        self._attempts[job.id] = _Attempt(slot, at, None)
        if not self.hub.followed:
            return
        self.hub.publish_job(
            JobStarted(
                job_id=job.id,
                function=job._title,
                attempt=job.attempt,
                slot=slot,
                at=at,
            )
        )
