"""What a process knows about its ``__main__``, and how what is in it travels by value.

What comes by value for ``__main__`` is loaded here.  ``by_value.py`` has the picklers, for both
directions; it needs cloudpickle, which takes 20 ms to import.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
from contextvars import ContextVar
from types import FunctionType

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


# Called, in any thread, when workers must first import the script.
listeners: set[Callable[[], None]] = set()


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
    if known is None:
        return False
    found = path_of(thing).partition(".")[0] in known.importable
    if found and not _Known.in_use:
        _Known.in_use = True
        for listener in tuple(listeners):
            listener()
    return found


def is_in_use() -> bool:
    """Tell whether workers were sent anything for which they must import the script."""
    return _Known.in_use


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
    """Return the path in ``__main__`` at which *thing* says that it is; ``""`` if it is not there."""
    path = str(getattr(thing, "__qualname__", getattr(thing, "__name__", "")))
    is_own = getattr(thing, "__module__", None) == "__main__"
    return path if is_own and is_at(path, thing) else ""


def is_at(path: str, thing: object) -> bool:
    """Tell whether *thing* is the object at *path* in ``__main__``."""
    try:
        return find(path) is thing
    except (KeyError, AttributeError):
        return False


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


def has_come(path: str) -> bool:
    """Tell whether what is at *path* has come by value."""
    return path.partition(".")[0] in _digests


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
        from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: PLC0415 - 20 ms

        found = _DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
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
