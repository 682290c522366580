"""The end of a pool and of single jobs: what is still done, until when, and which workers must go.

A pool that finishes all its jobs *drains*.  As long as a job may need another worker,
the pool goes on like an open one.  After that it lets its workers go.  The jobs that a
pool has to do are those in the queue, those that wait in a worker behind others, and
pinned jobs.  A map that has not drawn all of its items also *holds* the pool open,
since more jobs are to come.

A job that a worker has may be cancelled, late, out of time, or silent.  The table of
``slots.py`` has the stages of its end.  This module moves the job from one stage
to the next, and tells its worker.  The pool asks the worker to give back a job that
only waits there, and also the jobs that wait behind one that turns out to be long.  A
job that runs has some time to end by itself.  When that is over, the pool waits until
the worker has given back all other jobs that wait in it.  Then it kills the worker.  A
job that ends in time costs no worker.

Jobs that run beside such a job go on.  But nothing else begins in that worker
meanwhile, since the pool may have to kill it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncpool._core.deadlines import earliest
from asyncpool._core.options import KILL, CancelMode
from asyncpool._core.slots import (
    ALIVE,
    BY_ITSELF,
    EMPTY,
    UP,
    EndingEvent,
    EndingStage,
    Slot,
    SlotEvent,
    StopStage,
)
from asyncpool.enums import SlotState

if TYPE_CHECKING:
    from asyncpool._core.core import Core


class Finish(enum.IntEnum):
    """What a closing pool still does; a later close can only make it stricter."""

    ALL = 0
    RUNNING = 1
    NOTHING = 2


class Closing:
    """How far the close of a pool has got, and what it still does.

    Args:
        core: The core of the pool.

    Attributes:
        finish: What the pool still does; ``None`` as long as it does not close.
        over: Whether the pool has no process left.
        due: When the time for closing is over; ``None`` if there is no limit.
        holds: How many sources hold the pool open.  It accepts their jobs while it
            drains.
        unpacking: The jobs that have an outcome which takes a while to unpickle.
    """

    def __init__(self, core: Core) -> None:
        self.finish: Finish | None = None
        self.over = False
        self.due: float | None = None
        self.holds = 0
        self.unpacking: dict[int, None] = {}
        self._core = core

    @property
    def no_worker_needed(self) -> bool:
        """Whether the pool closes, and no job may need another worker."""
        core = self._core
        if self.finish is None or core.dispatcher.unassigned or self.unpacking:
            return False
        # A broken pool refuses the jobs of the sources that hold it open.
        if self.finish is not Finish.ALL or core.lifecycle.broken is not None:
            return True
        pinned = any(slot.pinned for slot in core.slots)
        return not (self.holds or pinned or core.pipelining)

    @property
    def draining(self) -> bool:
        """Whether the pool closes, and still accepts jobs from the sources that hold it open."""
        return self.finish is Finish.ALL and not self.over

    def begin(self, finish: Finish, deadline: float | None, now: float) -> None:
        """Finish what *finish* says, by *deadline* if there is one, and stop every worker.

        If the pool is closed several times, the strictest close counts.
        """
        core, before = self._core, self.finish
        self.finish = max(finish, before or Finish.ALL)
        self.due = earliest(self.due, deadline)
        time_is_over = self.due is not None and self.due <= now
        if time_is_over:
            self.finish, self.due = Finish.NOTHING, None
            core.lifecycle.retry_at = None  # a start may be due now, too
        if self.finish is not Finish.ALL:
            core.lifecycle.stop_exits()
            dropped = core.affinity.take_all()
            first = self.finish is Finish.NOTHING and before is not Finish.NOTHING
            begun = self._give_up_begun() if first else []
            core.fail([*begun, *core.dispatcher.take_all(), *dropped], "closed")
            for slot in core.slots:
                if time_is_over and slot.state in EMPTY:
                    slot.due = None
                elif time_is_over and slot.state in ALIVE:
                    core.lifecycle.stop(slot, StopStage.KILLED, now, planned=True)
                elif self.finish is Finish.NOTHING and slot.state is SlotState.BUSY:
                    core.lifecycle.stop(slot, StopStage.TERMINATED, now, planned=True)
            core.affinity.refuse_sessions(now)
            for index in {slot.index: None for slot in dropped.values()}:
                # Its free lanes need not wait for that job any more.
                core.refill(index, now)
        self.advance(now)

    def on_timer(self, now: float) -> None:
        """Kill all workers that are left, if the time is over."""
        if self.finish is not None and self.due is not None and self.due <= now:
            self.begin(self.finish, None, now)

    def advance(self, now: float) -> None:
        """If the pool closes, let workers go that no job needs any more."""
        if self.over or not self.no_worker_needed:
            return
        core, lifecycle = self._core, self._core.lifecycle
        lifecycle.stop_exits()
        for slot in core.slots:
            if slot.state in EMPTY:
                slot.due = None
                slot.apply(SlotEvent.REMOVE)
            elif slot.state is SlotState.STARTING:
                lifecycle.stop(slot, StopStage.TERMINATED, now, planned=True)
            elif slot.state is SlotState.IDLE:
                how, grace = StopStage.ASKED, core.options.end_grace
                lifecycle.stop(slot, how, now, planned=True, grace=grace)
        if all(slot.state is SlotState.REMOVED for slot in core.slots):
            self.over = True
            self.due = lifecycle.retry_at = None
            core.do("finished")

    def abandon(self) -> None:
        """Mark the close as over, whatever is left: nobody decides any more."""
        self.finish, self.over = Finish.NOTHING, True

    def _give_up_begun(self) -> list[int]:
        """Give up every job that workers have, and return those that were still wanted.

        The jobs whose outcomes are being unpickled are among them.  The others stay in flight: a
        worker may have sent their outcomes already.
        """
        jobs: list[int] = []
        for slot in self._core.slots:
            jobs += filter(slot.job_endings.is_wanted, slot.in_flight.jobs)
            for job in [*slot.job_endings]:
                slot.job_endings.apply(job, EndingEvent.CLOSE)
        jobs += self.unpacking
        self.unpacking.clear()
        return jobs


# Seconds that a worker has to give back a job, or say that it has begun it.  An idle machine needs
# 0.1 ms.
REVOKE_GRACE = 0.1

# The seconds that a worker has to write its stacks before the pool kills it, unless the
# pool sends the signal for them late.  An idle machine needs 1 to 8 ms, or 100 ms if a
# job holds the GIL.  The worker may also have to wait for a CPU: beside six computing
# processes on two cores, for 30 ms and more.
STACK_GRACE = 0.25

# If a job has less than these seconds to end by itself, the pool does not ask it to.
LEAST_GRACE = 0.1


class Endings:
    """Ends jobs.

    Args:
        core: The core of the pool.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._slots = core.slots

    def cancel(
        self, job: int, now: float, *, index: int, begun: bool, mode: CancelMode = KILL
    ) -> None:
        """Give up *job*, which the worker in slot *index* may have in flight.

        Args:
            job: The job.
            now: The time.
            index: The slot.
            begun: Whether the pool knows that the worker has begun it.
            mode: How the pool ends the job if it has begun.
        """
        slot = self._slots[index]
        if job not in slot.in_flight.jobs:
            self._core.drop(job, now)
            return
        slot.job_endings.of(job).mode = mode
        if slot.state is SlotState.BUSY and begun:
            self._end_running(slot, job, mode, now)
        elif slot.state is SlotState.BUSY:
            self._revoke_one(slot, job)

    def revoke_late(self, job: int, index: int) -> None:
        """Ask the worker in slot *index* to give back *job*, which has not begun in time.

        If the worker gives it back, the job fails.  If the worker has begun it, it goes
        on.
        """
        slot = self._slots[index]
        if slot.state is SlotState.BUSY and job in slot.in_flight.jobs:
            slot.job_endings.of(job).too_late = True
            self._revoke_one(slot, job)

    def unanswered(self, job: int, index: int) -> bool:
        """Tell whether the worker in slot *index* has *job*, and has not said whether it gives it back."""
        slot = self._slots[index]
        has = slot.state is SlotState.BUSY and job in slot.in_flight.jobs
        return has and slot.in_flight.is_revoking(job)

    def check_for_stalls(self) -> None:
        """Ask for the jobs that have waited behind the same jobs since the last check."""
        for slot in self._slots:
            in_flight, seen = slot.in_flight, slot.seen
            slot.seen = in_flight.running
            if not seen or seen != slot.seen or slot.state is SlotState.STOPPING:
                continue
            if self._revoke_waiting(slot):
                in_flight.expect_no_end(slot.seen)
                self._core.dispatcher.exclude(slot.index)

    def revoked(self, index: int, sequences: Iterable[int], now: float) -> None:
        """Handle a worker's answer to a revoke: the jobs that it will not begin.

        Raises:
            ProtocolError: If the pool has not asked for these jobs.
        """
        core, slot = self._core, self._slots[index]
        back, kept = slot.in_flight.end_revoke(sequences)
        endings = slot.job_endings
        wanted = {job: back[job] for job in back if endings.is_wanted(job)}
        expired = [job for job in wanted if endings.is_too_late(job)]
        for job in expired:
            del wanted[job]
        for job in back:
            self.clear(slot, job)
        if back:
            core.do("unassign", tuple(back))
        for job in endings.keys() & kept:
            endings.keep(job)
        cancelled = [job for job in kept if not endings.is_wanted(job)]
        # The worker has begun the last of them, so those before it are done, and their
        # outcomes are on their way.
        for job in cancelled[-core.concurrency :]:
            mode = endings[job].mode
            if slot.state is SlotState.BUSY and mode is not None:
                self._end_running(slot, job, mode, now)
        core.fail(expired, "expired")
        if core.closing.finish in (None, Finish.ALL):
            core.put_back(wanted)
        else:
            core.fail(wanted, "closed")
        core.refill(index, now)
        core.closing.advance(now)

    def time_out(self, job: int, now: float, *, index: int, mode: CancelMode) -> None:
        """End *job*, which the worker in slot *index* runs.

        Its caller waits for that, and gets the error of the time limit, whatever the job then
        returns or raises.
        """
        slot = self._slots[index]
        if slot.state is not SlotState.BUSY:
            return
        if mode.action == "kill" or mode.grace < LEAST_GRACE:
            mode = CancelMode("kill", STACK_GRACE)
        elif mode.action == "wait":
            mode = CancelMode("interrupt", mode.grace)
        self._core.do("write_stacks", slot.index, job)
        self._end_running(slot, job, mode, now)

    def kill_hung(self, index: int, now: float, job: int | None = None) -> None:
        """Kill the worker in slot *index* because it, or its *job*, has been silent for too long.

        This is a crash of the worker.  Before the kill, the worker is asked for its
        stacks.
        """
        slot = self._slots[index]
        endings = slot.job_endings
        if slot.state not in UP or slot.hung or endings.killing is not None:
            return
        job = slot.in_flight.head if job is None else job
        slot.hung, due = True, now + STACK_GRACE
        self._core.do("write_stacks", slot.index, job)
        if job is None:
            slot.due = due
            self._core.dispatcher.exclude(slot.index)
            return
        ending = endings.of(job)
        ending.silent, ending.written = True, False
        self._give_time(slot, job, EndingEvent.DUMP, due)

    def stacks_signalled(self, index: int, due: float) -> None:
        """Give the worker in slot *index* until *due* to write its stacks.

        It gets the signal for that now, which may be late: the pool's own process may
        have been held up.  Then its time would be over before it could write anything,
        by the deadline of whichever of its jobs comes first.
        """
        slot = self._slots[index]
        if slot.state is SlotState.BUSY:
            for ending in slot.job_endings.values():
                if ending.stage in BY_ITSELF and ending.due is not None:
                    ending.due = max(ending.due, due)
            slot.due = slot.job_endings.due
        elif slot.state is SlotState.IDLE and slot.hung and slot.due is not None:
            slot.due = max(slot.due, due)

    def stacks_written(self, index: int, now: float, job: int | None = None) -> None:
        """Record that the worker in slot *index* has written its stacks, or those of *job*."""
        slot = self._slots[index]
        if slot.hung and slot.state is SlotState.IDLE:
            self._core.lifecycle.stop(slot, StopStage.KILLED, now)
        if slot.state is not SlotState.BUSY:
            return
        endings = slot.job_endings
        if job is not None and job in endings and endings[job].written is False:
            endings[job].written = True
        stage = EndingStage.DUMPING
        dumping = [one for one, it in endings.items() if it.stage is stage]
        waits = job is not None and any(it.written is False for it in endings.values())
        if dumping and not waits:
            self._kill_for(slot, dumping, now)

    def clear(self, slot: Slot, job: int) -> None:
        """Forget the ending of *job*, which has left its worker: that need not be killed for it."""
        ending = slot.job_endings.get(job)
        if ending is None:
            return
        if slot.state is not SlotState.BUSY:
            ending.mode = None
            return  # too late: the worker ends already, maybe because of this job
        del slot.job_endings[job]
        if ending.silent:
            slot.hung = False
        slot.due = slot.job_endings.due

    def end_worker(self, slot: Slot, now: float) -> None:
        """End a worker that gets no more jobs: once it has none, or is to be killed and none waits in it."""
        stop = self._core.lifecycle.stop
        if slot.job_endings.killing is not None:
            if not slot.in_flight.waiting_jobs():
                stop(slot, StopStage.KILLED, now, planned=not slot.hung)
            else:
                self._revoke_waiting(slot)
        elif not slot.in_flight.jobs:
            how = StopStage.KILLED if slot.faulty else StopStage.ASKED
            stop(slot, how, now, planned=not slot.faulty)

    @property
    def grace(self) -> float:
        """For how many seconds, at the most, a cancelled job may still run."""
        endings = (it for slot in self._slots for it in slot.job_endings.values())
        modes = [it.mode for it in endings if it.mode is not None]
        return max((it.grace for it in modes if it.action == "interrupt"), default=0.0)

    def on_timer(self, now: float) -> None:
        """End the workers whose job had its time to end by itself."""
        for slot in self._slots:
            over = [
                job
                for job, it in slot.job_endings.items()
                if it.stage in BY_ITSELF and it.due is not None and it.due <= now
            ]
            if over and slot.state is SlotState.BUSY:
                self._kill_for(slot, over, now)

    def _revoke_one(self, slot: Slot, job: int) -> None:
        """Revoke *job*, unless its worker was asked for it already."""
        slot.job_endings.apply(job, EndingEvent.REVOKE)
        # If an earlier revoke is open, its answer tells whether the worker has begun the job.
        self._core.revoke(slot, [job], requeue=False)

    def _revoke_waiting(self, slot: Slot) -> bool:
        """Revoke all jobs that wait in a worker, unless it still has to answer an earlier revoke."""
        in_flight = slot.in_flight
        return not in_flight.revoking and self._core.revoke(
            slot, in_flight.waiting_jobs()
        )

    def _end_running(self, slot: Slot, job: int, mode: CancelMode, now: float) -> None:
        """End *job*, which has begun, as *mode* says."""
        ending = slot.job_endings.of(job)
        if mode.action == "wait" or ending.stage in BY_ITSELF:
            return
        if ending.silent:
            slot.hung = ending.silent = False
        if mode.grace == 0:
            self._kill_for(slot, [job], now)
            return
        if mode.action == "kill":
            ending.written = False
        else:
            self._core.do("interrupt", slot.index, slot.in_flight.sequence_of(job))
        # A worker that was asked for its stacks is killed as soon as they are written.
        dumps = ending.written is not None
        event = EndingEvent.DUMP if dumps else EndingEvent.INTERRUPT
        self._give_time(slot, job, event, now + mode.grace)

    def _give_time(self, slot: Slot, job: int, event: EndingEvent, due: float) -> None:
        """Give *job* time until *due*; nothing may wait behind it meanwhile."""
        slot.job_endings.apply(job, event, due)
        slot.due = slot.job_endings.due
        slot.in_flight.expect_no_end((job,))
        self._core.dispatcher.exclude(slot.index)
        self._revoke_waiting(slot)

    def _kill_for(self, slot: Slot, jobs: list[int], now: float) -> None:
        """Have a worker killed for *jobs*, as soon as no other job can begin there."""
        endings = slot.job_endings
        for job in jobs:
            if endings.of(job).stage is not EndingStage.KILLING:
                endings.apply(job, EndingEvent.KILL, now + REVOKE_GRACE)
        slot.due = endings.due
        self._core.dispatcher.exclude(slot.index)
        self.end_worker(slot, now)
