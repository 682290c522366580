"""Fail many jobs at once: when their pool closes or breaks, or when their time is over."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.crash_report import (
    broken_error,
    delivery_of,
    late_error,
)
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.enums import Delivery
from asyncpool.errors import JobTimeoutError, PoolBrokenError, PoolClosedError, job_text

# How many jobs fail in one turn of the loop.  Each takes some microseconds, and a queue may have a
# million of them.
_FAILED_A_TURN = 500


class BulkFailure:
    """Fails the jobs that the core has given up.

    Args:
        state: The pool's state.
        tasks: The pool's task group, for which it waits.
    """

    def __init__(
        self,
        state: PoolState,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._state = state
        self._tasks = tasks

    def fail(self, numbers: tuple[int, ...], why: str) -> None:
        """Fail jobs: some at once, and if there are more, some in each turn of the loop."""
        jobs = deque(self._state.registry.jobs[number] for number in numbers)
        # The error is the same for all of them: what is known now, not in their turn.
        error_for: Callable[[Job[Any]], Exception] = self._closed_error
        if why == "broken":
            error_for = broken_errors(self._state)
        elif why == "expired":
            error_for = self._late_error
        self._fail_some(jobs, error_for)
        if jobs:
            self._tasks.create_task(
                self._fail_others(jobs, error_for), name="asyncpool: fail queued jobs"
            )

    async def _fail_others(
        self, jobs: deque[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> None:
        while jobs:
            self._fail_some(jobs, error_for)
            await asyncio.sleep(0)

    def _fail_some(
        self, jobs: deque[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> None:
        for _ in range(min(len(jobs), _FAILED_A_TURN)):
            job = jobs.popleft()
            self._state.registry.fail(job, error_for(job))

    def _late_error(self, job: Job[Any]) -> JobTimeoutError:
        return late_error(job, self._state.loop.time())

    def _closed_error(self, job: Job[Any]) -> PoolClosedError:
        delivery = Delivery.NEVER_SENT
        if job._slot is not None:
            delivery = delivery_of(job, self._state.handles[job._slot])
        if job.attempt > (job._slot is not None):
            delivery = (
                Delivery.STARTED
            )  # in an earlier attempt, or its outcome is being unpickled
        name = job._function.name
        return PoolClosedError(
            f"the pool was closed before {job_text(job.id, name)} was done",
            job_id=job.id,
            function=name,
            delivery=delivery,
        )


def broken_errors(state: PoolState) -> Callable[[Job[Any] | None], PoolBrokenError]:
    """Return what makes the error of a broken pool, for a job or without one."""
    return functools.partial(
        broken_error,
        state.core.broken or "",
        tuple(state.crashes),
        state.core.workers.retry_in(state.loop.time()),
    )
