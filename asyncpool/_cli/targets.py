"""What workers do: call the user's function for one item, and return the outcome as text."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Literal

from asyncpool import worker_state
from asyncpool._cli.finding import TargetError, find, is_async
from asyncpool.errors import JobCancelled

# What an item is made of: one JSON value, keywords as a JSON object, text, a path.
Form = Literal["json", "keywords", "text", "path"]


class FunctionRaisedError(Exception):
    """The user's function raised; only text is sent, so that the command need not unpickle it.

    Attributes:
        type: The type of what it raised.
        message: Its text.
        traceback: The traceback, from the function on.
    """

    def __init__(self, type: str, message: str, traceback: str) -> None:  # noqa: A002
        super().__init__(type, message, traceback)
        self.type = type
        self.message = message
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class Work:
    """What workers do.

    Attributes:
        target: The function, as ``package.module:function``.
        form: What an item is.
        bare: Whether the output is the result alone.
    """

    target: str
    form: Form = "json"
    bare: bool = False


def load(work: Work, only_async: str = "") -> None:
    """Prepare a worker; the initializer of the pool.

    Args:
        work: What it will do.
        only_async: An option that the user gave and that is for async functions only, or ``""``.
    """
    state = worker_state()
    state.work, state.function, state.trouble = work, None, ""
    try:
        state.function = find(work.target)
        if only_async and not is_async(state.function):
            state.trouble = (
                f"{work.target} is not an async function, and {only_async} is about "
                "those only: leave it out"
            )
    except TargetError as error:
        # Not raised: the pool would try again, and it is the same everywhere.
        state.trouble = str(error)


def trouble() -> str:
    """Return why this worker cannot do its work; a job."""
    return str(worker_state().trouble)


def call_item(index: int, raw: bytes) -> Any:
    """Call the function for one item, and return its line of the output; a job.

    If the function is async, it is a coroutine that returns the line.

    Raises:
        FunctionRaisedError: If the function raised.
    """
    state = worker_state()
    work: Work = state.work
    value = _read(raw, work.form)
    if work.form == "keywords":
        result = _call(state.function, (), value)
    else:
        result = _call(state.function, (value,), {})
    if type(result) is CoroutineType:
        return _awaited(result, functools.partial(_line, work, index, raw))
    return _line(work, index, raw, result)


def call_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function with these arguments; return the result as JSON; a job.

    If the function is async, return a coroutine that returns the JSON.
    """
    result = _call(worker_state().function, args, kwargs)
    if type(result) is CoroutineType:
        return _awaited(result, to_json)
    return to_json(result)


def _read(raw: bytes, form: Form) -> Any:
    """Return the value of an item.

    Raises:
        FunctionRaisedError: If the text has no value; only this item fails.
    """
    if form == "path":
        return os.fsdecode(raw)
    try:
        text = raw.decode()
        value = text if form == "text" else json.loads(text)
    except UnicodeDecodeError as error:
        problem = f"it is not UTF-8: {error}"
    except (ValueError, RecursionError) as error:
        problem = f"it cannot be read as JSON: {error}"
    else:
        if form != "keywords" or isinstance(value, dict):
            return value
        problem = f"the record has {len(value)} fields, the header another number"
    raise FunctionRaisedError("InputError", problem, "")


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except JobCancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - it may raise anything
        raise _raised(error) from None


def _awaited(
    coroutine: CoroutineType[Any, Any, Any], finish: Callable[[Any], str]
) -> Coroutine[Any, Any, str]:
    """Return a coroutine that finishes what *coroutine* returns."""

    async def run() -> str:
        try:
            result = await coroutine
        except BaseException as error:  # noqa: BLE001 - it may raise anything
            # If the pool has ended the job, its outcome is not read.
            raise _raised(error) from None
        return finish(result)

    running = run()
    # If it holds up the loop, that is told of the user's function.
    running.__qualname__ = coroutine.__qualname__  # type: ignore[attr-defined]
    return running


def _raised(error: BaseException) -> FunctionRaisedError:
    """Return the error that describes an exception of the function, as text."""
    # The first frame is our caller's, which tells the user nothing.
    stack = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, stack))
    return FunctionRaisedError(_name(error), _message(error), text)


def _line(work: Work, index: int, raw: bytes, result: Any) -> str:
    line = to_json(result)
    if work.bare:
        return line
    return f'{{"index": {index}, "input": {shown(raw, work.form)}, "result": {line}}}'


def to_json(result: Any) -> str:
    """Return *result* as one line of JSON.

    Raises:
        FunctionRaisedError: If JSON has nothing for it.
    """
    try:
        return json.dumps(result, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FunctionRaisedError(
            _name(error), f"the result cannot be written as JSON: {error}", ""
        ) from None


def _plain(value: Any) -> Any:
    """Return a value that JSON has for *value*."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    tolist: object = getattr(value, "tolist", None)
    if callable(tolist):  # NumPy's arrays and scalars
        return tolist()
    raise TypeError(
        f"{type(value).__name__} is not; return numbers, text, lists, dicts or a "
        "dataclass"
    )


def shown(raw: bytes, form: Form) -> str:
    """Return an item as JSON, for the files, even if it could not be read."""
    if form == "path":
        return json.dumps(os.fsdecode(raw))
    text = raw.decode(errors="backslashreplace")
    if form == "text":
        return json.dumps(text)
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text)
    return text.strip()


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _name(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 - it may raise anything
        return f"(its __str__ raised {type(worse).__qualname__})"
