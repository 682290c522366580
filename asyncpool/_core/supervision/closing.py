"""The end of a pool: what it still does, until when, and which workers it lets go.

A pool that finishes all its jobs *drains*.  As long as a job may need another worker,
the pool goes on like an open one.  After that it lets its workers go.  The jobs that a
pool has to do are those in the queue, those that wait in a worker behind others, and
pinned jobs.  A map that has not drawn all of its items also *holds* the pool open,
since more jobs are to come.
"""

from __future__ import annotations

import enum

from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.placement.sessions import PinnedJobs
from asyncpool._core.slots.commands import Command, Finished
from asyncpool._core.slots.job_ending import EndingEvent
from asyncpool._core.slots.lifecycle import EMPTY, SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import SlotEvent, StopStage
from asyncpool.enums import SlotState


class Finish(enum.IntEnum):
    """What a closing pool still does; a later close can only make it stricter."""

    ALL = 0
    RUNNING = 1
    NONE = 2


class Closing:
    """How far the close of a pool has got, and what it still does.

    Args:
        lifecycle: The slots.
        dispatcher: The jobs that have no worker.
        pinned_jobs: The pinned jobs that have not begun.
        grace: Seconds that a worker has to end by itself once it is told to stop;
            by default as many as at other times.

    Attributes:
        finish: What the pool still does; ``None`` as long as it does not close.
        over: Whether the pool has no process left.
        due: When the time for closing is over; ``None`` if there is no limit.
        holds: How many sources hold the pool open.  It accepts their jobs while it
            drains.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        dispatcher: Dispatcher,
        pinned_jobs: PinnedJobs,
        grace: float | None = None,
    ) -> None:
        self.finish: Finish | None = None
        self.over = False
        self.due: float | None = None
        self.holds = 0
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._pinned = pinned_jobs
        self._grace = grace
        self._unpacking: dict[int, None] = {}

    @property
    def needs_nobody(self) -> bool:
        """Whether the pool closes, and no job may need another worker."""
        if self.finish is None or self._dispatcher.waiting or self._unpacking:
            return False
        return self.finish is not Finish.ALL or not self._more_to_do

    @property
    def draining(self) -> bool:
        """Whether the pool closes, and still accepts jobs from the sources that hold it open."""
        return self.finish is Finish.ALL and not self.over

    @property
    def _more_to_do(self) -> bool:
        """Whether a pool that finishes all has jobs besides those that are running."""
        if self._lifecycle.broken is not None:
            return False  # the pool refuses the jobs of the sources that hold it open
        return (
            self.holds > 0
            or self._pinned.any
            or any(
                len(slot.in_flight.jobs) > slot.concurrency
                for slot in self._lifecycle.slots
            )
        )

    def begin_unpacking(self, job: int) -> None:
        """Record that *job* has an outcome that takes a while to unpickle."""
        self._unpacking[job] = None

    def is_unpacking(self, job: int) -> bool:
        """Tell whether the outcome of *job* is there, and not unpickled yet."""
        return job in self._unpacking

    def end_unpacking(self, job: int) -> None:
        """Record that the outcome of *job* is unpickled."""
        self._unpacking.pop(job, None)

    def begin(
        self, finish: Finish, deadline: float | None, now: float
    ) -> list[Command]:
        """Finish what *finish* says, by *deadline* if there is one.

        If the pool is closed several times, the strictest close counts.
        """
        self.finish = max(finish, self.finish or Finish.ALL)
        if deadline is not None and (self.due is None or deadline < self.due):
            self.due = deadline
        if self.due is not None and self.due <= now:
            # It kills the workers, so none of them needs to be told.
            return self.on_timer(now)
        commands: list[Command] = []
        if self.finish >= Finish.RUNNING:
            commands += fail_jobs(self._dispatcher.take_all(), "closed")
        if self.finish is Finish.NONE:
            commands += fail_jobs(self._take_begun(), "closed")
            for slot in self._lifecycle.slots:
                if slot.state is SlotState.BUSY:
                    commands += self._lifecycle.stop_worker(
                        slot, StopStage.TERMINATED, now, planned=True
                    )
        return commands

    def on_timer(self, now: float) -> list[Command]:
        """Kill all workers that are left, if the time is over."""
        if self.due is None or self.due > now:
            return []
        self.due = None
        self.finish = Finish.NONE
        self._lifecycle.stop_trying()  # a start may be due now, too
        jobs = [*self._take_begun(), *self._dispatcher.take_all()]
        jobs += self._pinned.take_all()
        commands = fail_jobs(jobs, "closed")
        for slot in self._lifecycle.slots:
            if slot.state in EMPTY:
                slot.due = None
            elif slot.state is not SlotState.RETIRED:
                commands += self._lifecycle.stop_worker(
                    slot, StopStage.KILLED, now, planned=True
                )
        return commands

    def settle(self, now: float) -> list[Command]:
        """Let workers go that no job needs any more, if the pool closes and *needs nobody*."""
        commands: list[Command] = []
        for slot in self._lifecycle.slots:
            if slot.state in EMPTY:
                slot.due = None
                slot.apply(SlotEvent.RETIRE)
            elif slot.state is SlotState.STARTING:
                commands += self._lifecycle.stop_worker(
                    slot, StopStage.TERMINATED, now, planned=True
                )
            elif slot.state is SlotState.IDLE:
                commands += self._lifecycle.stop_worker(
                    slot, StopStage.STOPPED, now, planned=True, grace=self._grace
                )
        if self._lifecycle.retire_all():
            self.over = True
            self.due = None
            commands.append(Finished())
        return commands

    def abandon(self) -> None:
        """Mark the close as over, whatever is left: nobody decides any more."""
        self.finish, self.over = Finish.NONE, True

    def _take_begun(self) -> list[int]:
        """Take every job from the workers, and return those that are still wanted.

        The jobs whose outcomes are being unpickled are among them.
        """
        jobs: list[int] = []
        for slot in self._lifecycle.slots:
            if slot.in_flight.jobs:
                jobs += filter(slot.job_endings.is_wanted, slot.in_flight.jobs)
                slot.in_flight = InFlight(slot.concurrency)
                for ending in slot.job_endings.values():
                    ending.apply(EndingEvent.CLOSE)
        jobs += self._unpacking
        self._unpacking.clear()
        return jobs
