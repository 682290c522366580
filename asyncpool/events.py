"""What a pool tells about itself: crashes, and the events of its life and its jobs.

And what a :class:`asyncpool.LeaseKeeper` tells.

Everything here is plain frozen data.  A :class:`Crash` goes to ``on_crash`` and
into the errors of the jobs that it ended; the events come from
:meth:`asyncpool.Pool.events`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

from asyncpool._dataclass import dataclass
from asyncpool.enums import CrashKind, JobOutcome, NextStep

__all__ = [
    "Broken",
    "CloseSummary",
    "Crash",
    "Crashed",
    "Event",
    "Exited",
    "JobEnded",
    "JobEvent",
    "JobQueued",
    "JobStarted",
    "LeaseEvent",
    "LeaseLapsed",
    "LeaseLost",
    "LeaseMissed",
    "LeaseRelieved",
    "LeaseSaturated",
    "LeaseStats",
    "LeaseThrottled",
    "Parked",
    "QueueEmptied",
    "QueueFull",
    "Ready",
    "Recovered",
    "Resized",
    "Restarting",
    "Retiring",
    "RollResult",
    "Spawned",
    "TakenOver",
    "Via",
]

Via = Literal["submit", "map", "stream", "broadcast"]

# How many of the jobs that a worker ran the text of a crash names.
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How one worker has ended; in a :class:`Crashed`, an end that nobody had planned.

    Attributes:
        slot: The slot that the worker held.
        generation: Which worker of the slot it was, counting from 1.
        pid: Its process id; ``None`` if no process could be started.
        exit_code: Its exit status; ``None`` if a signal ended it, if there was
            no process, or if the status was lost with the launcher.
        signal: The name of the signal that ended it, or ``None``.
        kind: What happened, as far as the pool can tell.
        uptime: Seconds from the start of the process to its end.
        job_id: The job that the worker was running, or ``None``.
        attempt: Which attempt at that job it was, counting from 1; 0 if there was no job.
        detail: Why, as far as the pool can tell, else ``""``.  It is the text of an error (an
            initializer that raised, a broken frame, an exception in a thread), or the reason why
            the pool killed the worker (it was not ready in time, a job of it did not end, it had
            too much memory).  For a hung worker it says which sign of life was missing.  Where
            the kernel does not count the processes that it kills for lack of memory, it says
            that this may be the cause.
        stderr_tail: The last 40 lines that the worker wrote to its stderr.  If the interpreter
            reported a fatal error, the first 25 lines of that report and the 10 before it too.
        next_step: What the supervisor does about it; :attr:`next_step_text` says that in words.
        next_start: Seconds until the pool starts the next process for that: another worker, a
            probe or another replacement.  0.0 is at once; ``None`` if no start is planned.
        park_reason: Which limit of the restart policy was reached, if the slot stays empty;
            else ``""``.
        stack: The Python stacks of the threads of a worker that hung or did not end in time, as
            ``faulthandler`` shows them, the innermost call first.  Empty if the worker could not
            write them, since it was stopped.  For other crashes it is the traceback of the
            exception that ended the worker, if there was one: of an initializer, a thread, or
            the ``serve()`` of a worker of a cluster.
        concurrent_jobs: The other jobs that the worker was running.  Each has lost an attempt too.
            In a remote pool, an event has those of this client, and an error has none.
        function: The function of the job, such as ``"shop.images.resize"``.  In an event of a
            shared pool it may be the function of another client's job, which has no number here.
        other_jobs: How many jobs ran beside that have no number here.  In an event of a remote pool
            these are jobs of other clients, in an error of a remote pool all that ran beside.
        final: Whether it is a start that would fail in the same way again: an import that raised, a
            limit or a setting that cannot be had.  Then the pool is broken at once, if it has no
            other worker.
    """

    slot: int
    generation: int
    pid: int | None
    exit_code: int | None
    signal: str | None
    kind: CrashKind
    uptime: float
    job_id: int | None
    attempt: int
    detail: str
    stderr_tail: tuple[str, ...]
    next_step: NextStep
    next_start: float | None = None
    park_reason: str = ""
    stack: str = ""
    concurrent_jobs: tuple[int, ...] = ()
    function: str = ""
    other_jobs: int = 0
    final: bool = False

    def __str__(self) -> str:
        who = "a worker" if self.pid is None else f"worker {self.pid}"
        where = f"{who} in slot {self.slot}"
        job = ""
        if self.job_id is not None:
            job = f" during attempt {self.attempt} of job {self.job_id}"
            job += f" ({self.function})" if self.function else ""
        beside = _listed(self.concurrent_jobs, self.other_jobs)
        link = " while it ran" if self.job_id is None else ", beside which it ran"
        job += f"{link} {beside}" if beside else ""
        return f"{where} {self.how}{job}"

    @property
    def how(self) -> str:
        """How the worker ended, as the predicate of a sentence."""
        if self.pid is None:
            ended = "could not be started"
        elif self.signal is not None:
            ended = f"was killed by {self.signal}"
        elif self.exit_code is not None:
            ended = f"exited with status {self.exit_code}"
        else:
            ended = "ended with an unknown status"
        plain = self.kind is CrashKind.CRASH or self.pid is None
        aside = "" if plain else f" ({self.kind})"
        return f"{ended}{aside}{f': {self.detail}' if self.detail else ''}"

    @property
    def next_step_text(self) -> str:
        """What the supervisor does about it, as a clause without a subject."""
        match self.next_step:
            case NextStep.RESTART:
                return f"restarting {_in(self.next_start)}"
            case NextStep.PARK:
                return f"{self.park_reason}, next try in {self.next_start:.2g} s"
            case NextStep.GIVE_UP:
                return f"giving up: {self.park_reason}"
            case NextStep.LEAVE_EMPTY:
                return "not replaced: there are enough other workers"
            case NextStep.KEEP_WORKER:
                again = self.next_start
                then = "" if again is None else f", next try {_in(again)}"
                return f"the worker that it was to replace stays{then}"
            case NextStep.CLOSE:
                return "no replacement: the pool is closing"


def _in(seconds: float | None) -> str:
    return f"in {seconds:.2g} s" if seconds else "at once"


def _listed(jobs: tuple[int, ...], others: int) -> str:
    """Name *jobs*, not all of them if they are many, and say how many others there were."""
    named = [_numbered(jobs)] if jobs else []
    counted = [f"{others} other job{'s' if others > 1 else ''}"] if others else []
    return ", and ".join(named + counted)


def _numbered(jobs: tuple[int, ...]) -> str:
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    shown = [str(job) for job in jobs[:_MOST_NAMED]]
    more = [f"{len(jobs) - _MOST_NAMED} more"] if len(jobs) > _MOST_NAMED else []
    *first, last = shown + more
    return f"jobs {', '.join(first)} and {last}"


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process was started for *slot*."""

    slot: int
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker in *slot* takes jobs; its start took *seconds*."""

    slot: int
    generation: int
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """A worker ended although the pool had not asked it to.

    Or a worker of a cluster ended in another way than the cluster had asked it to.
    """

    crash: Crash


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker ended as planned: it was retired, its job was cancelled, or the pool closes.

    Or somebody called :meth:`asyncpool.Pool.kill`.

    Attributes:
        slot: The slot that the worker held.
        generation: Which worker of the slot it was, counting from 1.
        pid: Its process id; ``None`` if it was given up before it had a process, so that no
            :class:`Spawned` has told of it.
        exit_code: As in a :class:`Crash`.
        signal: Likewise.
        detail: Likewise.
        reason: Why the worker ended: that of :class:`Retiring`, ``"kill"``, ``"close"``, or the
            end of a job that took the worker along: ``"timeout of job 12"`` (also of a
            ``deadline``), ``"cancellation of job 12"``.
    """

    slot: int
    generation: int
    pid: int | None
    exit_code: int | None = None
    signal: str | None = None
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Retiring:
    """A worker gets no more jobs, and ends when it has finished the ones that it has.

    *reason* is the limit that it has reached (``"max_jobs"``, ``"max_age"``,
    ``"max_memory"``), or ``"retire_worker()"``, or ``"idle"``.  After an exception that the
    option *retire_on* names it is ``"retire_worker(): by retire_on, after shop.DeviceLost"``.  It
    is ``"resize"``, ``"roll"`` or ``"retire"`` after that call of the pool.  It is ``"session"``
    if a session has ended and a fresh worker follows.  In clusters it may also be ``"uncaught exception"``, or the call that the
    worker made, ``"retire()"`` or ``"request_replacement()"``, followed by the reason that it
    gave: ``"request_replacement(): worn out"``.
    """

    slot: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resized:
    """The pool now aims at *workers* workers: it was resized, jobs wait, or workers are idle."""

    workers: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """The next worker of *slot* starts in *delay* seconds."""

    slot: int
    delay: float


@dataclass(frozen=True, slots=True)
class Parked:
    """*slot* stays empty, since starts fail; the pool tries again in *probe_in* seconds.

    One parked slot tries for all of them, and all are filled when it succeeds.  If *probe_in*
    is ``None``, the pool has given up.
    """

    slot: int
    reason: str
    probe_in: float | None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A job of a dead worker went back to the head of the queue.

    *attempt* is the attempt that was lost, or 0 if the job has lost none.
    """

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The pool is broken: no worker can be started, and there is none.

    The pool refuses jobs until a start succeeds, or for good if its restart policy says so.
    """

    reason: str
    crashes: tuple[Crash, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A start has succeeded in *slot* after others had failed; the pool takes jobs again."""

    slot: int


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The pool refused a job, since *queued* jobs and callers of ``worker()`` waited already."""

    queued: int


@dataclass(frozen=True, slots=True)
class QueueEmptied:
    """Nobody waits for a worker any more, for the first time since a :class:`QueueFull`.

    With ``max_queued=0`` it tells that a worker is idle again.
    """


Event = (
    Spawned
    | Ready
    | Crashed
    | Exited
    | Retiring
    | Resized
    | Restarting
    | Parked
    | TakenOver
    | Broken
    | Recovered
    | QueueFull
    | QueueEmptied
)


# There are three of these for each job, and a tuple is made in a third of the time that a
# frozen dataclass takes.
class JobQueued(NamedTuple):
    """A job waits for its first attempt, or for the next one.

    Attributes:
        job_id: Its number.
        function: What it calls, such as ``"shop.images.resize"``.
        via: How that is called; with ``"map"`` the job has items that travel together.
        attempts: How many attempts there were before.
        at: When, by :func:`time.monotonic`.
    """

    job_id: int
    function: str
    via: Via
    attempts: int
    at: float


class JobStarted(NamedTuple):
    """A worker has begun a job.

    The pool hears of it with the outcome of the worker's job before, or of this one, so the
    event may come some milliseconds late; *at* does not.

    Attributes:
        job_id: Its number.
        function: What it calls.
        attempt: Which attempt this is, counting from 1.
        slot: The slot of its worker.
        at: When, by :func:`time.monotonic`.
    """

    job_id: int
    function: str
    attempt: int
    slot: int
    at: float


class JobEnded(NamedTuple):
    """A job has ended, however that was; there is one for each :class:`JobQueued` job.

    Attributes:
        job_id: Its number.
        function: What it called.
        outcome: How it has ended.
        attempts: How many attempts there were.
        slot: The slot in which the last one ran, or ``None``.
        wait: Seconds that the last attempt waited before it began; in all, if none began.
        run: Seconds that the last attempt ran.
        at: When, by :func:`time.monotonic`.
    """

    job_id: int
    function: str
    outcome: JobOutcome
    attempts: int
    slot: int | None
    wait: float
    run: float
    at: float


JobEvent = JobQueued | JobStarted | JobEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSummary:
    """What a close did: how many jobs finished and failed, how many workers were killed."""

    finished: int
    failed: int
    killed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult:
    """The result of :meth:`asyncpool.Pool.roll`.

    Attributes:
        replaced: How many of the old workers have been replaced.
        filled: How many slots had no worker, since starts had failed, and have one now.
        reason: Why the other old workers stay; empty if none is left.
        crash: The failed start of a replacement, if that was the reason.
    """

    replaced: int
    filled: int = 0
    reason: str
    crash: Crash | None

    @property
    def ok(self) -> bool:
        """Whether all old workers have been replaced."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSaturated:
    """There are more leases than an interval has renewals: the turns are further apart.

    The keeper tells it at once.  If the number of leases has changed an interval later, the keeper
    tells it again.

    Attributes:
        leases: How many there are.
        capacity: How many renewals an interval has, ``rate * interval``.
        interval: The interval, in seconds.
        rate: Renewals a second: the keeper's rate, or fewer if renewals take so long that too
            few of them can be in progress at a time.
        worst_gap: Seconds between two renewals of one lease, ``leases / rate``.  A lease that
            lasts less than that in the outside system lapses.
    """

    leases: int
    capacity: int
    interval: float
    rate: float
    worst_gap: float

    def __str__(self) -> str:
        return (
            f"{self.leases} leases, but {self.rate:g} renewals/s * {self.interval:g} s = "
            f"{self.capacity}: each is extended every {self.leases} / "
            f"{self.rate:g} = {self.worst_gap:g} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRelieved:
    """There are no more leases than an interval has renewals, after a :class:`LeaseSaturated`.

    Attributes:
        leases: How many there are.
        capacity: How many renewals an interval has.
    """

    leases: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.leases} leases, and {self.capacity} renewals in an interval"


@dataclass(frozen=True, slots=True)
class LeaseMissed:
    """A lease was not extended for *gap* seconds.

    Either a renewal has failed, and it was the last one of its turn or *gap* is more than an
    interval and a tenth; the keeper tells this once in an interval.  Or a renewal has succeeded,
    but later than that.

    *error* is what the renewal raised, or ``None`` if it succeeded.
    """

    lease: Hashable
    gap: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class LeaseThrottled:
    """The outside system refused a renewal of *lease*: none begins for *pause* seconds."""

    lease: Hashable
    pause: float


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The outside system says that *lease* is gone; its job is cancelled."""

    lease: Hashable


@dataclass(frozen=True, slots=True)
class LeaseLapsed:
    """*lease* was not extended for *gap* seconds, nearly its ttl; its job is cancelled."""

    lease: Hashable
    gap: float


LeaseEvent = (
    LeaseSaturated
    | LeaseRelieved
    | LeaseMissed
    | LeaseThrottled
    | LeaseLost
    | LeaseLapsed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStats:
    """The figures of a lease keeper: how it stands, and what happened since its start.

    Attributes:
        leases: How many leases it keeps.
        capacity: How many it can extend in each interval.
        saturated: Whether ``leases`` exceeds ``capacity``.
        in_progress: Renewals that the outside system has not answered yet.
        renewals: Renewals that were sent.  Each is in progress, or counts as renewed, throttled,
            failed or lost.
        renewed: Renewals that succeeded.
        throttled: Renewals that raised :exc:`ThrottledError`.
        failed: Renewals that raised another exception, or were not answered in time.
        lost: Renewals that raised :exc:`LeaseLostError`.
        missed: How many :class:`LeaseMissed` there were.
        lapsed: Leases that the keeper gave up, since their ttl was nearly over.
        dropped_events: Events that slow iterators of ``events()`` have missed.
    """

    leases: int
    capacity: int
    saturated: bool
    in_progress: int
    renewals: int
    renewed: int
    throttled: int
    failed: int
    lost: int
    missed: int
    lapsed: int
    dropped_events: int
