"""How one job in a worker's hands is made to end, step by step.

A pool makes a job end whose caller has cancelled it, whose time is over, or which is
silent.  The *stage* says how far the pool has gone; every change of it goes through the
table below, and this file does not know *why* it happens.  A job that nobody wants to end
has no record here.  The record goes when the job leaves its worker's hands: it has
finished, or the worker has given it back.

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

A job is asked to end once: there is no ``INTERRUPT`` in ``INTERRUPTING`` or ``DUMPING``.
``KILLING`` is not the end of it.  The worker first gives back the jobs that wait in it, and
until it has, a caller who cancels the job may still give it time to end by itself.

A worker that is ``STOPPING`` takes all of its jobs with it.  Their stages change no more,
and their deadlines count no more.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.transitions import IllegalTransitionError
from asyncpool._core.policies.job_limits import CancelMode


class EndingStage(enum.Enum):
    """How far the pool has gone to make a job end."""

    # Nothing is under way: its caller has gone, and it may run on.
    NONE = "none"
    # Its worker is to give it back, if it has not begun it.
    REVOKING = "revoking"
    # It was told to end, and has until its deadline.
    INTERRUPTING = "interrupting"
    # Its worker is to write the stacks of its threads, and has until the deadline.
    DUMPING = "dumping"
    # Its worker must die of it, at the deadline or before.
    KILLING = "killing"


class EndingEvent(enum.Enum):
    """What can happen to such a job."""

    REVOKE = enum.auto()  # its worker is asked to give it back
    KEEP = enum.auto()  # its worker says that it has begun it
    INTERRUPT = enum.auto()  # it is given time to end by itself
    DUMP = enum.auto()  # its worker is given time to write where it is
    KILL = (
        enum.auto()
    )  # that time is over, the stacks are written, or there was no time
    CLOSE = enum.auto()  # the close of the pool settles it, and ends its worker anyway


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

# A job has time to end by itself in these.
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
    """How one job is made to end.

    Attributes:
        stage: How far that has gone; see :data:`TRANSITIONS`.
        due: When the next step is taken at the latest, at a stage that has a deadline.
        press: How it is to end, if its caller has cancelled it, and nobody wants it.
        late: Its time to begin is over: it fails if its worker gives it back, and goes on
            if the worker keeps it.
        silent: It is the job whose silence its worker is to die of.
        written: Whether its worker has written where it is; ``None`` if nobody has asked.
    """

    stage: EndingStage = EndingStage.NONE
    due: float | None = None
    press: CancelMode | None = None
    late: bool = False
    silent: bool = False
    written: bool | None = None

    def apply(self, event: EndingEvent, due: float | None = None) -> None:
        """Go where the table says; if the stage is a new one, *due* is its deadline.

        Raises:
            IllegalTransitionError: If the table has no such arrow; nothing has changed.
        """
        stage = next_stage(self.stage, event)
        if {stage, self.stage} <= BY_ITSELF:
            self.due = earliest(self.due, due)  # a job never gets more time for it
        elif stage is not self.stage:
            self.due = due
        self.stage = stage


class JobEndings(dict[int, JobEnding]):
    """The jobs of one worker that are made to end.

    They are in the order in which they came to their stages.
    """

    __slots__ = ()

    def of(self, job: int) -> JobEnding:
        """Return the record of *job*, which may be a new one."""
        return self.setdefault(job, JobEnding())

    def apply(self, job: int, event: EndingEvent, due: float | None = None) -> None:
        """Let *event* happen to *job*, which becomes the last if its stage is a new one.

        Raises:
            IllegalTransitionError: If the table has no such arrow; nothing has changed.
        """
        ending = self.of(job)
        before = ending.stage
        ending.apply(event, due)
        if ending.stage is not before:
            self[job] = self.pop(job)

    def keep(self, job: int) -> None:
        """Take note that its worker has begun *job*, which was asked back in vain."""
        ending = self[job]
        ending.apply(EndingEvent.KEEP)
        ending.late = False
        if ending.stage is EndingStage.NONE and ending.press is None:
            del self[job]  # it goes on as any other job

    def is_late(self, job: int) -> bool:
        """Tell whether *job* is asked back since its time to begin is over."""
        ending = self.get(job)
        return ending is not None and ending.late

    def is_wanted(self, job: int) -> bool:
        """Tell whether somebody still wants *job*: it was not cancelled."""
        ending = self.get(job)
        return ending is None or ending.press is None

    def is_due(self, job: int, now: float) -> bool:
        """Tell whether the deadline of *job* is over."""
        due = self[job].due
        return due is not None and due <= now

    @property
    def due(self) -> float | None:
        """The first of their deadlines; ``None`` if there is none."""
        return earliest(*(ending.due for ending in self.values()))

    @property
    def by_itself(self) -> list[int]:
        """Those that have time to end by themselves."""
        return [job for job, it in self.items() if it.stage in BY_ITSELF]

    @property
    def dumping(self) -> list[int]:
        """Those whose worker is to write where they are."""
        stage = EndingStage.DUMPING
        return [job for job, it in self.items() if it.stage is stage]

    @property
    def unwritten(self) -> bool:
        """Whether the worker has not written yet where one of them is."""
        return any(it.written is False for it in self.values())

    @property
    def killing(self) -> int | None:
        """The job that the worker must die of, or the first of several."""
        found = (j for j, it in self.items() if it.stage is EndingStage.KILLING)
        return next(found, None)

    @property
    def silent(self) -> int | None:
        """The job whose silence the worker is to die of."""
        return next((job for job, it in self.items() if it.silent), None)
