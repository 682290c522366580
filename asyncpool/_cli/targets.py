"""What workers do: find the user's function, call it for one item, and return the outcome as text.

The supervising process never imports the function.  A module that crashes when it is imported
ends a worker, and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Literal

from asyncpool import worker_state
from asyncpool.errors import JobCancelled

# What an item is made of: one JSON value, keywords as a JSON object, text, a path.
Form = Literal["json", "keywords", "text", "path"]


class TargetError(Exception):
    """The function cannot be used; the text says why, and what to do."""


class FunctionRaisedError(Exception):
    """The user's function raised; only text is sent, so that the command need not unpickle it.

    Attributes:
        type: The type of what it raised.
        message: Its text.
        traceback: The traceback, from the function on.
    """

    def __init__(self, type: str, message: str, traceback: str) -> None:  # noqa: A002
        super().__init__(type, message, traceback)
        self.type, self.message, self.traceback = type, message, traceback


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
        if only_async and not _is_async(state.function):
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
    work: Work = worker_state().work
    value = _read(raw, work.form)
    finish = functools.partial(_line, work, index, raw)
    if work.form == "keywords":
        return _call((), value, finish)
    return _call((value,), {}, finish)


def call_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function with these arguments; return the result as JSON; a job.

    If the function is async, return a coroutine that returns the JSON.
    """
    return _call(args, kwargs, to_json)


def find(target: str) -> Callable[..., Any]:
    """Import the function that *target* names.

    Raises:
        TargetError: If that is not possible.
    """
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise TargetError(
            f"{target!r} does not name a function: write package.module:function"
        )
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            import difflib  # noqa: PLC0415 - for one message only

            near = difflib.get_close_matches(name, dir(found), n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise TargetError(f"{module_name} has no {path}{hint}") from None
    if not callable(found):
        raise TargetError(
            f"{target} is not a function, but of type {type(found).__name__}"
        )
    called = _called(found)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TargetError(
            f"{target} is a generator function, and each call has one result: have it "
            "return a list"
        )
    return found  # type: ignore[no-any-return]


def _import(name: str) -> Any:
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise TargetError(f"{name} is a file: name the module, such as {module}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise TargetError(
                f"there is no module {missing!r} here: it is looked for in the current "
                f"folder, in PYTHONPATH and in what is installed for {sys.executable}"
            ) from None
        raise TargetError(f"{name} cannot be imported: {error}") from None
    except BaseException as error:  # noqa: BLE001 - a module may raise anything
        text = "".join(traceback.format_exception(error)).rstrip()
        raise TargetError(f"{name} cannot be imported:\n{text}") from None


def _called(function: Any) -> Any:
    """Return the function that runs when *function* is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _is_async(function: Callable[..., Any]) -> bool:
    """Tell whether *function* is async, decorated or not."""
    is_one = inspect.iscoroutinefunction
    return any(
        is_one(inspect.unwrap(each, stop=is_one))
        for each in (function, _called(function))
    )


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
    args: tuple[Any, ...], kwargs: dict[str, Any], finish: Callable[[Any], str]
) -> Any:
    """Return what *finish* makes of the function's result, or a coroutine that returns it."""
    try:
        result = worker_state().function(*args, **kwargs)
    except JobCancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - it may raise anything
        raise _raised(error) from None
    if type(result) is not CoroutineType:
        return finish(result)

    async def run() -> str:
        try:
            found = await result
        except BaseException as error:  # noqa: BLE001 - it may raise anything
            # If the pool has ended the job, its outcome is not read.
            raise _raised(error) from None
        return finish(found)

    running = run()
    # If it holds up the loop, that is told of the user's function.
    running.__qualname__ = result.__qualname__  # type: ignore[attr-defined]
    return running


def _raised(error: BaseException) -> FunctionRaisedError:
    """Return the error that describes an exception of the function, as text."""
    # The first frame is our caller's, which tells the user nothing.
    stack = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, stack))
    try:
        message = str(error)
    except Exception as worse:  # noqa: BLE001 - it may raise anything
        message = f"(its __str__ raised {type(worse).__qualname__})"
    return FunctionRaisedError(_name(error), message, text)


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
        return {it.name: getattr(value, it.name) for it in dataclasses.fields(value)}
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
