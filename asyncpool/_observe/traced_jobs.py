"""Which jobs of a pool its trace shows: all of them, or a part if they are very many.

What has failed is always shown, and so is what takes long: these jobs are followed from then on,
and what was before is told with the times that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asyncpool._core.base.rate_limit import RateLimit
from asyncpool._core.trace.trace_book import LONG, TraceBook
from asyncpool._runtime.base.job_tracer import Attempt, waited_since
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.monitoring.job_events import job_ended, job_queued, job_started
from asyncpool.enums import JobOutcome
from asyncpool.events import JobQueued, JobStarted
from asyncpool.stats import SlotStats


class TracedJobs:
    """Tells the book of the jobs that the trace shows; see :class:`JobTracer` for its methods.

    Args:
        hub: What tells of the jobs.
        book: What makes lines of them.
        most: How many jobs a second are shown; ``None`` for all.
        on_line: Called when the book may have many lines.

    Attributes:
        limit: Which jobs are shown; it counts the others.
    """

    def __init__(
        self,
        hub: PoolHub,
        book: TraceBook,
        most: int | None,
        on_line: Callable[[], object],
    ) -> None:
        self._hub = hub
        self._book = book
        self._on_line = on_line
        self._open: set[int] = set()
        self.limit = RateLimit(most)

    def queued(self, job: Job[Any], /) -> None:
        """Show a new job, unless they are too many."""
        at, limit = job._queued_at, self.limit
        if at < limit.next_at:  # the same as take(), whose call takes 60 ns
            limit.refused += 1
            return
        limit.take(at)
        number = job.id
        self._open.add(number)
        self._hub.follow(number)
        self._book.queued(job_queued(job, at))

    def sending(self, job: Job[Any], slot: int, /) -> None:
        """Do nothing: how long a job waited is known when it ends."""

    def given_back(self, job: Job[Any], /) -> None:
        """Show that an attempt has not begun after all."""
        if job.id in self._open:
            self._book.queued(job_queued(job, job._queued_at))

    def again(
        self, job: Job[Any], _: BaseException, attempt: Attempt | None, /
    ) -> None:
        """Show an attempt that has failed, and that the job waits again."""
        self._show(job, attempt)
        self._book.queued(job_queued(job, job._queued_at))

    def ended(
        self,
        job: Job[Any],
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Show the end of a job, and all of it if it has failed."""
        # A call that was refused has never waited.
        if job.id in self._open or (error and outcome is not JobOutcome.REFUSED):
            self._show(job, attempt)
        elif error is None:
            return
        self._open.discard(job.id)
        self._book.ended(job_ended(job, outcome, attempt))
        self._on_line()

    def look(self, slots: Iterable[SlotStats], now: float) -> None:
        """Show which attempts have been running for long."""
        for slot in slots:
            for job in slot.running:
                if job.seconds * 1e6 < LONG:
                    continue
                number, name, began = job.job_id, job.function, now - job.seconds
                if number not in self._open:
                    # How long it has waited is not known any more.
                    self._follow(number)
                    self._book.queued(
                        JobQueued(number, name, "submit", job.attempt - 1, began)
                    )
                self._book.started(
                    JobStarted(number, name, job.attempt, slot.slot, began)
                )
        self._book.look(now)

    def _show(self, job: Job[Any], attempt: Attempt | None) -> None:
        """Show what there was of a job up to now."""
        if job.id not in self._open:
            self._follow(job.id)
            self._book.queued(job_queued(job, waited_since(job, attempt)))
        if attempt is not None:
            self._book.started(job_started(job, attempt.slot, attempt.began))

    def _follow(self, number: int) -> None:
        self.limit.refused -= 1
        self._open.add(number)
        self._hub.follow(number)
