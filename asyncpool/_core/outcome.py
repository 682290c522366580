"""Turn jobs and what becomes of them into bytes, and back.

The fast serializer is tried first.  What it cannot name (lambdas, closures) and
what the other side cannot find under its name (all that lives in ``__main__``) goes
by value, through cloudpickle.  Every failure, on either side, belongs to the one job
whose data it is.

Exceptions need care: the default way to rebuild one is ``cls(*args)``, which breaks
for every class whose ``__init__`` takes something else.  So a worker tries whether
its exception survives, helps where it does not, and as a last resort sends an error
that names it and carries its text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asyncpool.errors import JobNotPicklableError, JobRaisedError, RemoteTraceback

__all__ = [
    "dumps",
    "load_error",
    "load_job",
    "load_value",
    "pack_error",
    "pack_job",
    "pack_value",
]

# How the name of the main module looks inside a pickle.  A string that happens to
# contain it costs a second pickling, and nothing else.
_MAIN = b"__main__"


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
    if _MAIN in data:
        import cloudpickle  # noqa: PLC0415

        return bytes(cloudpickle.dumps(value, 5))
    return data


def pack_job(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bytes:
    """Return the payload of a ``JOB`` frame.

    Raises:
        JobNotPicklableError: If a part cannot be pickled; it names which.
    """
    try:
        return dumps((function, args, kwargs))
    except Exception as error:
        name, culprit = _find_culprit(function, args, kwargs, error)
        raise JobNotPicklableError(
            f"{name} cannot be pickled: {_describe(culprit)}",
            direction="arguments",
            name=name,
        ) from culprit


def load_job(
    payload: bytes,
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Read the payload of a ``JOB`` frame; it must come from the pool.

    Raises:
        BaseException: Whatever unpickling the parts raises.
    """
    function, args, kwargs = pickle.loads(payload)
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
            f"the job's result, of type {name}, cannot be pickled: {_describe(error)}",
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
    except (Exception, SystemExit) as error:
        raise JobNotPicklableError(
            f"the job's result cannot be unpickled here: {_describe(error)}",
            direction="result",
            name="",
        ) from error


def pack_error(error: BaseException, *, skip: int) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is like.

    Args:
        error: What the job raised.
        skip: How many of the outermost frames of its traceback are the worker's
            own, and of no interest to anybody.
    """
    text = _format(error, skip)
    for attempt in (dumps, _dumps_rebuilt):
        try:
            data = attempt(error)
            # Only a copy that is made shows that one can be made there.
            if type(pickle.loads(data)) is type(error):
                return pickle.dumps((data, text), 5)
        except Exception:  # noqa: S112 - the next way is tried
            continue
    name = _type_name(error)
    substitute = JobNotPicklableError(
        f"the job raised {name}, which cannot be pickled: {_text(error)}",
        direction="exception",
        name=name,
        text=_text(error),
    )
    return pickle.dumps((pickle.dumps(substitute, 5), text), 5)


def load_error(payload: bytes) -> BaseException:
    """Read the payload of an ``ERROR`` frame; the remote traceback is its cause."""
    text = ""
    try:
        data, text = pickle.loads(payload)
        error = pickle.loads(data)
    except (Exception, SystemExit) as broken:
        # The last line of a traceback says which exception it was.
        last = text.strip().rpartition("\n")[2]
        error = JobNotPicklableError(
            f"the job's exception cannot be unpickled here: {last or _describe(broken)}",
            direction="exception",
            name=last.partition(":")[0],
            text=last,
        )
    error.__cause__ = RemoteTraceback(text)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return JobRaisedError(error)


def _rebuild(
    cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class _Rebuilt:
    """Pickles as the exception in it, made anew without its ``__init__``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.error.__dict__)
        return _rebuild, (type(self.error), self.error.args, state)


def _dumps_rebuilt(error: BaseException) -> bytes:
    return dumps(_Rebuilt(error))


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


def _describe(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {_text(error)}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:
        return f"<its __str__ raised {type(worse).__qualname__}>"


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _format(error: BaseException, skip: int) -> str:
    tb = error.__traceback__
    for _ in range(skip):
        tb = tb.tb_next if tb is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except Exception:  # a hostile __str__ or __notes__
        return f"{''.join(traceback.format_tb(tb))}{_describe(error)}\n"
