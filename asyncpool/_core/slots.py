"""The states of a slot and of a job that is to end, as two tables; why workers ended; how many there are.

Every change but that between IDLE and BUSY goes through its table, and nothing here knows *why* it happens.

*A job that is to end.*  The pool ends a job whose caller has cancelled it, whose time is over, or
which is silent, step by step.  The *stage* says how far the pool has got.  A job that
nobody wants to end has no record here.  The pool drops the record when its worker has
finished the job, or has given it back.

The pool asks a job to end only once: there is no ``INTERRUPT`` in ``INTERRUPTING`` or
``DUMPING``.  ``KILLING`` is not yet the end.  The worker first gives back the jobs that
wait in it.  Until then, a caller that cancels the job may still give it time to end by
itself.

A worker that is ``STOPPING`` ends together with all of its jobs.  Their stages do not
change any more, and their deadlines do not count any more.

*The life of a slot.*  One worker process after another runs in a slot.  Workers come and go, and the
slot stays.  A worker that was told to stop and a worker that was killed both end with ``EXITED``.

The states in the order in which a healthy worker visits them::

    VACANT -> STARTING -> IDLE <-> BUSY -> STOPPING -> VACANT

``BUSY`` begins when the pool assigns a job, not when the worker confirms it.  Otherwise
a worker would look idle while a job is on its way to it, and the pool could stop it.

A ``PARKED`` slot is empty, and waits for a probe.  An ``UNUSED`` slot is not needed
now.  A ``REMOVED`` slot never gets a worker again.

*Why a worker ended.*  The reason and the detail (as in ``events.Exited``) may name a job, or have
words of the user's.  The cause is one of a few, by which ends are counted.

*The size of a pool* is how many workers it should have, between a least and a most number.  A pool
grows when jobs have waited for a while: by one worker, then by two, by four, and
so on, as long as jobs go on waiting.  So a burst that the present workers can finish at
once starts no worker, and a flood of jobs does not start all workers in one moment.
The pool starts no more workers than there are jobs without one.

A pool shrinks when a worker has been idle for *idle_timeout*.  The time of the next
check never comes later than that.  While no worker is idle, the next check is a whole
*idle_timeout* from now, so the pool need not do anything at the moment when a worker
becomes idle.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import field
from typing import Self, TypeVar, cast

from asyncpool._core.deadlines import earliest
from asyncpool._core.dispatcher import InFlight
from asyncpool._core.options import NEVER, CancelMode, RecycleLimits
from asyncpool._dataclass import dataclass
from asyncpool.enums import SlotState

CRASH = "crash"

# The cause of an end that has none of the others.
OTHER = "other"

CAUSES = (
    CRASH,
    "cancellation",
    "close",
    "idle",
    "kill",
    "max_age",
    "max_jobs",
    "max_memory",
    "request_replacement",
    "resize",
    "retire",
    "retire_worker",
    "roll",
    "session",
    "timeout",
    "uncaught exception",
    OTHER,
)


class JobText(str):
    """A text about a job, which has another number for the client that submitted it.

    Args:
        known: The text, with ``{}`` where the job's number belongs.
        job: The number.
        unknown: The text for all other clients.
    """

    __slots__ = ("job", "known", "unknown")
    known: str
    job: int
    unknown: str

    def __new__(cls, known: str, job: int, unknown: str) -> Self:
        """Make the text."""
        # Not format(): an agent may have sent it, with a width of a gigabyte.
        self = super().__new__(cls, known.replace("{}", str(job)))
        self.known, self.job, self.unknown = known, job, unknown
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def exit_cause(reason: str) -> str:
    """Return the cause of a planned exit for a *reason* that names no job."""
    cause = reason.partition(":")[0].removesuffix("()")
    return cause if cause in CAUSES else OTHER


class IllegalTransitionError(AssertionError):
    """An event that cannot happen in this state: a bug in asyncpool."""


S = TypeVar("S", bound=enum.Enum)


class _Event(enum.Enum):
    """What can happen, as a row of a table: in which states, and the state that follows.

    In the states of a third column it changes nothing.
    """

    def follow(self, state: S, where: str) -> S:
        """Return what follows *state* when this happens.

        Raises:
            IllegalTransitionError: If the table does not say.
        """
        sources, target, *unchanged = self.value
        if state in sources:
            return cast("S", target)
        if any(state in states for states in unchanged):
            return state
        raise IllegalTransitionError(f"{self.name} {where} {state.name}")


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


# The stages before and after the job is told to end.  Those before have the same arrows.
_NOT_TOLD = frozenset({EndingStage.NONE, EndingStage.REVOKING})
_TOLD = frozenset(EndingStage) - _NOT_TOLD


class EndingEvent(_Event):
    """What can happen to a job that the pool ends."""

    # The pool asks its worker to give it back.
    REVOKE = _NOT_TOLD, EndingStage.REVOKING, _TOLD
    # Its worker says that it has begun it.
    KEEP = _NOT_TOLD, EndingStage.NONE, _TOLD
    # The pool gives it time to end by itself.
    INTERRUPT = _NOT_TOLD | {EndingStage.KILLING}, EndingStage.INTERRUPTING
    # The pool gives its worker time to write the stacks.
    DUMP = frozenset(EndingStage), EndingStage.DUMPING
    # That time is over, the stacks are written, or there was no time.
    KILL = frozenset(EndingStage) - {EndingStage.KILLING}, EndingStage.KILLING
    # The pool closes, which ends the worker anyway.
    CLOSE = frozenset(EndingStage), EndingStage.NONE


# The stages in which a job has time to end by itself.
BY_ITSELF = frozenset({EndingStage.INTERRUPTING, EndingStage.DUMPING})


@dataclass(slots=True)
class JobEnding:
    """How the pool ends one job.

    Attributes:
        stage: How far the pool has got; see :class:`EndingEvent`.
        due: When the pool takes the next step at the latest, if the stage has a
            deadline.
        mode: How the pool ends the job, if its caller has cancelled it.
        too_late: It has not begun within its ``queue_timeout``.  It fails if its worker gives it back, and
            goes on if the worker has begun it.
        silent: The pool kills the worker because this job is silent.
        written: Whether its worker has written its stacks, for which the kill waits; ``None`` if
            the kill does not wait for them, whether the pool has asked or not.
    """

    stage: EndingStage = EndingStage.NONE
    due: float | None = None
    mode: CancelMode | None = None
    too_late: bool = False
    silent: bool = False
    written: bool | None = None


class JobEndings(dict[int, JobEnding]):
    """The jobs of one worker that the pool ends.

    They are in the order in which they came to their stages.
    """

    __slots__ = ()

    def of(self, job: int) -> JobEnding:
        """Return the record of *job*, which may be a new one."""
        return self.setdefault(job, JobEnding())

    def apply(self, job: int, event: EndingEvent, due: float | None = None) -> None:
        """Change the stage of *job* as the table says; *due* is the deadline of a new stage.

        If the stage changes, the job moves to the end of the order.

        Raises:
            IllegalTransitionError: If the table has no such arrow; nothing has changed.
        """
        ending = self.of(job)
        before = ending.stage
        stage = event.follow(before, "at stage")
        if {stage, before} <= BY_ITSELF:
            # A second reason gives it no more time.
            ending.due = earliest(ending.due, due)
        elif stage is not before:
            ending.due = due
        if stage is not before:
            ending.stage, self[job] = stage, self.pop(job)

    def keep(self, job: int) -> None:
        """Record that its worker has begun *job*, and so does not give it back."""
        self.apply(job, EndingEvent.KEEP)
        ending = self[job]
        ending.too_late = False
        if ending.stage is EndingStage.NONE and ending.mode is None:
            del self[job]  # it goes on like any other job

    def is_too_late(self, job: int) -> bool:
        """Tell whether the pool asks *job* back because it has not begun in time."""
        ending = self.get(job)
        return ending is not None and ending.too_late

    def is_wanted(self, job: int) -> bool:
        """Tell whether somebody still wants *job*: its caller has not cancelled it."""
        ending = self.get(job)
        return ending is None or ending.mode is None

    @property
    def due(self) -> float | None:
        """The earliest of the deadlines; ``None`` if there is none."""
        return earliest(*(ending.due for ending in self.values()))

    @property
    def any_ends_by_itself(self) -> bool:
        """Whether one of the jobs has time to end by itself."""
        return any(it.stage in BY_ITSELF for it in self.values())

    @property
    def killing(self) -> int | None:
        """The job for which the pool kills the worker, or the first of several."""
        found = (j for j, it in self.items() if it.stage is EndingStage.KILLING)
        return next(found, None)

    @property
    def silent(self) -> int | None:
        """The job for whose silence the pool kills the worker."""
        return next((job for job, it in self.items() if it.silent), None)


_NEW = RecycleLimits(jobs=NEVER, age=None, memory=None)


class StopStage(enum.IntEnum):
    """How far the pool has got in ending a process; each step has a deadline."""

    NO = 0
    ASKED = 1
    TERMINATED = 2
    KILLED = 3


# The states of a slot whose worker is ready and does not end.
UP = frozenset({SlotState.IDLE, SlotState.BUSY})

# Those, and the one of a slot whose worker is being started.
STARTING_OR_UP = UP | {SlotState.STARTING}

# The states of a slot that has a process.
ALIVE = STARTING_OR_UP | {SlotState.STOPPING}

# The states of a slot that has no process and may have one again.
EMPTY = frozenset({SlotState.VACANT, SlotState.PARKED, SlotState.UNUSED})

# The states of a slot that is to have no worker.
NOT_NEEDED = frozenset({SlotState.UNUSED, SlotState.REMOVED})


class RollPart(enum.IntEnum):
    """What a roll has to do with a worker; it is false if the worker stays."""

    NONE = 0  # there is no roll, or the worker's start began after it
    # It must go, and is not counted: of a worker and the one that was started to replace it before
    # the roll, only one counts as replaced.
    GOES = 1
    COUNTED = 2  # it must go, and counts as replaced when it has gone


class SlotEvent(_Event):
    """What can happen to a slot."""

    SPAWN = EMPTY, SlotState.STARTING
    READY = {SlotState.STARTING}, SlotState.IDLE
    STOP = STARTING_OR_UP, SlotState.STOPPING
    EXITED = ALIVE, SlotState.VACANT
    PARK = {SlotState.VACANT}, SlotState.PARKED
    RELEASE = {SlotState.VACANT, SlotState.PARKED}, SlotState.UNUSED
    REOPEN = {SlotState.UNUSED}, SlotState.VACANT
    REMOVE = EMPTY, SlotState.REMOVED


@dataclass(slots=True)
class Slot:
    """One slot: its state, and what its present worker has done.

    Attributes:
        index: Its number in the pool, from 0.
        rank: The number that its worker knows itself by; see ``lifecycle.py``.
        state: See :class:`SlotEvent`.
        generation: Which worker of the slot it is, or was last, counting from 1.
        in_flight: The jobs that its worker has in flight.
        job_endings: The jobs of its worker that the pool ends; see
            :class:`EndingEvent`.  All that concerns one such job is there; the attributes
            below are about the worker.
        seen: The jobs that were running at the last check for a stall.  If they
            still run at the next check, the pool asks for the jobs that wait behind
            them.
        hung: The worker, or one of its jobs, has been silent for too long, and the
            pool kills the worker for that.
        recycle_limits: When its worker is due for recycling.
        replace_reason: Why the worker is to be replaced, if it is.
        replaces: The slot whose worker this one replaces as soon as it is ready.
        roll_part: What the roll under way has to do with its worker.
        bucket: The number by which jobs with keys find its workers; see
            ``_core/core.py``.
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
        due: When the pool must act on the slot at the latest: to start a worker, to probe, or to take
            the next step in ending the process, or one of its jobs (then it is ``job_endings.due``).
        exit_planned: The pool itself ends the worker, so its end is no crash.
        faulty: The worker must not get another job, since something in it is
            broken.
        stop_stage: How far the pool has got in ending the process.
        stacks_requested: The pool has asked the worker for its stacks, since its time to end
            is nearly over.
    """

    index: int
    state: SlotState = SlotState.VACANT
    rank: int = 0
    generation: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    job_endings: JobEndings = field(default_factory=JobEndings)
    seen: tuple[int, ...] = ()
    hung: bool = False
    recycle_limits: RecycleLimits = _NEW
    replace_reason: str | None = None
    replaces: int | None = None
    roll_part: RollPart = RollPart.NONE
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
    stop_stage: StopStage = StopStage.NO
    stacks_requested: bool = False

    @property
    def stays(self) -> bool:
        """Whether its worker is ready and is not to leave."""
        return self.state in UP and not self.draining

    def apply(self, event: SlotEvent) -> None:
        """Change to the state that the table says.

        Raises:
            IllegalTransitionError: If it says nothing; the slot is unchanged.
        """
        self.state = event.follow(self.state, "in state")

    def mark_busy(self) -> None:
        """Record that its worker has a job in flight.

        The table leaves out this change and the way back: each job makes both, and a look-up would
        cost it time.
        """
        if self.state is SlotState.IDLE:
            self.state = SlotState.BUSY

    def renew(self) -> None:
        """Begin the next generation."""
        self.generation += 1
        self.in_flight = InFlight(self.in_flight.concurrency)
        self.job_endings = JobEndings()
        self.ready_at = self.due = None
        self.exit_planned = self.faulty = self.hung = False
        self.replace_reason = self.replaces = self.drain_deadline = None
        self.draining = self.oversized = self.stacks_requested = False
        self.seen, self.exit_reason, self.stop_stage = (), "", StopStage.NO


# Seconds that jobs wait before the pool adds workers, and before it adds more again.  A
# worker is ready about 10 ms after the pool wants it.
GROW_EVERY = 0.02


class Sizing:
    """The size that a pool should have.

    Args:
        least: How many workers there are at the least.
        most: How many workers there may be.
        idle_timeout: After how many seconds without work the pool lets a worker go.

    Attributes:
        size: How many workers there should be.
        grow_at: When to call :meth:`grow`; ``None`` if there is no need.
        shrink_at: When to call :meth:`shrink`; ``None`` if no worker is too many.
        may_grow: Whether the size may grow and *grow_at* is not set yet.  The hot path asks this,
            so that only the first job that waits calls :meth:`job_waits`.
    """

    def __init__(self, least: int, most: int, idle_timeout: float) -> None:
        self.size, self.least, self.most = least, least, most
        self._idle_timeout = idle_timeout
        self._burst = 1
        self.grow_at: float | None = None
        self.shrink_at: float | None = None
        self.may_grow = least < most

    def limit(self, least: int, most: int, now: float) -> None:
        """Set the least and the most number of workers."""
        self.least, self.most = least, most
        self.grow_at, self._burst = None, 1
        self._resize(min(max(self.size, least), most), now)

    def job_waits(self, now: float) -> None:
        """Set *grow_at* if the size *may_grow*: a job waits, and no worker is started for it."""
        if self.may_grow:
            self.may_grow, self.grow_at = False, now + GROW_EVERY

    def grow(self, now: float, *, waiting: int, coming: int) -> None:
        """Grow, if jobs have waited long enough; workers that are starting take one job each.

        Args:
            now: The time.
            waiting: How many jobs have no worker.
            coming: How many workers are already being started.
        """
        if self.grow_at is None or now < self.grow_at:
            return
        self.grow_at = None
        more = min(self._burst, waiting - coming)
        if more > 0:
            self._burst *= 2
            self._resize(min(self.size + more, self.most), now)
            if self.size < self.most:
                self.grow_at = now + GROW_EVERY
        elif not waiting:
            self._burst = 1
        self.may_grow = self.grow_at is None and self.size < self.most

    def shrink(self, now: float, idle: Iterable[tuple[float, int]]) -> int | None:
        """Shrink by one idle worker, if there is one too many, and return its slot.

        Args:
            now: The time.
            idle: The idle workers: for each, since when it is idle, and its slot.
        """
        if self.shrink_at is None or now < self.shrink_at:
            return None
        since, slot = min(idle, default=(now, None))
        if slot is None or since + self._idle_timeout > now:
            self.shrink_at = min(since, now) + self._idle_timeout
            return None
        self._resize(self.size - 1, now)
        # There is no next check if that was the last worker too many.
        self.shrink_at = None if self.size == self.least else now
        return slot

    def _resize(self, size: int, now: float) -> None:
        self.size = size
        self.may_grow = self.grow_at is None and size < self.most
        if size == self.least:
            self.shrink_at = None
        elif self.shrink_at is None:
            self.shrink_at = now + self._idle_timeout
