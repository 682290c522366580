"""What logs and errors call a function."""

from __future__ import annotations

from functools import partial
from types import MethodType

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["function_name"]

_MOST = 120  # characters


def function_name(function: Any) -> str:
    """Return ``module.qualname`` of *function*, or of what it is made of.

    That is the function in a ``partial`` or a bound method, and the type of any other
    object that can be called.  It never raises, whatever the user has defined.
    """
    try:
        name = _name_of(function)
    except Exception:  # noqa: BLE001 - an attribute of the user's that raises
        name = _name_of(type(_inner(function)))
    return name if len(name) <= _MOST else f"{name[: _MOST - 3]}..."


def _name_of(function: Any) -> str:
    function = _inner(function)
    if not isinstance(getattr(function, "__qualname__", None), str):
        function = type(function)
    module = getattr(function, "__module__", None)
    name: str = function.__qualname__
    return f"{module}.{name}" if isinstance(module, str) else name


def _inner(function: Any) -> Any:
    # By the very type: who pretends to be one of these may not have what they have.
    while type(function) is partial or type(function) is MethodType:
        inner = "func" if type(function) is partial else "__func__"
        function = getattr(function, inner)
    return function
