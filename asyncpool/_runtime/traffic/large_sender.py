"""How a job with large arguments gets to its worker.

Its large buffers come first, into memory that the worker sees.  ``large_jobs.py`` has pickled them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.job_timers import JobTimers
from asyncpool._runtime.traffic.large_jobs import LargeObjects
from asyncpool._runtime.worker.handle import WorkerHandle


class LargeSender:
    """Sends jobs with large arguments.

    Args:
        state: The pool's state.
        large: Pickles the next jobs, when one has left the queue.
        timers: Watch the time limits of a job from when it is sent.
    """

    def __init__(
        self, state: PoolState, large: LargeObjects, timers: JobTimers
    ) -> None:
        self._state = state
        self._large = large
        self._timers = timers
        self._lanes = state.config.worker.concurrency > 1

    def send(
        self, handle: WorkerHandle, job: Job[Any], pickled: OutOfBandPickle
    ) -> None:
        """Put a job's large buffers where its worker sees them, then send the job.

        The worker gets nothing else before.
        """
        send = partial(self._send_loaded, handle, job, job.attempt, pickled)
        handle.outbox.load(pickled, send)
        self._large.go_on()

    @decision
    def _send_loaded(
        self,
        handle: WorkerHandle,
        job: Job[Any],
        attempt: int,
        pickled: OutOfBandPickle,
    ) -> None:
        """Send a job whose large buffers the worker can see by now."""
        outbox, core = handle.outbox, self._state.core
        # The pool may have been closed meanwhile, which has failed the job.
        if core.jobs.last(handle.slot) == job.id:
            self._state.registry.leases.before_sending(job, handle.slot)
            job._frame_end = outbox.put_job(
                job.id,
                attempt,
                job._function,
                pickled.payload,
                job._context,
                credit=job._credit,
            )
            self._timers.begin(job)
        outbox.flush()
        if self._lanes:
            self._state.performer.perform(
                core.jobs.arguments_loaded(handle.slot, self._state.loop.time())
            )
