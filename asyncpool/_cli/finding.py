"""The user's function: found in a worker, by its name.

The supervising process never imports it.  A module that crashes when it is imported ends a
worker, and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any


class TargetError(Exception):
    """The function cannot be used; the text says why, and what to do."""


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
    called = _called(found)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TargetError(
            f"{target} is a generator function, and each call has one result: have it "
            "return a list"
        )
    return found  # type: ignore[no-any-return]


def _called(function: Any) -> Any:
    """Return the function that runs when *function* is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether *function* is async, decorated or not."""
    is_one = inspect.iscoroutinefunction
    return any(
        is_one(inspect.unwrap(each, stop=is_one))
        for each in (function, _called(function))
    )


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
