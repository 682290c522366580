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

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import field
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    get_args,
)

from asyncpool._core.deadlines import earliest
from asyncpool._core.policies import (
    INT,
    SECONDS,
    Check,
    one_of,
    or_none,
    several,
)
from asyncpool._dataclass import dataclass, replace
from asyncpool._wire.frames import MAX_ATTEMPTS, MAX_NUMBER
from asyncpool._wire.messages import JobContext, end_of
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
        exclusive: Whether no other job may be sent while such a job is the last one.
        key: The hash of the key of such a job, if it has one.
    """

    __slots__ = ("cost",)

    exclusive: bool = False
    key: int | None = None

    def __init__(self) -> None:
        self.cost: float = UNKNOWN

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

    exclusive = True


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

    __slots__ = ("_function", "exclusive", "key")

    def __init__(self, function: JobTraits, key: int) -> None:
        self._function = function
        self.key: int | None = key
        self.exclusive: bool = function.exclusive

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

# The kinds of crash, as users may write them.
CrashKindText = Literal["crash", "failed start", "out of memory", "hung", "protocol"]

# What another attempt may follow.
RetryOn = CrashKind | CrashKindText | type[BaseException]

# How often a job may come back without having begun, before that costs it an attempt.
MAX_FREE_RETURNS = 3


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


# What a caller can choose for a job.

OnCancel = Literal["interrupt", "kill", "wait"]


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
        action: See *on_cancel* of :class:`JobOptions`.
        grace: How many seconds the job has to end by itself before the pool kills
            its worker.
    """

    action: OnCancel
    grace: float


# The mode that gives the job no time.
KILL = CancelMode("kill", 0.0)


class Options(TypedDict, total=False):
    """The options as users write them; see :meth:`asyncpool.Pool.options`.

    Each of them has a check in :data:`CHECKS`, and a field in :class:`JobOptions`.
    """

    max_attempts: int
    retry_on: Iterable[RetryOn]
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


def _retry_on(name: str, value: object) -> tuple[RetryOn, ...]:
    words = "kinds of crashes and types of exceptions"
    items = several(name, value, words, single=(str, type))
    for item in items:
        if isinstance(item, str):
            if item not in set(CrashKind):
                raise ValueError(
                    f"{name} names {item!r}, which is no kind of crash; "
                    f"there are: {', '.join(sorted(CrashKind))}"
                )
        elif not (isinstance(item, type) and issubclass(item, BaseException)):
            raise TypeError(f"{name} takes {words}, not {item!r}")
    return items


def _priority(name: str, value: int) -> int:
    # It travels to the agents of shared pools in so many bits.
    if not -(1 << 63) <= INT(name, value) < 1 << 63:
        raise ValueError(f"{name} must be an int of 64 bits: from -2**63 to 2**63 - 1")
    return value


def _key(_: str, key: object) -> int | None:
    return None if key is None else hash_of(key)


def _lease(name: str, lease: Any) -> Any:
    if lease is not None:
        pair = isinstance(lease, tuple) and len(lease) == 2  # noqa: PLR2004
        if not pair or not callable(getattr(lease[0], "keep", None)):
            raise TypeError(f"{name} must be a pair (keeper, lease), not {lease!r}")
        hash(lease[1])  # raises a TypeError that says what is wrong
    return lease


def _codec(name: str, codec: object) -> Format:
    if codec is None:
        raise ValueError(
            f"{name} must be 'json', 'msgspec' or a Codec: the pool is data only"
        )
    from asyncpool._wire.formats import format_of  # noqa: PLC0415 - the pool has a codec

    return format_of(codec)


_PERIOD = or_none(SECONDS).within("> 0 seconds", lambda seconds: seconds > 0)

# The check of each option, which returns what the record has of it.
CHECKS: dict[str, Check] = {
    "max_attempts": INT.within(
        f"between 1 and {MAX_ATTEMPTS}", lambda number: 1 <= number <= MAX_ATTEMPTS
    ),
    "retry_on": _retry_on,
    "timeout": _PERIOD,
    "queue_timeout": _PERIOD,
    "heartbeat_timeout": _PERIOD,
    "deadline": or_none(SECONDS).within(
        "a point on the loop's clock",
        lambda when: when == when,  # noqa: PLR0124 - NaN
    ),
    "on_cancel": one_of(get_args(OnCancel)),
    "cancel_grace": SECONDS.within(">= 0 seconds", lambda seconds: seconds >= 0),
    "priority": _priority,
    "key": _key,
    "lease": _lease,
    "prefetch": INT.within(">= 1 item", lambda number: 0 < number <= MAX_NUMBER),
    "codec": _codec,
}

# Their names.  No module that a worker imports has them: to import this one would take it 30 ms.
# So the pool tells its workers, for the hint that an option is no argument of a function.
OPTIONS = CHECKS.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything that a caller can choose for a job, checked; :func:`changed` makes others.

    Attributes:
        max_attempts: How many times, at the most, workers may start the job.
        retry_on: Kinds of crash after which there is another attempt, and types of
            exceptions: if the job raises one of those, the pool tries it again too.
        timeout: The most seconds that each attempt may run.  ``None`` stands for no
            limit, here and in the next three.
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
        priority: The job with the lower number begins first.
        key: The hash of its key, if it has one.  Jobs with the same key prefer the
            same worker.
        lease: A lease keeper, and the lease in an outside system that it keeps
            while the job is open.
        prefetch: How many items of a stream may wait for its caller.
        codec: The format of its call and its outcome, in a pool that is data only.
        begun: How many attempts were counted before the job was submitted.
        details: The pickled details that the last of these has sent, or nothing.
        via: How the function is called: by itself, for several items of a map that
            travel together, as a stream of what it yields, or in every worker.
        hold: What keeps the pool open for this job, if anything does.  A pool that
            drains accepts such a job.
        bound: The session that it is a call of, if it is one.
        name: The name of the user's function, if workers call another function in
            its place.
        timed: Whether the job has any time limit.
        check_after: For how many seconds after an attempt has begun, or was last heard
            of, it cannot reach a limit of its own.
        context: What the job is told of these options, packed.  All jobs with these
            options share the object.
        plain: Whether nothing but its priority and its attempts is special.
    """

    max_attempts: int = 1
    retry_on: tuple[RetryOn, ...] = (CrashKind.CRASH, CrashKind.HUNG)
    timeout: float | None = None
    queue_timeout: float | None = None
    heartbeat_timeout: float | None = None
    deadline: float | None = None
    on_cancel: OnCancel = "interrupt"
    cancel_grace: float = 2.0
    priority: int = 0
    key: int | None = None
    lease: tuple[Keeper, Hashable] | None = None
    prefetch: int = 16
    codec: Any = None
    begun: int = 0
    details: bytes = b""
    via: Via = "submit"
    hold: DrainHold | None = None
    bound: SessionTraits | None = None
    name: str = ""
    # The pool reads each of these several times for each job, so they are no properties.
    timed: bool = field(init=False, repr=False, compare=False)
    check_after: float | None = field(init=False, repr=False, compare=False)
    context: bytes = field(init=False, repr=False, compare=False)
    plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_after = earliest(self.timeout, self.heartbeat_timeout)
        limits = check_after, self.queue_timeout, self.deadline
        timed = limits != (None,) * 3
        context = JobContext(self.timeout, self.deadline, self.details).pack()
        special = self.key, self.lease, self.bound, self.codec
        plain = not timed and self.via == "submit" and not self.name
        object.__setattr__(self, "timed", timed)
        object.__setattr__(self, "check_after", check_after)
        object.__setattr__(self, "context", context)
        object.__setattr__(self, "plain", plain and special == (None,) * 4)

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


def changed(options: JobOptions, changes: Mapping[str, Any]) -> JobOptions:
    """Return *options* with these *changes*, which are checked here and nowhere else.

    Raises:
        ValueError: If a value is out of range.
        TypeError: If there is no such option, or its value has the wrong type.
    """
    for name in changes:
        if name not in CHECKS:
            known = ", ".join(CHECKS)
            raise TypeError(f"there is no option {name!r}; there are: {known}")
    if "codec" in changes and options.codec is None:
        raise ValueError(
            "codec is an option of jobs in a pool that has one: without Pool(codec=...), the "
            "pool unpickles what its workers send, whatever this job does"
        )
    return replace(
        options, **{name: CHECKS[name](name, changes[name]) for name in changes}
    )
