"""The open jobs of a pool, how each of them ends, and the figures of its life.

Every end of a job goes through :class:`JobRegistry`, which removes the job in the same
step.  So each job ends once.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Any

from asyncpool._core.base.deadlines import Deadlines
from asyncpool._core.slots.slots import Slot
from asyncpool._core.wire.context import with_details
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.job.chunk_job import Chunk
from asyncpool._runtime.job.job import Job, claim
from asyncpool._runtime.job.leases import Leases
from asyncpool._runtime.job.outcomes import Failed, load_outcome
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool._runtime.monitoring.figures import PoolFigures, outcome_of_error
from asyncpool._runtime.monitoring.job_watch import JobWatch
from asyncpool._runtime.state.losses import Loss, judge, overdue
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, JobOutcome
from asyncpool.errors import (
    JobNotPicklableError,
    JobRaisedError,
    PoolClosedError,
    RemoteError,
)
from asyncpool.events import CloseSummary

# Errors that are made before it is known which job they are for; claim() fills that in.
_OF_JOBS = JobNotPicklableError | JobRaisedError | RemoteError


class JobRegistry:
    """The jobs that are open, by number, and the counters of all.

    Args:
        watch: What is told of them.

    Attributes:
        watch: As above.
        jobs: The jobs, in the order in which they came.
        figures: The other counters and histograms of the pool.
        submitted: How many jobs got a number.
        completed: How many jobs have returned or raised.
        failed: How many jobs the pool has failed.
        cancellations: How many jobs their callers have cancelled.
        deadlines: When the time of each job is over.
        timed: How many open jobs have time limits.
        leases: The holders of their leases.
        unheard: How many jobs failed with the end of the pool while nobody waited for them,
            by function.
    """

    def __init__(self, watch: JobWatch) -> None:
        self.watch = watch
        self._hub = watch.hub  # asked three times for each job: one look-up less
        self.jobs: dict[int, Job[Any]] = {}
        self.leases = Leases()
        self.deadlines = Deadlines()
        self.timed = 0
        self.unheard: Counter[str] = Counter()
        self.figures = PoolFigures()
        self.submitted = self.completed = self.failed = self.cancellations = 0
        self._at_close: tuple[int, int, int] | None = None

    def next_id(self) -> int:
        """Return the number of the next job, from 1."""
        self.submitted += 1
        return self.submitted

    def enter(self, job: Job[Any]) -> None:
        """Add a job to those that are open."""
        self.jobs[job.id] = job
        if job._limits.timed:
            self.timed += 1
        if self.leases.coming is not None:
            self.leases.enter(job)
        on_new = self._hub.on_new
        if on_new is not None:
            on_new(job)

    def count_unentered(self) -> None:
        """Count a job as failed that got a number, but was never entered."""
        self.failed += 1

    def refuse(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """End a job that was never entered."""
        claim(error, job)
        self.failed += 1
        self._count(job, JobOutcome.REFUSED, error)
        job.set_exception(error)

    def outcome_of(self, job: Job[Any], handle: WorkerHandle, frame: Frame) -> Any:
        """Return the outcome of a job, see :func:`load_outcome`; an error if it is too late.

        If the worker cannot have sent such an outcome, it is not trusted any more.
        """
        serializer = job._function.serializer
        if job._exceeded is None:
            result = load_outcome(serializer, frame)
            if type(result) is Failed:
                self.watch.failed(job, handle.slot, frame, handle.since)
                if result.distrust:
                    handle.distrust(result.distrust)
            return result
        self.watch.failed(job, handle.slot, frame, handle.since)
        if isinstance(job, Chunk):
            result = load_outcome(serializer, frame)
            if isinstance(result, Failed):  # the outcome cannot be read
                job.find_nothing()
            else:
                job.find_in_result(result)
        return overdue(job, handle)

    def settle(self, job: Job[Any], loaded: Any) -> bool:
        """End *job* with its outcome; or return true, if the job is to be tried again.

        Args:
            job: The job.
            loaded: What :func:`load_outcome` made of the outcome.
        """
        if job.done():  # cancelled or settled in this very turn
            self.cancelled(job)
            return False
        if type(loaded) is not Failed:
            self._leave(job)
            self.completed += 1
            job._function.figures.ok += 1
            hub = self._hub
            if hub.telling and (hub.listened or job.id in hub.traced):
                self.watch.ended(job, JobOutcome.OK)
            job.set_result(loaded)
            return False
        error = loaded.error
        if not loaded.may_retry:
            self._complete(job, error)
            return False
        raised = error.exception if isinstance(error, JobRaisedError) else error
        if job._attempt_policy.after_exception(raised, attempt=job.attempt):
            self.figures.retries += 1
            job._function.figures.retries += 1
            job._queued_at = monotonic()
            self._end_attempt(job)
            if isinstance(job, StreamJob):
                job.begin_again()
            if self._hub.watched:
                self.watch.again(job, error)
            return True
        self._complete(job, error)
        return False

    def losses(self, handle: WorkerHandle, slot: Slot, kind: CrashKind) -> list[Loss]:
        """Take the jobs that a dead worker had in flight off it; return what becomes of each."""
        jobs = [self.jobs[n] for n in slot.in_flight.jobs if n in self.jobs]
        losses = judge(jobs, handle, slot, kind)
        for loss in losses:
            self._take_off(loss, handle, slot)
        return losses

    def _take_off(self, loss: Loss, handle: WorkerHandle, slot: Slot) -> None:
        """Note that a job is with no worker any more, since its worker has died."""
        job = loss.job
        if loss.begun and isinstance(job, Chunk):
            has_begun = job.find_in_log(handle.page)
            if not has_begun and handle.broke_protocol:
                job.find_nothing()
        if loss.again and isinstance(job, StreamJob):
            job.begin_again()
        if loss.begun:
            self.watch.lost(job, slot, handle.since)
            self._await_attempt(job)
            return
        job._times_returned += loss.blamed
        job.attempt += loss.costs  # else a worker that dies so would get it for ever
        self.unassign(job)

    def lose_attempt(self, job: Job[Any]) -> None:
        """Note that an attempt of an open job is lost, and that it waits for the next one."""
        self._await_attempt(job)
        if isinstance(job, StreamJob):
            job.begin_again()

    def take_back(self, number: int) -> Job[Any] | None:
        """Note that a worker has given a job back that it had not begun, and return the job.

        It is ``None`` if its caller has given it up.
        """
        job = self.jobs.get(number)
        if job is None:
            self.leases.give_back(number)
        else:
            self.unassign(job)
        return job

    def unassign(self, job: Job[Any]) -> None:
        """Note that an open job has not begun and is with no worker any more."""
        job.attempt -= 1
        job.worker_pid = job._slot = None
        self._end_attempt(job)
        if self._hub.watched:
            self.watch.given_back(job)

    def fail(self, job: Job[Any], error: BaseException) -> None:
        """End *job* without an outcome."""
        if job.done():
            self.cancelled(job)
            return
        self._leave(job)
        self.failed += 1
        self._count(job, outcome_of_error(error), error)
        closed = isinstance(error, PoolClosedError)
        if closed and not job._awaited:
            self.unheard[job._title] += 1
        job.set_exception(error)
        if closed:
            job.exception()  # marks it as retrieved: one line in the log tells of all

    def fail_all(self, error: BaseException) -> None:
        """End every job that is still open."""
        for job in list(self.jobs.values()):
            self.fail(job, error)

    def cancelled(self, job: Job[Any]) -> bool:
        """Remove *job*, and return whether it was still open."""
        if job.id not in self.jobs:
            return False
        self._leave(job)
        self.cancellations += 1
        self._count(job, JobOutcome.CANCELLED)
        return True

    def mark_close(self, kills: int) -> None:
        """Begin to count what a close does; only the first call counts."""
        if self._at_close is None:
            self._at_close = (self.completed, self.failed, kills)

    def summary(self, kills: int) -> CloseSummary:
        """Return what has happened since :meth:`mark_close`."""
        completed, failed, kills_before = self._at_close or (0, 0, 0)
        return CloseSummary(
            finished=self.completed - completed,
            failed=self.failed - failed,
            killed=kills - kills_before,
        )

    def _await_attempt(self, job: Job[Any]) -> None:
        """Note that the worker of a job is gone, and that it waits from now on for another one."""
        job.worker_pid = job._slot = None
        job._queued_at = monotonic()
        self._end_attempt(job)

    def _end_attempt(self, job: Job[Any]) -> None:
        """Note that no worker runs the job any more."""
        if job._heartbeats is not None:
            job._context = with_details(job._context, job._heartbeats.details)
        if job._began is not None:
            job._began = job._exceeded = None
            deadline = job._limits.deadline
            if deadline is None:
                self.deadlines.discard(job.id)
            else:
                self.deadlines.set(job.id, deadline)

    def _complete(self, job: Job[Any], error: BaseException) -> None:
        if isinstance(error, _OF_JOBS):
            claim(error, job)
        self._leave(job)
        self.completed += 1
        over = job._exceeded is not None
        outcome = JobOutcome.TIMEOUT if over else JobOutcome.RAISED
        self._count(job, outcome, error)
        job.set_exception(error)

    def _count(
        self, job: Job[Any], outcome: JobOutcome, error: BaseException | None = None
    ) -> None:
        job._function.figures.ended(outcome)
        self.figures.timeouts += outcome is JobOutcome.TIMEOUT
        if self._hub.watched:
            self.watch.ended(job, outcome, error)

    def _leave(self, job: Job[Any]) -> None:
        del self.jobs[job.id]
        if job._limits.timed:
            self.timed -= 1
            self.deadlines.discard(job.id)
        if self.leases.open:
            self.leases.settle(job)
        job._slot = job.worker_pid = None
        job._payload = b""
