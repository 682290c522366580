"""What this process knows about its ``__main__``, and what is in it."""

from __future__ import annotations

import functools
import operator
import pickle
import sys
import types
from contextvars import ContextVar
from types import FunctionType

from asyncpool._core.base.records import Record

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
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


class Importing:
    """A context in which a worker imports the script at *path*."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        _Known.importing = self._path

    def __exit__(self, *_: object) -> None:
        _Known.importing = ""


def importing() -> str:
    """Return the path of the script that this worker is importing now, or ``""``."""
    return _Known.importing


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
