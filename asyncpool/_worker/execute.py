"""Run one job and say what became of it, whatever it does."""

from __future__ import annotations

from contextvars import copy_context

from asyncpool._core.frames import Frame, Kind
from asyncpool._core.outcome import load_job, pack_value
from asyncpool._core.raised import pack_error
from asyncpool._worker.context import CurrentJob, running
from asyncpool.errors import JobNotPicklableError

__all__ = ["execute"]


def execute(frame: Frame, max_payload: int) -> tuple[Kind, bytes]:
    """Run the job in *frame* and return the kind and payload of its outcome.

    ``SystemExit``, ``KeyboardInterrupt`` and the like are outcomes as well: they
    were the job's wish or fate, and the worker is none the worse for them.
    """
    try:
        # Each job in a context of its own: what it sets is not for the next one.
        payload = copy_context().run(_run, frame, max_payload)
    except BaseException as error:
        return Kind.ERROR, _pack(error, max_payload)
    else:
        return Kind.VALUE, payload


def _run(frame: Frame, max_payload: int) -> bytes:
    # A function of its own, so that arguments and result are gone when it returns.
    running.set(CurrentJob(frame.job, frame.attempt))
    function, args, kwargs = load_job(frame.payload)
    result = pack_value(function(*args, **kwargs))
    if len(result) > max_payload:
        raise JobNotPicklableError(
            f"the job's result has {len(result)} bytes when pickled, and max_message "
            f"is {max_payload}",
            direction="result",
            name="",
        )
    return result


def _pack(error: BaseException, max_payload: int) -> bytes:
    # Two frames of the traceback are ours: execute() and _run().
    payload = pack_error(error, skip=2)
    if len(payload) <= max_payload:
        return payload
    name = type(error).__qualname__
    return pack_error(
        JobNotPicklableError(
            f"the job raised {name}, which has {len(payload)} bytes when pickled, and "
            f"max_message is {max_payload}",
            direction="exception",
            name=name,
        ),
        skip=0,
    )
