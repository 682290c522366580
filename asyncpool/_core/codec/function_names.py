"""Functions by name: what they are called, and where they are found."""

from __future__ import annotations

import importlib
import sys
from functools import reduce

from asyncpool._core.base.names import function_name
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class FunctionNames:
    """The functions that workers may call.

    Args:
        allowed: Names such as ``"shop.jobs:resize"`` and ``"shop.jobs:*"``, or functions;
            ``None`` for all functions that have a name.

    Attributes:
        allowed: The names.

    Raises:
        ValueError: If one is no such name.
        TypeError: If a function has none.
    """

    def __init__(self, allowed: Iterable[object] | None) -> None:
        self.allowed: tuple[str, ...] | None = None
        if allowed is not None:
            self.allowed = tuple(_pattern(one) for one in allowed)

    def check(self, name: str) -> None:
        """Raise a :exc:`LookupError` unless workers may call the function of that *name*."""
        if self.allowed is None:
            return
        module = name.partition(":")[0]
        if name not in self.allowed and f"{module}:*" not in self.allowed:
            raise LookupError(f"{name} is not among the functions of this pool")

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name of *function*, ``"package.module:name"``.

        Raises:
            LookupError: If it has none that workers find, or may call.
        """
        name = name_of(function)
        self.check(name)
        return name

    def find(self, name: str) -> Any:
        """Return the function of that *name*; the module is imported.

        Raises:
            Exception: If there is none, or workers may not call it.
        """
        self.check(name)
        module, _, path = name.partition(":")
        return reduce(getattr, path.split("."), importlib.import_module(module))


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which workers find *function*, ``"package.module:name"``.

    Raises:
        LookupError: If there is none.
    """
    path, home = (
        getattr(function, "__qualname__", None),
        getattr(function, "__module__", None),
    )
    if not isinstance(path, str) or not isinstance(home, str):
        raise LookupError(  # noqa: TRY004 - it has no name
            f"{function_name(function)} is an object of a "
            f"{type(function).__qualname__}: name a function of a module"
        )
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "local to a function"
        raise LookupError(f"{home}.{path} is {kind}: use a function of a module")
    module: Any = sys.modules.get(home)
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError:
        found = None
    if found is not function:
        raise LookupError(f"{home}:{path} is not this function but {found!r}")
    if home == "__main__":
        home = _real_name(module)
    return f"{home}:{path}"


def _real_name(main: Any) -> str:
    """Return the name by which workers import the main module."""
    spec = getattr(main, "__spec__", None)
    if spec is None:
        raise LookupError(
            "it is a function of __main__, which has no name: put it into a module of its own"
        )
    return str(spec.name)


def _pattern(one: object) -> str:
    if callable(one):
        try:
            return name_of(one)
        except LookupError as error:
            raise TypeError(
                f"functions takes functions with a name: {error}"
            ) from error
    if not isinstance(one, str) or not all(one.partition(":")[::2]):
        raise ValueError(
            "functions takes functions and names such as 'package.module:name' and "
            f"'package.module:*', not {one!r}"
        )
    return one


def check_name(option: str, function: object) -> None:
    """Check that workers find what a data-only pool has as this *option* by its name.

    Raises:
        JobNotPicklableError: If they do not.
    """
    if not callable(function):
        return
    try:
        name_of(function)
    except LookupError as why:
        raise unnamed(why, option) from why


def unnamed(why: Exception, what: str = "fn") -> JobNotPicklableError:
    """Return the error for a function that has no name."""
    return JobNotPicklableError(
        f"{what} cannot be sent by its name, as this pool does: {why}",
        direction="arguments",
        name=what,
    )
