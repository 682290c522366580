"""Make, in the other process, what ``class_reduction.py`` has reduced."""

from __future__ import annotations

import functools

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any


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


def generic_item_getter() -> Any:
    """Return the function behind ``Generic.__class_getitem__``."""
    from typing import Generic  # noqa: PLC0415 - workers that need it have it

    return Generic.__class_getitem__.__func__  # type: ignore[attr-defined]


def make_dispatcher(function: Any) -> Any:
    """Make a function of ``singledispatch``; *function* is what it calls for any object."""
    return functools.singledispatch(function)


def register_all(dispatcher: Any, kinds: dict[type, Any]) -> None:
    """Register the functions for the other types."""
    for kind, function in kinds.items():
        dispatcher.register(kind, function)
