"""What is told of jobs to those who listen to them, or trace them; nothing is done if nobody does.

The pool does not hear when a job begins in its worker.  But a worker begins its next job
when it has ended the one before, and that it tells; so the begin of a job is known as soon
as anything else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from asyncpool._core.slots.slots import Slot
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.job_tracer import Attempt
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.monitoring.job_events import job_ended, job_queued, job_started
from asyncpool.enums import JobOutcome

# What Attempt(...) does, in half of the time: there are two of these for each job.
_attempt = partial(tuple.__new__, Attempt)  # pyright: ignore[reportUnknownMemberType] - of a bare tuple


class JobWatch:
    """Publishes the events of jobs, and tells tracers.

    A caller on the way of every job calls a method only while ``hub.watched`` or
    ``hub.telling`` is true, since a call costs as much as a tenth of a short job.  The
    methods for failures look themselves.  Listeners and tracers hear of what goes well with
    a job only if somebody listens, or if the job is traced.

    Args:
        hub: Where the events go, and which knows the tracers.

    Attributes:
        hub: As above.
    """

    def __init__(self, hub: PoolHub) -> None:
        self.hub = hub
        self._attempts: dict[int, Attempt] = {}
        # Of jobs that end while nobody listens, nobody would forget them.
        hub.set_watch(self._queued, self._attempts.clear)

    def again(self, job: Job[Any], error: BaseException) -> None:
        """Tell that an attempt has failed with *error*, and that the job waits for the next."""
        attempt = self._attempts.pop(job.id, None)
        for tracer in self.hub.tracers:
            tracer.again(job, error, attempt)
        if self.hub.followed:
            self._queued(job)

    def sending(self, job: Job[Any], slot: int) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        for tracer in self.hub.tracers:
            tracer.sending(job, slot)

    def running(self, jobs: Iterable[Job[Any]], slot: int, at: float) -> None:
        """Tell which of *jobs*, those that run in *slot*, have begun since the last look."""
        attempts = self._attempts
        for job in jobs:
            if job.id not in attempts:
                attempts[job.id] = _attempt((slot, job._queued_at, at, None))
                if self.hub.followed:
                    self._began(job, slot, at)

    def attempted(self, job: Job[Any], attempt: Attempt) -> None:
        """Take note of an attempt that has ended elsewhere."""
        known = self._attempts.get(job.id)
        self._attempts[job.id] = attempt
        if known is None and self.hub.followed:
            self._began(job, attempt.slot, attempt.began)

    def ran(self, job: Job[Any], slot: int, frame: Frame, at: float) -> None:
        """Take note of an attempt whose outcome, *frame*, came at *at* from *slot*."""
        hub, number, run = self.hub, job.id, frame.number / 1e6
        if hub.followed and number not in self._attempts:
            self._began(job, slot, at - run)
        self._attempts[number] = _attempt((slot, job._queued_at, at - run, run))

    def failed(self, job: Job[Any], slot: int, frame: Frame, at: float) -> None:
        """Take note of an attempt whose outcome is a failure, if anybody traces jobs."""
        if self.hub.tracers:
            self.ran(job, slot, frame, at)

    def lost(self, job: Job[Any], slot: Slot, since: float) -> None:
        """Take note of an attempt that comes to no outcome, if anybody traces jobs.

        Args:
            job: The job.
            slot: The slot of its worker.
            since: When the worker has ended the job before, or got the first one.
        """
        if self.hub.tracers:
            # In one lane it has begun when the job before it has ended.
            began = job._sent_at if slot.in_flight.concurrency > 1 else since
            attempt = Attempt(slot.index, job._queued_at, began, None)
            self._attempts.setdefault(job.id, attempt)

    def given_back(self, job: Job[Any]) -> None:
        """Take note that a job has not begun after all."""
        if job.id in self.hub.traced:
            for tracer in self.hub.tracers:
                tracer.given_back(job)
        known = self._attempts.pop(job.id, None)
        if known is not None and self.hub.followed:
            self._queued(job)

    def ended(
        self, job: Job[Any], outcome: JobOutcome, error: BaseException | None = None
    ) -> None:
        """Tell how a job has ended, and with which *error* if there is one."""
        hub, attempt = self.hub, self._attempts.pop(job.id, None)
        if error is not None or job.id in hub.traced:
            for tracer in hub.tracers:
                tracer.ended(job, outcome, error, attempt)
            hub.forget(job.id)
        if hub.listened:
            hub.publish_end(job_ended(job, outcome, attempt))

    def _queued(self, job: Job[Any]) -> None:
        """Tell that a job waits for an attempt."""
        self.hub.publish_job(job_queued(job, job._queued_at))

    def _began(self, job: Job[Any], slot: int, at: float) -> None:
        self.hub.publish_job(job_started(job, slot, at))
