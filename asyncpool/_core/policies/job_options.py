"""What a caller can choose for a job: how often, how long and where it runs, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.base.validation import INT, SECONDS, check_types, or_none
from asyncpool._core.policies.attempts import AttemptPolicy, CrashKindText
from asyncpool._core.wire.frames import MAX_NUMBER
from asyncpool._core.wire.messages import JobContext, end_of, with_details
from asyncpool.enums import CrashKind, TimeLimit
from asyncpool.events import Via

OnCancel = Literal["interrupt", "kill", "wait"]
_PERIODS = ("timeout", "queue_timeout", "heartbeat_timeout")
_TYPES = {
    "timeout": or_none(SECONDS),
    "queue_timeout": or_none(SECONDS),
    "heartbeat_timeout": or_none(SECONDS),
    "deadline": or_none(SECONDS),
    "cancel_grace": SECONDS,
}
# It travels to the agents of shared pools in so many bits.
_MOST_PRIORITY = 1 << 63

_WAYS: tuple[OnCancel, ...] = ("interrupt", "kill", "wait")


class Keeper(Protocol):
    """What a job needs of a lease keeper."""

    def keep(self, lease: Any, holder: Any, /) -> None:
        """Keep *lease* until the future *holder* is done; cancel *holder* if it is lost."""


class DrainHold(Protocol):
    """A source of jobs that may keep a closing pool open for jobs to come, such as a map."""

    @property
    def held(self) -> bool:
        """Whether it keeps the pool open."""
        ...


class CancelMode(NamedTuple):
    """How the pool ends a running job.

    Attributes:
        action: See :class:`JobLimits`.
        grace: How many seconds the job has to end by itself before the pool kills
            its worker.
    """

    action: OnCancel
    grace: float


# The mode that gives the job no time.
KILL = CancelMode("kill", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """How long a job may take, and how the pool ends it.

    Args:
        timeout: The most seconds that each attempt may run.  ``None`` stands for no
            limit, here and in the next three arguments.
        queue_timeout: The most seconds, in all, that the job may wait before its
            first attempt begins.
        heartbeat_timeout: The most seconds that an attempt may go without a
            heartbeat.
        deadline: The time, on the loop's clock, by which the job must be done.
        on_cancel: What happens to a running job that the caller cancels.
            ``"interrupt"``: the pool raises :exc:`asyncpool.JobCancelled` in the job,
            and kills the worker if that does not end the job.  ``"kill"``: the pool
            kills the worker at once.  ``"wait"``: the job runs to its end, and nobody
            receives its outcome.  The same happens to a job that exceeds a time limit,
            except that ``"wait"`` then means ``"interrupt"``.
        cancel_grace: How many seconds an interrupted job has to end.

    Attributes:
        timed: Whether the job has any time limit.
        check_after: For how many seconds after an attempt has begun, or was last heard
            of, it cannot reach a limit of its own.
        context: These limits as the job receives them, packed.  All jobs with these
            limits share the object.

    Raises:
        ValueError: If one of them is out of range.
        TypeError: If one is no number.
    """

    timeout: float | None = None
    queue_timeout: float | None = None
    heartbeat_timeout: float | None = None
    deadline: float | None = None
    on_cancel: OnCancel = "interrupt"
    cancel_grace: float = 2.0
    # The pool reads it several times for each job, so it is no property.
    timed: bool = field(init=False, repr=False, compare=False)
    check_after: float | None = field(init=False, repr=False, compare=False)
    context: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self, _TYPES)
        for name in _PERIODS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 seconds, not {value}")
        if self.deadline is not None and math.isnan(self.deadline):
            raise ValueError("deadline must be a point on the loop's clock, not nan")
        if self.on_cancel not in _WAYS:
            raise ValueError(
                f"on_cancel must be one of {', '.join(_WAYS)}, not {self.on_cancel!r}"
            )
        if not self.cancel_grace >= 0:
            raise ValueError(
                f"cancel_grace must be >= 0 seconds, not {self.cancel_grace}"
            )
        timed = any(getattr(self, name) is not None for name in (*_PERIODS, "deadline"))
        object.__setattr__(self, "timed", timed)
        check_after = earliest(self.timeout, self.heartbeat_timeout)
        object.__setattr__(self, "check_after", check_after)
        context = JobContext(timeout=self.timeout, deadline=self.deadline).pack()
        object.__setattr__(self, "context", context)

    def with_details(self, details: bytes) -> JobLimits:
        """Return these limits for a job whose earlier attempt has sent *details*."""
        other = replace(self)
        object.__setattr__(other, "context", with_details(self.context, details))
        return other

    @property
    def cancel_mode(self) -> CancelMode:
        """How the pool ends the job when it is cancelled."""
        if self.on_cancel == "kill":
            return KILL
        return CancelMode(self.on_cancel, self.cancel_grace)

    def exceeded(self, now: float, *, running: bool) -> TimeLimit:
        """Return the limit that a job has reached by *now*.

        The deadline also counts when the clock was read a moment before it.
        """
        period = TimeLimit.TIMEOUT if running else TimeLimit.QUEUE_TIMEOUT
        deadline = self.deadline
        if deadline is not None and (deadline <= now or getattr(self, period) is None):
            return TimeLimit.DEADLINE
        return period

    def queue_end(self, now: float) -> float | None:
        """Return until when a job that is submitted *now* may wait in the queue."""
        return end_of(now, self.queue_timeout, self.deadline)

    def run_end(self, now: float) -> float | None:
        """Return until when an attempt that begins *now* may run."""
        return end_of(now, self.timeout, self.deadline)

    def first_check(self, now: float) -> float | None:
        """Return when to check an attempt that begins *now*; ``None`` for never."""
        return end_of(now, self.check_after, self.deadline)

    def next_check(self, began: float, beat: float) -> float | None:
        """Return when the next check of a running attempt is; ``None`` for never.

        Args:
            began: When the attempt began.
            beat: When its last heartbeat was.
        """
        return end_of(beat, self.heartbeat_timeout, self.run_end(began))


class Options(TypedDict, total=False):
    """The options as users write them; see :meth:`asyncpool.Pool.options`.

    Each of them becomes a field of the same name in :class:`JobOptions`, or in its
    *attempts* or its *limits*.
    """

    max_attempts: int
    retry_on: Iterable[CrashKind | CrashKindText | type[BaseException]]
    timeout: float | None
    queue_timeout: float | None
    heartbeat_timeout: float | None
    deadline: float | None
    on_cancel: OnCancel
    cancel_grace: float
    priority: int
    key: Hashable
    lease: tuple[Keeper, Hashable] | None
    prefetch: int
    codec: Any


# Their names.  No module that a worker imports has them: to import this one would take it 30 ms.
# So the pool tells its workers, for the hint that an option is no argument of a function.
OPTIONS = Options.__annotations__.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything that a caller can choose for a job.

    Attributes:
        attempts: How often workers may start it.
        limits: How long it may take.
        priority: The job with the lower number begins first.
        key: The hash of its key, if it has one.  Jobs with the same key prefer the
            same worker.
        lease: A lease keeper, and the lease in an outside system that it keeps
            while the job is open.
        begun: How many attempts were counted before the job was submitted.
        via: How the function is called: by itself, for several items of a map that
            travel together, as a stream of what it yields, or in every worker.
        prefetch: How many items of a stream may wait for its caller.
        hold: What keeps the pool open for this job, if anything does.  A pool that
            drains accepts such a job.
        bound: The session that it is a call of, if it is one.
        name: The name of the user's function, if workers call another function in
            its place.
        codec: The format of its call and its outcome, in a pool that is data only.

    Raises:
        TypeError: If *priority* or *prefetch* is no int, or *lease* not such a pair.
        ValueError: If *prefetch* is not positive, or *priority* has more than 64 bits.
    """

    attempts: AttemptPolicy = field(default_factory=AttemptPolicy)
    limits: JobLimits = field(default_factory=JobLimits)
    priority: int = 0
    key: int | None = None
    lease: tuple[Keeper, Hashable] | None = None
    begun: int = 0
    via: Via = "submit"
    prefetch: int = 16
    hold: DrainHold | None = None
    bound: SessionTraits | None = None
    name: str = ""
    codec: Any = None

    def __post_init__(self) -> None:
        check_types(self, {"priority": INT, "prefetch": INT})
        if not -_MOST_PRIORITY <= self.priority < _MOST_PRIORITY:
            raise ValueError(
                "priority must be an int of 64 bits: from -2**63 to 2**63 - 1"
            )
        if not 0 < self.prefetch <= MAX_NUMBER:
            raise ValueError(f"prefetch must be >= 1 item, not {self.prefetch}")
        if self.lease is not None:
            _check_lease(self.lease)


def _check_lease(lease: Any) -> None:
    pair = isinstance(lease, tuple) and len(lease) == 2  # noqa: PLR2004
    if not pair or not callable(getattr(lease[0], "keep", None)):
        raise TypeError(f"lease must be a pair (keeper, lease), not {lease!r}")
    hash(lease[1])  # raises a TypeError that says what is wrong
