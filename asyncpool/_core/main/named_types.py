"""Send by value the types that have a name, but are no classes, such as a ``NewType``."""

from __future__ import annotations

from types import FunctionType

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _parameter(parameter: Any) -> dict[str, Any]:
    keywords = ("bound", "covariant", "contravariant")
    values = {key: getattr(parameter, f"__{key}__", None) for key in keywords}
    return {key: value for key, value in values.items() if value}


# What makes another one: the keywords of the type's constructor, beside the name.  pickle
# sends these by their names, and a worker's ``__main__`` does not have them.
_KEYWORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "NewType": lambda new: {"tp": new.__supertype__},
    "ParamSpec": _parameter,
    "TypeVarTuple": _parameter,
    "TypeAliasType": lambda alias: {
        "value": alias.__value__,
        "type_params": alias.__type_params__,
    },
}

NAMED_TYPES = frozenset(_KEYWORDS)


def of_named_type(thing: Any) -> Any:
    """Return how to reduce *thing*, whose type is called one of ``NAMED_TYPES``."""
    cls = type(thing)
    if thing.__module__ != "__main__" or not cls.__module__.startswith("typing"):
        return NotImplemented
    return make_named_type, (cls, thing.__name__, _KEYWORDS[cls.__name__](thing))


def make_named_type(cls: Any, name: str, keywords: dict[str, Any]) -> Any:
    """Make a type of this name in ``__main__``."""
    # These types take their module from the globals of the function that calls them.
    builtins = globals()["__builtins__"]  # 3.12 looks for them there
    own = {"__name__": "__main__", "__builtins__": builtins}
    call = FunctionType(_call.__code__, own)
    return call(cls, name, keywords)


def _call(cls: Any, name: str, keywords: dict[str, Any]) -> Any:
    return cls(name, **keywords)
