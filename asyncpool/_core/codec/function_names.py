"""Functions by name: what they are called, where they are found, and what they take."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections import abc
from functools import reduce

from asyncpool._core.base.names import function_name
from asyncpool._core.codec.formats import PLAIN, Cost, Format
from asyncpool.errors import JobNotPicklableError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_ITERATORS = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


class Place:
    """One argument, or a result.

    Attributes:
        kind: The type by which the format reads it; ``None`` if it reads plain data.
        expected: The class that plain data must have, if the annotation says that much.
        cost: What values of the type cost whoever makes them.
    """

    __slots__ = ("cost", "expected", "kind")

    def __init__(
        self, kind: Any = None, expected: type | None = None, cost: Cost = PLAIN
    ) -> None:
        self.kind = kind
        self.expected = expected
        self.cost = cost

    @property
    def plain(self) -> bool:
        """Whether nothing is known of it."""
        return self.kind is None and self.expected is None


_ANYTHING = Place()


class Plan:
    """What a function takes and returns, as its annotations say.

    Attributes:
        typed: Whether they say anything of its arguments.
        result: What it returns.
        item: What it yields.
    """

    def __init__(self, function: Callable[..., Any] | None, how: Format) -> None:
        self.typed = False
        self.result = self.item = _ANYTHING
        self._positional: list[Place] = []
        self._named: dict[str, Place] = {}
        self._others = self._other_names = _ANYTHING
        if function is not None and how.typed:
            self._read(function, how)

    def argument(self, index: int) -> Place:
        """Return what the positional argument *index* is."""
        known = self._positional
        return known[index] if index < len(known) else self._others

    def named(self, name: str) -> Place:
        """Return what the argument *name* is."""
        return self._named.get(name, self._other_names)

    def _read(self, function: Callable[..., Any], how: Format) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters.values()
        except Exception:  # noqa: BLE001 - it says nothing that this process understands
            return
        for parameter in parameters:
            place = _place(hints, parameter.name, how)
            self.typed |= not place.plain
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    self._others = place
                case inspect.Parameter.VAR_KEYWORD:
                    self._other_names = place
                case inspect.Parameter.KEYWORD_ONLY:
                    self._named[parameter.name] = place
                case inspect.Parameter.POSITIONAL_ONLY:
                    self._positional.append(place)
                case _:
                    self._positional.append(place)
                    self._named[parameter.name] = place
        result = hints.get("return")
        origin, args = typing.get_origin(result), typing.get_args(result)
        if origin in (abc.Awaitable, abc.Coroutine) and args:
            hints["return"] = args[-1]
        elif origin in _ITERATORS and args:
            self.item = _place({"": args[0]}, "", how)
        self.result = _place(hints, "return", how)


def _place(hints: Mapping[str, Any], name: str, how: Format) -> Place:
    if name not in hints:
        return _ANYTHING
    kind = hints[name]
    if how.codec is not None:
        return Place(kind)
    if kind is bytes or kind is bytearray:
        return Place(None, kind)  # it may be large, and travel beside the message
    cost = how.cost(kind)
    return _ANYTHING if cost is None else Place(kind, cost=cost)


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
        raise JobNotPicklableError(
            f"{option} cannot be sent by its name, as this pool does: {why}",
            direction="arguments",
            name=option,
        ) from why


def unnamed(why: Exception) -> JobNotPicklableError:
    """Return the error for a function that has no name."""
    return JobNotPicklableError(
        f"fn cannot be sent by its name, as this pool does: {why}",
        direction="arguments",
        name="fn",
    )
