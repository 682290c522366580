"""How long a job may take, and how it is made to end."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.run_times import Bound
from asyncpool._core.base.validation import INT, SECONDS, check_types, or_none
from asyncpool._core.policies.attempts import AttemptPolicy, CrashKindText
from asyncpool._core.wire.context import JobContext, end_of
from asyncpool._core.wire.frames import MAX_NUMBER
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
_WAYS: tuple[OnCancel, ...] = ("interrupt", "kill", "wait")


class Keeper(Protocol):
    """What a lease keeper does for a job."""

    def keep(self, lease: Any, holder: Any, /) -> None:
        """Keep *lease* until *holder*, a future, is done; cancel that if it is lost."""


class Hold(Protocol):
    """What may hold a pool open, while there are more jobs to come."""

    @property
    def held(self) -> bool:
        """Whether it does."""
        ...


class CancelMode(NamedTuple):
    """How a running job is made to end.

    Attributes:
        action: See :class:`JobLimits`.
        grace: How many seconds it has, before its worker is killed.
    """

    action: OnCancel
    grace: float


# What leaves nothing to the job.
KILL = CancelMode("kill", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """How long a job may take, and how it is made to end.

    Args:
        timeout: Seconds that each attempt may run; here, and in the next three, ``None``
            stands for no limit.
        queue_timeout: Seconds that it may wait, in all, before its first attempt begins.
        heartbeat_timeout: Seconds that an attempt may go without a heartbeat.
        deadline: When, on the loop's clock, it must be done at the latest.
        on_cancel: What happens to a running job that is cancelled: ``"interrupt"``
            raises :exc:`asyncpool.JobCancelled` in it, and kills the worker if that does
            not end it; ``"kill"`` kills the worker at once; ``"wait"`` lets the job run
            to its end, which nobody hears of.  To one whose time is over happens the same,
            but ``"wait"`` is as ``"interrupt"`` then.
        cancel_grace: Seconds that an interrupted job has to end.

    Attributes:
        timed: Whether there is any limit of time.
        patience: For how long an attempt need not be looked at, whatever it does.
        context: What tells a job of these limits, packed: the same object for all.

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
    # Asked for several times a job, hence no property.
    timed: bool = field(init=False, repr=False, compare=False)
    patience: float | None = field(init=False, repr=False, compare=False)
    context: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self, _TYPES)
        for name in _PERIODS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 seconds, not {value}")
        if self.deadline is not None and self.deadline != self.deadline:
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
        patience = earliest(self.timeout, self.heartbeat_timeout)
        object.__setattr__(self, "patience", patience)
        context = JobContext(timeout=self.timeout, deadline=self.deadline).pack()
        object.__setattr__(self, "context", context)

    @property
    def cancel_mode(self) -> CancelMode:
        """How it is made to end when it is cancelled."""
        if self.on_cancel == "kill":
            return KILL
        return CancelMode(self.on_cancel, self.cancel_grace)

    def exceeded(self, now: float, *, running: bool) -> TimeLimit:
        """Tell which limit it is that a job has reached by *now*.

        A clock that is read a moment before a deadline does not make it another limit.
        """
        period = TimeLimit.TIMEOUT if running else TimeLimit.QUEUE_TIMEOUT
        deadline = self.deadline
        if deadline is not None and (deadline <= now or getattr(self, period) is None):
            return TimeLimit.DEADLINE
        return period

    def queue_end(self, now: float) -> float | None:
        """Return until when a job that is submitted *now* may wait."""
        return end_of(now, self.queue_timeout, self.deadline)

    def run_end(self, now: float) -> float | None:
        """Return until when an attempt that begins *now* may run."""
        return end_of(now, self.timeout, self.deadline)

    def first_look(self, now: float) -> float | None:
        """Return when to look at an attempt that begins *now*; ``None`` for never."""
        return end_of(now, self.patience, self.deadline)

    def next_look(self, began: float, beat: float) -> float | None:
        """Return when to look whether an attempt may run on; ``None`` for never.

        Args:
            began: When it began.
            beat: When it was last heard of.
        """
        return end_of(beat, self.heartbeat_timeout, self.run_end(began))


class Options(TypedDict, total=False):
    """The options as users write them; see :meth:`asyncpool.Pool.options`.

    What they become is a field of the same name in :class:`JobOptions`, or in its *attempts* or
    *limits*.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """All that can be chosen for a job.

    Attributes:
        attempts: How often it may be started.
        limits: How long it may take.
        priority: How urgent it is: a lower number is more urgent.
        key: The hash of the key that ties it to a worker, if it has one.
        lease: A lease in an outside system that is kept meanwhile, behind its keeper.
        begun: How many attempts there were before it was submitted.
        via: How it is called: by itself, as several items of a map that travel together,
            as a stream of what it yields, or in every worker.
        prefetch: How many items of a stream may wait for its caller.
        hold: What holds the pool open for it, if anything does: a pool that drains takes it.
        bound: The session that it is a call of, if it is one.
        name: What the function is called, if it is not the one that workers call.

    Raises:
        TypeError: If *priority* or *prefetch* is no int, or *lease* not such a pair.
        ValueError: If *prefetch* is not positive.
    """

    attempts: AttemptPolicy = field(default_factory=AttemptPolicy)
    limits: JobLimits = field(default_factory=JobLimits)
    priority: int = 0
    key: int | None = None
    lease: tuple[Keeper, Hashable] | None = None
    begun: int = 0
    via: Via = "submit"
    prefetch: int = 16
    hold: Hold | None = None
    bound: Bound | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_types(self, {"priority": INT, "prefetch": INT})
        if not 0 < self.prefetch <= MAX_NUMBER:
            raise ValueError(f"prefetch must be >= 1 item, not {self.prefetch}")
        if self.lease is not None:
            _check_lease(self.lease)


def _check_lease(lease: Any) -> None:
    pair = isinstance(lease, tuple) and len(lease) == 2  # noqa: PLR2004
    if not pair or not callable(getattr(lease[0], "keep", None)):
        raise TypeError(f"lease must be a pair (keeper, lease), not {lease!r}")
    hash(lease[1])  # else it says what is wrong by itself
