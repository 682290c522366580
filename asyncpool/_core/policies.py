"""What users set for the workers of a pool, and how such arguments are checked: limits and restarts.

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
  becomes ready ends this.  A failure that cannot come out otherwise (an import, a
  check) counts as ``max_failed_starts``.

After ``max_failed_starts``, a pool that has no worker left is *broken*.  A broken pool
refuses jobs, and goes on trying to start a worker in the same way.

``max_restarts`` within ``period`` is the limit after which the pool gives up for good.
It counts deaths of every kind.  It is Erlang/OTP's restart intensity and Node's limited
restart, and off by default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from sys import float_info
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from asyncpool._dataclass import dataclass, replace
from asyncpool._wire.messages import Variables
from asyncpool._wire.text import in_units

if TYPE_CHECKING:
    from asyncpool._wire.messages import KernelLimit

T = TypeVar("T")

# How arguments are checked.

# Takes an argument's name and the value that was given; returns the value in the shape in
# which it is kept.  It raises TypeError or ValueError with a text that names the argument.
Check: TypeAlias = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """What an argument may be; a check, by itself and in tables.

    Attributes:
        types: The classes that it may have.  Callers may name further ones.
        words: The same in words.
        bounds: What it may be of these, in words.
        holds: Tells whether a value is so; it is not asked about ``None``.
    """

    types: tuple[type, ...]
    words: str
    bounds: str = ""
    holds: Callable[[Any], bool] | None = None

    def within(self, bounds: str, holds: Callable[[Any], bool]) -> Argument:
        """Return the same with bounds."""
        return replace(self, bounds=bounds, holds=holds)

    def __call__(self, name: str, value: Any) -> Any:
        """Check the argument *name*, and return it.

        Raises:
            TypeError: If it has another type, or is a bool in place of a number.
            ValueError: If it is out of bounds, or an int beyond every float, in place of a number.
        """
        types, words = self.types, self.words
        is_no_number = isinstance(value, bool) and int in types and bool not in types
        if is_no_number or not isinstance(value, types):
            raise TypeError(f"{name} must be {words}, not {value!r}")
        if isinstance(value, int) and float in types and abs(value) > float_info.max:
            raise ValueError(
                f"{name} must be {words}, and this int is too large for one"
            )
        if self.holds is not None and value is not None and not self.holds(value):
            raise ValueError(f"{name} must be {self.bounds}, not {value}")
        return value


INT = Argument((int,), "an int")
NUMBER = Argument((int, float), "a number")
SECONDS = Argument((int, float), "a number of seconds")
SWITCH = Argument((bool,), "True or False")
TEXT = Argument((str,), "a str")


def or_none(expected: Argument) -> Argument:
    """Return the same, for an argument that may also be ``None``."""
    types = (*expected.types, type(None))
    return replace(expected, types=types, words=f"{expected.words} or None")


def check_type(name: str, value: object, expected: Argument) -> None:
    """Check a single argument; see :class:`Argument`."""
    expected(name, value)


def at_least(least: int, *, optional: bool = False) -> Argument:
    """Return the check of an int with a lower bound; ``None`` passes if *optional*."""
    expected = or_none(INT) if optional else INT
    return expected.within(f"at least {least}", lambda number: number >= least)


def seconds(*, optional: bool = False) -> Argument:
    """Return the check of a positive number of seconds; ``None`` passes if *optional*."""
    if optional:
        return or_none(SECONDS).within("> 0 seconds or None", is_positive)
    return SECONDS.within("> 0 seconds", is_positive)


def is_positive(number: float) -> bool:
    """Tell whether *number* is more than 0, which NaN is not."""
    return number > 0


def one_of(choices: tuple[str, ...]) -> Check:
    """Return the check of an argument that is one of some words."""

    def check(name: str, value: str) -> str:
        if value not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(choices)}, not {value!r}"
            )
        return value

    return check


def checked(table: Mapping[str, Check], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of *table*, by name, each as its check returns it.

    Args:
        table: The check of each argument, in the order in which they are made.
        given: The values, by name.  It may hold more than the table names.

    Raises:
        TypeError: If a value is of the wrong type.
        ValueError: If a value is out of range.
    """
    return {name: check(name, given[name]) for name, check in table.items()}


def check_fields(record: object, table: Mapping[str, Check]) -> None:
    """Check the attributes of *record* that *table* names, and keep what their checks return.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range.
    """
    for name, check in table.items():
        object.__setattr__(record, name, check(name, getattr(record, name)))


def several(
    name: str,
    values: object,
    words: str,
    *,
    single: tuple[type, ...] = (str,),
    each: type = object,
) -> tuple[Any, ...]:
    """Return an argument that is an iterable of several things, as a tuple.

    Args:
        name: The name of the argument.
        values: An iterable.
        words: What the argument takes, in words.
        single: The types of a value that was certainly meant as a single element,
            even if it is iterable.
        each: The type of each element.

    Raises:
        TypeError: If it is no iterable, if it is a single element, or if one
            element has another type.
    """
    if isinstance(values, single):
        raise TypeError(f"{name} takes several: ({values!r},)")
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} takes {words}, not {values!r}")
    found: tuple[Any, ...] = tuple(values)
    for value in found:
        if not isinstance(value, each):
            raise TypeError(f"{name} takes {words}, not {value!r}")
    return found


def check_function(
    name: str, value: T, words: str = "a function, or its name", named: str = "must be"
) -> T:
    """Return a function that workers call, or import by its name and call.

    Args:
        name: The name of the argument.
        value: The function, or its name.
        words: What the argument takes, in words.
        named: How the error for a wrong name begins.

    Raises:
        TypeError: If it is neither a name nor callable.
        ValueError: If nothing has this name.
    """
    if isinstance(value, str):
        if not all(value.partition(":")):
            raise ValueError(f"{name} {named} 'package.module:name', not {value!r}")
    elif not callable(value):
        raise TypeError(f"{name} must be {words}, not {value!r}")
    return value


# What users set for workers.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """When workers are replaced by fresh ones, and what the kernel allows them.

    The pool *retires* a worker that reaches ``max_jobs``, ``max_age`` or
    ``max_memory``.  It starts another worker first.  When that is ready, the old worker
    gets no more jobs, finishes what it has, and ends.  Until then it works on, unless it
    has had ``max_jobs``.  The pool kills a worker that reaches ``kill_memory``, and its
    job fails with :exc:`asyncpool.WorkerOutOfMemoryError`.

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

    max_jobs: int | None = None
    max_age: float | None = None
    max_memory: int | None = None
    kill_memory: int | None = None
    nice: int = 0
    cpu_affinity: Iterable[int] | None = None
    rlimits: Mapping[str, KernelLimit] = field(default_factory=dict)
    jitter: float = 0.1
    drain_timeout: float | None = 600.0

    def __post_init__(self) -> None:
        check_fields(self, _LIMITS)
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
        return RecycleLimits(
            jobs=NEVER
            if self.max_jobs is None
            else max(1, round(self.max_jobs * part)),
            age=None if self.max_age is None else self.max_age * part,
            memory=None if self.max_memory is None else round(self.max_memory * part),
        )


def _cpus(name: str, numbers: object) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    cpus: tuple[Any, ...] = tuple(numbers) if isinstance(numbers, Iterable) else ()
    if not cpus or not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
        raise ValueError(f"{name} must be numbers of CPUs, not {numbers!r}")
    return cpus


def _rlimits(name: str, limits: Mapping[Any, Any]) -> Mapping[str, KernelLimit]:
    check_type(name, limits, Argument((Mapping,), "a mapping"))
    for each, limit in limits.items():
        if not isinstance(each, str) or not each.startswith("RLIMIT_"):
            raise ValueError(f"{name} takes names such as 'RLIMIT_AS', not {each!r}")
        both = limit if isinstance(limit, tuple) else (limit, limit)
        if [type(value) for value in both] != [int, int]:
            raise TypeError(f"the limit of {each} must be an int or two, not {limit!r}")
    return MappingProxyType(dict(limits))


_AMOUNT = or_none(INT).within("> 0 or None", is_positive)
_TIME = or_none(SECONDS).within("> 0 or None", is_positive)
_LIMITS: dict[str, Check] = {
    "max_jobs": _AMOUNT,
    "max_age": _TIME,
    "max_memory": _AMOUNT,
    "kill_memory": _AMOUNT,
    "nice": INT,
    "cpu_affinity": _cpus,
    "rlimits": _rlimits,
    "jitter": NUMBER.within("at least 0 and below 1", lambda part: 0 <= part < 1),
    "drain_timeout": _TIME,
}


# The environment variables that workers have beside those of the service.
#
# There are two kinds, since a forked worker has begun to live in the launcher.  A mapping is the
# same for all workers: the launcher itself is started with it, so it holds for all that is
# imported anywhere.  A function gives each worker its own: then the launcher must import nothing
# for the workers, and each worker sets its variables before it imports anything.

# What the user gives: variables for all workers, or a function of the slot.
GivenEnv: TypeAlias = Mapping[str, str] | Callable[[int], Mapping[str, str]]

# The most bytes of the variables of one worker.  They travel in one piece to the launcher, whose
# socket must hold those of 16 workers.
MAX_BYTES = 8192

# What the interpreter, or the loader of its libraries, reads only as the process starts.
_READ_AT_START = ("PYTHON", "LD_", "DYLD_")


class WorkerEnv:
    """The variables, checked.

    Args:
        given: What the user has given.

    Attributes:
        common: The variables of all workers.
        varies: Whether each worker has variables of its own.

    Raises:
        TypeError: If it is neither a mapping of texts nor a function.
        ValueError: If something cannot be the name or the value of a variable.
    """

    def __init__(self, given: GivenEnv) -> None:
        self._function = None if isinstance(given, Mapping) else given
        self.varies = self._function is not None
        self.common: Variables = ()
        if self._function is None:
            self.common = _checked("worker_env", given)
        elif not callable(self._function):
            raise TypeError(
                "worker_env must be a mapping of names to values, or a function of the slot "
                f"that returns one, not {given!r}"
            )

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
        if self._function is None:
            return ()
        name = f"worker_env({rank})"
        variables = _checked(name, self._function(rank))
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


def _checked(name: str, given: object) -> Variables:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of names to values, not {given!r}")
    variables: list[tuple[str, str]] = []
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            what = f"the value of {key!r}" if isinstance(key, str) else "a name"
            raise TypeError(f"{name}: {what} must be a str, not {wrong!r}")
        if not key or "=" in key or "\0" in key:
            raise ValueError(f"{name}: {key!r} cannot be the name of a variable")
        if "\0" in value:
            raise ValueError(f"{name}: the value of {key!r} has a null character")
        variables.append((key, value))
    return tuple(variables)


_COUNT = or_none(INT).within(">= 1 or None", lambda number: number >= 1)
_RESTARTS: dict[str, Check] = {
    "initial_delay": SECONDS,
    "max_delay": SECONDS,
    "max_failed_starts": _COUNT,
    "max_restarts": _COUNT,
    "period": SECONDS,
}

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
            :exc:`asyncpool.PoolBrokenError`, and it refuses new ones.  It works again
            as soon as a start succeeds.  ``None``: jobs wait instead.
        max_restarts: How many workers may die within *period*, whatever the cause,
            before the pool gives up for good; ``None`` for any number.
        period: Length of the sliding window of *max_restarts*, in seconds.

    Raises:
        ValueError: If a value is out of range, or if starts that fail are delayed so much
            that they can never exceed *max_restarts* within *period*.
        TypeError: If a value is of the wrong type.
    """

    initial_delay: float = 0.05
    max_delay: float = 30.0
    max_failed_starts: int | None = MAX_FAILED_STARTS
    max_restarts: int | None = None
    period: float = 60.0

    def __post_init__(self) -> None:
        check_fields(self, _RESTARTS)
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
        self._refuse_unreachable()

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

    def _refuse_unreachable(self) -> None:
        # If all starts fail and all delays are the longest, death number n + 1 comes
        # after the sum of the first n delays.
        if self.max_restarts is None or self.initial_delay == 0:
            return
        elapsed, deaths = 0.0, 1
        delays: list[float] = []
        while deaths <= self.max_restarts:
            delays.append(self.delay(deaths, jitter=0.0))
            elapsed += delays[-1]
            if elapsed > self.period:
                break
            deaths += 1
        if deaths <= self.max_restarts:
            # The last delay is too long, and is named only if there is no other.
            named = ", ".join(f"{delay:g}" for delay in delays[:-1] or delays)
            many = "1 death" if deaths == 1 else f"{deaths} deaths"
            raise ValueError(
                f"starts that fail never exceed max_restarts={self.max_restarts} in "
                f"period={self.period:g} s: with initial_delay={self.initial_delay:g} and "
                f"max_delay={self.max_delay:g} they are tried again after "
                f"{named} s, which makes at most {many} in "
                f"{self.period:g} s; use a smaller max_restarts, a longer period, or "
                "smaller delays"
            )


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Decision: start a new worker in *delay* seconds, in the same slot."""

    delay: float


@dataclass(frozen=True, slots=True)
class RetryStart:
    """Decision: a start has failed, and the pool tries the next one in *delay* seconds.

    *breaks_pool* says that a pool without any worker is now broken.
    """

    delay: float
    reason: str
    breaks_pool: bool


@dataclass(frozen=True, slots=True)
class GiveUpRestarting:
    """Decision: start no worker any more."""

    reason: str


RestartDecision = RestartWorker | RetryStart | GiveUpRestarting


@dataclass(slots=True)
class RestartLedger:
    """What a :class:`RestartPolicy` must remember of one pool.

    Args:
        policy: The rules.
        workers: How many workers the pool may have.

    Attributes:
        failures: How many starts have failed in a row.
        hopeless: Whether the next start would fail as the last one has.
    """

    policy: RestartPolicy
    workers: int
    failures: int = 0
    hopeless: bool = False
    _failed_at: float = float("-inf")
    _interval: float = _INTERVALS[0]
    _free: float = field(default=float("inf"))  # restarts that need not wait
    _filled_at: float = 0.0
    _deaths: deque[float] = field(default_factory=deque)

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
        return self.hopeless or self.failures >= least

    @property
    def reason(self) -> str:
        """How starts have failed, as a clause."""
        if self.hopeless:
            return "the start failed, and is likely to fail again"
        if self.failures == 1:
            return "the start failed"
        return f"{self.failures} starts failed in a row"

    def ready(self, took: float, now: float) -> None:
        """Record that a worker is ready, *took* seconds after it was forked."""
        self.failures, self._failed_at, self.hopeless = 0, float("-inf"), False
        self._fill(now)
        before, (shortest, longest) = self._interval, _INTERVALS
        self._interval = min(max(took / _SHARE, shortest), longest)
        if self._free < 0.0:
            # The restarts that wait have their times already.  Others wait until then,
            # and no longer.
            self._free *= before / self._interval

    def start_failed(
        self, began: float, now: float, *, jitter: float, final: bool = False
    ) -> RestartDecision:
        """Record the end of a worker that was never ready, and return what to do about it.

        Args:
            began: When it was forked.
            now: The time, on a clock that never goes backwards.
            jitter: A random number in ``[0, 1)``.
            final: Whether the next start would fail in the same way.
        """
        # Starts that overlap fail for the same reason, so they count as one.
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = now
        self.hopeless = final
        if self._is_one_too_many(now):
            return self._give_up()
        return RetryStart(
            self.policy.delay(
                self.failures + (MAX_FAILED_STARTS - 1 if final else 0), jitter=jitter
            ),
            self.reason,
            breaks_pool=self.breaks_pool,
        )

    def died(self, now: float, *, blamed: bool) -> RestartDecision:
        """Record the death of a worker that was ready, and return what to do about it.

        Args:
            now: The time, on a clock that never goes backwards.
            blamed: Whether a job is to blame.
        """
        if self._is_one_too_many(now):
            return self._give_up()
        return RestartWorker(0.0 if blamed else self._wait(now))

    def _wait(self, now: float) -> float:
        """Take a restart out of the bucket; return in how many seconds it is allowed."""
        self._fill(now)
        self._free -= 1.0
        return max(0.0, -self._free * self._interval)

    def _fill(self, now: float) -> None:
        come = (now - self._filled_at) / self._interval
        self._free = min(self._free + come, BURST * self.workers)
        self._filled_at = now

    def _is_one_too_many(self, now: float) -> bool:
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

    def _give_up(self) -> GiveUpRestarting:
        return GiveUpRestarting(
            f"{len(self._deaths)} workers died within {self.policy.period:g} s, "
            f"and the policy allows {self.policy.max_restarts}"
        )
