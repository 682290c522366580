"""The stall watch: a look, every few milliseconds, at workers that have several jobs in flight.

Each look is a *round*.  A round finds jobs that others wait behind.
"""

from __future__ import annotations

from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.job.chunk_job import Chunk
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.job_timers import JobTimers

# Seconds from one round to the next.  A running job counts as long if two rounds in succession
# find it with others behind it.
EVERY = 0.004

# Seconds to the next round if an idle worker could take jobs that wait behind a long one.
SOON = 0.0005

# After so many rounds a running chunk of a map counts as long.
_LONG = 2


class StallWatch:
    """The rounds of one pool, as long as there is a reason for them.

    Args:
        state: The pool's state.
        times: Watches how long jobs run.
    """

    def __init__(
        self,
        state: PoolState,
        times: JobTimers,
    ) -> None:
        self._state = state
        self._core = state.core
        self._times = times
        self._alarm = Alarm(state.loop, lambda _: self._check_for_stalls())
        self._soon = False

    @property
    def active(self) -> bool:
        """Whether a next round is set."""
        return self._alarm.is_set

    def go(self) -> None:
        """Set the next round, if none is set."""
        if not self.active:
            self._soon = self._core.unbalanced
            self._alarm.set_in(SOON if self._soon else EVERY)

    def look_soon(self) -> None:
        """Move the next round forward, if a worker has become idle meanwhile."""
        if not self._alarm.is_set or self._soon or not self._core.unbalanced:
            return
        self._alarm.cancel()
        self.go()

    def stop(self) -> None:
        """Make no more rounds."""
        self._alarm.cancel()

    @decision
    def _check_for_stalls(self) -> None:
        self._state.performer.perform(self._core.termination.check_for_stalls())
        watched = self._look_for_long_chunks()
        if watched or self._core.pipelining:
            self.go()

    def _look_for_long_chunks(self) -> bool:
        """Stop long chunks, so that their other items go elsewhere; return whether to go on."""
        watched = False
        for slot, handle in self._state.handles.items():
            for number in self._core.jobs.running(slot):
                job = self._state.registry.jobs.get(number)
                if job is None or not isinstance(job, Chunk):
                    continue
                job.rounds += 1
                watched = watched or job.rounds <= _LONG
                if job.rounds == _LONG:
                    handle.page.stop_chunk(job.id, job.attempt)
                    # The item that runs now has the whole time limit, from now on.
                    self._times.begin(job)
        return watched
