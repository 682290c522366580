"""Have what pickle would get wrong, or make slow, reduced in another way.

Each pickler gets a table of its own: nothing is changed for those of anybody else in the
process, as ``copyreg`` would.

Arrays whose buffer NumPy leaves in the pickle, though it need not be there.

NumPy keeps the buffer of an array out of a pickle if it is in one piece, and its type is
known to the buffer protocol.  Strided arrays and arrays of dates are copied as a whole
instead, with the GIL held, and once more where they are unpickled: 64 MB of dates took 0.5 s
there and back.  Here they are made as NumPy would have them: the first are copied before,
and the others have their type taken off and put on again.

What is read on the other side is NumPy's own: its function, with the type it was given.
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


_ARRAYS = "numpy"
_CONNECTIONS = "multiprocessing.connection"

_DISPATCH_TABLE = vars(pickle.Pickler)["dispatch_table"]


def possible() -> bool:
    """Tell whether there may be such objects: not before their modules are imported."""
    return _ARRAYS in sys.modules or _CONNECTIONS in sys.modules


def teach(pickler: Any, others: Reducers | None = None) -> None:
    """Have *pickler* reduce them as is said here.

    *others* are for what it knows nothing of, and go before what is said here.
    """
    known = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    table: Reducers = {TextIOWrapper: _reduce_file} if TextIOWrapper in known else {}
    for name, cls, reduce in (
        (_ARRAYS, "ndarray", reduce_array),
        (_CONNECTIONS, "Connection", _refuse),
    ):
        # A module that is being imported has no such name yet.
        found = getattr(sys.modules.get(name), cls, None)
        if found is not None:
            table[found] = reduce
    if table or others:
        # cloudpickle's class has one too, which hides that of the instance.
        table = {**known, **table} if others is None else {**table, **others, **known}
        _DISPATCH_TABLE.__set__(pickler, table)


def _reduce_file(file: TextIOWrapper) -> Any:
    """Have an open file refused, as the standard library's pickler does.

    cloudpickle would send all that is in it, and be told nothing of what is written there.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(
        f"cannot send {file!r}, which is open here: send its path, or what is in it"
    )


def _refuse(connection: object) -> NoReturn:
    """Have a connection of ``multiprocessing`` not be pickled.

    The standard library's own pickler passes its descriptor on.  To all others it is an
    object with a number in it, and would take, and close, whatever has that number in the
    other process.
    """
    raise TypeError(
        f"cannot send {connection!r}, which is a descriptor of this process"
    )


# Buffers from this size on, in bytes, stay out of a pickle.
LARGE = 65_536


def reduce_array(array: Any) -> Any:
    """Return what *array* is made of, for a pickler that keeps large buffers apart."""
    dtype, flags = array.dtype, array.flags
    if array.nbytes < LARGE or dtype.hasobject:
        return array.__reduce_ex__(5)
    if _has_plain_type(array):
        if not flags.forc and not _is_transposed(array):
            array = array.copy()  # which lets go of the GIL
        return array.__reduce_ex__(5)
    # NumPy has always made these anew, so that one may write to them.
    if not (flags.forc and flags.writeable):
        array = array.copy("A")
    bare = array.view(f"V{dtype.itemsize}")
    function, (buffer, _, *rest) = bare.__reduce_ex__(5)
    return function, (buffer, dtype, *rest)


def _has_plain_type(array: Any) -> bool:
    try:
        memoryview(array)
    except Exception:  # noqa: BLE001 - whatever NumPy says to that
        return False
    return True


def _is_transposed(array: Any) -> bool:
    """Tell whether it is in one piece, but for the order of its axes.

    Newer versions of NumPy keep those out of a pickle too.
    """
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)
