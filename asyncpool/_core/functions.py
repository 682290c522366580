"""What the pool knows of the functions that it calls: how they travel, and how long they take.

The run times of a function decide whether its jobs may travel ahead.  A job may wait inside a
worker, behind another one, only if both are known to be short.  The pool knows what it has measured:
an exponential average of the run times of the same function, in microseconds.  One long call among
many short ones raises the average at once, and the average forgets it after some dozens of calls.

A worker remembers some functions, so that a call only needs to send a number.  These are the
functions that travel by reference, since such a reference means the same at every call.  Other
functions travel by value (a closure, a lambda, a function of a ``__main__`` that workers cannot
import) or have a state (a bound method, a ``partial``).  The pool pickles these anew for each call,
since that state may have changed.
"""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from functools import partial
from itertools import count
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING
from weakref import WeakSet

from asyncpool._wire.frames import MAX_NUMBER
from asyncpool._wire.pickling import MAIN, PICKLE, Serializer
from asyncpool._wire.scripts import is_importable
from asyncpool._wire.text import function_name
from asyncpool.errors import JobNotPicklableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from asyncpool._core.figures import FunctionFigures, FunctionTotals
    from asyncpool._wire.buffers import Packed
    from asyncpool.events import Via

# How much work a worker may have in flight at once.  If a job waits there for a slow one,
# the pool revokes it after some milliseconds.
BUDGET = 16000.0

# A worker gets more jobs when it has this much left, so that it gets several at a time.
REFILL_BELOW = BUDGET / 2

# The most jobs that a worker with one lane has in flight.  More jobs gain nothing: 128
# jobs without any work are half a millisecond.
DEEPEST = 128
# The least cost that a call counts with.
LEAST_COST = BUDGET / DEEPEST

# The cost of a job of which nothing is known: more than any budget.
UNKNOWN_COST = 1e9

_WEIGHT = 1 / 8


class JobTraits:
    """By what the core places a job: what it is expected to cost, and whether it must run alone.

    All jobs of a function share one, but for those that must run in a certain worker.

    Args:
        exclusive: As below.

    Attributes:
        cost: How long the next call is expected to take.
        exclusive: Whether no other job may be sent while such a job is the last one.
        key: The hash of the key of such a job, if it has one.
    """

    __slots__ = ("cost", "exclusive")

    key: int | None = None

    def __init__(self, *, exclusive: bool = False) -> None:
        self.cost: float = UNKNOWN_COST
        self.exclusive: bool = exclusive

    @property
    def function(self) -> JobTraits:
        """The traits of the function, which all its jobs share."""
        return self

    def note(self, duration: float) -> None:
        """Record a call that took *duration*."""
        cost, duration = self.cost, max(duration, LEAST_COST)
        if cost == UNKNOWN_COST:
            self.cost = duration
        else:
            cost += (duration - cost) * _WEIGHT
            # The average would approach the least cost and never reach it: so it snaps to it.
            self.cost = LEAST_COST if cost < LEAST_COST + 1 else cost


# The traits of jobs behind which no other job waits, whatever is known of them:
# streams, and jobs whose large arguments take a while to send, so that nothing else can
# be sent meanwhile.
STREAM_TRAITS = JobTraits()
LOADING_TRAITS = JobTraits(exclusive=True)

# The traits of pinned jobs.  No other worker may run them, and no job begins beside
# them: each later job finds what they have done.
PINNED = JobTraits(exclusive=True)


class SessionTraits(JobTraits):
    """The traits of a call of a session: nothing begins beside it, or behind it.

    Args:
        session: The session.
    """

    __slots__ = ("session",)

    def __init__(self, session: int) -> None:
        super().__init__(exclusive=True)
        self.session: int = session


class KeyedTraits(JobTraits):
    """The traits of a job that has a key: that of its function, and the key.

    Args:
        function: The traits of its function, whose run times change later, too.
        key: The hash of the key.
    """

    __slots__ = ("function", "key")

    def __init__(self, function: JobTraits, key: int) -> None:
        self.function: JobTraits = function  # pyright: ignore[reportIncompatibleMethodOverride]
        self.key: int | None = key
        self.exclusive = function.exclusive

    # Reads and writes go to the traits of the function.
    @property
    def cost(self) -> float:
        """How long the next call of the function is expected to take."""
        return self.function.cost

    @cost.setter
    def cost(self, cost: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.function.cost = cost


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
        code: Its code object when workers were told of it, if it has a number: a reload may change it.
        traits: How long its calls take.
        figures: Counts and times of its jobs.
        name: Its name in errors and reports.
        serializer: How its calls and outcomes travel.
    """

    __slots__ = ("code", "figures", "name", "number", "payload", "serializer", "traits")

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
        self.code: object = None
        self.traits: JobTraits = JobTraits()
        self.figures: FunctionFigures = figures
        self.name: str = name
        self.serializer: Serializer = serializer

    def known_as(self, name: str, figures: FunctionFigures) -> Function:
        """Return the same function under another name, with other figures."""
        other = Function(self.number, self.payload, name, figures, self.serializer)
        other.traits = self.traits
        return other


class ReloadWatch:
    """Knows which modules were reloaded in this process, by a finder that finds nothing.

    Workers go on with the module that they have imported.  So after a reload, a call that needs the
    module would run old code, whatever way it needs it.  Libraries do not count: nobody edits them
    while a program runs, and some reload a module of theirs, or of Python.

    Attributes:
        names: Those modules, in the order of the reloads.
        listeners: Have their ``refresh_fast_path()`` called when there is another one.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.listeners: WeakSet[Any] = WeakSet()

    def watch(self, listener: object) -> None:
        """Tell *listener* of each reload from now on."""
        self.listeners.add(listener)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, _: object = None, target: Any = None) -> None:
        """Note a reload, which is the only search that has a *target*."""
        if target is not None and _is_own(target):
            self.names.append(name)
            for listener in tuple(self.listeners):
                listener.refresh_fast_path()


RELOADS = ReloadWatch()


def _is_own(module: ModuleType) -> bool:
    library = module.__name__.partition(".")[0] in sys.stdlib_module_names
    return not library and "-packages/" not in (getattr(module, "__file__", "") or "")


def modules_that_use(names: Iterable[str]) -> list[str]:
    """Return *names*, and all modules that use them, directly or through others.

    A module uses another if one of its globals is that module, or a function or class of it.
    """
    users: defaultdict[str, set[str]] = defaultdict(set)
    for user, module in sys.modules.copy().items():
        if type(module) is not ModuleType or not _is_own(module):
            continue
        for value in tuple(vars(module).values()):
            if type(value) is ModuleType:
                users[value.__name__].add(user)
            elif isinstance(value, FunctionType | type):
                users[value.__module__].add(user)
    found = list(dict.fromkeys(names))
    for name in found:  # it grows
        found += users[name].difference(found, ("__main__", "__mp_main__"))
    return found


def check_reloaded(name: str, pickled: Packed, modules: Iterable[str]) -> None:
    """Check that a call needs none of *modules*, of which workers may have older code.

    Raises:
        JobNotPicklableError: If its pickle contains the name of one.  A reference to anything in
            the module contains it, and so does the code of a function that travels by value.
    """
    parts = (pickled,) if isinstance(pickled, bytes) else pickled.pieces
    pieces = [part for part in parts if isinstance(part, bytes)]
    for module in modules:
        data = module.encode()
        reference = b"\x8c%c%b" % (len(data) & 0xFF, data)
        if any(reference in piece for piece in pieces):
            raise _old_code(
                f"{name} needs {module}: that module, or one that it uses, was reloaded after "
                "workers may have imported it"
            )


def _old_code(what: str) -> JobNotPicklableError:
    """Return the error of a call for which workers may have older code, as *what* says."""
    text = (
        f"{what}. Call 'await pool.roll()' for workers that import it anew; if preload or the "
        "script imports it, make another pool"
    )
    return JobNotPicklableError(text, direction="arguments", name="fn")


class _Reloaded(Serializer):
    """Refuses the calls of a function whose module was reloaded after workers may have imported it.

    They go on with the module that they have imported, so such a call would run old code, or
    new code that calls old code.
    """

    __slots__ = ()

    @staticmethod
    def pack_job(function: Callable[..., Any], *_: object, **__: object) -> Packed:
        raise _old_code(
            f"{function_name(function)} is not what workers have imported by that name: "
            f"{function.__module__} was reloaded, or the function was replaced"
        )


class FunctionTable:
    """The functions of a pool, and what the pool knows of each.

    Args:
        totals: Where their jobs are counted.

    Attributes:
        known: What is known of functions: by the function itself, or, where none may be kept, by its
            name and what it has in common with those that take equally long (:func:`_kin_of`).
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
        found = self.known.get(function) if type(function) in self._plain else None
        code = function.__code__ if type(function) is FunctionType else None
        # Some tools that reload modules give old functions the code of new ones.
        if found is not None and found.code is code:
            return found
        name = function_name(function)
        payload, serializer = self._describe(function)
        figures = self._totals.of(name, "submit")
        # Another function has this reference: its module was reloaded.
        replaced = payload and any(it.payload == payload for it in self.known.values())
        if found is not None or replaced:
            return Function(0, b"", name, figures, _Reloaded())
        number = next(self._numbers) if payload else 0
        if 0 < number <= MAX_NUMBER:
            known = Function(number, payload, name, figures, serializer)
            known.code = code
            return self._enter(function, known)
        kin = _kin_of(function), name
        known = Function(0, b"", name, figures, serializer)
        return self.known.get(kin) or self._enter(kin, known)

    def _describe(self, function: Callable[..., Any]) -> tuple[bytes, Serializer]:
        """Return what a ``FUNCTION`` frame carries, or nothing, and how its calls travel."""
        plain = type(function) in self._plain
        return _reference_to(function) if plain else b"", PICKLE

    def reloaded(self) -> list[Any]:
        """Return the functions that workers would import as something else now."""
        numbered: Any = [it for it in self.known.items() if it[1].number]
        return [
            function
            for function, known in numbered
            if (self._describe(function)[0], getattr(function, "__code__", None))
            != (known.payload, known.code)
        ]

    def _enter(self, key: object, known: Function) -> Function:
        if len(self.known) >= KNOWN:
            del self.known[next(iter(self.known))]
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
