"""The life of a slot, from an empty slot to an empty slot.

A slot is where one worker process after another runs; workers come and go, the slot stays.
Rule 1: every change of a slot's state goes through the table below.  Rule 2:
this file does not know *why* something happens: a worker that was told to stop
and one that was shot both end in ``EXITED``.

The states in the order in which a healthy worker visits them::

    VACANT -> STARTING -> IDLE <-> BUSY -> STOPPING -> VACANT

``BUSY`` begins when a job is assigned, not when the worker confirms it: otherwise
a worker would look idle while a job is on its way to it, and could be stopped.
``PARKED`` is an empty slot that waits for a probe, ``UNUSED`` one that is not needed now,
and ``RETIRED`` one that is never filled again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from asyncpool._core.base.transitions import IllegalTransitionError
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.policies.worker_limits import NEVER, RecycleLimits
from asyncpool._core.slots.job_ending import JobEndings
from asyncpool.enums import SlotState

_NEW = RecycleLimits(jobs=NEVER, age=None, memory=None)


class SlotEvent(enum.Enum):
    """What can happen to a slot."""

    SPAWN = enum.auto()
    READY = enum.auto()
    ASSIGN = enum.auto()
    RELEASE = enum.auto()
    STOP = enum.auto()
    EXITED = enum.auto()
    PARK = enum.auto()
    CLOSE = enum.auto()
    REOPEN = enum.auto()
    RETIRE = enum.auto()


class StopStage(enum.IntEnum):
    """How far the end of a process has been pressed; each step has a deadline."""

    NO = 0
    STOPPED = 1
    TERMINATED = 2
    KILLED = 3


_S, _E = SlotState, SlotEvent

TRANSITIONS: dict[SlotState, dict[SlotEvent, SlotState]] = {
    _S.VACANT: {
        _E.SPAWN: _S.STARTING,
        _E.PARK: _S.PARKED,
        _E.CLOSE: _S.UNUSED,
        _E.RETIRE: _S.RETIRED,
    },
    _S.STARTING: {_E.READY: _S.IDLE, _E.STOP: _S.STOPPING, _E.EXITED: _S.VACANT},
    _S.IDLE: {_E.ASSIGN: _S.BUSY, _E.STOP: _S.STOPPING, _E.EXITED: _S.VACANT},
    _S.BUSY: {_E.RELEASE: _S.IDLE, _E.STOP: _S.STOPPING, _E.EXITED: _S.VACANT},
    _S.STOPPING: {_E.EXITED: _S.VACANT},
    _S.PARKED: {
        _E.SPAWN: _S.STARTING,
        _E.CLOSE: _S.UNUSED,
        _E.RETIRE: _S.RETIRED,
    },
    _S.UNUSED: {
        _E.SPAWN: _S.STARTING,
        _E.REOPEN: _S.VACANT,
        _E.RETIRE: _S.RETIRED,
    },
    _S.RETIRED: {},
}


def next_state(state: SlotState, event: SlotEvent) -> SlotState:
    """Return the state that follows *state* when *event* happens.

    Raises:
        IllegalTransitionError: If the table has no such arrow.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} in state {state.name}") from None


# A worker that is ready, and not on its way out, is in these.
UP = frozenset({SlotState.IDLE, SlotState.BUSY})


@dataclass(slots=True)
class Slot:
    """One slot: where it is in its life, and what its present worker has done.

    Attributes:
        index: Its number in the pool, from 0.
        state: See :data:`TRANSITIONS`.
        generation: Which worker it has, or had last, counting from 1.
        in_flight: The jobs that it has in flight.
        outcomes: How many outcomes it has delivered.
        concurrency: How many jobs its workers run at once.
        job_endings: Its jobs that are made to end; see ``job_ending.py``.  All that is
            about one such job is there; what follows is about the worker.
        seen: The jobs that were running at the last look for a stall: if they still are,
            it gives back those that wait behind them.
        hung: It, or one of its jobs, has been silent for too long, and it dies of that.
        recycle_limits: When it is due for recycling.
        replace_reason: Why another worker is to take its place, if one is.
        replaces: The slot of the worker whose place it is to take when it is ready.
        bucket: What jobs with keys know its workers by; see ``affinity_slots.py``.
        draining: It gets no more jobs, and ends when it has finished what it has.
        drain_deadline: By when it must have.
        exit_reason: Why it is to end, if the pool has decided that, and no job is the reason.
        pinned: Jobs for its worker alone, which it begins before any other.
        session: Whose own its worker is, if it is somebody's.
        calls: The jobs of that session that have not begun.
        idle_since: Since when it has had nothing to do, if that is so.
        oversized: It had more memory than it may, and dies of that.
        began_at: When it was started.
        ready_at: When it said hello; ``None`` before that.
        due: When the supervisor must look at the slot again, whatever happens: to
            start, to probe, or to take the next step in ending a process.
        planned: Its end is the supervisor's own wish, hence not a crash.
        faulty: It must not get another job, since something in the worker is broken.
        probing: It was started to find out whether starting is possible again.
        stop_stage: How far the end of its process has been pressed.
        is_late: It was asked where it is, since its time to end is nearly over.
    """

    index: int
    state: SlotState = SlotState.VACANT
    generation: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    concurrency: int = 1
    outcomes: int = 0
    job_endings: JobEndings = field(default_factory=JobEndings)
    seen: tuple[int, ...] = ()
    hung: bool = False
    recycle_limits: RecycleLimits = _NEW
    replace_reason: str | None = None
    replaces: int | None = None
    bucket: int | None = None
    draining: bool = False
    drain_deadline: float | None = None
    exit_reason: str = ""
    pinned: deque[int] = field(default_factory=deque)
    session: int | None = None
    calls: deque[int] = field(default_factory=deque)
    idle_since: float = 0.0
    oversized: bool = False
    began_at: float = 0.0
    ready_at: float | None = None
    due: float | None = None
    planned: bool = False
    faulty: bool = False
    probing: bool = False
    stop_stage: StopStage = StopStage.NO
    is_late: bool = False

    def apply(self, event: SlotEvent) -> None:
        """Go where the table says.

        Raises:
            IllegalTransitionError: If it says nothing; the slot is unchanged.
        """
        self.state = next_state(self.state, event)

    def assign(self) -> None:
        """Take note that its worker has something in flight."""
        if self.state is SlotState.IDLE:
            self.apply(SlotEvent.ASSIGN)

    def renew(self) -> None:
        """Begin the next generation."""
        self.generation += 1
        self.in_flight = InFlight(self.concurrency)
        self.job_endings = JobEndings()
        self.ready_at = self.due = None
        self.seen = ()
        self.outcomes = 0
        self.planned = self.faulty = self.hung = False
        self.replace_reason = self.replaces = self.drain_deadline = None
        self.draining = self.oversized = self.is_late = False
        self.exit_reason = ""
        self.stop_stage = StopStage.NO
