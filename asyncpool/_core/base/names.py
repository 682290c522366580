"""What functions are called in errors, reports and logs.

What is said of jobs by the names of their functions, many or few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
        "prefetch",
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


# Seconds between two records of a closing pool.
SAY_EVERY = 10.0

_MOST = 5  # that are named


def say_what_it_waits_for(
    *, jobs: int, queued: int, names: Counter[str], maps: Sequence[str]
) -> str:
    """Return what a closing pool waits for, in words.

    Args:
        jobs: How many jobs are open.
        queued: How many of them have not begun.
        names: The functions of the oldest of them, and how many call each.
        maps: What is to be said of the maps that are under way.
    """
    parts: list[str] = []
    if jobs:
        in_queue = f", {min(queued, jobs)} of them in the queue" if queued else ""
        oldest = "" if names.total() == jobs else f"of the oldest {names.total()}: "
        parts.append(f"{_count(jobs)}{in_queue} ({oldest}{names_of(names)})")
    parts += maps[:_MOST]
    if len(maps) > _MOST:
        parts.append(f"{len(maps) - _MOST} more maps")
    return "; ".join(parts) or "its workers to end"


def names_of(names: Counter[str]) -> str:
    """Return the names of functions, the most frequent first, and how many call each."""
    parts = [f"{count} x {name}" for name, count in names.most_common(_MOST)]
    others = names.total() - sum(count for _, count in names.most_common(_MOST))
    return ", ".join([*parts, f"{others} of others"] if others else parts)


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
