"""``typing.NamedTuple``, and imports on demand, for modules that must load fast.

Every launcher and every spawned worker imports the modules that use this.  To import
typing takes 10 ms, and dataclasses with all that it needs another 10 ms: half of the
time of their start.  Where only annotations need typing, a module says ``TYPE_CHECKING
= False`` instead, which type checkers take for true.
"""

from __future__ import annotations

from collections import namedtuple
from functools import reduce
from importlib import import_module

__all__ = ["Later", "Record", "import_named", "on_demand"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NamedTuple as Record
else:

    class _RecordType(type):
        def __new__(
            mcs, name: str, bases: tuple[type, ...], namespace: dict[str, object]
        ) -> type:
            if not bases:
                return super().__new__(mcs, name, bases, namespace)
            fields = tuple(namespace["__annotations__"])
            preset = [namespace.pop(field) for field in fields if field in namespace]
            base = namedtuple(name, fields, defaults=preset)  # noqa: PYI024
            return type(name, (base,), {"__slots__": (), **namespace})

    class Record(metaclass=_RecordType):
        """A base for classes whose annotated names become the fields of a tuple."""


class Later:
    """A module that is imported when something in it is first used.

    Type checkers, and tools that freeze programs, are told by an import::

        if TYPE_CHECKING:
            from asyncpool import mapping
        else:
            mapping = Later("asyncpool.mapping")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(import_module(self._name), name)
        return found


def on_demand(
    package: dict[str, Any], homes: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that loads its names when they are used.

    Args:
        package: The dictionary of the package.
        homes: The module that has each name; the package itself has modules.
    """
    own = package["__name__"]

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        if home == own:
            return import_module(f"{home}.{name}")
        value = package[name] = getattr(import_module(home), name)
        return value

    return load, lambda: sorted({*package, *homes})


def import_named(name: str) -> Any:
    """Return what ``package.module:path`` names; the module is imported.

    Raises:
        AttributeError: If the module has no such object.
        Exception: Whatever the module raises when it is imported.
    """
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), import_module(module))
