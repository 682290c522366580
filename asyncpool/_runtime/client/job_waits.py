"""For how long the jobs of a client may wait for their first attempt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.job_errors import expire

if TYPE_CHECKING:
    from asyncpool._runtime.client.client import Client


class JobWaits:
    """Fails jobs whose time is over before they have begun.

    Args:
        client: The client.
        look: Called when a job has failed.
    """

    def __init__(self, client: Client, look: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._look = look
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, job: Job[Any]) -> None:
        """Watch a job that waits from now on."""
        end = job._limits.queue_end(self._loop.time())
        if end is not None:
            self._timers[job.id] = self._loop.call_at(end, self._on_late, job)

    def forget(self, number: int) -> None:
        """Watch a job no longer: it has begun, or ended."""
        if self._timers:
            timer = self._timers.pop(number, None)
            if timer is not None:
                timer.cancel()

    def left(self, job: Job[Any]) -> float:
        """Return for how many more seconds *job* may wait for its first attempt."""
        limit = job._limits.queue_timeout
        if limit is None or job.attempt:
            return math.inf
        return max(1e-3, limit - (monotonic() - job._queued_at))

    def stop(self) -> None:
        """Watch no jobs any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _on_late(self, job: Job[Any]) -> None:
        self._timers.pop(job.id, None)
        if job.done() or self._client.is_running(job):
            return
        self._client.drop(job)
        if job._slot is not None:  # an agent has it, and has not begun it
            self._client.registry.unassign(job)
        self._client.registry.fail(job, expire(job, self._loop.time()))
        self._look()
