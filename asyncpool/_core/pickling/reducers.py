"""Other ways to reduce objects that pickle gets wrong, or is slow with.

Each pickler gets a table of its own.  So no other pickler in the process changes, as
one would with ``copyreg``.

Most of this is about arrays whose buffer NumPy copies into the pickle although it could
stay out.

NumPy keeps the buffer of an array out of a pickle if the buffer is in one piece and the
buffer protocol knows its type.  NumPy copies strided arrays and arrays of dates as a
whole instead, with the GIL held, and copies them once more when they are unpickled: 64
MB of dates took 0.5 s there and back.  This module makes these arrays fit: it copies
strided arrays first, and pickles arrays of dates as numbers, with their type put back
on the other side.

What the other side calls is NumPy's own function, with the type that it is given.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from io import TextIOWrapper

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeAlias

    Reducers: TypeAlias = dict[type, Callable[[Any], Any]]
    from typing import Any


ARRAYS = "numpy"
CONNECTIONS = "multiprocessing.connection"

_DISPATCH_TABLE = vars(pickle.Pickler)["dispatch_table"]


def possible() -> bool:
    """Tell whether there may be such objects, which is not so before their modules are imported."""
    return ARRAYS in sys.modules or CONNECTIONS in sys.modules


def teach(pickler: Any, others: Reducers | None = None) -> None:
    """Let *pickler* reduce objects as this module says.

    *others* are for objects that this module does not know, and go before its own.
    """
    known = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    table: Reducers = {}
    files: Reducers = {TextIOWrapper: _reduce_file} if TextIOWrapper in known else {}
    for name, cls, reduce in (
        (ARRAYS, "ndarray", reduce_array),
        (CONNECTIONS, "Connection", _refuse),
    ):
        # A module that is still being imported may not have the name yet.
        found = getattr(sys.modules.get(name), cls, None)
        if found is not None:
            table[found] = reduce
    if table or others or files:
        # cloudpickle's class has such an attribute too, which hides that of the
        # instance.
        table = {**known, **table} if others is None else {**table, **others, **known}
        _DISPATCH_TABLE.__set__(pickler, {**table, **files})


def _reduce_file(file: TextIOWrapper) -> Any:
    """Refuse an open file, as the standard library's pickler does.

    cloudpickle would send its whole content, and what the worker writes there would be
    lost.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(
        f"cannot send {file!r}, which is open here: send its path, or what is in it"
    )


def _refuse(connection: object) -> NoReturn:
    """Refuse a connection of ``multiprocessing``.

    The standard library's own pickler passes its descriptor on.  All other picklers see
    an object with a number in it.  The copy would use, and close, whatever descriptor
    has that number in the other process.
    """
    raise TypeError(
        f"cannot send {connection!r}, which is a descriptor of this process"
    )


# Buffers of at least this many bytes stay out of a pickle.
LARGE = 65_536


def reduce_array(array: Any) -> Any:
    """Return the parts of *array*, for a pickler that keeps large buffers apart."""
    dtype, flags = array.dtype, array.flags
    if array.nbytes < LARGE or dtype.hasobject:
        return array.__reduce_ex__(5)
    if _has_plain_type(array):
        if not flags.forc and not _is_transposed(array):
            array = array.copy()  # copying releases the GIL
        return array.__reduce_ex__(5)
    # NumPy has always made new arrays of these, so that one may write to them.
    if not (flags.forc and flags.writeable):
        array = array.copy("A")
    bare = array.view(f"V{dtype.itemsize}")
    function, (buffer, _, *rest) = bare.__reduce_ex__(5)
    return function, (buffer, dtype, *rest)


def _has_plain_type(array: Any) -> bool:
    try:
        memoryview(array)
    except Exception:  # noqa: BLE001 - NumPy may raise anything
        return False
    return True


def _is_transposed(array: Any) -> bool:
    """Tell whether *array* is in one piece except for the order of its axes.

    Newer versions of NumPy keep the buffers of such arrays out of a pickle, too.
    """
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)
