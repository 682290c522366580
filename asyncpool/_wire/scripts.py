"""What a process knows about its ``__main__``, and how what is in it travels by value.

The worker's part of sending by value is here: load what comes for ``__main__``, and pickle what
returns.  The service's part is in ``by_value.py``.  What cloudpickle leaves out of classes and
code, or cannot send, is mended here for both directions.
"""

from __future__ import annotations

import functools
import operator
import pickle
import sys
import types
from contextvars import ContextVar
from functools import cache, cached_property, singledispatchmethod
from types import CodeType, FunctionType

from asyncpool._wire.records import Record

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# The type of functions with functools.lru_cache.
CACHED: Any = type(functools.lru_cache(int))

# The type of a global of a lazy import that nobody has used yet; since Python 3.15.
LAZY: Any = getattr(types, "LazyImportType", None)


class Script(Record):
    """A script that workers can import.

    Attributes:
        module: The name of the module, if ``python -m`` has started it.
        path: Its file.
        own: The names of globals that an import defines.
        importable: Those of them that no other code in the script defines anew.
    """

    module: str
    path: str
    own: frozenset[str]
    importable: frozenset[str]


class GlobalError(pickle.PicklingError):
    """A global that a function needs cannot be pickled."""


class _Known:
    """What this process knows about its ``__main__``."""

    script: Script | None = None
    in_use: bool = False
    listeners: tuple[Callable[[], None], ...] = ()


# The path of the script that this worker is importing now, or "".
importing: str = ""

# Whether what is pickled in this context is for workers that cannot import the script.
_abroad: ContextVar[bool] = ContextVar("asyncpool abroad", default=False)


class Abroad:
    """A context in which all of ``__main__`` is pickled by value.

    Workers of another program have another ``__main__``, or none.
    """

    def __enter__(self) -> None:
        self._before = _abroad.set(True)

    def __exit__(self, *_: object) -> None:
        _abroad.reset(self._before)


def is_abroad() -> bool:
    """Tell whether what is pickled here is for workers of another program."""
    return _abroad.get()


def know(script: Script | None) -> None:
    """Record which script workers can import as their ``__main__``, if there is one."""
    _Known.script, _Known.in_use = script, False


def script() -> Script | None:
    """Return that script, as far as those can import it who get what is pickled."""
    return None if _abroad.get() else _Known.script


def is_importable(thing: object) -> bool:
    """Tell whether workers find this function or class in the script that they import."""
    known = script()
    if known is None or getattr(thing, "__module__", None) != "__main__":
        return False
    path = path_of(thing)
    found = path.partition(".")[0] in known.importable and is_at(path, thing)
    if found and not _Known.in_use:
        _Known.in_use = True
        for listener in _Known.listeners:
            listener()
    return found


def is_in_use() -> bool:
    """Tell whether workers were sent anything for which they must import the script."""
    return _Known.in_use


def listen(listener: Callable[[], None]) -> None:
    """Call *listener*, in any thread, when workers must first import the script."""
    _Known.listeners += (listener,)


def forget(listener: Callable[[], None]) -> None:
    """Do not call *listener* any more."""
    _Known.listeners = tuple(one for one in _Known.listeners if one != listener)


def is_definition(thing: object) -> bool:
    """Tell whether *thing* is a function or a class, which has a name to be found by."""
    cls = type(thing)
    return cls is FunctionType or cls is CACHED or issubclass(cls, type)


def is_local(value: object) -> bool:
    """Tell whether *value* is a call of a function that only this process has."""
    function = value[0] if isinstance(value, tuple) and value else None
    return (
        type(function) is FunctionType
        and function.__module__ == "__main__"
        and not is_importable(function)
    )


def namespace() -> dict[str, Any]:
    """Return the dictionary of ``__main__``."""
    return vars(sys.modules["__main__"])


def find(path: str) -> Any:
    """Return the object at *path* in ``__main__``.

    Raises:
        KeyError: If there is no such global.
        AttributeError: If the global has no such attribute.
    """
    name, *attributes = path.split(".")
    return functools.reduce(getattr, attributes, namespace()[name])


def path_of(thing: object) -> str:
    """Return the path at which *thing* says that it is, or ``""``."""
    return str(getattr(thing, "__qualname__", getattr(thing, "__name__", "")))


def is_at(path: str, thing: object) -> bool:
    """Tell whether *thing* is the object at *path* in ``__main__``."""
    try:
        return find(path) is thing
    except (KeyError, AttributeError):
        return False


def resolved(lazy: Any) -> tuple[Any, ...]:
    """Return how to reduce a lazy import, so that the other side gets the imported object."""
    return operator.getitem, ((lazy.resolve(),), 0)


class Unit(Record):
    """Globals that a worker sets together.

    Attributes:
        names: The names of the globals.
        digest: A number that changes if any of them has changed.
        stream: The pickled dictionary of the globals, in parts.
        buffers: The buffers that stayed out of the stream.
    """

    names: tuple[str, ...]
    digest: int
    stream: list[bytes]
    buffers: Sequence[Any]


# The digests of the globals that are set.
_digests: dict[str, int] = {}

# The units that must be set for the call that has just come.
_coming: dict[str, Unit] = {}


def unpack(
    units: list[tuple[Any, ...]],
    missing: tuple[str, ...],
    stream: list[bytes],
    buffers: Sequence[Any],
) -> Any:
    """Set the globals that are new or have changed; return the object of *stream*."""
    for name in missing:
        if _digests.pop(name, None) is not None:
            namespace().pop(name, None)
    for fields in units:
        unit = Unit(*fields)
        for name in unit.names:
            if name not in _digests and name in namespace():
                # A job has set it, or the import of the script.
                _digests[name] = unit.digest
        if any(_digests.get(name) != unit.digest for name in unit.names):
            _coming.update(dict.fromkeys(unit.names, unit))
    try:
        while _coming:
            _set(next(iter(_coming.values())))
    finally:
        _coming.clear()
    return pickle.loads(b"".join(stream), buffers=buffers)


def _set(unit: Unit) -> None:
    for name in unit.names:
        del _coming[name]
    try:
        made = pickle.loads(b"".join(unit.stream), buffers=unit.buffers)
    except Exception as error:
        # A note that is there already is about a global that this one needs.
        if not getattr(error, "__notes__", None):
            error.add_note(
                f"The worker could not make {', '.join(map(repr, unit.names))} of __main__ from "
                "what came by value: put it into a module that the workers can import, or, if "
                "they are those of this script's own pool, give the script an "
                "`if __name__ == '__main__':` guard"
            )
        raise
    namespace().update(made)
    _digests.update(dict.fromkeys(unit.names, unit.digest))


def own_object(path: str, tracker: str | None = None) -> Any:
    """Return the function or class that is at *path* in this process's ``__main__``."""
    if tracker is not None:
        from cloudpickle.cloudpickle import (  # noqa: PLC0415 - it takes 20 ms
            _DYNAMIC_CLASS_TRACKER_BY_ID as CLASSES,
        )

        found = CLASSES.get(tracker)
        if found is not None:
            return found
    unit = _coming.get(path.partition(".")[0])
    if unit is not None:
        _set(unit)
    return find(path)


def space(imported: bool) -> dict[str, Any]:  # noqa: FBT001
    """Return the dictionary of this worker's ``__main__``.

    Args:
        imported: Whether the script must be imported for that.
    """
    if imported:
        main = sys.modules["__main__"]
        cls: Any = type(main)  # the script may have a global of any name
        cls.__load__(main)
    return namespace()


def make_cached(maxsize: int | None, typed: bool, function: Any) -> Any:  # noqa: FBT001
    """Make a function that caches its results."""
    return functools.lru_cache(maxsize, typed)(function)


@cache
def pickler_of_results() -> Any:
    """Return the class of picklers for what goes back to the process with the real ``__main__``.

    What came from that process goes back as a name.  The name means the object there,
    even if the worker has changed its own.
    """
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms
    from cloudpickle.cloudpickle import _get_or_create_tracker_id  # noqa: PLC0415

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is LAZY:
                return resolved(obj)
            if is_definition(obj):
                path: str = obj.__qualname__
                if path.partition(".")[0] in _digests and is_at(path, obj):
                    is_class = isinstance(obj, type)
                    tracker = _get_or_create_tracker_id(obj) if is_class else None
                    return own_object, (path, tracker)
            return mended(obj, super().reducer_override(obj))

    return Pickler


# The code of the functions that singledispatch makes.
_DISPATCHES = getattr(functools.singledispatch(id), "__code__")  # noqa: B009 - for mypy

_NO_FILE = "<dynamic-code>"  # as cloudpickle calls the file of all code

# What an enum gives each of its members.  All else is what the enum's own code has set.
_OF_MEMBERS = {"_value_", "_name_", "__objclass__", "_sort_order_"}


def mended(obj: Any, reduced: Any) -> Any:
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
        reduce = _BY_TYPE.get(type(obj))
        return reduced if reduce is None else reduce(obj)
    if isinstance(obj, type):
        from cloudpickle import cloudpickle  # noqa: PLC0415 - it takes 20 ms

        if reduced[0] is cloudpickle._make_skeleton_class:  # noqa: SLF001
            return _of_class(obj, reduced)
        if reduced[0] is cloudpickle._make_skeleton_enum:  # noqa: SLF001
            return _of_enum(obj, reduced)
        return reduced
    if getattr(obj, "__code__", None) is _DISPATCHES:
        kinds = dict(obj.registry)
        make = functools.singledispatch
        return make, (kinds.pop(object),), kinds, None, None, register_all
    if getattr(obj, "__qualname__", "") == "Generic.__class_getitem__":
        # Python 3.11 has it in each generic NamedTuple, and pickle finds a method there.
        getter = operator.attrgetter("__class_getitem__.__func__")
        return getter, (sys.modules["typing"].Generic,)
    return reduced


def _of_cached_property(prop: Any) -> Any:
    state = {name: value for name, value in prop.__dict__.items() if name != "lock"}
    return cached_property, (prop.func,), state


def _of_dispatching_method(method: Any) -> Any:
    return singledispatchmethod, (method.func,), {"dispatcher": method.dispatcher}


def _of_code(code: CodeType) -> Any:
    """Return how to reduce *code* with the name of its file, for tracebacks and logs.

    cloudpickle has another name in its place since 3.1.3.
    """
    from cloudpickle import Pickler  # noqa: PLC0415 - it takes 20 ms

    reduce: Any = Pickler.dispatch_table[CodeType]
    make, args = reduce(code)
    return make, tuple(code.co_filename if it == _NO_FILE else it for it in args)


_BY_TYPE: dict[type, Callable[[Any], Any]] = {
    CodeType: _of_code,
    cached_property: _of_cached_property,
    singledispatchmethod: _of_dispatching_method,
}


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
        and not is_importable(base)
    ]
    if owners:
        return make_without_hooks, (owners, *args), *rest
    return make, args, *rest


def _of_enum(cls: Any, reduced: Any) -> Any:
    """Send aliases too, and what ``__init__`` or ``__new__`` has set in the members."""
    _, (bases, name, qualname, _, *others), (namespace, slots), *rest = reduced
    members = {key: _as_member(it.value) for key, it in cls.__members__.items()}
    namespace = {key: it for key, it in namespace.items() if key not in members}
    extra = {
        member.name: {k: v for k, v in member.__dict__.items() if k not in _OF_MEMBERS}
        for member in cls.__members__.values()
    }
    state = namespace, slots, {key: given for key, given in extra.items() if given}
    arguments = (bases, name, qualname, members, *others)
    return reduced[0], arguments, state, *rest[:-1], set_enum_state


def _as_member(value: Any) -> Any:
    """Return *value* such that an enum makes a member of it, also if it is a function."""
    if not hasattr(type(value), "__get__"):
        return value
    from enum import member  # noqa: PLC0415 - workers need not import it

    return member(value)


def make_without_hooks(owners: list[type], *how: Any) -> Any:
    """Make a class while its bases *owners* have no ``__init_subclass__`` of their own.

    Args:
        owners: The bases that define it.
        how: The arguments of cloudpickle's ``_make_skeleton_class``.
    """
    from cloudpickle.cloudpickle import _make_skeleton_class  # noqa: PLC0415 - 20 ms

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
    from cloudpickle.cloudpickle import _class_setstate  # noqa: PLC0415 - 20 ms

    namespace, slots, of_members = state
    _class_setstate(cls, (namespace, slots))
    for name, attributes in of_members.items():
        cls[name].__dict__.update(attributes)


def register_all(dispatcher: Any, kinds: dict[type, Any]) -> None:
    """Register the functions for the other types."""
    for kind, function in kinds.items():
        dispatcher.register(kind, function)
