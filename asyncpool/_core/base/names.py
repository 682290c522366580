"""How errors, reports and logs name functions.

Jobs are named by their functions.  This is also the text that says which jobs a pool
waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import FunctionType, MethodType

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any


# A longer name is cut.
MAX_NAME = 200

# The logger of warnings about jobs, and that of ``current_job().logger``.
JOB_LOGGER = "asyncpool.job"

# Functions that workers call in place of a user's function, and where that is among
# their arguments; see _worker/api/calls.py.
_STAND_INS = {
    "asyncpool._worker.api.calls.call_chunk": 0,
    "asyncpool._worker.api.calls.call_counted": 1,
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
    if not text.isprintable():
        text = "".join(map(_visible, text))
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."


def misplaced(names: Iterable[str], text: str, options: Collection[str]) -> str:
    """Say where an option belongs that was passed to a function that does not take it.

    Args:
        names: The keyword arguments of the call.
        text: The text of the ``TypeError`` that Python has raised for the call.
        options: The names of the options of jobs.

    Returns:
        A sentence, or an empty text if none of *names* is the reason.
    """
    takes_none = "takes no keyword arguments" in text
    for name in names:
        refused = (
            f"unexpected keyword argument '{name}'" in text
            or f"'{name}' is an invalid keyword argument" in text
        )
        if name in options and (refused or takes_none):
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
    """Return what Python itself says about a class, whatever the class and its metaclass say."""
    return _text(type.__dict__[name].__get__(cls))


def _text(value: Any) -> str:
    """Return the characters of *value* if it is a text, else an empty text."""
    return str.__str__(value) if issubclass(type(value), str) else ""


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


# Seconds between two log records of a closing pool.
SAY_EVERY = 10.0

_MOST = 5  # how many functions are named


def say_what_it_waits_for(
    *, jobs: int, queued: int, names: Counter[str], maps: Sequence[str]
) -> str:
    """Say in words what a closing pool waits for.

    Args:
        jobs: How many jobs are open.
        queued: How many of them have not begun.
        names: The functions of the oldest of them, and how many jobs call each.
        maps: A text about the maps that are under way.
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
    """Return the names of functions, the most frequent first, with how many jobs call each."""
    parts = [f"{count} x {name}" for name, count in names.most_common(_MOST)]
    others = names.total() - sum(count for _, count in names.most_common(_MOST))
    return ", ".join([*parts, f"{others} of others"] if others else parts)


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
