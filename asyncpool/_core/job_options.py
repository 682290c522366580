"""What a caller can choose for a job, and what the pool knows of it when it places it.

The run times of a function decide whether its jobs may travel ahead.  A job may wait inside a
worker, behind another one, only if both are known to be short. The pool knows what it has measured:
an exponential average of the run times of the same function, in microseconds.  One long call among
many short ones raises the average at once, and the average forgets it after some dozens of calls.

Which bucket a key belongs to is decided by rendezvous hashing.  Rendezvous hashing (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998) is also called highest random
weight. Each pair of a key and a bucket has a weight that looks random.  A key belongs to the bucket
with which its weight is the highest.  So buckets have equal shares of all keys. A new bucket takes
its share from all others alike.  A bucket that goes leaves its keys to the others, each key to its
next choice.  No other keys move, and nothing has to be remembered of any key.

Rejected: the hash modulo the number of buckets, which moves nearly all keys when that
number changes.  Also rejected: a ring of hashes, which needs a table with a hundred
points for each bucket until the shares are nearly equal.  It would find one of hundreds
of buckets sooner.  But a weight costs 0.5 us, and a pool has some dozens of buckets at
the most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

from asyncpool._core.deadlines import earliest
from asyncpool._core.policies import (
    INT,
    SECONDS,
    check_type,
    check_types,
    or_none,
    several,
)
from asyncpool._dataclass import dataclass, replace
from asyncpool._wire.frames import MAX_ATTEMPTS, MAX_NUMBER
from asyncpool._wire.messages import JobContext, end_of, with_details
from asyncpool.enums import CrashKind, Delivery, TimeLimit
from asyncpool.events import Via

if TYPE_CHECKING:
    from asyncpool._wire.formats import Format

# How much work a worker may have in flight at once.  If a job waits there for a slow one,
# the pool revokes it after some milliseconds.
BUDGET = 16000.0

# A worker gets more jobs when it has this much left, so that it gets several at a time.
REFILL = BUDGET / 2

# The most jobs that a worker has in flight.  More jobs gain nothing: 128 jobs without
# any work are half a millisecond.
DEEPEST = 128
# The least cost that a call counts with.
LEAST = BUDGET / DEEPEST

# The cost of a job of which nothing is known: more than any budget.
UNKNOWN = 1e9

_WEIGHT = 1 / 8


class JobTraits:
    """What the jobs of one function have in common: their run times.

    Attributes:
        cost: How long the next call is expected to take.
    """

    __slots__ = ("cost",)

    def __init__(self) -> None:
        self.cost: float = UNKNOWN

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be sent while such a job is the last one."""
        return False

    @property
    def key(self) -> int | None:
        """The hash of the key of such a job, if it has one."""
        return None

    @property
    def function(self) -> JobTraits:
        """Those of the function, which all its jobs have."""
        return self

    def note(self, duration: float) -> None:
        """Record a call that took *duration*."""
        if duration <= LEAST:
            if self.cost == LEAST:
                return
            duration = LEAST
        if self.cost == UNKNOWN:
            self.cost = duration
            return
        self.cost += (duration - self.cost) * _WEIGHT
        if self.cost < LEAST + 1:
            self.cost = LEAST  # which it would only come near, and be noted for ever


class _Exclusive(JobTraits):
    __slots__ = ()

    @property
    def exclusive(self) -> bool:
        return True


# The traits of jobs behind which no other job waits, whatever is known of them:
# streams, and jobs whose large arguments take a while to send, so that nothing else can
# be sent meanwhile.
STREAM_TRAITS = JobTraits()
LOADING_TRAITS = _Exclusive()

# The traits of pinned jobs.  No other worker may run them, and no job begins beside
# them: each later job finds what they have done.
PINNED = _Exclusive()


class SessionTraits(_Exclusive):
    """The traits of a call of a session: nothing begins beside it, or behind it.

    Args:
        session: The session.
    """

    __slots__ = ("session",)

    def __init__(self, session: int) -> None:
        super().__init__()
        self.session: int = session


class KeyedTraits(JobTraits):
    """The traits of a job that has a key: that of its function, and the key.

    Args:
        function: The traits of its function, whose run times change later, too.
        key: The hash of the key.
    """

    __slots__ = ("_function", "_key")

    def __init__(self, function: JobTraits, key: int) -> None:
        self._function = function
        self._key = key

    @property
    def key(self) -> int:
        """The hash of the key."""
        return self._key

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be sent while such a job is the last one."""
        return self._function.exclusive

    @property
    def function(self) -> JobTraits:
        """Those of the function, which all its jobs have."""
        return self._function

    # Reads and writes go to the traits of the function.
    @property
    def cost(self) -> float:
        """How long the next call of the function is expected to take."""
        return self._function.cost

    @cost.setter
    def cost(self, cost: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._function.cost = cost


_MASK = (1 << 64) - 1

# The constants of SplitMix64 (Steele, Lea and Flood, 2014), and its last steps below.
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_FIRST = 0xBF58_476D_1CE4_E5B9
_SECOND = 0x94D0_49BB_1331_11EB


def hash_of(key: Any) -> int:
    """Return the hash of *key*, which is all that the pool keeps of it.

    Equal keys have equal hashes in this process.  A text has another hash in the next
    process, but that one has other workers as well.

    Raises:
        TypeError: If *key* has no hash, or is equal only to itself, or not even that.
            Then only the very same object is found again, and the next job most likely
            brings another object.  The parts of a tuple are not looked at: they may be
            objects of which there is only one, such as None or a class.
    """
    try:
        number = hash(key)
    except TypeError as error:
        raise TypeError(
            f"key must be hashable, such as a str, an int or a tuple of these, "
            f"not {key!r}"
        ) from error
    if getattr(type(key), "__hash__", None) is object.__hash__:
        raise TypeError(
            "key must be a value, such as a str, an int or a tuple of these: "
            f"{type(key).__qualname__} has a hash by identity only"
        )
    if key != key:  # noqa: PLR0124 - NaN
        raise TypeError(f"key must be a value that is equal to itself, not {key!r}")
    return number


def weight(key: int, bucket: int) -> int:
    """Return the weight of a key's hash and a bucket; the key belongs to the highest."""
    x = (key & _MASK) ^ ((bucket + 1) * _GOLDEN & _MASK)
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def choose(key: int, buckets: Collection[int]) -> int | None:
    """Return the bucket that *key* belongs to; ``None`` if there is no bucket."""
    return max(buckets, key=lambda bucket: weight(key, bucket), default=None)


# Decide whether a job is tried again after its worker died, or after it raised.
#
# The pool counts an attempt as soon as a worker may have begun the job, and not only when
# the attempt has failed.  A counter that waits for a handled failure would never count a
# SIGKILL.
#
# A worker may die with jobs that it had received but not begun.  That costs such a job no
# attempt the first few times.  After that it does: a worker that dies before it can mark
# a job as begun would otherwise pass the same job on for ever.

DEFAULT_RETRY_ON = (CrashKind.CRASH, CrashKind.HUNG)

# The kinds of crash, as users may write them.
CrashKindText = Literal["crash", "failed start", "out of memory", "hung", "protocol"]

# What another attempt may follow, in words.
RETRIED = "kinds of crashes and types of exceptions"

# How often a job may come back without having begun, before that costs it an attempt.
MAX_FREE_RETURNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPolicy:
    """How often a job may be started, and after what.

    Args:
        max_attempts: How many times, at the most, workers may start the job.
        retry_on: Kinds of crash after which there is another attempt, and types of
            exceptions: if the job raises one of those, the pool tries it again too.

    Raises:
        ValueError: If *max_attempts* is out of range or a kind is unknown.
        TypeError: If *max_attempts* is no int, or an element of *retry_on* is neither a
            kind nor a type of exception.
    """

    max_attempts: int = 1
    retry_on: tuple[CrashKind | CrashKindText | type[BaseException], ...] = (
        DEFAULT_RETRY_ON
    )

    def __post_init__(self) -> None:
        check_type("max_attempts", self.max_attempts, INT)
        if not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise ValueError(
                f"max_attempts must be between 1 and {MAX_ATTEMPTS}, "
                f"not {self.max_attempts}"
            )
        for item in self.retry_on:
            if isinstance(item, str):
                if item not in set(CrashKind):
                    raise ValueError(
                        f"retry_on names {item!r}, which is no kind of crash; "
                        f"there are: {', '.join(sorted(CrashKind))}"
                    )
            elif not _is_exception_type(item):
                raise TypeError(f"retry_on takes {RETRIED}, not {item!r}")

    def after_crash(
        self, *, kind: CrashKind, delivery: Delivery, attempt: int, times_returned: int
    ) -> bool:
        """Tell whether the job goes back to the queue after its worker crashed.

        Args:
            kind: What happened to the worker.
            delivery: How far the job had got.
            attempt: Which attempt this was.
            times_returned: How often the job has already come back without having begun.
        """
        if not costs_attempt(delivery=delivery, times_returned=times_returned):
            return True
        return attempt < self.max_attempts and kind in self.retry_on

    def after_exception(self, error: BaseException, *, attempt: int) -> bool:
        """Tell whether the job is tried again after it raised *error*.

        The check of types is the one that an ``except`` clause makes, which ignores
        what a metaclass says.
        """
        if attempt >= self.max_attempts:
            return False
        types = [item for item in self.retry_on if isinstance(item, type)]
        return any(type.__subclasscheck__(cls, type(error)) for cls in types)


def costs_attempt(*, delivery: Delivery, times_returned: int) -> bool:
    """Tell whether a job that may be the cause of a crash has lost an attempt by it.

    Args:
        delivery: How far the job had got.
        times_returned: How often the job has already come back without having begun.
    """
    return delivery is Delivery.STARTED or times_returned >= MAX_FREE_RETURNS


def begun_attempts(*, attempts: int, times_returned: int) -> int:
    """Return how many of *attempts* had begun; see :func:`costs_attempt` for the others."""
    return attempts - max(0, times_returned - MAX_FREE_RETURNS)


def _is_exception_type(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseException)


# What a caller can choose for a job.

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
        plain: Whether nothing but its priority and its attempts is special.

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
    plain: bool = field(init=False, repr=False, compare=False)

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
        special = self.key, self.lease, self.bound, self.codec
        plain = self.via == "submit" and special == (None,) * 4 and not self.name
        object.__setattr__(self, "plain", plain and not self.limits.timed)


def _check_lease(lease: Any) -> None:
    pair = isinstance(lease, tuple) and len(lease) == 2  # noqa: PLR2004
    if not pair or not callable(getattr(lease[0], "keep", None)):
        raise TypeError(f"lease must be a pair (keeper, lease), not {lease!r}")
    hash(lease[1])  # raises a TypeError that says what is wrong


# For options that are no fields of JobOptions, the field that has them as a part.
_PARTS = {
    **{field.name: "attempts" for field in fields(AttemptPolicy)},
    **{field.name: "limits" for field in fields(JobLimits)},
}


def changed(options: JobOptions, changes: Options) -> JobOptions:
    """Return *options* with these *changes*.

    Raises:
        ValueError: If a value is out of range.
        TypeError: If there is no such option, or its value has the wrong type.
    """
    chosen: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    value: Any
    for name, value in changes.items():
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise TypeError(f"there is no option {name!r}; there are: {known}")
        if name == "retry_on":
            value = several("retry_on", value, RETRIED, single=(str, type))  # noqa: PLW2901
        elif name == "key" and value is not None:
            value = hash_of(value)  # noqa: PLW2901
        elif name == "codec":
            value = _format(options, value)  # noqa: PLW2901
        part = _PARTS.get(name)
        if part is None:
            chosen[name] = value
        else:
            parts.setdefault(part, {})[name] = value
    for part, values in parts.items():
        chosen[part] = replace(getattr(options, part), **values)
    return replace(options, **chosen)


def _format(options: JobOptions, codec: object) -> Format:
    """Return the format of a codec for jobs, whose pool has one already."""
    if options.codec is None:
        raise ValueError(
            "codec is an option of jobs in a pool that has one: without Pool(codec=...), the "
            "pool unpickles what its workers send, whatever this job does"
        )
    if codec is None:
        raise ValueError(
            "codec must be 'json', 'msgspec' or a Codec: the pool is data only"
        )
    from asyncpool._wire.formats import format_of  # noqa: PLC0415 - the pool has a codec

    return format_of(codec)
