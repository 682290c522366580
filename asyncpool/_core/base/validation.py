"""Refuse arguments of the wrong type, with a text that names them.

Workers import this with the targets of clusters, so it is light; see records.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import float_info

TYPE_CHECKING = False  # see records.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The classes that an argument may have, and their name in words.  Callers may define
# further ones.
ArgumentType = tuple[tuple[type, ...], str]
INT: ArgumentType = ((int,), "an int")
NUMBER: ArgumentType = ((int, float), "a number")
SECONDS: ArgumentType = ((int, float), "a number of seconds")
SWITCH: ArgumentType = ((bool,), "True or False")
TEXT: ArgumentType = ((str,), "a str")

# How many workers there may be: a larger number is more likely a mistake, and to make so many slots
# would stop the process.
MAX_WORKERS = 4096


def or_none(expected: ArgumentType) -> ArgumentType:
    """Return the same type, for an argument that may also be ``None``."""
    types, words = expected
    return (*types, type(None)), f"{words} or None"


def check_type(name: str, value: object, expected: ArgumentType) -> None:
    """Check an argument.

    Raises:
        TypeError: If it has another type, or is a bool in place of a number.
        ValueError: If it is an int beyond every float, in place of a number.
    """
    types, words = expected
    is_no_number = isinstance(value, bool) and int in types and bool not in types
    if is_no_number or not isinstance(value, types):
        raise TypeError(f"{name} must be {words}, not {value!r}")
    if isinstance(value, int) and float in types and abs(value) > float_info.max:
        raise ValueError(f"{name} must be {words}, and this int is too large for one")


def check_types(record: object, expected: Mapping[str, ArgumentType]) -> None:
    """Check the attributes of *record* that *expected* names.

    Raises:
        TypeError: If one has another type.
        ValueError: If one is an int beyond every float, in place of a number.
    """
    for name, each in expected.items():
        check_type(name, getattr(record, name), each)


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


def check_function(name: str, value: object, words: str = "a function") -> None:
    """Check a function that workers call, or import by its name and call.

    Raises:
        TypeError: If it is neither a name nor callable.
        ValueError: If nothing has this name.
    """
    if isinstance(value, str):
        module, colon, attribute = value.partition(":")
        if not (module and colon and attribute):
            raise ValueError(f"{name} must be 'package.module:name', not {value!r}")
    elif not callable(value):
        raise TypeError(f"{name} must be {words}, or its name, not {value!r}")
