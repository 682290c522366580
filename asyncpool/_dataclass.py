"""``dataclasses.dataclass`` for classes with slots, without the time that it takes at import.

The standard decorator writes and compiles the methods of each class, in 0.6 ms, and a pool has
some fifty such classes.  This one takes 0.05 ms: the methods are the same functions for all
classes.  What looks at the fields (``fields``, ``replace``, ``asdict``, ``match``) finds those
that the standard decorator makes.
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
            made.__plan__ = _Plan(made)
            made.__signature__ = _Signature()
            methods = _COMMON | (_FROZEN if frozen else {"__hash__": None})
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            return made

        return decorated

    def replace(record: Any, /, **changes: Any) -> Any:
        """Return a copy of such a record with *changes*; quicker than the standard function."""
        plan: _Plan = record.__plan__
        made = object.__new__(type(record))
        for name, put in plan.put.items():
            put(made, getattr(record, name))
        for name, value in changes.items():
            if name not in plan.put:
                _standard(plan.cls)(**changes)  # raises the TypeError
            plan.put[name](made, value)
        if plan.finish is not None:
            plan.finish(made)
        return made


class _Plan:
    """What the methods know of the fields of one class."""

    def __init__(self, cls: type[Any]) -> None:
        fields = dataclasses.fields(cls)
        taken = [field for field in fields if field.init]
        self.cls = cls
        self.names = [field.name for field in fields]
        self.positional = [field.name for field in taken if not field.kw_only]
        # The fields that repr() shows and that count for equality: in our classes those of the
        # constructor.  To set an attribute by its slot is quicker than by object.__setattr__.
        self.put = {it.name: getattr(cls, it.name).__set__ for it in taken}
        missing = dataclasses.MISSING
        self.defaults = {
            it.name: it.default for it in taken if it.default is not missing
        }
        self.factories = [
            (it.name, it.default_factory)
            for it in taken
            if it.default_factory is not missing
        ]
        self.finish = getattr(cls, "__post_init__", None)


def _standard(cls: type) -> type[Any]:
    """Return a class with the constructor that the standard decorator writes.

    It has the signature, and says what is wrong with a call.
    """
    own = {"__qualname__": cls.__qualname__, "__doc__": "A dataclass."}
    derived = type(cls.__name__, (cls,), own)
    frozen = getattr(cls, "__dataclass_params__").frozen  # noqa: B009 - checkers know none
    return dataclasses.dataclass(repr=False, eq=False, frozen=frozen)(derived)


class _Signature:
    """The signature of a class, made when somebody looks at it."""

    def __get__(self, record: object, cls: Any) -> inspect.Signature:
        init = cls.__init__
        if init is _init:
            init = _standard(cls.__plan__.cls).__init__
        found = inspect.signature(init)
        return found.replace(parameters=list(found.parameters.values())[1:])


def _init(self: Any, *args: Any, **given: Any) -> None:
    plan: _Plan = self.__plan__
    values = {**plan.defaults, **given}
    if args:
        named = plan.positional[: len(args)]
        if len(args) > len(named) or not given.keys().isdisjoint(named):
            _standard(plan.cls)(*args, **given)  # raises the TypeError
        values.update(zip(named, args, strict=True))
    for name, make in plan.factories:
        if name not in values:
            values[name] = make()
    try:
        for name, put in plan.put.items():
            put(self, values.pop(name))
    except KeyError:  # one is missing
        values[""] = None
    if values:
        _standard(plan.cls)(*args, **given)  # raises the TypeError
    if plan.finish is not None:
        plan.finish(self)


def _repr(self: Any) -> str:
    shown = [f"{name}={getattr(self, name)!r}" for name in self.__plan__.put]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__plan__.put])


def _refuse_set(_: object, name: str, __: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__plan__.names]


def _setstate(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__plan__.names, state, strict=True):
        object.__setattr__(self, name, value)


_COMMON = {"__init__": _init, "__repr__": _repr, "__eq__": _eq}
_FROZEN = {
    "__hash__": _hash,
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
