"""Which part of a traceback its reader can do something about."""

from __future__ import annotations

import traceback

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["format_error", "print_error"]

# What calls the user's code: the packages of such modules.
_CALLERS = frozenset(("asyncio", "asyncpool", "importlib", "uvloop"))


def format_error(error: BaseException) -> str:
    """Return the traceback of *error*, from where it is the user's own.

    All of it, if it is nowhere: then the worker's own frames are all that is known.
    """
    return "".join(traceback.format_exception(type(error), error, _users_own(error)))


def print_error(error: BaseException) -> None:
    """Print the same."""
    traceback.print_exception(type(error), error, _users_own(error))


def _users_own(error: BaseException) -> TracebackType | None:
    tb = error.__traceback__
    while tb is not None:
        module = str(tb.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in _CALLERS:
            return tb
        tb = tb.tb_next
    return error.__traceback__
