"""Where and when the jobs of clients ran, of those that their clients follow; and their traces.

An agent's pool notes nothing of its jobs while nobody follows any, as every pool.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from asyncpool._core.remote_wire.remote_messages import (
    Kind,
    pack_end,
    pack_followed_end,
)
from asyncpool._core.wire.context import with_trace
from asyncpool._runtime.base.pool_hub import Attempt, PoolHub
from asyncpool._runtime.job.job import Job
from asyncpool.enums import JobOutcome


class FollowedJobs:
    """Follows jobs from the moment when the pool has taken them; a :class:`JobTracer`.

    Args:
        hub: That of the pool.

    Attributes:
        trace: The trace context of the job that the pool is about to take, or nothing.
    """

    def __init__(self, hub: PoolHub) -> None:
        self._hub = hub
        self._traces = False
        self.trace = b""
        # The last packed context that got a trace, that trace, and both together: many are equal.
        self._traced = (b"", b"", b"")
        self._attempts: dict[int, Attempt] = {}  # of jobs that end in this very step

    def follow(self, job: Job[Any]) -> None:
        """Follow a job that has just come."""
        if job.done():
            return
        self._begin()
        self._hub.follow(job.id)

    def hand_on(self, trace: bytes) -> None:
        """Have the job that the pool takes next get a trace context."""
        self._begin()
        self.trace = trace

    def _begin(self) -> None:
        if not self._traces:
            # For good: to look at every job costs 60 ns, and only agents that are followed do.
            self._hub.add_tracer(self)
            self._traces = True

    def pack_end(self, kind: Kind, number: int, payload: bytes, job: int = 0) -> bytes:
        """Return what tells a client of the end of its job.

        Args:
            kind: How it ended.
            number: The client's number of it.
            payload: What comes of it.
            job: The pool's number of it.
        """
        if not self._attempts:
            return pack_end(kind, number, payload)
        attempt = self._attempts.pop(job, None)
        if attempt is None:
            return pack_end(kind, number, payload)
        slot, _, began, known = attempt
        run = monotonic() - began if known is None else known
        return pack_followed_end(
            kind, number, payload, slot=slot, began=began, run=max(0.0, run)
        )

    # What the pool tells.

    def queued(self, job: Any, /) -> None:
        """Give a job the trace context that has come with it."""
        trace, context = self.trace, job._context
        if not trace:
            return
        if self._traced[:2] != (context, trace):
            self._traced = context, trace, with_trace(context, trace)
        job._context = self._traced[2]

    def sending(self, job: Any, slot: int, /) -> None:
        """Do nothing: the end tells it."""

    def given_back(self, job: Any, /) -> None:
        """Do nothing: the job waits again."""

    def again(self, job: Any, error: BaseException, attempt: Any, /) -> None:
        """Do nothing: the client decides about attempts."""

    def ended(
        self,
        job: Any,
        _outcome: JobOutcome,
        _error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Note the last attempt of a job, whose end is told next."""
        # Of one that its client has cancelled the end is told already.
        if attempt is not None and job.id in self._hub.traced and not job.done():
            self._attempts[job.id] = attempt
