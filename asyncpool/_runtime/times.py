"""The times of jobs: how long each may wait and run, and what comes of it if it does not.

Whether a job's time is over is a matter of its limits (``_core/limits.py``); how it is
then made to end is the core's decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncpool._core.commands import Command
from asyncpool._runtime.handle import WorkerHandle
from asyncpool._runtime.jobs import Job
from asyncpool._runtime.postmortem import timeout_error
from asyncpool._runtime.state import PoolState, decision
from asyncpool._runtime.timeouts import Timeouts

__all__ = ["Times"]

# Seconds before its end at which a worker is made to say where it is, and then is looked
# at.  Before that its own thread had its turn, which comes every 5 ms.
_LAST_WORDS = 0.024
_NEXT_LOOK = 0.001


class Times:
    """The times of a pool's jobs.

    Args:
        state: The pool.
        perform: What carries out the core's commands.
        take_out: Has a job that is settled, and was with this slot or none, take up no
            place any more.
    """

    def __init__(
        self,
        state: PoolState,
        perform: Callable[[list[Command]], None],
        take_out: Callable[[Job[Any], int | None], None],
    ) -> None:
        self._state = state
        self._perform = perform
        self._take_out = take_out
        self._timeouts = Timeouts(state.loop, state.book.deadlines, self._on_due)

    def wait(self, job: Job[Any]) -> bool:
        """Watch how long it waits, or end it since its time is over already."""
        now = self._state.loop.time()
        until = job.limits.queue_end(now)
        if until is not None and until <= now:
            job.exceeded = job.limits.exceeded(now, running=False)
            self._state.book.fail(job, timeout_error(job))
            return False
        self._timeouts.watch(job.id, until)
        return True

    def begin_head(self, slot: int) -> None:
        """Watch how long what is first in a worker's hands is running."""
        head = self._state.core.head(slot)
        job = self._state.book.jobs.get(head) if head is not None else None
        if job is not None and job.began is None and type(job.payload) is bytes:
            self.begin(job)

    def begin(self, job: Job[Any]) -> None:
        """Watch how long it is running, from now on."""
        if job.limits.timed:
            job.began = now = self._state.loop.time()
            self._timeouts.watch(job.id, job.limits.run_end(now))

    def end(self, job: Job[Any]) -> None:
        """Take note that it has ended in time, though its outcome is yet to be loaded.

        Only a deadline is for the whole of it.
        """
        if job.limits.timed:
            self._timeouts.watch(job.id, job.limits.deadline)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._timeouts.stop()

    @decision
    def _on_due(self, number: int, now: float) -> None:
        """Make a job end, or not begin, whose time is over."""
        state, job = self._state, self._state.book.jobs.get(number)
        if job is None or job.done():
            return  # it is on its way out already
        slot, running = job.slot, job.began is not None
        job.exceeded = job.limits.exceeded(now, running=running)
        if not running or slot is None:
            # Its outcome may be here, and take long to load.
            state.book.fail(job, timeout_error(job))
            self._take_out(job, slot)
        elif state.core.head(slot) == number:
            handle, press = state.handles[slot], job.limits.press
            self._perform(state.core.expire(number, now, index=slot, press=press))
            due = state.core.slots[slot].due
            if due is not None:
                when = due - min(_LAST_WORDS, 0.8 * (due - now))
                state.loop.call_at(when, self._insist_on_stacks, handle, number)

    def _insist_on_stacks(self, handle: WorkerHandle, job: int) -> None:
        """Find out where a worker is that lets none of its threads tell.

        Its threads do not run then, so that their stacks can be read in a signal handler:
        while they run, that may crash it.
        """
        if self._is_first(handle, job) and not handle.page.stacks_size:
            handle.demand_stacks()
            self._look_for_stacks(handle, job, 0)

    @decision
    def _look_for_stacks(self, handle: WorkerHandle, job: int, seen: int) -> None:
        """Have a worker killed that has written all that it is going to write."""
        if not self._is_first(handle, job):
            return
        size, loop = handle.page.stacks_size, self._state.loop
        if size == seen > 0:
            self._perform(self._state.core.stacks_written(handle.slot, loop.time()))
        else:
            loop.call_later(_NEXT_LOOK, self._look_for_stacks, handle, job, size)

    def _is_first(self, handle: WorkerHandle, job: int) -> bool:
        state, slot = self._state, handle.slot
        return state.handles[slot] is handle and state.core.head(slot) == job
