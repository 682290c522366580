"""Context variables whose values a job gets from the code that submits it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from asyncpool._core import checks
from asyncpool._wire import scripts
from asyncpool._wire.messages import MAX_VARIABLES, with_parts
from asyncpool._wire.pickling import Subject, dump, dumps_call, refuse
from asyncpool.errors import JobNotPicklableError

_UNSET = object()
_OF_MAIN = ("__main__:", "__mp_main__:")
_WORDS = "context variables and their names, such as 'package.module:name'"


class Propagation:
    """The context variables that one pool propagates.

    Args:
        variables: Each variable itself, if it is an attribute of a module, or its name,
            ``"package.module:name"``.

    Raises:
        TypeError: If one is neither, or if there is no such variable.
        ValueError: If workers could not find a variable.
    """

    def __init__(self, variables: Iterable[ContextVar[Any] | str]) -> None:
        kinds = str, ContextVar
        given = checks.several(_WORDS, single=kinds, each=kinds)("propagate", variables)
        self._variables = tuple(map(_resolve, given))
        self._last = (b"", b"", b"")

    def add_to(self, context: bytes) -> bytes:
        """Return a packed context with the present values of the variables.

        Raises:
            JobNotPicklableError: If a value cannot be pickled, or all together are too large.
        """
        found = [(name, variable.get(_UNSET)) for name, variable in self._variables]
        values = [pair for pair in found if pair[1] is not _UNSET]
        try:
            packed = dumps_call(values) if values else b""
        except Exception as error:  # noqa: BLE001 - a value's
            refuse(error, values, dump, Subject(values[0][0]), kind="context variable ")
        # Mostly nothing has changed since the last job.  Then all jobs share one object, too.
        before, variables, together = self._last
        if packed == variables and context == before:
            return together
        try:
            together = with_parts(context, variables=packed)
        except ValueError as error:
            what = "the context variables"
            size = f"have {len(packed)} bytes when pickled, and {MAX_VARIABLES} is the most"
            raise JobNotPicklableError(
                f"{what} {size}", direction="arguments", name=what
            ) from error
        self._last = (context, packed, together)
        return together


def _resolve(given: ContextVar[Any] | str) -> tuple[str, ContextVar[Any]]:
    """Return a variable, and the name by which workers import it."""
    if isinstance(given, ContextVar):
        name = _find_name(given)
    else:
        name = checks.function("propagate", given, named="takes names such as")
    module, _, attribute = name.partition(":")
    script = scripts.script()
    if module == "__main__" and (script is None or attribute not in script.importable):
        raise ValueError(
            f"propagate: context variable {attribute!r} lives in __main__, where workers cannot "
            "find it: define it in a module that they can import, or give the script an "
            "`if __name__ == '__main__':` guard"
        )
    try:
        variable = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"propagate: {name!r} cannot be imported: {error}") from error
    if not isinstance(variable, ContextVar):
        raise TypeError(f"propagate: {name!r} is no context variable: {variable!r}")
    return name, variable


def _find_name(variable: ContextVar[Any]) -> str:
    modules: list[tuple[str, object]] = list(sys.modules.items())
    found = [
        (len(vars(module)), f"{module_name}:{attribute}")
        for module_name, module in modules
        if isinstance(module, ModuleType)  # it may be any object, and do anything
        for attribute, value in list(vars(module).items())
        if value is variable
    ]
    if not found:
        raise ValueError(
            f"propagate: context variable {variable.name!r} is no attribute of a "
            "module, so workers cannot find it"
        )
    # Prefer the module that most likely defines the variable, which is the one with the fewest
    # names, and any other module to the script, whose name workers know as this one only.
    _, name = min(found, key=lambda it: (it[1].startswith(_OF_MAIN), *it))
    return name.replace("__mp_main__:", "__main__:", 1)
