"""The end of a pool: what it still does, until when, and which workers it lets go.

A pool that finishes all its jobs *drains*.  As long as a job may need another worker,
the pool goes on like an open one.  After that it lets its workers go.  The jobs that a
pool has to do are those in the queue, those that wait in a worker behind others, and
pinned jobs.  A map that has not drawn all of its items also *holds* the pool open,
since more jobs are to come.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.slots.job_ending import EndingEvent
from asyncpool._core.slots.slots import SlotEvent, StopStage
from asyncpool._core.supervision.lifecycle import EMPTY
from asyncpool.enums import SlotState

if TYPE_CHECKING:
    from asyncpool._core.supervision.core import Core


class Finish(enum.IntEnum):
    """What a closing pool still does; a later close can only make it stricter."""

    ALL = 0
    RUNNING = 1
    NONE = 2


class Closing:
    """How far the close of a pool has got, and what it still does.

    Args:
        core: The core of the pool.
        grace: Seconds that a worker has to end by itself once it is told to stop;
            by default as many as at other times.

    Attributes:
        finish: What the pool still does; ``None`` as long as it does not close.
        over: Whether the pool has no process left.
        due: When the time for closing is over; ``None`` if there is no limit.
        holds: How many sources hold the pool open.  It accepts their jobs while it
            drains.
        unpacking: The jobs that have an outcome which takes a while to unpickle.
    """

    def __init__(self, core: Core, grace: float | None = None) -> None:
        self.finish: Finish | None = None
        self.over = False
        self.due: float | None = None
        self.holds = 0
        self.unpacking: dict[int, None] = {}
        self._core = core
        self._grace = grace

    @property
    def needs_nobody(self) -> bool:
        """Whether the pool closes, and no job may need another worker."""
        if self.finish is None or self._core.dispatcher.waiting or self.unpacking:
            return False
        return self.finish is not Finish.ALL or not self._more_to_do

    @property
    def draining(self) -> bool:
        """Whether the pool closes, and still accepts jobs from the sources that hold it open."""
        return self.finish is Finish.ALL and not self.over

    @property
    def _more_to_do(self) -> bool:
        """Whether a pool that finishes all has jobs besides those that are running."""
        core = self._core
        if core.lifecycle.broken is not None:
            return False  # the pool refuses the jobs of the sources that hold it open
        return self.holds > 0 or core.sessions.any_pinned or core.pipelining

    def begin(self, finish: Finish, deadline: float | None, now: float) -> None:
        """Finish what *finish* says, by *deadline* if there is one.

        If the pool is closed several times, the strictest close counts.
        """
        core = self._core
        self.finish = max(finish, self.finish or Finish.ALL)
        if deadline is not None and (self.due is None or deadline < self.due):
            self.due = deadline
        if self.due is not None and self.due <= now:
            # It kills the workers, so none of them needs to be told.
            self.on_timer(now)
            return
        if self.finish >= Finish.RUNNING:
            core.fail(core.dispatcher.take_all(), "closed")
        if self.finish is Finish.NONE:
            core.fail(self._take_begun(), "closed")
            for slot in core.slots:
                if slot.state is SlotState.BUSY:
                    core.lifecycle.stop(slot, StopStage.TERMINATED, now, planned=True)

    def on_timer(self, now: float) -> None:
        """Kill all workers that are left, if the time is over."""
        if self.due is None or self.due > now:
            return
        self.due = None
        self.finish = Finish.NONE
        core = self._core
        core.lifecycle.stop_trying()  # a start may be due now, too
        jobs = [*self._take_begun(), *core.dispatcher.take_all()]
        core.fail([*jobs, *core.sessions.take_all()], "closed")
        for slot in core.slots:
            if slot.state in EMPTY:
                slot.due = None
            elif slot.state is not SlotState.RETIRED:
                core.lifecycle.stop(slot, StopStage.KILLED, now, planned=True)

    def settle(self, now: float) -> None:
        """Let workers go that no job needs any more, since the pool *needs nobody*."""
        lifecycle = self._core.lifecycle
        for slot in self._core.slots:
            if slot.state in EMPTY:
                slot.due = None
                slot.apply(SlotEvent.RETIRE)
            elif slot.state is SlotState.STARTING:
                lifecycle.stop(slot, StopStage.TERMINATED, now, planned=True)
            elif slot.state is SlotState.IDLE:
                how = StopStage.STOPPED
                lifecycle.stop(slot, how, now, planned=True, grace=self._grace)
        if lifecycle.retire_all():
            self.over = True
            self.due = None
            self._core.do("finished")

    def abandon(self) -> None:
        """Mark the close as over, whatever is left: nobody decides any more."""
        self.finish, self.over = Finish.NONE, True

    def _take_begun(self) -> list[int]:
        """Take every job from the workers, and return those that are still wanted.

        The jobs whose outcomes are being unpickled are among them.
        """
        jobs: list[int] = []
        for slot in self._core.slots:
            if slot.in_flight.jobs:
                jobs += filter(slot.job_endings.is_wanted, slot.in_flight.jobs)
                slot.in_flight = InFlight(slot.concurrency)
                for ending in slot.job_endings.values():
                    ending.apply(EndingEvent.CLOSE)
        jobs += self.unpacking
        self.unpacking.clear()
        return jobs
