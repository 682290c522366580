"""Which functions a worker remembers, so that a call needs to send a number only.

That is for functions that travel by reference, since such a reference means the same
at every call.  What travels by value (a closure, a lambda, what lives in a ``__main__``
that workers cannot import) or carries a state (a bound method, a ``partial``) is pickled anew for
each call, since that state may have changed.
"""

from __future__ import annotations

import pickle
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from asyncpool._core.base.names import function_name
from asyncpool._core.base.run_times import Profile
from asyncpool._core.main.main_module import is_importable
from asyncpool._core.pickling.out_of_band import MAIN
from asyncpool._core.wire.frames import MAX_NUMBER

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asyncpool._core.figures.function_figures import FunctionFigures, FunctionTotals
    from asyncpool.events import Via

    _Numbered = dict[int, Any]
else:
    _Numbered = dict

# As many functions as this are remembered by each worker.
MEMORY = 256

# And by the pool: of a function that workers have forgotten it need not find out again
# how long its calls take, without which they cannot travel ahead.
KNOWN = 4096

# Compared by identity, whatever the user has defined.
_PLAIN: frozenset[type] = frozenset((FunctionType, BuiltinFunctionType, type))


class Function:
    """One function, as the pool knows it.

    Attributes:
        number: Its name on the wire; 0 if it travels with each call.
        payload: What a ``FUNCTION`` frame carries.
        profile: How long its calls take.
        figures: What is counted of them.
        name: What it is called.
    """

    __slots__ = ("figures", "name", "number", "payload", "profile")

    def __init__(
        self, number: int, payload: bytes, name: str, figures: FunctionFigures
    ) -> None:
        self.number: int = number
        self.payload: bytes = payload
        self.profile: Profile = Profile()
        self.figures: FunctionFigures = figures
        self.name: str = name

    def known_as(self, name: str, figures: FunctionFigures) -> Function:
        """Return the same under another name, and with other figures."""
        other = Function(self.number, self.payload, name, figures)
        other.profile = self.profile
        return other


class FunctionTable:
    """The functions of a pool, each with what is known of it.

    Args:
        totals: Where their jobs are counted.
    """

    def __init__(self, totals: FunctionTotals) -> None:
        self._totals = totals
        self._functions: dict[object, Function] = {}
        self._last_number = 0

    def find(
        self, function: Callable[..., Any], name: str = "", via: Via = "submit"
    ) -> Function:
        """Return what is known of *function*.

        Args:
            function: What is called.
            name: What it is called instead of its own name, if it stands for another one.
            via: How it is called, which is counted apart.
        """
        if name or via != "submit":
            known = self.find(function)
            name = name or known.name
            return known.known_as(name, self._totals.of(name, via))
        if type(function) in _PLAIN:
            found = self._functions.get(function)
            if found is not None:
                return found
        name = function_name(function)
        if type(function) in _PLAIN:
            payload = _reference_to(function)
            if payload and self._last_number < MAX_NUMBER:
                self._last_number += 1
                return self._enter(function, self._last_number, payload, name)
        kin = _kin_of(function), name
        return self._functions.get(kin) or self._enter(kin, 0, b"", name)

    def _enter(self, key: object, number: int, payload: bytes, name: str) -> Function:
        if len(self._functions) >= KNOWN:
            del self._functions[next(iter(self._functions))]
        figures = self._totals.of(name, "submit")
        known = self._functions[key] = Function(number, payload, name, figures)
        return known


def travels_by_name(function: Callable[..., Any]) -> bool:
    """Tell whether *function* means the same at every call, whoever looks it up."""
    return type(function) in _PLAIN and bool(_reference_to(function))


class FunctionCache(_Numbered):
    """The functions that a worker remembers; both sides keep the same, by this rule."""

    def add(self, number: int, function: object = None) -> None:
        """Remember one more, and forget the oldest if there are too many."""
        if len(self) >= MEMORY:
            del self[next(iter(self))]
        self[number] = function


def _kin_of(function: Any) -> object:
    """Return what calls have in common that are likely to take equally long.

    Plain values, since neither a closure nor an object with a state may be kept.
    """
    if type(function) is partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType:
        code = function.__code__
        return code.co_filename, code.co_firstlineno, code.co_name
    return id(type(function))


def _reference_to(function: Callable[..., Any]) -> bytes:
    """Return what stands for *function* in any process, or nothing."""
    try:
        if "<" in function.__qualname__:  # a lambda, or local to another function
            return b""
        if not isinstance(getattr(function, "__self__", None), ModuleType | None):
            return b""  # a built-in method, bound to its object
        payload = pickle.dumps(function, 5)
    except Exception:  # noqa: BLE001 - there is no way to name it
        return b""
    return payload if MAIN not in payload or is_importable(function) else b""
