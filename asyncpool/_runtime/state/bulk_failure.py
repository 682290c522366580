"""Fail many jobs at once: when their pool closes or breaks, or when their time is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.job_errors import broken_errors, closed_error, expire
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import JobTimeoutError, PoolClosedError

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

    def fail(
        self, numbers: tuple[int, ...], why: Literal["closed", "broken", "expired"]
    ) -> None:
        """Fail jobs: some at once, and if there are more, some in each turn of the loop."""
        jobs = deque(self._state.registry.jobs[number] for number in numbers)
        error_for: Callable[[Job[Any]], Exception]
        match why:
            case "closed":
                error_for = self._closed_error
            case "broken":
                error_for = broken_errors(self._state)
            case "expired":
                error_for = self._expire
        self._fail_some(jobs, error_for)
        if jobs:
            self._tasks.create_task(
                self._fail_rest(jobs, error_for), name="asyncpool: fail queued jobs"
            )

    async def _fail_rest(
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

    def _expire(self, job: Job[Any]) -> JobTimeoutError:
        return expire(job, self._state.loop.time())

    def _closed_error(self, job: Job[Any]) -> PoolClosedError:
        handle = None if job._slot is None else self._state.handles[job._slot]
        return closed_error(job, handle)
