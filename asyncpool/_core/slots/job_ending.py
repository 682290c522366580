"""How the pool ends one job that a worker has, step by step.

The pool ends a job whose caller has cancelled it, whose time is over, or which is
silent.  The *stage* says how far the pool has got.  Every change of the stage goes
through the table below, and this file does not know *why* a change happens.  A job that
nobody wants to end has no record here.  The pool drops the record when its worker has
finished the job, or has given it back.

The table as a drawing::

    NONE ─────────┬─ REVOKE ────▶ REVOKING
    REVOKING ─────┘

    NONE ─────────┬─ KEEP ──────▶ NONE
    REVOKING ─────┘

    NONE ─────────┐
    REVOKING ─────┼─ INTERRUPT ─▶ INTERRUPTING
    KILLING ──────┘

    NONE ─────────┐
    REVOKING ─────┤
    INTERRUPTING ─┼─ DUMP ──────▶ DUMPING
    DUMPING ──────┤
    KILLING ──────┘

    NONE ─────────┐
    REVOKING ─────┼─ KILL ──────▶ KILLING
    INTERRUPTING ─┤
    DUMPING ──────┘

    INTERRUPTING ─┐
    DUMPING ──────┼─ REVOKE ────▶ (the same)
    KILLING ──────┘

    INTERRUPTING ─┐
    DUMPING ──────┼─ KEEP ──────▶ (the same)
    KILLING ──────┘

    (each) ───────── CLOSE ─────▶ NONE

The pool asks a job to end only once: there is no ``INTERRUPT`` in ``INTERRUPTING`` or
``DUMPING``.  ``KILLING`` is not yet the end.  The worker first gives back the jobs that
wait in it.  Until then, a caller that cancels the job may still give it time to end by
itself.

A worker that is ``STOPPING`` ends together with all of its jobs.  Their stages do not
change any more, and their deadlines do not count any more.
"""

from __future__ import annotations

import enum

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.policies.job_options import CancelMode
from asyncpool._dataclass import dataclass


class IllegalTransitionError(AssertionError):
    """An event that cannot happen in this state: a bug in asyncpool."""


class EndingStage(enum.Enum):
    """How far the pool has got in ending a job."""

    # The pool does nothing about it: its caller has gone, and it may run on.
    NONE = "none"
    # The pool has asked its worker to give it back, unless it has begun.
    REVOKING = "revoking"
    # The pool has told it to end, and waits until the deadline.
    INTERRUPTING = "interrupting"
    # Its worker has been asked to write the stacks of its threads, and has until the
    # deadline.
    DUMPING = "dumping"
    # The pool will kill its worker, at the deadline or before.
    KILLING = "killing"


class EndingEvent(enum.Enum):
    """What can happen to a job that the pool ends."""

    REVOKE = enum.auto()  # the pool asks its worker to give it back
    KEEP = enum.auto()  # its worker says that it has begun it
    INTERRUPT = enum.auto()  # the pool gives it time to end by itself
    DUMP = enum.auto()  # the pool gives its worker time to write the stacks
    # That time is over, the stacks are written, or there was no time.
    KILL = enum.auto()
    CLOSE = enum.auto()  # the pool closes, which ends the worker anyway


_S, _E = EndingStage, EndingEvent

TRANSITIONS: dict[EndingStage, dict[EndingEvent, EndingStage]] = {
    _S.NONE: {
        _E.REVOKE: _S.REVOKING,
        _E.KEEP: _S.NONE,
        _E.INTERRUPT: _S.INTERRUPTING,
        _E.DUMP: _S.DUMPING,
        _E.KILL: _S.KILLING,
        _E.CLOSE: _S.NONE,
    },
    _S.REVOKING: {
        _E.REVOKE: _S.REVOKING,
        _E.KEEP: _S.NONE,
        _E.INTERRUPT: _S.INTERRUPTING,
        _E.DUMP: _S.DUMPING,
        _E.KILL: _S.KILLING,
        _E.CLOSE: _S.NONE,
    },
    _S.INTERRUPTING: {
        _E.REVOKE: _S.INTERRUPTING,
        _E.KEEP: _S.INTERRUPTING,
        _E.DUMP: _S.DUMPING,
        _E.KILL: _S.KILLING,
        _E.CLOSE: _S.NONE,
    },
    _S.DUMPING: {
        _E.REVOKE: _S.DUMPING,
        _E.KEEP: _S.DUMPING,
        _E.DUMP: _S.DUMPING,
        _E.KILL: _S.KILLING,
        _E.CLOSE: _S.NONE,
    },
    _S.KILLING: {
        _E.REVOKE: _S.KILLING,
        _E.KEEP: _S.KILLING,
        _E.INTERRUPT: _S.INTERRUPTING,
        _E.DUMP: _S.DUMPING,
        _E.CLOSE: _S.NONE,
    },
}

# The stages in which a job has time to end by itself.
BY_ITSELF = frozenset({EndingStage.INTERRUPTING, EndingStage.DUMPING})


def next_stage(stage: EndingStage, event: EndingEvent) -> EndingStage:
    """Return the stage that follows *stage* when *event* happens.

    Raises:
        IllegalTransitionError: If the table has no such arrow.
    """
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} at stage {stage.name}") from None


@dataclass(slots=True)
class JobEnding:
    """How the pool ends one job.

    Attributes:
        stage: How far the pool has got; see :data:`TRANSITIONS`.
        due: When the pool takes the next step at the latest, if the stage has a
            deadline.
        mode: How the pool ends the job, if its caller has cancelled it and nobody
            wants it.
        expired: It has not begun within its ``queue_timeout``.  It fails if its worker gives it back, and
            goes on if the worker has begun it.
        silent: The pool kills the worker because this job is silent.
        written: Whether its worker has written its stacks; ``None`` if the pool has
            not asked.
    """

    stage: EndingStage = EndingStage.NONE
    due: float | None = None
    mode: CancelMode | None = None
    expired: bool = False
    silent: bool = False
    written: bool | None = None

    def apply(self, event: EndingEvent, due: float | None = None) -> None:
        """Change to the stage that the table says; *due* is the deadline of a new stage.

        Raises:
            IllegalTransitionError: If the table has no such arrow; nothing has changed.
        """
        stage = next_stage(self.stage, event)
        if {stage, self.stage} <= BY_ITSELF:
            self.due = earliest(self.due, due)  # see extend()
        elif stage is not self.stage:
            self.due = due
        self.stage = stage

    def extend(self, due: float) -> None:
        """Give a job that has time to end by itself time until *due*, if it has less."""
        if self.stage in BY_ITSELF and self.due is not None:
            self.due = max(self.due, due)


class JobEndings(dict[int, JobEnding]):
    """The jobs of one worker that the pool ends.

    They are in the order in which they came to their stages.
    """

    __slots__ = ()

    def of(self, job: int) -> JobEnding:
        """Return the record of *job*, which may be a new one."""
        return self.setdefault(job, JobEnding())

    def apply(self, job: int, event: EndingEvent, due: float | None = None) -> None:
        """Apply *event* to *job*, which moves to the end of the order if its stage changes.

        Raises:
            IllegalTransitionError: If the table has no such arrow; nothing has changed.
        """
        ending = self.of(job)
        before = ending.stage
        ending.apply(event, due)
        if ending.stage is not before:
            self[job] = self.pop(job)

    def keep(self, job: int) -> None:
        """Record that its worker has begun *job*, and so does not give it back."""
        ending = self[job]
        ending.apply(EndingEvent.KEEP)
        ending.expired = False
        if ending.stage is EndingStage.NONE and ending.mode is None:
            del self[job]  # it goes on like any other job

    def is_expired(self, job: int) -> bool:
        """Tell whether the pool asks *job* back because it has not begun in time."""
        ending = self.get(job)
        return ending is not None and ending.expired

    def is_wanted(self, job: int) -> bool:
        """Tell whether somebody still wants *job*: its caller has not cancelled it."""
        ending = self.get(job)
        return ending is None or ending.mode is None

    def is_due(self, job: int, now: float) -> bool:
        """Tell whether the deadline of *job* has passed."""
        due = self[job].due
        return due is not None and due <= now

    @property
    def due(self) -> float | None:
        """The earliest of the deadlines; ``None`` if there is none."""
        return earliest(*(ending.due for ending in self.values()))

    @property
    def by_itself(self) -> list[int]:
        """The jobs that have time to end by themselves."""
        return [job for job, it in self.items() if it.stage in BY_ITSELF]

    @property
    def dumping(self) -> list[int]:
        """The jobs whose stacks the worker has been asked to write."""
        stage = EndingStage.DUMPING
        return [job for job, it in self.items() if it.stage is stage]

    @property
    def unwritten(self) -> bool:
        """Whether the worker has still to write the stacks of one of them."""
        return any(it.written is False for it in self.values())

    @property
    def killing(self) -> int | None:
        """The job for which the pool kills the worker, or the first of several."""
        found = (j for j, it in self.items() if it.stage is EndingStage.KILLING)
        return next(found, None)

    @property
    def silent(self) -> int | None:
        """The job for whose silence the pool kills the worker."""
        return next((job for job, it in self.items() if it.silent), None)
