"""The options of workers that pools and clusters share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from asyncpool._core.base.validation import (
    INT,
    SWITCH,
    TEXT,
    ArgumentType,
    check_type,
    or_none,
    several,
)
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._runtime.base.arguments import (
    check_callable,
    check_choice,
    check_int,
    check_seconds,
)
from asyncpool._runtime.base.callbacks import CrashCallback
from asyncpool._runtime.base.machine import check_limits, check_loop

# The checks of options, one for each option, of which the tables of options are made.

T = TypeVar("T")

# Takes an option's name and the value that was given; returns the value in the shape in
# which it is kept.  It raises TypeError or ValueError with a text that names the option.
Check: TypeAlias = Callable[[str, Any], Any]


def checked(table: Mapping[str, Check], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of *table*, by name, each as its check returns it.

    Args:
        table: The check of each option, in the order in which they are made.
        given: The values, by name.  It may hold more than the table names.

    Raises:
        TypeError: If a value is of the wrong type.
        ValueError: If a value is out of range.
    """
    return {name: check(name, given[name]) for name, check in table.items()}


def anything(_: str, value: T) -> T:
    """Accept every value: what makes use of it checks it."""
    return value


def at_least(least: int, *, optional: bool = False) -> Check:
    """Return the check of an int with a lower bound; ``None`` passes if *optional*."""

    def check(name: str, value: int | None) -> int | None:
        check_type(name, value, or_none(INT) if optional else INT)
        if value is not None:
            check_int(name, value, at_least=least)
        return value

    return check


def seconds(*, optional: bool = False) -> Check:
    """Return the check of a positive number of seconds; ``None`` passes if *optional*."""

    def check(name: str, value: float | None) -> float | None:
        check_seconds(name, value, optional=optional)
        return value

    return check


def one_of(choices: tuple[str, ...]) -> Check:
    """Return the check of an option that is one of some words."""

    def check(name: str, value: str) -> str:
        check_choice(name, value, choices)
        return value

    return check


def function(name: str, value: T) -> T:
    """Check an option that workers or the pool call, if it is given."""
    check_callable(name, value)
    return value


def switch(name: str, value: bool) -> bool:  # noqa: FBT001 - it checks one
    """Check an option that is on or off."""
    check_type(name, value, SWITCH)
    return value


def instance(kind: type[Any], words: str) -> Check:
    """Return the check of an instance of *kind*; ``None`` becomes ``kind()``."""
    described: ArgumentType = (kind,), words

    def check(name: str, value: object) -> Any:
        value = kind() if value is None else value
        check_type(name, value, described)
        return value

    return check


def path(name: str, value: str | os.PathLike[str] | None) -> str | None:
    """Check the option of a file, if it is given; return its path as text."""
    check_type(name, value, ((str, os.PathLike, type(None)), "a path or None"))
    text = None if value is None else os.fspath(value)
    check_type(name, text, or_none(TEXT))  # a path of bytes cannot be shown
    if text == "":
        raise ValueError(f"{name} is empty: name a file")
    return text


def items(words: str, *, each: type = object) -> Check:
    """Return the check of an iterable, which becomes a tuple.

    Args:
        words: What the error says that the option takes.
        each: The type of each item.
    """

    def check(name: str, value: object) -> tuple[Any, ...]:
        return several(name, value, words, each=each)

    return check


def name_or_number(kind: str) -> Check:
    """Return the check of a name; without one it is made up: ``"pool-1"``, ``"pool-2"``."""
    numbers = itertools.count(1)

    def check(name: str, value: str | None) -> str:
        check_type(name, value, or_none(TEXT))
        if value and not _is_unicode(value):
            raise ValueError(
                f"{name} must be text that can be written as UTF-8, not {value!r}: it is in "
                "logs and metrics"
            )
        return value or f"{kind}-{next(numbers)}"

    return check


def check_codec(codec: object, **needing: object) -> None:
    """Check that nothing is given that only a pool with a codec has.

    Args:
        codec: The codec, or ``None``.
        needing: What is given for a pool with one, by its name.

    Raises:
        ValueError: If there is something, and no codec.
    """
    for name, value in needing.items():
        if codec is None and value:
            raise ValueError(f"{name} is for pools with a codec, and this one has none")


def _is_unicode(text: str) -> bool:
    """Tell whether there is no half of a surrogate pair in *text*."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


LauncherKind = Literal["forkserver", "spawn"]
LoopKind = Literal["asyncio", "uvloop"]
OutputMode = Literal["log", "inherit"]
ReadyWhen = Literal["any", "all"]

_limits = instance(WorkerLimits, "a WorkerLimits")


def _limits_of_this_machine(name: str, value: object) -> WorkerLimits:
    limits: WorkerLimits = _limits(name, value)
    check_limits(limits)
    return limits


def _loop(_: str, value: str) -> str:
    check_loop(value)
    return value


WORKER_CHECKS: dict[str, Check] = {
    "restart_policy": instance(RestartPolicy, "a RestartPolicy"),
    "worker_limits": _limits_of_this_machine,
    "launcher": one_of(get_args(LauncherKind)),
    "worker_loop": _loop,
    "worker_output": one_of(get_args(OutputMode)),
    "on_crash": function,
    "preload": items("names of modules", each=str),
    "start_timeout": seconds(),
    "ping_timeout": seconds(optional=True),
    "ready": one_of(get_args(ReadyWhen)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of workers that pools and clusters share, checked and normalized.

    See :class:`asyncpool.Pool` for the meaning of each.  The defaults are in the
    signatures of the constructors, where editors show them.
    """

    name: str
    restart_policy: RestartPolicy
    worker_limits: WorkerLimits
    launcher: LauncherKind
    worker_loop: LoopKind
    worker_output: OutputMode
    on_crash: CrashCallback | None
    preload: tuple[str, ...]
    start_timeout: float
    ping_timeout: float | None
    ready: ReadyWhen
    max_surge: int

    def shared(self) -> dict[str, Any]:
        """Return the options of this class, by name, without those of a subclass."""
        return {
            field.name: getattr(self, field.name) for field in fields(WorkerOptions)
        }
