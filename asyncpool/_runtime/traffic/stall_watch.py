"""The stall watch: a look, every few milliseconds, at workers that have several jobs in flight.

Each look is a *round*.  A round finds jobs that others wait behind.  In between, the pool reads
no outcomes of a worker that has enough jobs in flight; the next round reads them together.  With
one wake-up for each outcome, a busy pool takes much of the cores from its own workers, see
``docs/decisions/rest-for-busy-workers.md``.
"""

from __future__ import annotations

from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.job.chunk_job import Chunk
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.job_timers import JobTimers
from asyncpool._runtime.worker.handle import WorkerHandle

# Seconds from one round to the next.  A running job counts as long if two rounds in succession
# find it with others behind it.
EVERY = 0.004

# Seconds between rounds if all workers are left alone: they have so many jobs that none of them
# runs out.  A wake-up costs 0.2 ms, however little there is to do.
REST = 0.008

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
        self._balance = state.core.balance
        self._times = times
        self._alarm = Alarm(state.loop, self._go_round)
        self._resting: list[WorkerHandle] = []
        self._soon = False
        self._hearing = False

    @property
    def active(self) -> bool:
        """Whether a next round is set, or a round is reading outcomes now."""
        return self._alarm.is_set or self._hearing

    def go(self) -> None:
        """Set the next round, if none is set."""
        if not self.active:
            state, resting = self._state, self._resting
            self._soon = self._balance.unbalanced
            every = REST if len(resting) == len(state.handles) else EVERY
            if self._soon:
                every = SOON
            self._alarm.set_in(every)

    def look_soon(self) -> None:
        """Move the next round forward, if a worker has become idle meanwhile."""
        if not self._alarm.is_set or self._soon or not self._balance.unbalanced:
            return
        self._alarm.cancel()
        self.go()

    def leave_alone(self, handle: WorkerHandle) -> None:
        """Read no outcomes of a worker until the next round, if it has enough jobs."""
        if self._balance.may_rest(handle.slot):
            if handle not in self._resting:
                handle.pause_reading()
                self._resting.append(handle)
            self.go()
        elif self._resting and handle in self._resting:
            self._resting.remove(
                handle
            )  # it has been read meanwhile, and has few jobs left
            handle.resume_reading()

    def stop(self) -> None:
        """Make no more rounds."""
        self._alarm.cancel()

    def _go_round(self, _: float) -> None:
        # First of all: a worker is not stalled whose outcomes the pool has not read.
        resting, self._resting = self._resting, []
        self._hearing = True
        for handle in resting:
            handle.resume_reading()
            handle.read_now()
        # The reads above have decided which workers rest until the next round.
        self._hearing = False
        self._check_for_stalls()

    @decision
    def _check_for_stalls(self) -> None:
        self._state.performer.perform(self._state.core.termination.check_for_stalls())
        watched = self._look_for_long_chunks()
        if watched or self._resting or self._balance.pipelining:
            self.go()

    def _look_for_long_chunks(self) -> bool:
        """Stop long chunks, so that their other items go elsewhere; return whether to go on."""
        watched = False
        for slot, handle in self._state.handles.items():
            for number in self._state.core.jobs.running(slot):
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
