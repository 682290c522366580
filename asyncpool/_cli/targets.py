"""The user's function: found in a worker, and called there for one item.

It is never imported in the supervising process.  A module that crashes when it is
imported takes a worker down, and no more.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from asyncpool import worker_state
from asyncpool.errors import JobCancelled

__all__ = [
    "Form",
    "FunctionRaisedError",
    "TargetError",
    "Work",
    "call_item",
    "call_once",
    "find",
    "load",
    "shown",
    "to_json",
    "trouble",
]

# What an item is made of: one JSON value, keywords as a JSON object, text, a path.
Form = Literal["json", "keywords", "text", "path"]


class TargetError(Exception):
    """The function cannot be used; the text says why, and what to do."""


class FunctionRaisedError(Exception):
    """The user's function raised; only text crosses, so that nobody need unpickle it.

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


def load(work: Work) -> None:
    """Prepare a worker; the initializer of the pool."""
    state = worker_state()
    state.work, state.function, state.trouble = work, None, ""
    try:
        state.function = find(work.target)
    except TargetError as error:
        # Not raised: the pool would try again, and it is the same everywhere.
        state.trouble = str(error)


def trouble() -> str:
    """Return why this worker cannot do its work; a job."""
    return str(worker_state().trouble)


def call_item(index: int, raw: bytes) -> str:
    """Call the function for one item, and return its line of the output; a job.

    Raises:
        FunctionRaisedError: Whatever the function raised.
    """
    state = worker_state()
    work: Work = state.work
    if work.form == "path":
        value: Any = os.fsdecode(raw)
    else:
        try:
            text = raw.decode()
            value = text if work.form == "text" else json.loads(text)
        except ValueError as error:
            raise FunctionRaisedError("InputError", f"{error}", "") from None
    if work.form == "keywords" and not isinstance(value, dict):
        text = f"the record has {len(value)} fields, the header another number"
        raise FunctionRaisedError("InputError", text, "")
    if work.form == "keywords":
        result = _call(state.function, (), value)
    else:
        result = _call(state.function, (value,), {})
    line = to_json(result)
    if work.bare:
        return line
    shape = shown(raw, work.form)
    return f'{{"index": {index}, "input": {shape}, "result": {line}}}'


def call_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Call the function with these arguments; return the result as JSON; a job."""
    return to_json(_call(worker_state().function, args, kwargs))


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except JobCancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - it may raise anything
        # The first frame is this one, of which nobody wants to hear.
        stack = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, stack))
        raise FunctionRaisedError(_name(error), _message(error), text) from None


def to_json(result: Any) -> str:
    """Return *result* as one line of JSON.

    Raises:
        FunctionRaisedError: If it is nothing that JSON knows.
    """
    try:
        return json.dumps(result, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FunctionRaisedError(
            _name(error), f"the result cannot be written as JSON: {error}", ""
        ) from None


def _plain(value: Any) -> Any:
    """Return what stands for *value* in JSON."""
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
    """Return an item as JSON, for the files; also one that could not be read."""
    if form == "path":
        return json.dumps(os.fsdecode(raw))
    text = raw.decode(errors="backslashreplace")
    if form == "text":
        return json.dumps(text)
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return json.dumps(text)
    return text.strip()


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


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
            near = _nearest(name, dir(found))
            raise TargetError(f"{module_name} has no {path}{near}") from None
    if not callable(found):
        raise TargetError(
            f"{target} is not a function, but of type {type(found).__name__}"
        )
    if inspect.iscoroutinefunction(found):
        raise TargetError(
            f"{target} is an async function, which workers cannot run: wrap it in a "
            "plain one that calls asyncio.run()"
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
                "folder, in PYTHONPATH and in what is installed for "
                f"{sys.executable}"
            ) from None
        raise TargetError(f"{name} cannot be imported: {error}") from None
    except BaseException as error:  # noqa: BLE001 - a module may raise anything
        text = "".join(traceback.format_exception(error)).rstrip()
        raise TargetError(f"{name} cannot be imported:\n{text}") from None


def _nearest(name: str, names: list[str]) -> str:
    import difflib  # noqa: PLC0415 - for one message only

    near = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001 - it may raise anything
        return f"(its __str__ raised {type(worse).__qualname__})"
