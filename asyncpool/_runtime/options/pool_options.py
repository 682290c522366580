"""The options of a pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncpool._core.base.names import NAMES, is_name
from asyncpool._core.base.validation import check_type, or_none, several
from asyncpool._core.policies.job_options import JobLimits
from asyncpool._core.policies.worker_env import GivenEnv, WorkerEnv
from asyncpool._core.wire.page import MAX_LANES
from asyncpool._runtime.base.arguments import check_int, least_and_most
from asyncpool._runtime.base.machine import usable_cpus
from asyncpool._runtime.options.worker_options import (
    WORKER_CHECKS,
    Check,
    WorkerOptions,
    anything,
    at_least,
    check_codec,
    checked,
    function,
    items,
    name_or_number,
    path,
    seconds,
    switch,
)

if TYPE_CHECKING:  # few pools have a codec or a sandbox
    from asyncpool._core.codec.data_only import DataOnly
    from asyncpool._core.codec.formats import Format
    from asyncpool.sandbox import Sandbox

# The limits that the jobs of a pool have by default; JobLimits checks them.
JOB_LIMITS = (
    "timeout",
    "queue_timeout",
    "heartbeat_timeout",
    "on_cancel",
    "cancel_grace",
)


# Says whether pools that are not told have a control socket.
_CONTROL = "ASYNCPOOL_CONTROL"
_SWITCH = {"": False, "0": False, "1": True}


def _workers(_: str, value: int | tuple[int, int] | None) -> tuple[int, int]:
    return least_and_most(usable_cpus() if value is None else value)


def _concurrency(name: str, value: int) -> int:
    check_int(name, value, at_least=1)
    if value > MAX_LANES:
        text = f"{name} must be at most {MAX_LANES}, not {value}"
        raise ValueError(f"{text}: have more workers instead")
    return value


def _around(name: str, value: object) -> object:
    if isinstance(value, str):
        module, _, attribute = value.partition(":")
        if not module or not attribute:
            text = f"{name} takes a name such as 'package.module:name', not {value!r}"
            raise ValueError(text)
    return value if isinstance(value, str) else function(name, value)


def _control(name: str, value: object) -> str | None:
    """Return a name, or a path with a slash; ``""`` for the pool's own name."""
    if value is None:
        value = _control_of_environment()
    if isinstance(value, bool):
        return "" if value else None
    if isinstance(value, os.PathLike):
        text = path(name, value)
        return text if text is None or "/" in text else f"./{text}"
    check_type(name, value, ((bool, str, type(None)), "a bool, a name, a path or None"))
    assert isinstance(value, str)
    if "/" not in value and not is_name(value):
        raise ValueError(
            f"{name} takes True, a path with a slash in it, or a name, which is {NAMES}, "
            f"not {value!r}"
        )
    return value


def _control_of_environment() -> bool:
    value = os.environ.get(_CONTROL, "")
    if value not in _SWITCH:
        raise ValueError(
            f"the environment variable {_CONTROL} is 0 or 1, not {value!r}"
        )
    return _SWITCH[value]


def _codec(_: str, value: object) -> Format | None:
    if value is None:
        return None
    from asyncpool._core.codec.formats import format_of  # noqa: PLC0415 - few pools have a codec

    return format_of(value)


def _functions(name: str, value: object) -> tuple[Any, ...] | None:
    words = "functions and names such as 'package.module:name'"
    return None if value is None else several(name, value, words)


def _sandbox(name: str, value: object) -> Sandbox | None:
    if value is None:
        return None
    from asyncpool.sandbox import Sandbox  # noqa: PLC0415 - few pools have one

    check_type(name, value, or_none(((Sandbox,), "a Sandbox")))
    assert isinstance(value, Sandbox)
    return value


def _worker_env(_: str, value: GivenEnv | None) -> WorkerEnv | None:
    return None if value is None else WorkerEnv(value)


POOL_CHECKS: dict[str, Check] = {
    "workers": _workers,
    "max_surge": at_least(0),
    "max_unavailable": at_least(0),
    "idle_timeout": seconds(),
    "close_timeout": seconds(optional=True),
    **WORKER_CHECKS,
    "max_queued": at_least(0, optional=True),
    "max_message_size": at_least(1024, optional=True),
    "max_shared_memory": at_least(0),
    "concurrency": _concurrency,
    "initializer": function,
    "initargs": items("a tuple of arguments"),
    "worker_env": _worker_env,
    "fresh": switch,
    "trace": path,
    "max_traced": at_least(1, optional=True),
    "control": _control,
    "codec": _codec,
    "functions": _functions,
    "errors": items("classes of exceptions"),
    "around": _around,
    "sandbox": _sandbox,
    "propagate": anything,  # Propagation checks it when it looks for the variables
    "name": name_or_number("pool"),  # last, so that a refused pool takes no number
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions(WorkerOptions):
    """The options of a pool, checked and normalized; see :class:`asyncpool.Pool`.

    Attributes:
        job_limits: The limits of jobs for which no others are set.

    Raises:
        ValueError: If no worker could ever be replaced, or two options do not go together.
    """

    workers: tuple[int, int]
    max_unavailable: int
    idle_timeout: float
    close_timeout: float | None
    max_queued: int | None
    max_message_size: int | None
    max_shared_memory: int
    concurrency: int
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    around: Callable[..., object] | str | None
    worker_env: WorkerEnv | None
    fresh: bool
    propagate: Iterable[ContextVar[Any] | str]
    trace: str | None
    max_traced: int | None
    control: str | None
    codec: Format | None
    functions: tuple[Any, ...] | None
    errors: tuple[type[BaseException], ...]
    sandbox: Sandbox | None
    job_limits: JobLimits

    def __post_init__(self) -> None:
        if self.sandbox is not None and self.worker_env and self.worker_env.common:
            raise ValueError(
                "worker_env is a mapping, and the sandbox says the whole environment: name the "
                "variables in Sandbox(env=...)"
            )
        if self.fresh:
            self._check_fresh()
        if not self.max_surge and not self.max_unavailable:
            raise ValueError("max_surge and max_unavailable cannot both be 0")
        check_codec(self.codec, functions=self.functions, errors=self.errors)

    def _check_fresh(self) -> None:
        if self.concurrency > 1:
            raise ValueError(
                f"fresh gives each job a worker of its own, and concurrency is {self.concurrency}"
            )
        if self.worker_limits.max_jobs not in {None, 1}:
            raise ValueError(
                "fresh gives each job a worker of its own, and max_jobs of worker_limits is "
                f"{self.worker_limits.max_jobs}"
            )
        limits = replace(self.worker_limits, max_jobs=1, exact=True)
        object.__setattr__(self, "worker_limits", limits)

    @property
    def data(self) -> DataOnly | None:
        """What a pool with a codec adds to its functions."""
        if self.codec is None:
            return None
        from asyncpool._core.codec.data_only import DataOnly  # noqa: PLC0415 - few have one

        return DataOnly(self.codec, self.functions, self.errors)


def pool_options(given: Mapping[str, Any]) -> PoolOptions:
    """Return the options that the constructor of a pool was given, checked.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range, or two do not go together.
        UnsupportedPlatformError: If this machine lacks what one needs.
    """
    options = PoolOptions(
        **checked(POOL_CHECKS, given),
        job_limits=JobLimits(**{name: given[name] for name in JOB_LIMITS}),
    )
    # If only the environment asks for it, there is a warning later, and no control socket.
    if given["control"] is True and not is_name(options.name):
        raise ValueError(
            f"with control=True commands find the pool by its name, which is {NAMES}, not "
            f"{options.name!r}: give it such a name, or give one to control"
        )
    return options
