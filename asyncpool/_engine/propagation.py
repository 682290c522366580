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
from asyncpool._wire.pickling import pack_variables
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
        given = checks.several("propagate", variables, _WORDS, single=(str, ContextVar))
        self._variables = tuple(map(_resolve, given))
        self._last = (b"", b"", b"")

    def add_to(self, context: bytes) -> bytes:
        """Return a packed context with the present values of the variables.

        Raises:
            JobNotPicklableError: If a value cannot be pickled, or all together are too large.
        """
        values: list[tuple[str, Any]] = []
        for name, variable in self._variables:
            value = variable.get(_UNSET)
            if value is not _UNSET:
                values.append((name, value))
        packed = pack_variables(values)
        # Mostly nothing has changed since the last job.  Then all jobs share one object, too.
        before, variables, together = self._last
        if packed == variables and context == before:
            return together
        try:
            together = with_parts(context, variables=packed)
        except ValueError as error:
            raise JobNotPicklableError(
                f"the context variables have {len(packed)} bytes when pickled, and "
                f"{MAX_VARIABLES} is the most",
                direction="arguments",
                name="the context variables",
            ) from error
        self._last = (context, packed, together)
        return together


def _resolve(variable: object) -> tuple[str, ContextVar[Any]]:
    if isinstance(variable, str):
        return variable, _import(variable)
    if not isinstance(variable, ContextVar):
        raise TypeError(f"propagate takes {_WORDS}, not {variable!r}")
    return _find_name(variable), variable


def _import(name: str) -> ContextVar[Any]:
    checks.function("propagate", name, named="takes names such as")
    module, _, attribute = name.partition(":")
    if module == "__main__":
        _check_imported(attribute, attribute)
    try:
        variable = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"propagate: {name!r} cannot be imported: {error}") from error
    if not isinstance(variable, ContextVar):
        raise TypeError(f"propagate: {name!r} is no context variable: {variable!r}")
    return variable


def _find_name(variable: ContextVar[Any]) -> str:
    found: list[tuple[int, str]] = []
    modules: list[tuple[str, object]] = list(sys.modules.items())
    for module_name, module in modules:
        if not isinstance(module, ModuleType):  # it may be any object, and do anything
            continue
        names = vars(module)
        for attribute, value in list(names.items()):
            if value is variable:
                found.append((len(names), f"{module_name}:{attribute}"))
    if not found:
        raise ValueError(
            f"propagate: context variable {variable.name!r} is no attribute of a "
            "module, so workers cannot find it"
        )
    # Prefer the module that most likely defines the variable: the shortest name.
    elsewhere = [pair for pair in found if not pair[1].startswith(_OF_MAIN)]
    if elsewhere:
        return min(elsewhere)[1]
    name = min(found)[1].partition(":")[2]
    _check_imported(name, variable.name)
    return f"__main__:{name}"


def _check_imported(attribute: str, name: str) -> None:
    """Check that workers have this global of the script too, since they import it.

    Raises:
        ValueError: If they do not; it calls the variable by its *name*.
    """
    script = scripts.script()
    if script is None or attribute not in script.importable:
        raise ValueError(
            f"propagate: context variable {name!r} lives in __main__, where workers cannot "
            "find it: define it in a module that they can import, or give the script an "
            "`if __name__ == '__main__':` guard"
        )
