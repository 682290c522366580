"""Send the parts of a class that cloudpickle leaves out, or cannot send, by value."""

from __future__ import annotations

from functools import cached_property

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any


def mended(obj: object, reduced: Any) -> Any:
    """Return how to reduce *obj*, which cloudpickle's ``reducer_override`` has *reduced*.

    A class keeps its ``__slots__``.  Without them its instances would have a
    ``__dict__`` in the worker, and could not come back.  A ``cached_property`` is sent
    without its lock, which it has before Python 3.12.
    """
    if reduced is NotImplemented:
        if type(obj) is not cached_property:
            return NotImplemented
        state = {name: value for name, value in vars(obj).items() if name != "lock"}
        return cached_property, (obj.func,), state
    if isinstance(obj, type) and "__slots__" in vars(obj):
        from cloudpickle import cloudpickle  # noqa: PLC0415 - it takes 20 ms

        make, args, *rest = reduced
        if make is cloudpickle._make_skeleton_class:  # noqa: SLF001
            *front, namespace, tracker, extra = args
            namespace = {**namespace, "__slots__": vars(obj)["__slots__"]}
            return make, (*front, namespace, tracker, extra), *rest
    return reduced
