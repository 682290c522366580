"""Refuse arguments of the wrong kind, with a text that names them.

Workers import this with the targets of clusters, so it is light; see records.py.
"""

from __future__ import annotations

from collections.abc import Iterable

TYPE_CHECKING = False  # see records.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What something may be, and in words.  A kind of its own may be made of any class.
Kind = tuple[tuple[type, ...], str]
INT: Kind = ((int,), "an int")
NUMBER: Kind = ((int, float), "a number")
SECONDS: Kind = ((int, float), "a number of seconds")
SWITCH: Kind = ((bool,), "True or False")
TEXT: Kind = ((str,), "a str")


def or_none(kind: Kind) -> Kind:
    """Return the same kind, for an argument that may be missing."""
    types, words = kind
    return (*types, type(None)), f"{words} or None"


def check_kind(name: str, value: object, kind: Kind) -> None:
    """Check an argument.

    Raises:
        TypeError: If it is of another kind.
    """
    types, words = kind
    if not isinstance(value, types):
        raise TypeError(f"{name} must be {words}, not {value!r}")


def check_kinds(whole: object, kinds: Mapping[str, Kind]) -> None:
    """Check the attributes of *whole* that *kinds* names.

    Raises:
        TypeError: If one is of another kind.
    """
    for name, kind in kinds.items():
        check_kind(name, getattr(whole, name), kind)


def several(
    name: str,
    values: object,
    words: str,
    *,
    single: tuple[type, ...] = (str,),
    each: type = object,
) -> tuple[Any, ...]:
    """Return an argument that is several things.

    Args:
        name: What it is called.
        values: An iterable.
        words: What it takes.
        single: What was certainly meant to be one of them, also if it is iterable.
        each: What each of them is.

    Raises:
        TypeError: If it is no iterable, or just one, or one of them is something else.
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
    """Check what workers call, or import by its name and call.

    Raises:
        TypeError: If it is neither a name nor callable.
        ValueError: If it is a name of nothing.
    """
    if isinstance(value, str):
        module, colon, attribute = value.partition(":")
        if not (module and colon and attribute):
            raise ValueError(f"{name} must be 'package.module:name', not {value!r}")
    elif not callable(value):
        raise TypeError(f"{name} must be {words}, or its name, not {value!r}")
