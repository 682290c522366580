"""How errors, reports and logs name functions; jobs are named by their functions."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType

from asyncpool._core.base.text import printable_name

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A longer name is cut.
MAX_NAME = 200

# The logger of warnings about jobs, and that of ``current_job().logger``.
JOB_LOGGER = "asyncpool.job"

# Functions that workers call in place of a user's function, and where that is among
# their arguments; see _worker/api.py.
_STAND_INS = {
    "asyncpool._worker.api.call_chunk": 0,
    "asyncpool._worker.api.call_counted": 1,
}


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of *function*, such as ``"shop.images.resize"``.

    A partial and a bound method have the name of the function in them.  An object has
    the name of its class.  Control characters are escaped.  This raises nothing,
    whatever the function's own attributes raise.
    """
    found = _inner(function)
    try:
        name = _text(found.__qualname__)
        module = _text(getattr(found, "__module__", None))
    except BaseException:  # noqa: BLE001 - it has no such attribute, or its own code fails
        module = name = ""
    if not name:
        cls: Any = type(found)
        module, name = (_own(cls, part) for part in ("__module__", "__qualname__"))
    if module == "__mp_main__":  # what workers call the script
        module = "__main__"
    text = f"{module}.{name}" if module else name
    text = printable_name(text)
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."


def _inner(function: Any) -> Any:
    while True:
        if type(function) is MethodType:
            function = function.__func__
        elif type(function) is partial:
            function, args = function.func, function.args
            if type(function) is FunctionType and args:
                place = _STAND_INS.get(f"{function.__module__}.{function.__qualname__}")
                if place is not None and place < len(args):
                    function = args[place]
        else:
            return function


def _own(cls: type, name: str) -> str:
    """Return what Python itself says about a class, whatever the class and its metaclass say."""
    return _text(type.__dict__[name].__get__(cls))


def _text(value: Any) -> str:
    """Return the characters of *value* if it is a text, else an empty text."""
    return str.__str__(value) if issubclass(type(value), str) else ""


# By which names commands find pools and servers.

MAX_PROGRAM_NAME = 64

# What such a name is, in words.
NAMES = (
    f"1 to {MAX_PROGRAM_NAME} of A-Z, a-z, 0-9, '.', '-', '_' and ':', the first of them neither "
    "'.' nor '-'"
)
_IN_NAMES = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
)


def is_name(text: str) -> bool:
    """Tell whether this is a name that can be found, as it becomes a part of a path."""
    return (
        0 < len(text) <= MAX_PROGRAM_NAME
        and set(text) <= _IN_NAMES
        and not text.startswith((".", "-"))
    )
