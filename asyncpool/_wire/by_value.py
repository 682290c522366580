"""Sending by value what is in ``__main__`` and no worker can import.

A worker has one ``__main__``, which lasts as long as the worker.  A function of the
sender's ``__main__`` runs in it.  Each call brings the globals that its function needs,
each global by itself, with a digest.  The worker sets a global when it first comes, and
again when its digest has changed.  So what a job or an initializer has assigned there
stays as long as the sender's global does not change.

So functions and classes that are globals themselves travel as names, and the worker
makes them only once.  Globals that hold the same object, or need each other to be made,
form one *unit*.  The sender sends a unit as a whole, and the worker sets it as a whole.

cloudpickle does the pickling.  What it leaves out of classes and code, or cannot send, is
mended here, for calls and for results.  Its import takes 20 ms, so who needs this module
imports it at that moment.
"""

from __future__ import annotations

import functools
import operator
import pickle
import sys
import warnings
from enum import member
from functools import cached_property, partial, singledispatchmethod
from types import CodeType, FunctionType, ModuleType
from weakref import WeakKeyDictionary

import cloudpickle
from cloudpickle.cloudpickle import (
    _class_setstate,
    _extract_code_globals,
    _get_or_create_tracker_id,
    _make_skeleton_class,
    _make_skeleton_enum,
)

from asyncpool._wire import scripts
from asyncpool._wire.buffers import HEAVY, OverLimitError
from asyncpool._wire.scripts import GlobalError, Unit, namespace
from asyncpool._wire.text import in_units

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeAlias

    from asyncpool._wire.buffers import Pause

    Written: TypeAlias = tuple[list[bytes], list[memoryview]]

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
    """

    stream: list[bytes]
    buffers: list[memoryview]
    memo: Any = None

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.refers: set[str] = set()
        self.reads: dict[str, str] = {}


class GlobalsPickler:
    """Pickles a call, with the globals that it needs.

    Args:
        write: Pickles an object with a pickler's class; returns the stream and its buffers.
        limit: As :func:`dump` has it; no large buffer is hashed then, either.
        pause: Called now and then while one is hashed.
    """

    def __init__(
        self,
        write: Callable[[Callable[..., Any], object], Written],
        limit: int | None,
        pause: Pause | None,
    ) -> None:
        self._write, self._limit, self._pause = write, limit, pause
        self._script = scripts.script()
        self._own = frozenset[str]() if self._script is None else self._script.own
        self._main = namespace()
        self._pieces: dict[str, _Piece] = {}
        self._missing: set[str] = set()

    def pack(self, value: object, *, warn: bool) -> Written:
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
        buffers = [*map(pickle.PickleBuffer, call.buffers)]
        what = [*map(tuple, units)], tuple(sorted(self._missing)), call.stream, buffers
        return self._write(pickle.Pickler, _Made(scripts.unpack, what))

    def _pickle(self, value: object, names: Iterable[str] = ()) -> _Piece:
        piece = _Piece(names)
        make = partial(_CallPickler, piece, self._own)
        piece.stream, piece.buffers = self._write(make, value)
        return piece

    def _collect(self, call: _Piece) -> None:
        """Pickle all globals that are needed, each by itself."""
        main, pieces, wanted = self._main, self._pieces, [call]
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
                    which = f"the global {name!r}, a {type(main[name]).__qualname__},"
                    if reader := piece.reads.get(name):
                        which = f"{reader} needs {which} which"
                    text = f"{which} cannot be pickled ({error}): {self._way_out()}"
                    raise GlobalError(text) from error
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

    def _warn(self, names: frozenset[str], size: str) -> None:
        """Warn of a large global, once."""
        _warned.update(names)
        name = min(names)
        kind = type(self._main[name]).__qualname__
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
        pieces = self._pieces
        with_data = [name for name, piece in pieces.items() if piece.memo is not None]
        holders: dict[int, str] = {}
        joined = {
            (holders.setdefault(key, name), name)
            for name in (with_data if len(with_data) > 1 else ())
            for key, (number, thing) in pieces[name].memo.copy().items()
            # The first one is the dictionary that was made for pickling.
            if number and not isinstance(thing, _COMMON)
        }
        joined |= {
            (name, other)
            for name, piece in pieces.items()
            for other in piece.refers - self._own
            if name in self._reach(other)
        }
        groups: list[set[str]] = []
        for names in joined:
            near = [group for group in groups if not group.isdisjoint(names)]
            groups = [group for group in groups if group not in near]
            groups.append(set(names).union(*near))
        for group in groups:
            if len(group) > 1:
                together = {name: self._main[name] for name in pieces if name in group}
                pieces.update(dict.fromkeys(group, self._pickle(together, group)))

    def _reach(self, name: str) -> list[str]:
        """Return *name*, and all globals that must exist before it can be made."""
        reached = [name]  # the list grows during the loop
        for one in reached:
            needed = self._pieces[one].refers & self._pieces.keys()
            reached += needed.difference(reached)
        return reached

    def _unit(self, piece: _Piece) -> Unit:
        names = tuple(sorted(piece.names))
        # If a global that it refers to has changed and is made anew, it must be made
        # anew, too.
        parts = [self._pieces[name] for name in sorted(self._reach(names[0]))]
        digest = hash(tuple(self._digests_of(parts)))
        buffers = [*map(pickle.PickleBuffer, piece.buffers)]
        return Unit(names, digest, piece.stream, buffers)

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
    names, main = _extract_code_globals(function.__code__), function.__globals__
    hints = tuple(function.__annotations__.items())
    # If it reads modules, its pickle may depend on parts of them.
    modules = any(type(main.get(name)) is ModuleType for name in names)
    parts = len(sys.modules) if modules else 0
    label = function.__name__, function.__qualname__, function.__module__
    # A function that is a global of another name is sent as a reference to its own
    # name, if it is still there.
    there = scripts.path_of(function)
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


def _of_cached_property(prop: Any) -> Any:
    state = {name: value for name, value in prop.__dict__.items() if name != "lock"}
    return cached_property, (prop.func,), state


def _of_dispatching_method(method: Any) -> Any:
    return singledispatchmethod, (method.func,), {"dispatcher": method.dispatcher}


def _of_code(code: CodeType) -> Any:
    """Return how to reduce *code* with the name of its file, for tracebacks and logs.

    cloudpickle has another name in its place since 3.1.3.
    """
    reduce: Any = cloudpickle.Pickler.dispatch_table[CodeType]
    make, args = reduce(code)
    return make, tuple(code.co_filename if it == _NO_FILE else it for it in args)


def _of_view(view: memoryview) -> Any:
    """Return how to reduce *view* with its format and shape, of which cloudpickle loses both."""
    if len(view.format.lstrip("@")) != 1:
        text = f"a memoryview of {view.format!r} cannot be made elsewhere: send what it views"
        raise pickle.PicklingError(text)
    return make_view, (view.tobytes(), view.format, view.shape)


_MENDED: dict[type, Callable[[Any], Any]] = {
    CodeType: _of_code,
    memoryview: _of_view,
    cached_property: _of_cached_property,
    singledispatchmethod: _of_dispatching_method,
}


class ResultPickler(cloudpickle.Pickler):
    """Pickles an object for the process with the real ``__main__``.

    What came from that process goes back as a name.  The name means the object there,
    even if the worker has changed its own.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is scripts.LAZY:  # the other side gets what is imported
            return operator.getitem, ((obj.resolve(),), 0)
        reference = self._reference_to(obj)
        if reference is not None:
            return reference
        return _mended(obj, super().reducer_override(obj))

    def _reference_to(self, obj: Any) -> Any:
        """Return how to reduce what is there already, or has a way of its own."""
        if scripts.is_definition(obj):
            path: str = obj.__qualname__
            if scripts.has_come(path) and scripts.is_at(path, obj):
                is_class = isinstance(obj, type)
                tracker = _get_or_create_tracker_id(obj) if is_class else None
                return scripts.own_object, (path, tracker)
        return None


class _CallPickler(ResultPickler):
    """Pickles an object for a worker."""

    watch: Callable[[Any], None] | None = None

    def __init__(
        self, piece: _Piece, own: frozenset[str], *file: Any, **options: Any
    ) -> None:
        super().__init__(*file, **options)
        self._piece, self._own, self._main = piece, own, namespace()

    def dump(self, obj: object) -> None:
        super().dump(obj)
        if self._piece.names:
            self._piece.memo = self.memo

    def reducer_override(self, obj: Any) -> Any:
        if self.watch is not None:
            self.watch(obj)
        return super().reducer_override(obj)

    def _reference_to(self, obj: Any) -> Any:
        cls: Any = type(obj)
        keywords = _KEYWORDS.get(cls.__name__)
        if keywords or scripts.is_definition(obj):
            if scripts.is_importable(obj):
                return NotImplemented
            path = scripts.path_of(obj)
            name, _, _ = path.partition(".")
            # What is being pickled is no reference to itself.
            if name and name not in self._piece.names:
                self._piece.refers.add(name)
                return scripts.own_object, (path,)
        if keywords and obj.__module__ == "__main__" and cls.__module__[:6] == "typing":
            return make_named_type, (cls, obj.__name__, keywords(obj))
        if cls is scripts.CACHED:
            how = obj.cache_parameters()
            return make_cached, (how["maxsize"], how["typed"], obj.__wrapped__)
        return None

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        if type(func) is not FunctionType:  # it is Nuitka's, whose code is no bytecode
            raise pickle.PicklingError("it is compiled: put it at the top of a module")
        reduced = super()._dynamic_function_reduce(func)
        if func.__globals__ is not self._main:
            return reduced
        make, (code, _, *rest), (state, slots), *others = reduced
        reads, builtins = _extract_code_globals(code), vars(sys.modules["builtins"])
        for name in reads:
            if name in slots["__globals__"] or name not in builtins:
                self._piece.reads.setdefault(name, f"{func.__qualname__}()")
        slots["__globals__"] = {}
        # The dictionary of the worker's __main__.
        place = _Made(scripts.space, (not self._own.isdisjoint(reads),))
        return make, (code, place, *rest), (state, slots), *others


# The code of the functions that singledispatch makes.
_DISPATCHES = getattr(functools.singledispatch(id), "__code__")  # noqa: B009 - for mypy

_NO_FILE = "<dynamic-code>"  # as cloudpickle calls the file of all code

# What an enum gives each of its members.  All else is what the enum's own code has set.
_OF_MEMBERS = {"_value_", "_name_", "__objclass__", "_sort_order_"}


def _mended(obj: Any, reduced: Any) -> Any:
    """Return how to reduce *obj*, which cloudpickle's ``reducer_override`` has *reduced*.

    A class keeps its ``__slots__``.  Without them its instances would have a
    ``__dict__`` in the worker, and could not come back.  A ``cached_property`` is sent
    without its lock, which it has before Python 3.12, and what ``singledispatch`` has
    made without its cache.  Code keeps the name of its file.  No class is made with another call of
    ``__init_subclass__``.  That method has run when the class was defined, and what it has done comes
    with the class and the globals.  In the worker it would do so twice, without its keywords, and
    before the globals that it reads are there.
    """
    if reduced is NotImplemented:
        reduce = _MENDED.get(type(obj))
        return reduced if reduce is None else reduce(obj)
    if reduced[0] is _make_skeleton_class:
        return _of_class(obj, reduced)
    if reduced[0] is _make_skeleton_enum:
        return _of_enum(obj, reduced)
    if getattr(obj, "__code__", None) is _DISPATCHES:
        kinds = dict(obj.registry)
        make = functools.singledispatch
        return make, (kinds.pop(object),), kinds, None, None, register_all
    if getattr(obj, "__qualname__", "") == "Generic.__class_getitem__":
        # Python 3.11 has it in each generic NamedTuple, and pickle finds a method there.
        getter = operator.attrgetter("__class_getitem__.__func__")
        return getter, (sys.modules["typing"].Generic,)
    return reduced


def _of_class(cls: type, reduced: Any) -> Any:
    make, (metaclass, name, _, namespace, *others), *rest = reduced
    if metaclass.__module__.startswith("msgspec."):
        raise pickle.PicklingError("nobody can send a msgspec.Struct by value")
    bases = cls.__bases__
    # The metaclass of TypedDict adds this base itself, and allows no other one.
    if metaclass.__name__ == "_TypedDictMeta":
        bases = tuple(base for base in bases if base is not dict)
    # cloudpickle passes __orig_bases__ as the bases.  NamedTuple and TypedDict put
    # others in their place, make fields of the namespace, and allow no __slots__.
    has = {**vars(cls), "__qualname__": cls.__qualname__}
    kept = ("__qualname__", "__slots__", "__orig_bases__")
    namespace = {**namespace, **{key: has[key] for key in kept if key in has}}
    args = metaclass, name, bases, namespace, *others
    owners = [
        base
        for base in cls.__mro__[1:]
        if "__init_subclass__" in vars(base)
        and base.__module__ == "__main__"
        and not scripts.is_importable(base)
    ]
    if owners:
        return make_without_hooks, (owners, *args), *rest
    return make, args, *rest


def _of_enum(cls: Any, reduced: Any) -> Any:
    """Send aliases too, and what ``__init__`` or ``__new__`` has set in the members."""
    _, (bases, name, qualname, _, *others), (namespace, slots), *rest = reduced
    members = {key: it.value for key, it in cls.__members__.items()}
    for key, value in members.items():
        if hasattr(type(value), "__get__"):  # a function would not become one
            members[key] = member(value)
    namespace = {key: it for key, it in namespace.items() if key not in members}
    extra = {
        it.name: {k: v for k, v in it.__dict__.items() if k not in _OF_MEMBERS}
        for it in cls.__members__.values()
    }
    state = namespace, slots, {key: given for key, given in extra.items() if given}
    arguments = (bases, name, qualname, members, *others)
    return reduced[0], arguments, state, *rest[:-1], set_enum_state


def make_without_hooks(owners: list[type], *how: Any) -> Any:
    """Make a class while its bases *owners* have no ``__init_subclass__`` of their own.

    Args:
        owners: The bases that define it.
        how: The arguments of cloudpickle's ``_make_skeleton_class``.
    """
    name = "__init_subclass__"
    # A base whose own attributes have not come yet has none.
    hooks = [(cls, vars(cls)[name]) for cls in owners if name in vars(cls)]
    for cls, _ in hooks:
        delattr(cls, name)
    try:
        return _make_skeleton_class(*how)
    finally:
        for cls, hook in hooks:
            setattr(cls, name, hook)


def set_enum_state(cls: Any, state: Any) -> None:
    """Set the attributes of an enum, and those that its members have of their own."""
    namespace, slots, of_members = state
    _class_setstate(cls, (namespace, slots))
    for name, attributes in of_members.items():
        cls[name].__dict__.update(attributes)


def register_all(dispatcher: Any, kinds: dict[type, Any]) -> None:
    """Register the functions for the other types."""
    for kind, function in kinds.items():
        dispatcher.register(kind, function)


def make_view(data: bytes, kind: str, shape: tuple[int, ...]) -> memoryview:
    """Return a view of *data* with items of this *kind*."""
    cast: Any = memoryview(data).cast
    view: memoryview = cast(kind, shape)
    return view


def make_cached(maxsize: int | None, typed: bool, function: Any) -> Any:  # noqa: FBT001
    """Make a function that caches its results."""
    return functools.lru_cache(maxsize, typed)(function)


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


def make_named_type(cls: Any, name: str, keywords: dict[str, Any]) -> Any:
    """Make a type of this name in ``__main__``."""
    # These types take their module from the globals of the code that calls them.
    own = {"__name__": "__main__", "make": partial(cls, name, **keywords)}
    return eval("make()", own)  # noqa: S307
