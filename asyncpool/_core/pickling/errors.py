"""Turn what a job raised into bytes, and back.

The default way to copy an exception is ``cls(*args)``.  It fails for every class whose
``__init__`` takes other arguments than ``args``.  For some classes it works, but gives
another message.  So a worker makes the copy itself, and compares it.  If the copy is
wrong, the worker packs the exception so that it is rebuilt without its ``__init__``.
An exception that cannot be sent at all is replaced by an error that names it and
carries its text.
"""

from __future__ import annotations

import pickle
import traceback

from asyncpool._core.base.text import printable_lines
from asyncpool._core.main.by_value_loading import pickler_of_results
from asyncpool._core.pickling.calls import describe, dumps, dumps_with, text_of
from asyncpool._core.pickling.out_of_band import MAIN, ReceivedPickle, loads
from asyncpool.errors import (
    HookError,
    JobNotPicklableError,
    JobRaisedError,
    RemoteTraceback,
)

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


def pack_error(error: BaseException, *, skip: int) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is.

    Args:
        error: What the job raised.
        skip: How many of the outermost frames of its traceback belong to the
            worker, and interest nobody.
    """
    texts = traceback_of(error, skip), type_name(error), text_of(error)
    remote, name, text = map(printable_lines, texts)
    for attempt, is_good in ((dumps, _is_faithful), (_dumps_rebuilt, _is_alike)):
        try:
            data = attempt(error)
            # Only an actual copy shows that the pool can make one.
            if is_good(pickle.loads(data), error):
                return pickle.dumps((data, remote, name, text), 5)
        except BaseException:  # noqa: S112 - the next way is tried
            continue
    substitute = JobNotPicklableError(
        f"the job raised {name}, which cannot be pickled: {text}",
        direction="exception",
        name=name,
        text=text,
    )
    return pickle.dumps((pickle.dumps(substitute, 5), remote, name, text), 5)


def load_error(
    payload: bytes | memoryview | ReceivedPickle,
    pause: Callable[[], None] | None = None,
) -> BaseException:
    """Read the payload of an ``ERROR`` frame; the remote traceback is its cause.

    *pause* is called now and then while a large one is unpickled.  An exception that
    must not be raised in the caller comes in a :exc:`JobRaisedError`.  One that cannot
    be unpickled here comes as a :exc:`JobNotPicklableError`.
    """
    remote = name = text = ""
    try:
        data, *texts = _check_outcome(loads(payload, pause=pause))
        remote, name, text = map(printable_lines, texts)
        error = _check_error(loads(data, pause=pause))
    except BaseException as broken:  # what is unpickled may raise anything
        what = f"{name}: {text}" if name else printable_lines(describe(broken))
        error = JobNotPicklableError(
            f"the job's exception cannot be unpickled here: {what}",
            direction="exception",
            name=name,
            text=text,
        )
    # The cause of a hook's failure is what the hook has raised.
    first = error.exception if isinstance(error, HookError) else error
    _set(first, "__cause__", RemoteTraceback(remote))
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return JobRaisedError(error)


def _check_outcome(outcome: object) -> tuple[bytes, str, str, str]:
    match outcome:
        case (bytes(data), str(remote), str(name), str(text)):
            return data, remote, name, text
        case _:
            raise TypeError("the outcome is malformed")


def _check_error(error: object) -> BaseException:
    if not isinstance(error, BaseException):
        raise TypeError("the outcome is no exception")
    # Each isinstance() in the pool would call a property of that name.
    if any("__class__" in vars(cls) for cls in type(error).__mro__[:-1]):
        raise TypeError("the exception defines __class__")
    return error


def _is_alike(copy: object, error: BaseException) -> bool:
    return type(copy) is type(error)


def _is_faithful(copy: object, error: BaseException) -> bool:
    return (
        isinstance(copy, BaseException)
        and _is_alike(copy, error)
        and text_of(copy) == text_of(error)
        and copy.__dict__.keys() == error.__dict__.keys()
        and _has_value(copy) is _has_value(error)
    )


def _has_value(error: BaseException) -> bool:
    """Tell whether it has the field that a ``SystemExit`` or a ``StopIteration`` fills from its arguments.

    A reducer of ``copyreg`` may forget it, as that of tblib does, which Dask imports.
    """
    match error:
        case SystemExit(code=value) | StopIteration(value=value):
            return value is not None
        case _:
            return False


class _ErrorPickler(pickle.Pickler):
    """Pickles all exceptions so that they are rebuilt without their ``__init__``."""

    def reducer_override(self, obj: object) -> Any:
        return _reduce(obj)


def _dumps_rebuilt(error: BaseException) -> bytes:
    try:
        data = dumps_with(_ErrorPickler, error)
        if MAIN not in data:
            return data
    except Exception:  # noqa: S110 - by value, then
        pass

    base: Any = pickler_of_results()

    class ByValue(base):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> Any:
            reduced = _reduce(obj)
            if reduced is NotImplemented:
                return base.reducer_override(self, obj)
            return reduced

    return dumps_with(ByValue, error)


def _reduce(value: object) -> Any:
    if not isinstance(value, BaseException):
        return NotImplemented
    cls = type(value)
    # What the built-in class needs to rebuild it, and its attributes.
    reduced: Any = _builtin_base(cls).__reduce__(value)
    return _rebuild, (cls, *reduced[1:])


def _rebuild(
    cls: type[BaseException],
    args: tuple[Any, ...],
    state: dict[str, Any] | None = None,
) -> BaseException:
    error = cls.__new__(cls, *args)
    # It does not call cls.__init__, whose parameters nobody knows.  It calls that of
    # the built-in base class, which fills the fields of an OSError or a
    # UnicodeDecodeError.
    _builtin_base(cls).__init__(error, *args)
    for name, value in (state or {}).items():
        _set(error, name, value)
    return error


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _set(error: BaseException, name: str, value: object) -> None:
    # Does not call the __setattr__ of a frozen dataclass.
    object.__setattr__(error, name, value)


def type_name(error: BaseException) -> str:
    """Return the full name of the type of *error*."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def traceback_of(error: BaseException, skip: int) -> str:
    """Return the traceback of *error* and its text, without the *skip* outermost frames."""
    tb = error.__traceback__
    for _ in range(skip):
        tb = tb.tb_next if tb is not None else None
    return format_error(error, tb)


def format_error(error: BaseException, tb: TracebackType | None) -> str:
    """Return the traceback *tb* of *error* and its text, whatever goes wrong on the way.

    A ``__str__`` or ``__notes__`` may raise anything.  :mod:`traceback` itself may
    import modules where no more file can be opened, and may warn where warnings are
    errors.
    """
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except BaseException:  # it may raise anything
        head = "Traceback (most recent call last):\n"
    frames = [
        f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n'
        for frame, line in traceback.walk_tb(tb)
    ]
    return "".join((head, *frames, f"{describe(error)}\n"))
