"""Cut a traceback down to the user's own code."""

from __future__ import annotations

import sys

from asyncpool._core.pickling.calls import text_of
from asyncpool._core.pickling.errors import format_error
from asyncpool._core.policies.starting import cannot_succeed
from asyncpool._core.wire.frames import FrameKind
from asyncpool._core.wire.messages import Failure

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from logging import Logger
    from types import TracebackType

    from asyncpool._worker.job.control import Control

# The packages that call the user's code: their frames are left out.
_CALLERS = frozenset(("asyncio", "asyncpool", "importlib", "uvloop"))


def announce(
    control: Control, stage: str, error: BaseException, *, fixed: bool = False
) -> None:
    """Tell the pool of *error*, which ends the worker; see :func:`cannot_succeed`."""
    failure = failure_of(stage, error)
    final = cannot_succeed(error, fixed=fixed)
    control.send(FrameKind.FAILED, failure._replace(final=final).pack())
    control.announced = True


def failure_of(stage: str, error: BaseException) -> Failure:
    """Return the text for the pool about *error*: the traceback from the user's first frame on.

    If no frame is the user's, the text has all frames.
    """
    text = format_error(error, _users_own(error))
    return Failure(stage, f"{type(error).__qualname__}: {text_of(error)}", text)


def print_error(error: BaseException) -> None:
    """Print the traceback of :func:`report`'s text to stderr."""
    sys.stderr.write(format_error(error, _users_own(error)))


def _users_own(error: BaseException) -> TracebackType | None:
    tb = error.__traceback__
    while tb is not None:
        module = str(tb.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in _CALLERS:
            return tb
        tb = tb.tb_next
    return error.__traceback__


def own_logger() -> Logger:
    """Return the logger of asyncpool, in a worker: most workers need none."""
    import logging  # noqa: PLC0415 - see the docstring

    return logging.getLogger("asyncpool")
