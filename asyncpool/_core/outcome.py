"""Turn jobs and what becomes of them into bytes, and back.

The fast serializer is tried first.  What it cannot name (lambdas, closures) and
what the other side cannot find under its name (all that lives in ``__main__``) goes
by value, through cloudpickle.  Every failure, on either side, belongs to the one job
whose data it is.

Exceptions, which need more care, are in ``raised.py``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping

from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "MAIN",
    "describe",
    "dumps",
    "load_job",
    "load_value",
    "pack_job",
    "pack_value",
    "text_of",
]

# How the name of the main module looks inside a pickle.  A string that happens to
# contain it costs a second pickling, and nothing else.
MAIN = b"__main__"


def dumps(value: object) -> bytes:
    """Pickle *value*, by value where a reference would not be found.

    Raises:
        Exception: Whatever the value's own methods raise, or the serializer's.
    """
    try:
        data = pickle.dumps(value, 5)
    except Exception:
        import cloudpickle  # noqa: PLC0415 - 20 ms that most workers never need

        return bytes(cloudpickle.dumps(value, 5))
    if data.find(MAIN) >= 0:  # half as expensive as "in"
        import cloudpickle  # noqa: PLC0415

        return bytes(cloudpickle.dumps(value, 5))
    return data


def pack_job(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    number: int = 0,
) -> bytes:
    """Return the payload of a ``JOB`` frame.

    Args:
        function: What to call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        number: Under which the worker knows the function, or 0 to send it along.

    Raises:
        JobNotPicklableError: If a part cannot be pickled; it names which.
    """
    try:
        return dumps((args, kwargs) if number else (function, args, kwargs))
    except Exception as error:
        name, culprit = _find_culprit(function, args, kwargs, error)
        raise JobNotPicklableError(
            f"{name} cannot be pickled: {describe(culprit)}",
            direction="arguments",
            name=name,
        ) from culprit


def load_job(
    payload: bytes, function: Callable[..., Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Read the payload of a ``JOB`` frame; it must come from the pool.

    Args:
        payload: The payload.
        function: What to call, unless it came along.

    Raises:
        BaseException: Whatever unpickling the parts raises.
    """
    if function is None:
        function, args, kwargs = pickle.loads(payload)
    else:
        args, kwargs = pickle.loads(payload)
    return function, args, kwargs


def pack_value(value: object) -> bytes:
    """Return the payload of a ``VALUE`` frame.

    Raises:
        JobNotPicklableError: If *value* cannot be pickled.
    """
    try:
        return dumps(value)
    except Exception as error:
        name = type(value).__qualname__
        raise JobNotPicklableError(
            f"the job's result, of type {name}, cannot be pickled: {describe(error)}",
            direction="result",
            name=name,
        ) from error


def load_value(payload: bytes) -> Any:
    """Read the payload of a ``VALUE`` frame.

    Raises:
        JobNotPicklableError: If it cannot be unpickled here.
    """
    try:
        return pickle.loads(payload)
    except BaseException as error:  # what is unpickled may raise anything
        raise JobNotPicklableError(
            f"the job's result cannot be unpickled here: {describe(error)}",
            direction="result",
            name="",
        ) from error


def _find_culprit(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> tuple[str, Exception]:
    def parts() -> Iterator[tuple[str, object]]:
        yield "fn", function
        yield from ((f"args[{index}]", value) for index, value in enumerate(args))
        yield from ((f"kwargs[{key!r}]", value) for key, value in kwargs.items())

    for name, value in parts():
        try:
            dumps(value)
        except Exception as own:
            return name, own
    return "the call", error


def describe(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    return f"{type(error).__qualname__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return the text of *error*, whatever its ``__str__`` does."""
    try:
        return str(error)
    except BaseException as worse:
        return f"<its __str__ raised {type(worse).__qualname__}>"
