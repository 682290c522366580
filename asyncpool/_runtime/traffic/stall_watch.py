"""The rounds: a look, every few milliseconds, at workers that have several jobs in flight.

One that has plenty of them may be left alone until the next round, when its outcomes are
read together.  With one wake-up for each, a pool that is busy all the time takes much of
the cores from its own workers, see ``docs/decisions/rest-for-busy-workers.md``.
"""

from __future__ import annotations

from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.job.job import ChunkJob
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.job_times import JobTimers
from asyncpool._runtime.worker.handle import WorkerHandle

# Seconds from one round to the next.  A job that others wait behind, and that is the same
# in two of them, is long.
EVERY = 0.004

# The same where all workers are left alone, and so many jobs wait that none of them is
# late for it.  To be woken up costs 0.2 ms, however little there is to do.
REST = 0.008

# The same where a worker is idle, that could take what waits behind such a job.
SOON = 0.0005

# How many of them find a job of several items running that is longer than it should be.
_LONG = 2


class StallWatch:
    """The rounds of one pool, as long as there is a reason for them.

    Args:
        state: The pool.
        times: What counts the time of jobs.
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
        """Whether there is a next round, or one is being made."""
        return self._alarm.is_set or self._hearing

    def go(self) -> None:
        """Make a round soon."""
        if not self.active:
            state, resting = self._state, self._resting
            self._soon = self._balance.unbalanced
            every = REST if len(resting) == len(state.handles) else EVERY
            if self._soon:
                every = SOON
            self._alarm.set_in(every)

    def look_soon(self) -> None:
        """Make the next round sooner, if a worker has become idle meanwhile."""
        if not self._alarm.is_set or self._soon or not self._balance.unbalanced:
            return
        self._alarm.cancel()
        self.go()

    def leave_alone(self, handle: WorkerHandle) -> None:
        """Read no outcomes of a worker's until the next round, if it has enough to do."""
        if self._balance.may_rest(handle.slot):
            if handle not in self._resting:
                handle.pause_reading()
                self._resting.append(handle)
            self.go()
        elif self._resting and handle in self._resting:
            self._resting.remove(handle)  # it was heard meanwhile, and has little left
            handle.resume_reading()

    def stop(self) -> None:
        """Make no more rounds."""
        self._alarm.cancel()

    def _go_round(self, _: float) -> None:
        # First of all: whose outcomes have not been read does not hang.
        resting, self._resting = self._resting, []
        self._hearing = True
        for handle in resting:
            handle.resume_reading()
            handle.read_now()
        self._hearing = False  # only now it is known who rests until the next round
        self._look_for_stalls()

    @decision
    def _look_for_stalls(self) -> None:
        self._state.performer.perform(self._state.core.termination.look_for_stalls())
        watched = self._look_for_long_chunks()
        if watched or self._resting or self._balance.pipelining:
            self.go()

    def _look_for_long_chunks(self) -> bool:
        """Have items go on elsewhere behind one that takes long; tell whether to go on."""
        watched = False
        for slot, handle in self._state.handles.items():
            for number in self._state.core.jobs.running(slot):
                job = self._state.registry.jobs.get(number)
                if not isinstance(job, ChunkJob):
                    continue
                job.rounds += 1
                watched = watched or job.rounds <= _LONG
                if job.rounds == _LONG:
                    handle.page.stop_chunk(job.id, job.attempt)
                    # Its time is that of the item that it is at, and ends with.
                    self._times.begin(job)
        return watched
