"""Sending by value what is in ``__main__`` and no worker can import.

A worker has one ``__main__``, which lasts as long as the worker.  A function of the
sender's ``__main__`` runs in it.  Each call brings the globals that its function needs,
each global by itself, with a digest.  The worker sets a global when it first comes, and
again when its digest has changed.  So what a job or an initializer has assigned there
stays as long as the sender's global does not change.

So functions and classes that are globals themselves travel as names, and the worker
makes them only once.  Globals that hold the same object, or need each other to be made,
form one *unit*.  The sender sends a unit as a whole, and the worker sets it as a whole.

cloudpickle does the pickling.  It is imported where it is needed, since the import
takes 20 ms.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from functools import cache, partial
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

from asyncpool._wire import scripts
from asyncpool._wire.buffers import HEAVY, OverLimitError
from asyncpool._wire.scripts import GlobalError, Unit, namespace
from asyncpool._wire.text import in_units

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from cloudpickle import Pickler as _Base
else:
    _Base = object

# How many bytes of a large buffer are hashed at once.
_CHUNK = 262_144

# A global of more bytes is warned of: it takes 10 ms for each call.
_MUCH = 1 << 24

# Those that were warned of.
_warned: set[str] = set()

# Types whose values many objects may share, since nobody changes them.
_COMMON = (str, bytes, tuple, frozenset, type, FunctionType, ModuleType)


class _Piece:
    """The pickle of one unit, or of the call.

    Attributes:
        names: The globals that it defines.
        stream: The pickled dictionary of the globals, or the pickled call; in
            parts.
        buffers: The buffers that stay out of the stream.
        refers: The globals that must exist when it is unpickled.
        reads: The globals that its functions read, each with the name of such a
            function.
        memo: The objects in it, as the pickler has recorded them.
        unit: What is sent for it, once that is known.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.stream: list[bytes] = []
        self.buffers: list[memoryview] = []
        self.refers: set[str] = set()
        self.reads: dict[str, str] = {}
        self.memo: Any = None
        self.unit: Unit | None = None


class GlobalsPickler:
    """Pickles a call, with the globals that it needs.

    Args:
        write: Pickles an object with a pickler's class; returns the stream and its buffers.
        limit: As :func:`dump` has it; no large buffer is hashed then, either.
        pause: Called now and then while one is hashed.
    """

    def __init__(
        self,
        write: Callable[
            [Callable[..., Any], object], tuple[list[bytes], list[memoryview]]
        ],
        limit: int | None,
        pause: Callable[[], None] | None,
    ) -> None:
        self._write, self._limit, self._pause = write, limit, pause
        self._script = scripts.script()
        self._own = frozenset[str]() if self._script is None else self._script.own
        self._pieces: dict[str, _Piece] = {}
        self._missing: set[str] = set()

    def pack(
        self, value: object, *, warn: bool
    ) -> tuple[list[bytes], list[memoryview]]:
        """Return the stream of *value*, with its globals, and the buffers."""
        call = self._pickle(value)
        self._collect(call)
        if not self._pieces and not self._missing:
            return call.stream, call.buffers
        self._join()
        # What runs code as it is made comes last: a metaclass, or the __setstate__ of a global, may
        # read other globals.
        pieces = dict.fromkeys(self._pieces.values())
        in_order = sorted(pieces, key=lambda piece: bool(piece.refers))
        units = [self._unit(piece) for piece in in_order]
        for piece in in_order if warn else ():
            size = sum(map(len, (*piece.stream, *piece.buffers)))
            if size > _MUCH and not piece.names <= _warned:
                self._warn(piece.names, in_units(size))
        missing, buffers = tuple(sorted(self._missing)), _wrap(call.buffers)
        what = [*map(tuple, units)], missing, call.stream, buffers
        return self._write(pickle.Pickler, _Made(scripts.unpack, what))

    def _pickle(self, value: object, names: Iterable[str] = ()) -> _Piece:
        piece = _Piece(frozenset(names))
        make = partial(_pickler_of_calls(), piece, self._own)
        piece.stream, piece.buffers = self._write(make, value)
        return piece

    def _collect(self, call: _Piece) -> None:
        """Pickle all globals that are needed, each by itself."""
        main = namespace()
        pieces, wanted = self._pieces, [call]
        for piece in wanted:
            for name in (*piece.refers, *piece.reads):
                if name in pieces or name in self._own:
                    continue
                if name not in main:
                    self._missing.add(name)
                    continue
                try:
                    pieces[name] = self._define(name, main[name])
                except (OverLimitError, GlobalError):
                    raise
                except Exception as error:
                    reader = piece.reads.get(name)
                    raise self._refusal(name, main[name], reader, error) from error
                wanted.append(pieces[name])

    def _define(self, name: str, value: object) -> _Piece:
        """Pickle one global, unless it is a function that has not changed."""
        key = _constancy(value, self._own)
        if key is None:
            return self._pickle({name: value}, (name,))
        known = _functions.get(value)
        if known is None or known[:2] != (name, key):
            piece = self._pickle({name: value}, (name,))
            piece.memo = None  # nothing in it can be shared with others and changed
            known = _functions[value] = name, key, piece
        return known[2]

    def _refusal(
        self, name: str, value: object, reader: str | None, error: Exception
    ) -> GlobalError:
        which = f"the global {name!r}, a {type(value).__qualname__},"
        which = f"{reader} needs {which} which" if reader else which
        return GlobalError(f"{which} cannot be pickled ({error}): {self._way_out()}")

    def _warn(self, names: frozenset[str], size: str) -> None:
        """Warn of a large global, once."""
        _warned.update(names)
        name = min(names)
        kind = type(namespace()[name]).__qualname__
        warnings.warn(
            f"the global {name!r}, a {kind} of {size}, is pickled anew for each call that needs it, "
            f"to see whether it has changed: have an initializer make it, or {self._way_out()}",
            RuntimeWarning,
            stacklevel=1,
        )

    def _way_out(self) -> str:
        if scripts.is_abroad():
            return (
                "put it into a module that the workers, which belong to another program, "
                "can import"
            )
        if self._script is None:
            return (
                "put it into a module, or give the script an "
                "`if __name__ == '__main__':` guard"
            )
        return "put it in front of the script's guard"

    def _join(self) -> None:
        """Join the pieces that hold the same object, or refer to each other."""
        main = namespace()
        for group in self._groups():
            together = {name: main[name] for name in self._pieces if name in group}
            piece = self._pickle(together, group)
            self._pieces.update(dict.fromkeys(group, piece))

    def _groups(self) -> list[set[str]]:
        pieces = self._pieces
        groups = {name: {name} for name in pieces}

        def join(one: str, other: str) -> None:
            if groups[one] is not groups[other]:
                groups[one] |= groups[other]
                groups.update(dict.fromkeys(groups[other], groups[one]))

        with_data = [name for name, piece in pieces.items() if piece.memo is not None]
        holders: dict[int, str] = {}
        for name in with_data if len(with_data) > 1 else ():
            for key, (number, thing) in pieces[name].memo.copy().items():
                # The first one is the dictionary that was made for pickling.
                if number and not isinstance(thing, _COMMON):
                    join(holders.setdefault(key, name), name)
        for name, piece in pieces.items():
            for other in piece.refers - {name} - self._own:
                if name in self._reach(other):
                    join(name, other)
        found = {id(group): group for group in groups.values()}
        return [group for group in found.values() if len(group) > 1]

    def _reach(self, name: str) -> set[str]:
        """Return *name*, and all globals that must exist before it can be made."""
        reached, todo = {name}, [name]
        while todo:
            new = self._pieces[todo.pop()].refers & self._pieces.keys() - reached
            reached |= new
            todo += new
        return reached

    def _unit(self, piece: _Piece) -> Unit:
        if piece.unit is None or piece.refers:
            names = tuple(sorted(piece.names))
            # If a global that it refers to has changed and is made anew, it must be made
            # anew, too.
            parts = [self._pieces[name] for name in sorted(self._reach(names[0]))]
            digest = hash(tuple(self._digests_of(parts)))
            piece.unit = Unit(names, digest, piece.stream, _wrap(piece.buffers))
        return piece.unit

    def _digests_of(self, pieces: Iterable[_Piece]) -> Iterator[int]:
        """Yield the digests of what is in *pieces*."""
        for piece in pieces:
            yield from map(hash, piece.stream)
            for buffer in piece.buffers:
                if self._limit is not None and len(buffer) > HEAVY:
                    raise OverLimitError
                for start in range(0, len(buffer), _CHUNK):
                    yield hash(bytes(buffer[start : start + _CHUNK]))  # 0.1 ms
                    if self._pause is not None:
                        self._pause()


# The functions that have been pickled: under which name of a global, and in which
# state.
_functions: WeakKeyDictionary[object, tuple[str, tuple[Any, ...], _Piece]]
_functions = WeakKeyDictionary()


def _constancy(function: object, own: frozenset[str]) -> tuple[Any, ...] | None:
    """Return what the pickle of a function depends on; ``None`` if it depends on more than that."""
    if (
        not isinstance(function, FunctionType)
        or function.__closure__
        or function.__defaults__
        or function.__kwdefaults__
        or vars(function)
        or not all(type(hint) is str for hint in function.__annotations__.values())
    ):
        return None
    names, main = _names_in(function.__code__), function.__globals__
    hints = tuple(function.__annotations__.items())
    # If it reads modules, its pickle may depend on parts of them.
    modules = any(type(main.get(name)) is ModuleType for name in names)
    parts = len(sys.modules) if modules else 0
    label = function.__name__, function.__qualname__, function.__module__
    # A function that is a global of another name is sent as a reference to its own
    # name, if it is still there.
    there = scripts.is_at(function.__qualname__, function)
    found = tuple(name in main for name in names)
    return function.__code__, label, function.__doc__, hints, parts, there, found, own


class _Made:
    """Stands for what the other side makes by a call.

    Args:
        how: The function, and its arguments.
    """

    def __init__(self, *how: Any) -> None:
        self._how = how

    def __reduce__(self) -> tuple[Any, ...]:
        return self._how


def _wrap(buffers: Iterable[memoryview]) -> list[pickle.PickleBuffer]:
    return [pickle.PickleBuffer(buffer) for buffer in buffers]


class _Calls(_Base):
    """Pickles an object for a worker."""

    watch: Callable[[Any], None] | None = None

    def __init__(
        self, piece: _Piece, own: frozenset[str], *file: Any, **options: Any
    ) -> None:
        super().__init__(*file, **options)
        self._piece = piece
        self._own = own
        self._main = namespace()

    def dump(self, obj: object) -> None:
        super().dump(obj)
        if self._piece.names:
            self._piece.memo = self.memo

    def reducer_override(self, obj: Any) -> Any:
        if self.watch is not None:
            self.watch(obj)
        if type(obj) is scripts.LAZY:
            return scripts.resolved(obj)
        named = type(obj).__name__ in _KEYWORDS
        if named or scripts.is_definition(obj):
            if scripts.is_importable(obj):
                return NotImplemented
            path = self._path_of(obj)
            if path:
                self._piece.refers.add(path.partition(".")[0])
                return scripts.own_object, (path,)
        if named:
            return of_named_type(obj)
        if type(obj) is scripts.CACHED:
            how = obj.cache_parameters()
            return scripts.make_cached, (how["maxsize"], how["typed"], obj.__wrapped__)
        return scripts.mended(obj, super().reducer_override(obj))

    def _path_of(self, thing: Any) -> str:
        """Return where *thing* is in ``__main__``, unless it must be pickled now."""
        if getattr(thing, "__module__", None) != "__main__":
            return ""
        path = scripts.path_of(thing)
        if path.partition(".")[0] in self._piece.names or not scripts.is_at(
            path, thing
        ):
            return ""
        return path

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        if type(func) is not FunctionType:  # it is Nuitka's, whose code is no bytecode
            raise pickle.PicklingError("it is compiled: put it at the top of a module")
        reduced = super()._dynamic_function_reduce(func)
        if func.__globals__ is not self._main:
            return reduced
        make, (code, _, *rest), (state, slots), *others = reduced
        reads, builtins = _names_in(code), vars(sys.modules["builtins"])
        for name in reads:
            if name in slots["__globals__"] or name not in builtins:
                self._piece.reads.setdefault(name, f"{func.__qualname__}()")
        slots["__globals__"] = {}
        # The dictionary of the worker's __main__.
        place = _Made(scripts.space, (not self._own.isdisjoint(reads),))
        return make, (code, place, *rest), (state, slots), *others


@cache
def _pickler_of_calls() -> Any:
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    return type("_CallPickler", (_Calls, cloudpickle.Pickler), {})


def _names_in(code: Any) -> frozenset[str]:
    """Return the names of the globals that *code* reads, sets or deletes."""
    from cloudpickle.cloudpickle import _extract_code_globals  # noqa: PLC0415

    return frozenset(_extract_code_globals(code))


def _parameter(parameter: Any) -> dict[str, Any]:
    keywords = ("bound", "covariant", "contravariant")
    values = {key: getattr(parameter, f"__{key}__", None) for key in keywords}
    return {key: value for key, value in values.items() if value}


# What makes another one: the keywords of the type's constructor, beside the name.  pickle
# sends these by their names, and a worker's ``__main__`` does not have them.
_KEYWORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "NewType": lambda new: {"tp": new.__supertype__},
    "ParamSpec": _parameter,
    "TypeVarTuple": _parameter,
    "TypeAliasType": lambda alias: {
        "value": alias.__value__,
        "type_params": alias.__type_params__,
    },
}


def of_named_type(thing: Any) -> Any:
    """Return how to reduce *thing*, whose type has one of these names."""
    cls = type(thing)
    if thing.__module__ != "__main__" or not cls.__module__.startswith("typing"):
        return NotImplemented
    return make_named_type, (cls, thing.__name__, _KEYWORDS[cls.__name__](thing))


def make_named_type(cls: Any, name: str, keywords: dict[str, Any]) -> Any:
    """Make a type of this name in ``__main__``."""
    # These types take their module from the globals of the function that calls them.
    builtins = globals()["__builtins__"]  # 3.12 looks for them there
    own = {"__name__": "__main__", "__builtins__": builtins}
    call = FunctionType(_call.__code__, own)
    return call(cls, name, keywords)


def _call(cls: Any, name: str, keywords: dict[str, Any]) -> Any:
    return cls(name, **keywords)
