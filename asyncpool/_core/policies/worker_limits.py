"""When a worker is due for recycling, so that another one takes its place.

Workers that began together would reach the same limit together.  So each generation of
each slot has limits of its own, a little below the given ones.  They are not random,
since chance may pick the same limit for two workers.  They are spread evenly: the
fractions of the multiples of the golden ratio fill an interval with the largest
possible distances (Weyl; Knuth, The Art of Computer Programming, volume 3, section
6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from asyncpool._core.base.text import in_units
from asyncpool._core.base.validation import (
    INT,
    NUMBER,
    SECONDS,
    check_types,
    or_none,
)
from asyncpool._core.wire.messages import Variables
from asyncpool._dataclass import dataclass

if TYPE_CHECKING:
    from asyncpool._core.wire.messages import KernelLimit

_POSITIVE = {
    "max_jobs": or_none(INT),
    "max_memory": or_none(INT),
    "kill_memory": or_none(INT),
    "max_age": or_none(SECONDS),
    "drain_timeout": or_none(SECONDS),
}
_TYPES = _POSITIVE | {
    "nice": INT,
    "jitter": NUMBER,
    "rlimits": ((Mapping,), "a mapping"),
}

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
        check_types(self, _TYPES)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 or None, not {value}")
        if not 0 <= self.jitter < 1:
            raise ValueError(
                f"jitter must be at least 0 and below 1, not {self.jitter}"
            )
        if self.max_memory and self.kill_memory and self.kill_memory <= self.max_memory:
            raise ValueError(
                f"kill_memory must be more than max_memory ({in_units(self.max_memory)}), "
                f"not {in_units(self.kill_memory)}"
            )
        if self.cpu_affinity is not None:
            object.__setattr__(self, "cpu_affinity", _cpus(self.cpu_affinity))
        rlimits = {name: _rlimit(name, self.rlimits[name]) for name in self.rlimits}
        object.__setattr__(self, "rlimits", MappingProxyType(rlimits))

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


def _cpus(numbers: object) -> tuple[int, ...]:
    cpus: tuple[Any, ...] = tuple(numbers) if isinstance(numbers, Iterable) else ()
    if not cpus or not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
        raise ValueError(f"cpu_affinity must be numbers of CPUs, not {numbers!r}")
    return cpus


def _rlimit(name: Any, limit: KernelLimit) -> KernelLimit:
    if not isinstance(name, str) or not name.startswith("RLIMIT_"):
        raise ValueError(f"rlimits takes names such as 'RLIMIT_AS', not {name!r}")
    both = limit if isinstance(limit, tuple) else (limit, limit)
    if [type(value) for value in both] != [int, int]:
        raise TypeError(f"the limit of {name} must be an int or two, not {limit!r}")
    return limit


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
