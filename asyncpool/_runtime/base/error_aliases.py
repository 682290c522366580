"""Give an error a second kind, so that those who expect that one catch it too.

A caller that was written for another library knows that library's errors.  Their
modules are expensive to import, and only the face that stands in for them needs them,
so no class in ``errors.py`` can derive from them.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from asyncpool.errors import AsyncPoolError

E = TypeVar("E", bound=AsyncPoolError)


def with_base(error: E, kind: type[Exception]) -> E:
    """Return *error* itself, which is an instance of *kind* too from now on.

    Its attributes, its cause and its text stay, and it survives pickling.
    """
    if not isinstance(error, kind):
        pair: Any = (type(error), kind)
        error.__class__ = _both(*pair)
    return error


@functools.cache
def _both(cls: Any, kind: Any) -> type[Any]:
    def reduce(self: AsyncPoolError) -> tuple[Any, ...]:
        # This class has no name by which a pickle could find it.
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
