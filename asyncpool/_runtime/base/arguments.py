"""Check the arguments of a pool, and bring them into shape."""

from __future__ import annotations

from asyncpool._core.base.validation import INT, SECONDS, check_type, or_none


def not_callable(verb: str, function: object) -> TypeError:
    """Return the error for what the method named *verb* cannot have called."""
    called = hasattr(function, "__await__") or hasattr(function, "__aiter__")
    hint = ": pass the function, and its arguments behind it" if called else ""
    return TypeError(f"{verb}() takes a callable first, not {function!r}{hint}")


def least_and_most(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Return between which numbers of workers a pool is.

    Raises:
        TypeError: If *workers* is neither an int nor two.
        ValueError: If there is to be none.
    """
    pair = workers if isinstance(workers, tuple) else (workers, workers)
    if len(pair) != 2:  # noqa: PLR2004
        raise TypeError(f"workers must be an int or two, not {workers!r}")
    for number in pair:
        check_int("workers", number, at_least=1)
    least, most = pair
    if least > most:
        raise ValueError(f"workers must be the least and the most, not {workers!r}")
    return least, most


def check_callable(name: str, value: object) -> None:
    """Check an argument that may be missing.

    Raises:
        TypeError: If it cannot be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, not {value!r}")


def check_int(name: str, value: int, *, at_least: int) -> None:
    """Check an argument.

    Raises:
        TypeError: If it is no int.
        ValueError: If it is too small.
    """
    check_type(name, value, INT)
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {value}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check an argument.

    Raises:
        ValueError: If it is none of *choices*.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_seconds(name: str, value: float | None, *, optional: bool = False) -> None:
    """Check an argument.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is no time at all.
    """
    check_type(name, value, or_none(SECONDS) if optional else SECONDS)
    if value is not None and not value > 0:
        none = " or None" if optional else ""
        raise ValueError(f"{name} must be > 0 seconds{none}, not {value}")


def check_timeout(timeout: float | None) -> None:
    """Check how long something may take that need not take any time.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is negative.
    """
    check_type("timeout", timeout, or_none(SECONDS))
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be >= 0 seconds, not {timeout}")
