"""Find out where a worker is that is about to be killed.

Its control thread writes the stacks of all threads down when it is asked to.  If it is not
let, since another thread holds the GIL, a signal handler in C does that.
"""

from __future__ import annotations

from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.machine import is_stopped
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.worker.handle import WorkerHandle

# Seconds before its end at which a worker is made to say where it is, and then is looked
# at.  Before that its own thread had its turn, which comes every 5 ms.  24 ms were
# too few now and then, on two cores that others computed on.
_DUMP_TIME = 0.15
_NEXT_LOOK = 0.001


class StackDumps:
    """The stack dumps of a pool's workers.

    Args:
        state: The pool.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._alarm = Alarm(state.loop, self._look_at_late)

    def rearm(self) -> None:
        """Watch the time of those that are to end, as it is now."""
        self._alarm.set_at(self._state.core.late_workers.next_deadline())

    def stop(self) -> None:
        """Watch it no more."""
        self._alarm.cancel()

    @decision
    def _look_at_late(self, now: float) -> None:
        """Ask those where they are whose time to end is nearly over."""
        for slot, due in self._state.core.late_workers.take(now):
            handle = self._state.handles[slot]
            handle.page.read_stacks()  # whatever was written before
            handle.requests.ask_for_stacks()
            self._state.loop.call_at(_demand_at(due, now), self._demand_late, handle)
        self.rearm()

    def _demand_late(self, handle: WorkerHandle) -> None:
        is_there = self._state.handles[handle.slot] is handle
        if is_there and not handle.page.stacks_size:
            handle.demand_stacks()

    def hang(self, handle: WorkerHandle, silence: str, job: int | None = None) -> None:
        """Have a worker killed that was silent for too long, or whose *job* was.

        *silence* says how.
        """
        if handle.pid is not None and is_stopped(handle.pid):
            silence += "; the process is stopped"
        handle.silence = silence
        handle.page.read_stacks()  # whatever was written before
        now = self._state.loop.time()
        self._state.performer.perform(
            self._state.core.termination.hang(handle.slot, now, job)
        )
        self.insist(handle, now, job or self._state.core.jobs.head(handle.slot))

    def insist(self, handle: WorkerHandle, now: float, job: int | None) -> None:
        """Make a worker say where it is, which has been asked to, before its time is over."""
        due = self._state.core.slots[handle.slot].due
        if due is not None:
            self._state.loop.call_at(_demand_at(due, now), self._demand, handle, job)

    def _demand(self, handle: WorkerHandle, job: int | None) -> None:
        # Its threads do not run then, so that their stacks can be read in a signal handler:
        # while they run, that may crash it.
        if self._runs(handle, job) and not handle.page.stacks_size:
            handle.demand_stacks()
            self._look(handle, job, 0)

    @decision
    def _look(self, handle: WorkerHandle, job: int | None, seen: int) -> None:
        """Have a worker killed that has written all that it is going to write."""
        if not self._runs(handle, job):
            return
        size, loop = handle.page.stacks_size, self._state.loop
        if size == seen > 0:
            self._state.performer.perform(
                self._state.core.termination.stacks_written(handle.slot, loop.time())
            )
        else:
            loop.call_later(_NEXT_LOOK, self._look, handle, job, size)

    def _runs(self, handle: WorkerHandle, job: int | None) -> bool:
        """Tell whether the worker still runs *job*, or nothing at all."""
        core, slot = self._state.core, handle.slot
        if self._state.handles[slot] is not handle:
            return False
        return (
            core.jobs.head(slot) is None if job is None else core.jobs.runs(slot, job)
        )


def _demand_at(due: float, now: float) -> float:
    return due - min(_DUMP_TIME, 0.8 * (due - now))
