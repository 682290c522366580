"""Have what pickle would get wrong, or make slow, reduced in another way.

Each pickler gets a table of its own: nothing is changed for those of anybody else in the
process, as ``copyreg`` would.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from io import TextIOWrapper

from asyncpool._core.pickling import arrays

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeAlias

    Reducers: TypeAlias = dict[type, Callable[[Any], Any]]

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
        (_ARRAYS, "ndarray", arrays.reduce),
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
