"""What functions are called in errors, reports and logs."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# A longer name is cut.
MAX_NAME = 200

# Those of a job, by which nobody calls a function's arguments without a reason.
OPTIONS = frozenset(
    (
        "buffer",
        "cancel_grace",
        "deadline",
        "heartbeat_timeout",
        "key",
        "lease",
        "max_attempts",
        "on_cancel",
        "priority",
        "queue_timeout",
        "retry_on",
        "timeout",
    )
)

# What workers call in a user's function's place, and where among its arguments that is;
# see _worker/api/calls.py.
_STAND_INS = {
    "asyncpool._worker.api.calls.call_chunk": 0,
    "asyncpool._worker.api.calls.call_counted": 1,
}


def function_name(function: Callable[..., Any]) -> str:
    """Return what *function* is called, such as ``"shop.images.resize"``.

    A partial and a bound method are called what is in them, an object what its class is.
    Control characters are escaped.  Whatever the function's own attributes raise, this
    raises nothing.
    """
    found = _inner(function)
    try:
        name = _text(found.__qualname__)
        module = _text(getattr(found, "__module__", None))
    except BaseException:  # noqa: BLE001 - it has none, or code of its own answers for it
        module = name = ""
    if not name:
        cls: Any = type(found)
        module, name = (_own(cls, part) for part in ("__module__", "__qualname__"))
    text = f"{module}.{name}" if module else name
    if not text.isprintable():
        text = "".join(map(_visible, text))
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."


def misplaced(names: Iterable[str], text: str) -> str:
    """Say where an option belongs that was given to a function, which takes none such.

    Args:
        names: The keywords that the function was called with.
        text: That of the ``TypeError`` by which Python has refused the call.

    Returns:
        A sentence, or nothing if none of *names* is to blame.
    """
    takes_none = "takes no keyword arguments" in text
    for name in names:
        refused = (
            f"unexpected keyword argument '{name}'" in text
            or f"'{name}' is an invalid keyword argument" in text
        )
        if name in OPTIONS and (refused or takes_none):
            return (
                f"The function was given {name}=...: as an option of the job it goes into "
                f"Pool.options({name}=...).submit(...)."
            )
    return ""


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
    """Return what Python itself says of a class, whatever that and its metaclass say."""
    return _text(type.__dict__[name].__get__(cls))


def _text(value: Any) -> str:
    """Return the characters of *value*, if it is a text."""
    return str.__str__(value) if issubclass(type(value), str) else ""


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
