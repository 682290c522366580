"""Check the arguments of a pool, and bring them into shape."""

from __future__ import annotations

import errno
import logging
from typing import Any, TypeVar

from asyncpool._core.base.validation import (
    INT,
    MAX_WORKERS,
    SECONDS,
    check_type,
    or_none,
)
from asyncpool._core.logs import pool_messages as say

# System calls that exist but are refused, as in sandboxes; the pool does without them.
#
# A filter of system calls (seccomp, gVisor) answers with ``EPERM`` or ``ENOSYS``.  So the pool
# learns only from the call itself whether it is allowed.

_LOGGER = logging.getLogger("asyncpool")

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})

_told: set[str] = set()

T = TypeVar("T")


def is_refusal(error: OSError) -> bool:
    """Return whether *error* says that the system call itself is not allowed here."""
    return error.errno in _REFUSED


def tell_once(call: str, error: OSError, instead: str) -> None:
    """Log that *call* is refused, and what the pool does instead; once for each call."""
    if call in _told:
        return
    _told.add(call)
    say.CALL_REFUSED.log(_LOGGER, {"call": call}, why=error, instead=instead)


def check_called(verb: str, function: object) -> None:
    """Check the *function* that the method named *verb* is to call.

    Raises:
        TypeError: If it cannot be called.
    """
    if callable(function):
        return
    called = hasattr(function, "__await__") or hasattr(function, "__aiter__")
    hint = ": pass the function, and its arguments behind it" if called else ""
    raise TypeError(f"{verb}() takes a callable first, not {function!r}{hint}")


def not_picklable(owner: object) -> TypeError:
    """Return the error for a pool, or something like one, that a job was given."""
    return TypeError(
        f"cannot pickle a {type(owner).__name__}, which stays in its process: leave it out of "
        "what the job gets, also out of the object whose method is called"
    )


def least_and_most(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return the least and the greatest number of workers.

    Raises:
        TypeError: If *workers* is neither an int nor two of them.
        ValueError: If they leave a pool without workers, or are more than :data:`MAX_WORKERS`, or
            are in the wrong order.
    """
    pair: Any = workers if isinstance(workers, tuple) else (workers, workers)
    if len(pair) != 2 or isinstance(pair[0], list):  # noqa: PLR2004
        raise TypeError(
            f"workers must be an int, or a pair such as (2, 16), not {workers!r}"
        )
    for number in pair:
        check_int("workers", number, at_least=1)
        if number > MAX_WORKERS:
            raise ValueError(f"workers must be at most {MAX_WORKERS}, not {number}")
    least, most = pair
    if least > most:
        raise ValueError(f"workers must be the least and the most, not {workers!r}")
    return least, most


def check_callable(name: str, value: T) -> T:
    """Return an argument that is called, if it is not missing.

    Raises:
        TypeError: If it cannot be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, not {value!r}")
    return value


def check_int(
    name: str, value: int | None, *, at_least: int, optional: bool = False
) -> int | None:
    """Return an argument that is an int with a lower bound; ``None`` passes if *optional*.

    Raises:
        TypeError: If it is no int.
        ValueError: If it is too small.
    """
    check_type(name, value, or_none(INT) if optional else INT)
    if value is not None and value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {value}")
    return value


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return an argument that is one of some words.

    Raises:
        ValueError: If it is none of *choices*.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def check_seconds(
    name: str, value: float | None, *, optional: bool = False
) -> float | None:
    """Return a time in seconds; ``None`` passes if *optional*.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is not greater than 0.
    """
    check_type(name, value, or_none(SECONDS) if optional else SECONDS)
    if value is not None and not value > 0:
        none = " or None" if optional else ""
        raise ValueError(f"{name} must be > 0 seconds{none}, not {value}")
    return value


def check_timeout(timeout: float | None) -> None:
    """Check a timeout, which may be 0.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is negative.
    """
    check_type("timeout", timeout, or_none(SECONDS))
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be >= 0 seconds, not {timeout}")
