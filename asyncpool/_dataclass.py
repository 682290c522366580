"""``dataclasses.dataclass`` for classes with slots, without the time that it takes at import.

The standard decorator writes and compiles the methods of each class, in 0.6 ms, and a pool has
some fifty such classes.  This one takes 0.05 ms: most methods are the same functions for all
classes, and the constructor is compiled for the first record of a class.  What looks at the fields
(``fields``, ``replace``, ``asdict``, ``match``) finds those that the standard decorator makes.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass", "replace"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, replace
else:

    def dataclass(
        *, frozen: bool = False, slots: bool, kw_only: bool = False
    ) -> Callable[[type], type]:
        """Make a dataclass of a class; the arguments are those of the standard decorator."""

        def decorated(given: type) -> type:
            own = set(given.__dict__)
            # The standard decorator would compile methods for a class that is as frozen as its
            # bases, and refuse one that is not.
            bases = [it for it in given.__mro__[1:] if dataclasses.is_dataclass(it)]
            for base in bases:
                base.__dataclass_params__.frozen = False
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )(given)
            for cls in (made, *bases):
                cls.__dataclass_params__.frozen = frozen
            # The fields of the constructor, each with what sets it: its slot does so in less time
            # than object.__setattr__.  In our classes they are those that count for equality, too.
            fields = [it.name for it in dataclasses.fields(made) if it.init]
            made.__given__ = {name: getattr(made, name).__set__ for name in fields}
            made.__signature__ = _Signature()
            methods = _COMMON | (_FROZEN if frozen else {"__hash__": None})
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return decorated

    def replace(record: Any, /, **changes: Any) -> Any:
        """Return a copy of such a record with *changes*; quicker than the standard function."""
        made = object.__new__(type(record))
        for name, put in record.__given__.items():
            put(made, changes.pop(name) if name in changes else getattr(record, name))
        if changes:
            type(record)(**changes)  # raises the TypeError
        if hasattr(record, "__post_init__"):
            made.__post_init__()
        return made


def _compile(given: type) -> Any:
    """Give a class, or the one that it is derived from, the constructor of a standard dataclass."""
    mro: tuple[Any, ...] = given.__mro__
    for cls in mro:
        if cls.__dict__.get("__init__") is _init:
            own = {"__qualname__": cls.__qualname__, "__doc__": "A dataclass."}
            made: Any = type(cls.__name__, (cls,), own)
            frozen = cls.__dataclass_params__.frozen
            dataclasses.dataclass(repr=False, eq=False, frozen=frozen)(made)
            cls.__init__ = made.__init__
            return cls.__init__
    return mro[0].__init__  # another thread has compiled it just now


class _Signature:
    """The signature of a class, made when somebody looks at it."""

    def __get__(self, record: object, cls: Any) -> inspect.Signature:
        init = _compile(cls) if cls.__init__ is _init else cls.__init__
        return inspect.signature(init.__get__(cls))


def _init(self: Any, *args: Any, **given: Any) -> None:
    _compile(type(self))(self, *args, **given)


def _repr(self: Any) -> str:
    shown = [f"{name}={getattr(self, name)!r}" for name in self.__given__]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__given__])


def _refuse_set(_: object, name: str, __: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_COMMON = {"__init__": _init, "__repr__": _repr, "__eq__": _eq}
_FROZEN = {
    "__hash__": _hash,
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
