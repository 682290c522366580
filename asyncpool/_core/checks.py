"""How arguments are checked: of pools, of jobs, and of single calls.

An argument is checked once, by a :data:`Check`.  Most checks are an :class:`Argument`: the types that
it may have, and its bounds.  A single one is checked like this::

    checks.INT("chunksize", chunksize)

and several by a table of their checks.  The fields of a record of options have their checks, and
their defaults, with them, see :func:`option`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, field, fields
from operator import index
from sys import float_info
from typing import Any, TypeAlias, TypeVar, cast

from asyncpool._dataclass import dataclass, replace

T = TypeVar("T")

# Takes an argument's name and the value that was given; returns the value in the shape in
# which it is kept.  It raises TypeError or ValueError with a text that names the argument.
Check: TypeAlias = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """What an argument may be; a check, by itself and in tables.

    Attributes:
        types: The classes that it may have.  Callers may name further ones.
        words: The same in words.
        bounds: Which values of these types are allowed, in words.
        holds: Tells whether a value is so; it is not asked about ``None``.
    """

    types: tuple[type, ...]
    words: str
    bounds: str = ""
    holds: Callable[[Any], bool] | None = None

    def within(self, bounds: str, holds: Callable[[Any], bool]) -> Argument:
        """Return the same with bounds."""
        return replace(self, bounds=bounds, holds=holds)

    def or_none(self) -> Argument:
        """Return the same, for an argument that may also be ``None``."""
        types = (*self.types, type(None))
        return replace(self, types=types, words=f"{self.words} or None")

    def __call__(self, name: str, value: Any) -> Any:
        """Check the argument *name*, and return it.

        Raises:
            TypeError: If it has another type, or is a bool in place of a number.
            ValueError: If it is out of bounds, or an int beyond every float, in place of a number.
        """
        types, words = self.types, self.words
        if int in types and not isinstance(value, types):
            value = _own_number(value, real=float in types)
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


def _own_number(value: Any, *, real: bool) -> Any:
    """Return a number of another library, such as NumPy's, as one of Python; all else as it is."""
    with suppress(TypeError):
        if hasattr(value, "__index__"):
            return index(value)
        if real and hasattr(value, "__float__"):
            return float(value)
    return value


INT = Argument((int,), "an int")
NUMBER = Argument((int, float), "a number")
SECONDS = Argument((int, float), "a number of seconds")
SWITCH = Argument((bool,), "True or False")
CALLBACK = Argument((cast("Any", Callable), type(None)), "callable")
TEXT = Argument((str,), "a str")


def at_least(least: int) -> Argument:
    """Return the check of an int with a lower bound."""
    return INT.within(f"at least {least}", lambda number: number >= least)


def is_positive(number: float) -> bool:
    """Tell whether *number* is more than 0, which NaN is not."""
    return number > 0


# How long something may take.
PERIOD = SECONDS.within("> 0 seconds", is_positive)
PERIOD_OR_NONE = SECONDS.or_none().within("> 0 seconds or None", is_positive)

# How long something may take that may also be over at once.
DURATION = SECONDS.within(">= 0 seconds", lambda seconds: seconds >= 0)

# For how long a caller waits.
TIMEOUT = DURATION.or_none()


def one_of(choices: tuple[str, ...]) -> Check:
    """Return the check of an argument that is one of some words."""

    def check(name: str, value: str) -> str:
        if value not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(choices)}, not {value!r}"
            )
        return value

    return check


def optional(check: Check) -> Check:
    """Return a check that lets ``None`` pass, which stands for nothing."""
    return lambda name, value: None if value is None else check(name, value)


def option(check: Check, default: Any = MISSING, *, factory: Any = MISSING) -> Any:
    """Return a field of a dataclass whose value is an argument with this *check*."""
    return field(default=default, default_factory=factory, metadata={"check": check})


def table_of(record: type[Any]) -> dict[str, Check]:
    """Return the check of each :func:`option` of a dataclass, by name and in their order."""
    return {it.name: it.metadata["check"] for it in fields(record) if it.metadata}


def apply(table: Mapping[str, Check], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that *table* and *given* name, each as its check returns it.

    Args:
        table: The check of each argument, in the order in which they are made.
        given: The values, by name.

    Raises:
        TypeError: If a value is of the wrong type.
        ValueError: If a value is out of range.
    """
    return {
        name: check(name, given[name]) for name, check in table.items() if name in given
    }


def apply_to(record: Any) -> None:
    """Check each :func:`option` of *record*, and keep what its check returns.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range.
    """
    for name, check in table_of(type(record)).items():
        object.__setattr__(record, name, check(name, getattr(record, name)))


def several(
    words: str, *, single: Any = str, each: Any = object
) -> Callable[[str, Any], tuple[Any, ...]]:
    """Return the check of an argument that is an iterable of several things; it makes a tuple.

    Args:
        words: What the argument takes, in words.
        single: The type, or types, of a value that was certainly meant as a single element,
            even if it is iterable.
        each: The type of each element, or its types.
    """

    def check(name: str, values: object) -> tuple[Any, ...]:
        if isinstance(values, single):
            raise TypeError(f"{name} takes several: ({values!r},)")
        if isinstance(values, bytes) or not isinstance(values, Iterable):
            raise TypeError(f"{name} takes {words}, not {values!r}")
        found: tuple[Any, ...] = tuple(values)
        for value in found:
            if not isinstance(value, each):
                raise TypeError(f"{name} takes {words}, not {value!r}")
        return found

    return check


def environment(name: str, given: Any) -> tuple[tuple[str, str], ...]:
    """Return an argument that is a mapping of environment variables, as pairs.

    Raises:
        TypeError: If it is no mapping of texts to texts.
        ValueError: If something cannot be the name or the value of a variable.
    """
    Argument((Mapping,), "a mapping of names to values")(name, given)
    for key, value in given.items():
        TEXT(f"{name}: a name", key)
        TEXT(f"{name}: the value of {key!r}", value)
        if not key or "=" in key or "\0" in key:
            raise ValueError(f"{name}: {key!r} cannot be the name of a variable")
        if "\0" in value:
            raise ValueError(f"{name}: the value of {key!r} has a null character")
    return tuple(given.items())


def function(
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


def called(verb: str, function: object) -> None:
    """Check the *function* that the method named *verb* is to call.

    Raises:
        TypeError: If it cannot be called.
    """
    if callable(function):
        return
    result = hasattr(function, "__await__") or hasattr(function, "__aiter__")
    hint = ": pass the function, and its arguments behind it" if result else ""
    raise TypeError(f"{verb}() takes a callable first, not {function!r}{hint}")
