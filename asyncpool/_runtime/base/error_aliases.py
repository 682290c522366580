"""Give an error a second class, so that code which expects that class catches it too.

Code that was written for another library expects that library's errors.  Their modules are
expensive to import, and only the part of asyncpool that stands in for that library needs them.
So no class in ``errors.py`` can derive from them.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from asyncpool.errors import AsyncPoolError

E = TypeVar("E", bound=AsyncPoolError)


def with_base(error: E, kind: type[Exception]) -> E:
    """Return *error* itself, which from now on is also an instance of *kind*.

    It keeps its attributes, its cause and its text.  It can still be pickled.
    """
    if not isinstance(error, kind):
        pair: Any = (type(error), kind)
        error.__class__ = _both(*pair)
    return error


@functools.cache
def _both(cls: Any, kind: Any) -> type[Any]:
    def reduce(self: AsyncPoolError) -> tuple[Any, ...]:
        # A pickle could not find this class by a name, since it is in no module.
        return _rebuild, (cls, kind, self.args, self.__dict__.copy())

    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__reduce__": reduce,
    }
    return type(cls.__name__, (cls, kind), namespace)


def _rebuild(
    cls: type[AsyncPoolError],
    kind: type[Exception],
    args: tuple[Any, ...],
    details: dict[str, Any],
) -> AsyncPoolError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(details)
    return with_base(error, kind)
