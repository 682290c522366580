"""The options of an executor, with the standard library's error messages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

from asyncpool._core.base.validation import ArgumentType, check_type, or_none
from asyncpool._core.policies.worker_env import GivenEnv
from asyncpool._futures.engine import EnginePool
from asyncpool._runtime.base.machine import DEFAULT_LAUNCHER, usable_cpus
from asyncpool._runtime.options.checks import Check, anything, checked
from asyncpool._runtime.options.worker_options import LauncherKind, OutputMode

# Whatever passes for an int in the standard library: integers of NumPy do too.
INT: ArgumentType = ((SupportsIndex,), "an int")


class StartMethod(Protocol):
    """The part of a context of :mod:`multiprocessing` that the executor uses."""

    def get_start_method(self) -> str:
        """Return ``"fork"``, ``"forkserver"`` or ``"spawn"``."""
        ...


def _max_workers(name: str, value: SupportsIndex | None) -> int:
    check_type(name, value, or_none(INT))
    workers = usable_cpus() if value is None else operator.index(value)
    if workers <= 0:
        raise ValueError(f"{name} must be greater than 0")
    return workers


def _initializer(name: str, value: object) -> object:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a callable")
    return value


def _max_tasks(name: str, value: int | None) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{name} must be an integer")
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be >= 1")
    return value


def _mp_context(name: str, value: StartMethod | None) -> LauncherKind:
    if value is None:
        return DEFAULT_LAUNCHER
    get_start_method = getattr(value, "get_start_method", None)
    if get_start_method is None:
        raise TypeError(f"{name} must be a context of multiprocessing, not {value!r}")
    inherits = get_start_method() in {"fork", "forkserver"}
    return "forkserver" if inherits else "spawn"


def _pool(name: str, value: Any) -> object:
    if value is None:
        return None
    # A BoundPool has only the first one: it is a pool with options, and nothing to start.
    if not (hasattr(value, "_running_supervisor") and hasattr(value, "start")):
        what = "an asyncpool.Pool, or what asyncpool.connect() returns"
        raise TypeError(f"{name} must be {what}, not {value!r}")
    if value._is_started:  # noqa: SLF001 - it is the executor's own
        raise ValueError(
            f"{name} has been started: the executor starts its pool in a thread of its own, and "
            "ends it, so give it a new one"
        )
    return value


EXECUTOR_CHECKS: dict[str, Check] = {
    "max_workers": _max_workers,
    "initializer": _initializer,
    "max_tasks_per_child": _max_tasks,
    "mp_context": _mp_context,
    "initargs": anything,  # the executor's pool checks these
    "worker_output": anything,
    "worker_env": anything,
    "pool": _pool,
}


# What an executor decides about workers that are its own, and what it takes if nothing is given.
_OF_WORKERS: dict[str, object] = {
    "max_workers": None,
    "mp_context": None,
    "initializer": None,
    "initargs": (),
    "max_tasks_per_child": None,
    "worker_output": "log",
    "worker_env": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """The options of an executor, checked; see :class:`asyncpool.ProcessPoolExecutor`.

    Attributes:
        mp_context: Starts workers as that context of :mod:`multiprocessing` would.
    """

    max_workers: int
    mp_context: LauncherKind
    initializer: Callable[..., object] | None
    initargs: Iterable[Any]
    max_tasks_per_child: int | None
    worker_output: OutputMode
    worker_env: GivenEnv | None
    pool: EnginePool | None


def executor_options(given: Mapping[str, Any]) -> ExecutorOptions:
    """Return the options that the constructor of an executor was given, checked.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If a number is too low, or there is a pool and an option for workers.
    """
    options = ExecutorOptions(**checked(EXECUTOR_CHECKS, given))
    if options.pool is not None:
        for name, usual in _OF_WORKERS.items():
            if given[name] != usual:
                raise ValueError(
                    f"the workers are those of pool, so {name} must not be given"
                )
    return options
