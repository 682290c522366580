"""Load the outcomes of jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asyncpool._core.pickling.serializers import Serializer
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool.errors import JobNotPicklableError, ProtocolError

_VALUE = FrameKind.VALUE


class Failed(NamedTuple):
    """An outcome that is no value.

    Attributes:
        error: What the caller gets.
        may_retry: Whether the job may have another attempt, if its policy says so.  It has none
            after its deadline, and if its outcome cannot be read.
        distrust: Why its worker is not to be trusted any more, if it is not.
    """

    error: BaseException
    may_retry: bool
    distrust: str = ""


def load_outcome(
    serializer: Serializer, frame: Frame, pause: Callable[[], None] | None = None
) -> Any:
    """Return the value in *frame*, or a :class:`Failed`.

    Args:
        serializer: Loads it.
        frame: A ``VALUE`` or an ``ERROR``.
        pause: Called now and then while a large value is loaded.
    """
    try:
        if frame.kind is _VALUE:
            return serializer.load_value(frame.payload, pause)
        return Failed(serializer.load_error(frame.payload, pause), may_retry=True)
    except JobNotPicklableError as error:
        return Failed(error, may_retry=False)
    except ProtocolError as error:
        return Failed(unreadable(error), may_retry=False, distrust=str(error))


def unreadable(why: ProtocolError) -> JobNotPicklableError:
    """Return the error of a job whose worker has sent what no worker sends."""
    error = JobNotPicklableError(
        f"the job's outcome cannot be read, and its worker is at fault: {why}",
        direction="result",
        name="",
    )
    error.__cause__ = why
    return error
