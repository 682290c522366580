"""Arrays whose buffer NumPy leaves in the pickle, though it need not be there.

NumPy keeps the buffer of an array out of a pickle if it is in one piece, and its type is
known to the buffer protocol.  Strided arrays and arrays of dates are copied as a whole
instead, with the GIL held, and once more where they are unpickled: 64 MB of dates took 0.5 s
there and back.  Here they are made as NumPy would have them: the first are copied before,
and the others have their type taken off and put on again.

What is read on the other side is NumPy's own: its function, with the type it was given.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

# Buffers from this size on, in bytes, stay out of a pickle.
LARGE = 65_536


def reduce(array: Any) -> Any:
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
