"""Which functions a worker remembers, so that a call only needs to send a number.

These are the functions that travel by reference, since such a reference means the same
at every call.  Other functions travel by value (a closure, a lambda, a function of a
``__main__`` that workers cannot import) or have a state (a bound method, a
``partial``).  The pool pickles these anew for each call, since that state may have
changed.
"""

from __future__ import annotations

import pickle
from functools import partial
from itertools import count
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING

from asyncpool._core.job_options import JobTraits
from asyncpool._wire.buffers import MAIN
from asyncpool._wire.frames import MAX_NUMBER
from asyncpool._wire.pickling import PICKLE, Serializer
from asyncpool._wire.scripts import is_importable
from asyncpool._wire.text import function_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from asyncpool._core.figures import FunctionFigures, FunctionTotals
    from asyncpool.events import Via

# How many functions the pool remembers.  If workers have forgotten a function, the pool
# still knows how long its calls take, and so can send them ahead.
KNOWN = 4096

# These are compared by identity, whatever the user has defined.
_PLAIN: frozenset[type] = frozenset((FunctionType, BuiltinFunctionType, type))


class Function:
    """One function, as the pool knows it.

    Attributes:
        number: Its number on the wire; 0 if it travels with each call.
        payload: What a ``FUNCTION`` frame carries.
        traits: How long its calls take.
        figures: Counts and times of its jobs.
        name: Its name in errors and reports.
        serializer: How its calls and outcomes travel.
    """

    __slots__ = ("figures", "name", "number", "payload", "serializer", "traits")

    def __init__(
        self,
        number: int,
        payload: bytes,
        name: str,
        figures: FunctionFigures,
        serializer: Serializer = PICKLE,
    ) -> None:
        self.number: int = number
        self.payload: bytes = payload
        self.traits: JobTraits = JobTraits()
        self.figures: FunctionFigures = figures
        self.name: str = name
        self.serializer: Serializer = serializer

    def known_as(self, name: str, figures: FunctionFigures) -> Function:
        """Return the same function under another name, with other figures."""
        other = Function(self.number, self.payload, name, figures, self.serializer)
        other.traits = self.traits
        return other


class FunctionTable:
    """The functions of a pool, and what the pool knows of each.

    Args:
        totals: Where their jobs are counted.

    Attributes:
        known: What is known of functions: by themselves, or by their kin and their name.
    """

    # The types of functions that may be known by themselves, and not only by their kin.
    _plain: frozenset[type] = _PLAIN

    # The class of jobs for each way to call a function, if it is not the usual one.
    job_types: dict[Via, Any] | None = None

    def __init__(self, totals: FunctionTotals) -> None:
        self._totals = totals
        self.known: dict[object, Function] = {}
        self._numbers: Iterator[int] = count(1)

    def find(
        self, function: Callable[..., Any], name: str = "", via: Via = "submit"
    ) -> Function:
        """Return what the pool knows of *function*.

        Args:
            function: The function.
            name: Its name, if it stands for another function.
            via: How it is called; each way has figures of its own.
        """
        if name or via != "submit":
            known = self.find(function)
            name = name or known.name
            return known.known_as(name, self._totals.of(name, via))
        if type(function) in self._plain:
            found = self.known.get(function)
            if found is not None:
                return found
        name = function_name(function)
        payload, serializer = self._describe(function)
        number = next(self._numbers) if payload else 0
        if 0 < number <= MAX_NUMBER:
            return self._enter(function, number, payload, name, serializer)
        kin = _kin_of(function), name
        return self.known.get(kin) or self._enter(kin, 0, b"", name, serializer)

    def _describe(self, function: Callable[..., Any]) -> tuple[bytes, Serializer]:
        """Return what a ``FUNCTION`` frame carries, or nothing, and how its calls travel."""
        plain = type(function) in self._plain
        return _reference_to(function) if plain else b"", PICKLE

    def _enter(
        self,
        key: object,
        number: int,
        payload: bytes,
        name: str,
        serializer: Serializer,
    ) -> Function:
        if len(self.known) >= KNOWN:
            del self.known[next(iter(self.known))]
        figures = self._totals.of(name, "submit")
        known = Function(number, payload, name, figures, serializer)
        self.known[key] = known
        return known


def travels_by_name(function: Callable[..., Any]) -> bool:
    """Tell whether *function* means the same at every call, in every process."""
    return type(function) in _PLAIN and bool(_reference_to(function))


def _kin_of(function: Any) -> object:
    """Return a key that is the same for calls that probably take equally long.

    The key has plain values only, since the pool must not keep a closure or an object
    with a state.
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
    """Return the bytes that stand for *function* in any process, or nothing."""
    try:
        if "<" in function.__qualname__:  # a lambda, or local to another function
            return b""
        if not isinstance(getattr(function, "__self__", None), ModuleType | None):
            return b""  # a built-in method, bound to its object
        payload = pickle.dumps(function, 5)
    except Exception:  # noqa: BLE001 - it cannot be named
        return b""
    return payload if MAIN not in payload or is_importable(function) else b""
