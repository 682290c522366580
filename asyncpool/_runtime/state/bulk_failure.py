"""The end of many jobs at once: those whose pool closes or breaks, or whose time is over."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from asyncpool import events
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.crash_report import broken_error, deliveries
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolBrokenError, PoolClosedError, job_text

__all__ = ["Failing", "broken_errors"]

# Failing a job takes some microseconds, and a queue may have a million of them.
_FAILED_A_TURN = 500


class _Spawn(Protocol):
    def __call__(self, coro: Coroutine[Any, Any, None], /, *, name: str) -> object: ...


class Failing:
    """Fails the jobs that the core has given up.

    Args:
        state: The pool.
        spawn: What starts a task of the pool's.
        late_error: What makes the error for a job that was to begin before now.
    """

    def __init__(
        self,
        state: PoolState,
        spawn: _Spawn,
        late_error: Callable[[Job[Any]], Exception],
    ) -> None:
        self._state = state
        self._spawn = spawn
        self._late_error = late_error

    def fail(self, numbers: tuple[int, ...], why: str) -> None:
        """Fail jobs: some at once, and if there are more, some in each turn of the loop."""
        jobs = deque(self._state.book.jobs[number] for number in numbers)
        # From what is known now, not when it is their turn.
        error_for: Callable[[Job[Any]], Exception] = self._closed_error
        if why == "broken":
            error_for = broken_errors(self._state)
        elif why == "late":
            error_for = self._late_error
        self._fail_some(jobs, error_for)
        if jobs:
            self._spawn(
                self._fail_others(jobs, error_for), name="failing what is queued"
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
            self._state.book.fail(job, error_for(job))

    def _closed_error(self, job: Job[Any]) -> PoolClosedError:
        delivery: events.Delivery = "never sent"
        if job.slot is not None:
            [delivery] = deliveries([job], self._state.handles[job.slot])
        if job.attempt > (job.slot is not None):
            delivery = "started"  # an earlier attempt, or it is being unpickled
        name = job.function.name
        return PoolClosedError(
            f"the pool was closed before {job_text(job.id, name)} was done",
            job_id=job.id,
            function=name,
            delivery=delivery,
        )


def broken_errors(state: PoolState) -> Callable[[Job[Any] | None], PoolBrokenError]:
    """Return what makes the error of a broken pool, for each job or for who has none."""
    return functools.partial(
        broken_error,
        state.core.broken or "",
        tuple(state.crashes),
        state.core.retry_in(state.loop.time()),
    )
