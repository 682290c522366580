"""What users set for the workers of a pool, and for their jobs.

Limits say when a worker is due for recycling, so that another one takes its place.  Workers that
began together would reach the same limit together.  So each generation of each slot has limits of
its own, a little below the given ones.  They are not random, since chance may pick the same limit
for two workers.  They are spread evenly: the fractions of the multiples of the golden ratio fill an
interval with the largest possible distances (Weyl; Knuth, The Art of Computer Programming, volume
3, section 6.4).

The restart policy decides whether a dead worker is replaced, and when.  A worker may die at three
moments.  Each says something else about the environment:

* *In the middle of a job.* The pool blames that job, and the death costs the job one of
  its attempts.  The replacement starts at once, however many such jobs there are.  Each
  of them runs out of attempts, so this cannot go on for ever.
* *Ready, and without a job.* The worker has proved that workers can be started, so its
  replacement starts at once too.  A token bucket limits the forks when many workers die
  like this: some starts for each worker are free, and further ones come at the rate
  that costs a tenth of a core.
* *Before it was ready*: a failed start.  Only this speaks against the environment.  The
  delay before the next start doubles with each failed start in a row, counted for the
  whole pool.  Only one slot tries at a time, for all of them.  The first worker that
  becomes ready ends this.  A failure that will repeat (an import, a
  check) counts as ``max_failed_starts``.

After ``max_failed_starts``, a pool that has no worker left is *broken*.  A broken pool
refuses jobs, and goes on trying to start a worker in the same way.

``max_restarts`` within ``period`` is the limit after which the pool gives up for good.
It counts deaths of every kind.  It is Erlang/OTP's restart intensity and Node's limited
restart, and off by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field
from itertools import accumulate
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    get_args,
)

from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._dataclass import dataclass, replace
from asyncpool._wire.frames import MAX_ATTEMPTS, MAX_NUMBER
from asyncpool._wire.messages import JobContext, Variables, end_of
from asyncpool._wire.text import function_name, in_units
from asyncpool.enums import CrashKind, Delivery, TimeLimit
from asyncpool.events import Via

if TYPE_CHECKING:
    from asyncpool._core.functions import SessionTraits
    from asyncpool._wire.formats import Format
    from asyncpool._wire.messages import KernelLimit

# How many workers there may be: a larger number is more likely a mistake, and to make so many slots
# would stop the process.
MAX_WORKERS = 4096

# More jobs than any worker ever runs.
NEVER = 1 << 62

_GOLDEN = (5**0.5 - 1) / 2


class RecycleLimits(NamedTuple):
    """When one worker is due for recycling.

    Attributes:
        jobs: After how many outcomes.
        age: How many seconds after it was ready; ``None`` for never.
        memory: At how many bytes of memory; ``None`` for never.
    """

    jobs: int
    age: float | None
    memory: int | None


def _cpus(name: str, numbers: object) -> tuple[int, ...]:
    cpus: tuple[Any, ...] = tuple(numbers) if isinstance(numbers, Iterable) else ()
    if not cpus or not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
        raise ValueError(f"{name} must be numbers of CPUs, not {numbers!r}")
    return cpus


def _rlimits(name: str, limits: Mapping[Any, Any]) -> Mapping[str, KernelLimit]:
    checks.Argument((Mapping,), "a mapping")(name, limits)
    for each, limit in limits.items():
        if not isinstance(each, str) or not each.startswith("RLIMIT_"):
            raise ValueError(f"{name} takes names such as 'RLIMIT_AS', not {each!r}")
        both = limit if isinstance(limit, tuple) else (limit, limit)
        if [type(value) for value in both] != [int, int]:
            raise TypeError(f"the limit of {each} must be an int or two, not {limit!r}")
    return MappingProxyType(dict(limits))


_AMOUNT = checks.INT.or_none().within("> 0 or None", checks.is_positive)
_TIME = checks.SECONDS.or_none().within("> 0 or None", checks.is_positive)
_PART = checks.NUMBER.within("at least 0 and below 1", lambda part: 0 <= part < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """When workers are replaced by fresh ones, and what the kernel allows them.

    The pool *retires* a worker that reaches ``max_jobs``, ``max_age`` or
    ``max_memory``.  It starts another worker first.  When that is ready, the old worker
    gets no more jobs, finishes what it has, and ends.  Until then it works on, unless it
    has had ``max_jobs``.  The pool kills a worker that reaches ``kill_memory``, and its
    job fails with :exc:`asyncpool.errors.WorkerOutOfMemoryError`.

    The memory of a worker is what it has to itself.  What it shares with other
    processes, such as libraries, the large arrays of its arguments, and what ``preload``
    or the script has left for all workers, does not count.  So the figure is less than
    the RSS that ``ps`` shows.  The pool looks four times a second, on Linux only.  A
    worker that has reached a limit before its first job does not start.

    Args:
        max_jobs: How many jobs a worker may begin.  It ends when they are done.  Its
            replacement starts while the last ones run, and takes over those that have not
            begun; if its start takes longer than they do, a worker is missing meanwhile.
            This does not end a session (:meth:`asyncpool.Pool.worker`) early: its worker
            ends when the session is over.
        max_age: After how many seconds a worker is retired.
        max_memory: At how many bytes of memory a worker is retired.
        kill_memory: At how many bytes of memory a worker is killed.
        nice: What is added to the niceness of workers.
        cpu_affinity: The numbers of the CPUs that workers may run on.
        rlimits: Limits that the kernel sets for each worker, by their names in
            :mod:`resource`: ``{"RLIMIT_AS": 4 << 30}``.  A number is the soft limit; a
            pair sets both limits.
        jitter: By which part, at the most, the pool lowers the limits of a worker.
            It lowers them for each worker by another part, so that it does not replace
            workers together that it has started together.
        drain_timeout: How many seconds a worker that is retired, rolled or no
            longer needed has to finish its job.  Then the pool kills it, and another
            worker takes over the job if that has another attempt.  ``None`` for any
            time.

    Raises:
        ValueError: If a value is out of range, or a resource unknown.
        TypeError: If one is of the wrong type.
    """

    max_jobs: int | None = option(_AMOUNT, None)
    max_age: float | None = option(_TIME, None)
    max_memory: int | None = option(_AMOUNT, None)
    kill_memory: int | None = option(_AMOUNT, None)
    nice: int = option(checks.INT, 0)
    cpu_affinity: Iterable[int] | None = option(checks.optional(_cpus), None)
    rlimits: Mapping[str, KernelLimit] = option(_rlimits, factory=dict)
    jitter: float = option(_PART, 0.1)
    drain_timeout: float | None = option(_TIME, 600.0)

    def __post_init__(self) -> None:
        checks.apply_to(self)
        if self.max_memory and self.kill_memory and self.kill_memory <= self.max_memory:
            raise ValueError(
                f"kill_memory must be more than max_memory ({in_units(self.max_memory)}), "
                f"not {in_units(self.kill_memory)}"
            )

    @property
    def cpus(self) -> tuple[int, ...] | None:
        """The CPUs that workers may run on; ``None`` for all."""
        return None if self.cpu_affinity is None else tuple(self.cpu_affinity)

    @property
    def memory_at_start(self) -> tuple[int, str] | None:
        """The least memory that is too much for some worker, and which limit that is."""
        if self.max_memory is None:
            most = self.kill_memory
            return None if most is None else (most, f"kill_memory is {in_units(most)}")
        least = round(self.max_memory * (1.0 - self.jitter))
        text = f"max_memory is {in_units(self.max_memory)}"
        if least < self.max_memory:
            text += f" (for some workers {in_units(least)}, by jitter)"
        return least, text

    def recycle_limits(self, slot: int, generation: int) -> RecycleLimits:
        """Return the limits of worker *generation* of *slot*."""
        fraction = (generation * _GOLDEN + slot * _GOLDEN**2) % 1.0
        part = 1.0 - self.jitter * fraction
        jobs = NEVER if self.max_jobs is None else max(1, round(self.max_jobs * part))
        age = None if self.max_age is None else self.max_age * part
        memory = None if self.max_memory is None else round(self.max_memory * part)
        return RecycleLimits(jobs, age, memory)


# The environment variables that workers have beside those of the service.
#
# There are two kinds, since a forked worker has begun to live in the launcher.  A mapping is the
# same for all workers: the launcher itself is started with it, so it holds for all that is
# imported anywhere.  A function gives each worker its own: then the launcher must import nothing
# for the workers, and each worker sets its variables before it imports anything.

# The most bytes of the variables of one worker.  They travel in one piece to the launcher, whose
# socket must hold those of 16 workers.
MAX_BYTES = 8192

# What the interpreter, or the loader of its libraries, reads only as the process starts.
_READ_AT_START = ("PYTHON", "LD_", "DYLD_")


class WorkerEnv:
    """The variables, checked.

    Args:
        given: What the user has given: variables for all workers, or a function of the slot.

    Attributes:
        common: The variables of all workers.
        varies: Whether each worker has variables of its own.

    Raises:
        TypeError: If it is neither a mapping of texts nor a function.
        ValueError: If something cannot be the name or the value of a variable.
    """

    def __init__(self, given: Any) -> None:
        self._given, self.varies = given, not isinstance(given, Mapping)
        if self.varies and not callable(given):
            raise TypeError(
                "worker_env must be a mapping of names to values, or a function of the slot "
                f"that returns one, not {given!r}"
            )
        self.common = () if self.varies else checks.environment("worker_env", given)

    def of(self, rank: int, *, forked: bool) -> Variables:
        """Return the variables that the worker with this *rank* alone has.

        Args:
            rank: What the function gets.
            forked: Whether the worker is forked, and not a fresh interpreter.

        Raises:
            TypeError: If the function returns no mapping of texts.
            ValueError: If it returns what cannot be in an environment, or comes too late.
            Exception: What the function raises.
        """
        if not self.varies:
            return ()
        name = f"worker_env({rank})"
        variables = checks.environment(name, self._given(rank))
        size = sum(len(key) + len(value) for key, value in variables)
        if size > MAX_BYTES:
            raise ValueError(
                f"{name} has {size} characters, and {MAX_BYTES} is the most: "
                "name a file instead"
            )
        late = [key for key, _ in variables if key.startswith(_READ_AT_START)]
        if forked and late:
            raise ValueError(
                f"{name} sets {late[0]}, which takes effect only as a process starts, and a "
                'forked worker has started before: use launcher="spawn", or a mapping if '
                "the value is the same for all workers"
            )
        return variables


_COUNT = checks.INT.or_none().within(">= 1 or None", lambda number: number >= 1)

# After so many failed starts in a row a pool without any worker is broken, by default.
MAX_FAILED_STARTS = 5

# This many restarts for each worker are free, if no worker has died for a while.
BURST = 4

# Further restarts come at the rate at which starts take a tenth of the time.  That is
# at most ten a second, since a death costs 9 ms in all processes together where a start
# takes 3 ms.  It is at least two a second, so that no worker is missing for longer than
# half a second.
_SHARE = 0.1
_INTERVALS = (0.1, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How a supervisor replaces workers that die, and when it gives up.

    If a worker that was ready dies, the pool replaces it at once.  The arguments are
    about two other things.  One is starts that fail: the worker ends, raises, or says
    nothing for ``start_timeout`` before it is ready.  The other is giving up, which a
    pool never does by default.

    Args:
        initial_delay: Seconds before the next start after a start that failed.
            They double with each failed start in a row.  Each delay is random, between
            half of its value and all of it.
        max_delay: The most seconds between two starts.
        max_failed_starts: After how many failed starts in a row a pool without any
            worker is broken.  One is enough if the next ones would fail in the same
            way, as an import that raises does.  Its queued jobs then fail with
            :exc:`asyncpool.errors.PoolBrokenError`, and it refuses new ones.  It works again
            as soon as a start succeeds.  ``None``: jobs wait instead.
        max_restarts: How many workers may die within *period*, whatever the cause,
            before the pool gives up for good; ``None`` for any number.
        period: Length of the sliding window of *max_restarts*, in seconds.

    Raises:
        ValueError: If a value is out of range, or if starts that fail are delayed so much
            that they can never exceed *max_restarts* within *period*.
        TypeError: If a value is of the wrong type.
    """

    initial_delay: float = option(checks.SECONDS, 0.05)
    max_delay: float = option(checks.SECONDS, 30.0)
    max_failed_starts: int | None = option(_COUNT, MAX_FAILED_STARTS)
    max_restarts: int | None = option(_COUNT, None)
    period: float = option(checks.SECONDS, 60.0)

    def __post_init__(self) -> None:
        checks.apply_to(self)
        if not 0 <= self.initial_delay <= self.max_delay:
            raise ValueError(
                f"initial_delay must be between 0 and max_delay ({self.max_delay:g}), "
                f"not {self.initial_delay:g}"
            )
        if not self.period > 0:
            raise ValueError(f"period must be > 0, not {self.period:g}")
        if self.initial_delay == 0 and self.max_restarts is None:
            raise ValueError(
                "initial_delay=0 would start workers that never become ready without "
                "any pause, and needs max_restarts"
            )
        # If all starts fail and all delays are the longest, death number n + 1 comes after the
        # sum of the first n delays.
        most = self.max_restarts if self.initial_delay else None
        delays = (self.delay(n, jitter=0.0) for n in range(1, 1 + (most or 0)))
        for death, seconds in enumerate(accumulate(delays), 2):
            if seconds > self.period:
                raise ValueError(
                    f"starts that fail never exceed max_restarts={self.max_restarts} in "
                    f"period={self.period:g} s: with initial_delay={self.initial_delay:g} and "
                    f"max_delay={self.max_delay:g} death number {death} may come after "
                    f"{seconds:g} s; use a smaller max_restarts, a longer period, or smaller "
                    "delays"
                )

    @classmethod
    def limited(cls, max_restarts: int, period: float) -> RestartPolicy:
        """Restart at once, at most *max_restarts* times in *period* seconds, then give up.

        Every death counts, whatever its cause, and failed starts count too.  This is
        the rule of Node's limited restart and of an OTP supervisor.
        """
        return cls(
            initial_delay=0.0,
            max_failed_starts=None,
            max_restarts=max_restarts,
            period=period,
        )

    def delay(self, failures: int, *, jitter: float) -> float:
        """Return how many seconds to wait after *failures* failed starts in a row.

        *jitter* is a random number in ``[0, 1)``; 0 gives the longest delay.
        """
        # 2.0**1024 overflows; the delay reaches its maximum long before that.
        full = min(self.initial_delay * 2.0 ** min(failures - 1, 1000), self.max_delay)
        return full * (1.0 - 0.5 * jitter)


class RestartLedger:
    """What a :class:`RestartPolicy` must remember of one pool.

    Args:
        policy: The rules.
        workers: How many workers the pool may have.

    Attributes:
        failures: How many starts have failed in a row.
        final: Whether the next start would fail as the last one has.
    """

    def __init__(self, policy: RestartPolicy, workers: int) -> None:
        self.policy, self.workers = policy, workers
        self.failures, self.final = 0, False
        self._failed_at = float("-inf")
        self._interval = _INTERVALS[0]
        self._free = float("inf")  # restarts that need not wait
        self._filled_at = 0.0
        self._deaths: deque[float] = deque()

    @property
    def breaks_pool(self) -> bool:
        """Whether enough starts have failed in a row to break a pool without any worker."""
        return self.policy.max_failed_starts is not None and self.starts_fail

    @property
    def starts_fail(self) -> bool:
        """Whether so many starts have failed in a row that the next ones will, too.

        A policy that never breaks the pool does not say how many that are.
        """
        limit = self.policy.max_failed_starts
        least = MAX_FAILED_STARTS if limit is None else limit
        return self.final or self.failures >= least

    @property
    def reason(self) -> str:
        """How starts have failed, as a clause."""
        if self.final:
            return "the start failed, and is likely to fail again"
        if self.failures == 1:
            return "the start failed"
        return f"{self.failures} starts failed in a row"

    def ready(self, took: float, now: float) -> None:
        """Record that a worker is ready, *took* seconds after it was forked."""
        self.failures, self._failed_at, self.final = 0, float("-inf"), False
        self._fill(now)
        before, (shortest, longest) = self._interval, _INTERVALS
        self._interval = min(max(took / _SHARE, shortest), longest)
        if self._free < 0.0:
            # The restarts that wait keep their times, and the next one comes right
            # behind them: so what is owed is rescaled.
            self._free *= before / self._interval

    @property
    def given_up(self) -> str:
        """Why no worker is started any more, once more have died than the policy allows."""
        policy, most = self.policy, self.policy.max_restarts or 0
        return (
            f"{most + 1} workers died within {policy.period:g} s, "
            f"and the policy allows {most}"
        )

    def start_failed(
        self, began: float, now: float, *, jitter: float, final: bool = False
    ) -> float | None:
        """Record the end of a worker that was never ready.

        Args:
            began: When it was forked.
            now: The time, on a clock that never goes backwards.
            jitter: A random number in ``[0, 1)``.
            final: Whether the next start would fail in the same way.

        Returns:
            In how many seconds the pool tries the next start; ``None`` if it gives up.
        """
        # Starts that overlap fail for the same reason, so they count as one.
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = now
        self.final = final
        if self._count_death(now):
            return None
        in_a_row = self.failures + (MAX_FAILED_STARTS - 1 if final else 0)
        return self.policy.delay(in_a_row, jitter=jitter)

    def died(self, now: float, *, blamed: bool) -> float | None:
        """Record the death of a worker that was ready.

        Args:
            now: The time, on a clock that never goes backwards.
            blamed: Whether a job is to blame.

        Returns:
            In how many seconds the next worker starts; ``None`` if the pool gives up.
        """
        if self._count_death(now):
            return None
        if blamed:
            return 0.0
        self._fill(now)
        self._free -= 1.0
        return max(0.0, -self._free * self._interval)

    def _fill(self, now: float) -> None:
        come = (now - self._filled_at) / self._interval
        self._free = min(self._free + come, BURST * self.workers)
        self._filled_at = now

    def _count_death(self, now: float) -> bool:
        """Count a death, and return whether that is more than the policy allows."""
        policy = self.policy
        if policy.max_restarts is None:
            return False
        self._deaths.append(now)
        # Only so many deaths matter: one more than the limit.
        while (
            self._deaths[0] < now - policy.period
            or len(self._deaths) > policy.max_restarts + 1
        ):
            self._deaths.popleft()
        return len(self._deaths) > policy.max_restarts


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


def costs_attempt(*, delivery: Delivery, times_suspected: int) -> bool:
    """Tell whether a job that may be the cause of a crash has lost an attempt by it.

    Args:
        delivery: How far the job had got.
        times_suspected: How often it was the suspect of a death without having begun.
    """
    return delivery is Delivery.STARTED or times_suspected >= MAX_FREE_RETURNS


# What a caller can choose for a job.

OnCancel = Literal["interrupt", "kill", "wait"]


class Keeper(Protocol):
    """What a job needs of a lease keeper."""

    def keep(self, lease: Any, holder: Any, /) -> None:
        """Keep *lease* until the future *holder* is done; cancel *holder* if it is lost."""


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

    Each of them has a field in :class:`JobOptions`, with its check.
    """

    max_attempts: int
    retry_on: Iterable[RetryOn]
    retire_on: Iterable[type[BaseException] | str]
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


def _retry_on(name: str, value: object) -> tuple[RetryOn, ...]:
    words = "kinds of crashes and types of exceptions"
    items = checks.several(words, single=(str, type))(name, value)
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


def _retire_on(name: str, value: object) -> tuple[str, ...]:
    # Workers and agents get the names: to unpickle a class would import its module there.
    words = "types of exceptions and names of such"
    items = checks.several(words, single=(str, type))(name, value)
    for item in items:
        is_type = isinstance(item, type) and issubclass(item, BaseException)
        if not (is_type or isinstance(item, str)):
            raise TypeError(f"{name} takes {words}, not {item!r}")
        if isinstance(item, str) and ("." not in item or not item.isprintable()):
            raise ValueError(
                f"{name} takes names such as 'shop.DeviceError', not {item!r}"
            )
    return tuple(it if isinstance(it, str) else function_name(it) for it in items)


def _priority(name: str, value: int) -> int:
    # It travels to the agents of shared pools in so many bits.
    if not -(1 << 63) <= checks.INT(name, value) < 1 << 63:
        raise ValueError(f"{name} must be an int of 64 bits: from -2**63 to 2**63 - 1")
    return value


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


_LIMIT = checks.PERIOD.or_none()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything that a caller can choose for a job, checked; :func:`changed` makes others.

    Attributes:
        max_attempts: How many times, at the most, workers may start the job.
        retry_on: Kinds of crash after which there is another attempt, and types of
            exceptions: if the job raises one of those, the pool tries it again too.
        retire_on: The names of classes of exceptions: if the job raises one of those, its
            worker begins no other job.
        timeout: The most seconds that each attempt may run.  ``None`` stands for no
            limit, here and in the next three.
        queue_timeout: The most seconds, in all, that the job may wait before its
            first attempt begins.
        heartbeat_timeout: The most seconds that an attempt may go without a
            heartbeat.
        deadline: The time, on the loop's clock, by which the job must be done.
        on_cancel: What happens to a running job that the caller cancels.
            ``"interrupt"``: the pool raises :exc:`asyncpool.errors.JobCancelled` in the job,
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
        codec: The format of its call and its outcome, in a pool that is data only; or the table of
            functions itself, by which an agent submits calls that are packed already.
        prior_attempts: How many attempts were counted before the job was submitted.
        details: The pickled details that the last of these has sent, or nothing.
        trace: The pickled headers of the span that stands for its attempts, or nothing.
        via: How the function is called: by itself, for several items of a map that
            travel together, as a stream of what it yields, or in every worker.
        hold: What keeps the pool open for this job, if anything does: its map or its
            session.  A pool that drains accepts such a job.
        session: The session that it is a call of, if it is one.
        name: The name of the user's function, if workers call another function in
            its place.
        timed: Whether the job has any time limit.
        context: What the job is told of these options, packed.  All jobs with these
            options share the object.
        plain: Whether nothing but its priority, its attempts and its timeout is special.
    """

    # The options that callers write, each with the check that returns what is kept of it.
    max_attempts: int = option(
        checks.INT.within(
            f"between 1 and {MAX_ATTEMPTS}", lambda number: 1 <= number <= MAX_ATTEMPTS
        ),
        1,
    )
    retry_on: tuple[RetryOn, ...] = option(_retry_on, (CrashKind.CRASH, CrashKind.HUNG))
    retire_on: tuple[str, ...] = option(_retire_on, ())
    timeout: float | None = option(_LIMIT, None)
    queue_timeout: float | None = option(_LIMIT, None)
    heartbeat_timeout: float | None = option(_LIMIT, None)
    deadline: float | None = option(
        checks.SECONDS.or_none().within(
            "a point on the loop's clock",
            lambda when: when == when,  # noqa: PLR0124 - NaN
        ),
        None,
    )
    on_cancel: OnCancel = option(checks.one_of(get_args(OnCancel)), "interrupt")
    cancel_grace: float = option(checks.DURATION, 2.0)
    priority: int = option(_priority, 0)
    key: int | None = option(checks.optional(lambda _, key: hash_of(key)), None)
    lease: tuple[Keeper, Hashable] | None = option(_lease, None)
    prefetch: int = option(
        checks.INT.within(">= 1 item", lambda number: 0 < number <= MAX_NUMBER), 16
    )
    codec: Any = option(_codec, None)
    # What the pool adds.
    prior_attempts: int = 0
    details: bytes = b""
    trace: bytes = b""
    via: Via = "submit"
    hold: object = None
    session: SessionTraits | None = None
    name: str = ""
    # The pool reads each of these several times for each job, so they are no properties.
    timed: bool = field(init=False, repr=False, compare=False)
    context: bytes = field(init=False, repr=False, compare=False)
    plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limits = self.timeout, self.heartbeat_timeout, self.queue_timeout, self.deadline
        timed = limits != (None,) * 4
        context = b""
        if timed or self.details or self.trace or self.retire_on:
            names = "\n".join(self.retire_on).encode()
            told = self.timeout, self.deadline, self.details, b"", self.trace, names
            context = JobContext(*told).pack()
        special = *limits[1:], self.key, self.lease, self.session, self.codec
        plain = self.via == "submit" and not self.name
        put = object.__setattr__
        put(self, "timed", timed)
        put(self, "context", context)
        put(self, "plain", plain and special == (None,) * 7)

    def after_crash(self, kind: CrashKind, *, attempt: int) -> bool:
        """Tell whether the job is tried again after a crash of that *kind* has cost it an attempt."""
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

    def next_check(self, began: float, beat: float) -> float | None:
        """Return when the next check of a running attempt is; ``None`` for never.

        Args:
            began: When the attempt began.
            beat: When its last heartbeat was; *began* if there was none.
        """
        return end_of(beat, self.heartbeat_timeout, self.run_end(began))


CHECKS = checks.table_of(JobOptions)

# The names of the options.  No module that a worker imports has them: to import this one would
# take it 30 ms.  So the pool tells its workers, for the hint that an option is no argument of a
# function.
OPTIONS = CHECKS.keys()


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
