"""The life of a slot, from an empty slot to an empty slot.

One worker process after another runs in a slot.  Workers come and go, and the slot
stays.  Rule 1: every change of a slot's state goes through the table below.  Rule 2:
this file does not know *why* something happens.  A worker that was told to stop and a
worker that was killed both end with ``EXITED``.

The states in the order in which a healthy worker visits them::

    VACANT -> STARTING -> IDLE <-> BUSY -> STOPPING -> VACANT

``BUSY`` begins when the pool assigns a job, not when the worker confirms it.  Otherwise
a worker would look idle while a job is on its way to it, and the pool could stop it.

A ``PARKED`` slot is empty, and waits for a probe.  An ``UNUSED`` slot is not needed
now.  A ``RETIRED`` slot never gets a worker again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import field

from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.policies.worker_limits import NEVER, RecycleLimits
from asyncpool._core.slots.job_ending import IllegalTransitionError, JobEndings
from asyncpool._dataclass import dataclass
from asyncpool.enums import SlotState

_NEW = RecycleLimits(jobs=NEVER, age=None, memory=None)


class SlotEvent(enum.Enum):
    """What can happen to a slot."""

    SPAWN = enum.auto()
    READY = enum.auto()
    STOP = enum.auto()
    EXITED = enum.auto()
    PARK = enum.auto()
    CLOSE = enum.auto()
    REOPEN = enum.auto()
    RETIRE = enum.auto()


class StopStage(enum.IntEnum):
    """How far the pool has got in ending a process; each step has a deadline."""

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
    _S.IDLE: {_E.STOP: _S.STOPPING, _E.EXITED: _S.VACANT},
    _S.BUSY: {_E.STOP: _S.STOPPING, _E.EXITED: _S.VACANT},
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


# The states of a slot whose worker is ready and does not end.
UP = frozenset({SlotState.IDLE, SlotState.BUSY})


@dataclass(slots=True)
class Slot:
    """One slot: its state, and what its present worker has done.

    Attributes:
        index: Its number in the pool, from 0.
        rank: The number that its worker knows itself by; see ``lifecycle.py``.
        state: See :data:`TRANSITIONS`.
        generation: Which worker of the slot it is, or was last, counting from 1.
        in_flight: The jobs that its worker has in flight.
        concurrency: How many jobs its workers run at once.
        job_endings: The jobs of its worker that the pool ends; see
            ``job_ending.py``.  All that concerns one such job is there; the attributes
            below are about the worker.
        seen: The jobs that were running at the last check for a stall.  If they
            still run at the next check, the pool asks for the jobs that wait behind
            them.
        hung: The worker, or one of its jobs, has been silent for too long, and the
            pool kills the worker for that.
        recycle_limits: When its worker is due for recycling.
        replace_reason: Why the worker is to be replaced, if it is.
        replaces: The slot whose worker this one replaces as soon as it is ready.
        bucket: The number by which jobs with keys find its workers; see
            ``_core/supervision/sessions.py``.
        draining: The worker gets no more jobs, and ends when it has finished what
            it has.
        drain_deadline: By when a draining worker must have ended.
        exit_reason: Why the pool ends the worker, if it does, and if no job is the
            reason.
        pinned: The jobs that are pinned to its worker, which begins them before any
            other.
        session: The session that its worker belongs to, if any.
        calls: The jobs of that session that have not begun.
        idle_since: Since when the worker has had nothing to do, if it has nothing
            to do.
        oversized: The worker had more memory than it may, and the pool kills it for
            that.
        began_at: When the worker was started.
        ready_at: When the worker said hello; ``None`` before that.
        due: When the supervisor must act on the slot at the latest: to start a
            worker, to probe, or to take the next step in ending a process.
        exit_planned: The supervisor itself ends the worker, so its end is no crash.
        faulty: The worker must not get another job, since something in it is
            broken.
        hopeless: Its start has failed, and another one would fail in the same way.
        is_probe: The worker was started to find out whether starts succeed again.
        stop_stage: How far the pool has got in ending the process.
        is_overdue: The pool has asked the worker for its stacks, since its time to end
            is nearly over.
    """

    index: int
    state: SlotState = SlotState.VACANT
    rank: int = 0
    generation: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    concurrency: int = 1
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
    exit_planned: bool = False
    faulty: bool = False
    hopeless: bool = False
    is_probe: bool = False
    stop_stage: StopStage = StopStage.NO
    is_overdue: bool = False

    def apply(self, event: SlotEvent) -> None:
        """Change to the state that the table says.

        Raises:
            IllegalTransitionError: If it says nothing; the slot is unchanged.
        """
        self.state = next_state(self.state, event)

    def assign(self) -> None:
        """Record that its worker has a job in flight.

        The table does not have this, nor the way back, since each call takes both.
        """
        if self.state is SlotState.IDLE:
            self.state = SlotState.BUSY

    def renew(self) -> None:
        """Begin the next generation."""
        self.generation += 1
        self.in_flight = InFlight(self.concurrency)
        self.job_endings = JobEndings()
        self.ready_at = self.due = None
        self.seen = ()
        self.exit_planned = self.faulty = self.hung = self.hopeless = False
        self.replace_reason = self.replaces = self.drain_deadline = None
        self.draining = self.oversized = self.is_overdue = False
        self.exit_reason = ""
        self.stop_stage = StopStage.NO
