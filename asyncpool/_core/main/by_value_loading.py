"""Load what comes by value for a worker's ``__main__``; see ``by_value.py``."""

from __future__ import annotations

import functools
import pickle
import sys
from functools import cache

from asyncpool._core.base.records import Record
from asyncpool._core.main.class_reduction import mended, without_hooks
from asyncpool._core.main.main_module import (
    LAZY,
    find,
    is_at,
    is_definition,
    namespace,
    resolved,
)

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Unit(Record):
    """Globals that a worker sets together.

    Attributes:
        names: The names of the globals.
        digest: A number that changes if any of them has changed.
        stream: The pickled dictionary of the globals, in parts.
        buffers: The buffers that stayed out of the stream.
    """

    names: tuple[str, ...]
    digest: int
    stream: list[bytes]
    buffers: Sequence[Any]


# The digests of the globals that are set.
_digests: dict[str, int] = {}

# The units that must be set for the call that has just come.
_coming: dict[str, Unit] = {}


def unpack(
    units: list[tuple[Any, ...]],
    missing: tuple[str, ...],
    stream: list[bytes],
    buffers: Sequence[Any],
) -> Any:
    """Set the globals that are new or have changed; return the object of *stream*."""
    for name in missing:
        if _digests.pop(name, None) is not None:
            namespace().pop(name, None)
    for fields in units:
        unit = Unit(*fields)
        for name in unit.names:
            if name not in _digests and name in namespace():
                # A job has set it, or the import of the script.
                _digests[name] = unit.digest
        if any(_digests.get(name) != unit.digest for name in unit.names):
            _coming.update(dict.fromkeys(unit.names, unit))
    try:
        while _coming:
            _set(next(iter(_coming.values())))
    finally:
        _coming.clear()
    return pickle.loads(b"".join(stream), buffers=buffers)


def _set(unit: Unit) -> None:
    for name in unit.names:
        del _coming[name]
    try:
        made = pickle.loads(b"".join(unit.stream), buffers=unit.buffers)
    except Exception as error:
        # A note that is there already is about a global that this one needs.
        if not getattr(error, "__notes__", None):
            error.add_note(_note_on(unit.names))
        raise
    namespace().update(made)
    for name in unit.names:
        _digests[name] = unit.digest


def _note_on(names: tuple[str, ...]) -> str:
    which = ", ".join(map(repr, names))
    return (
        f"The worker could not make {which} of __main__ from what came by value: put it "
        "into a module that the workers can import, or, if they are those of this "
        "script's own pool, give the script an `if __name__ == '__main__':` guard"
    )


def own_object(path: str, tracker: str | None = None) -> Any:
    """Return the function or class that is at *path* in this process's ``__main__``."""
    if tracker is not None:
        from cloudpickle.cloudpickle import (  # noqa: PLC0415 - see above
            _DYNAMIC_CLASS_TRACKER_BY_ID as CLASSES,
        )

        found = CLASSES.get(tracker)
        if found is not None:
            return found
    unit = _coming.get(path.partition(".")[0])
    if unit is not None:
        _set(unit)
    return find(path)


def space(imported: bool) -> dict[str, Any]:  # noqa: FBT001
    """Return the dictionary of this worker's ``__main__``.

    Args:
        imported: Whether the script must be imported for that.
    """
    if imported:
        main = sys.modules["__main__"]
        cls: Any = type(main)  # the script may have a global of any name
        cls.__load__(main)
    return namespace()


def make_cached(maxsize: int | None, typed: bool, function: Any) -> Any:  # noqa: FBT001
    """Make a function that caches its results."""
    return functools.lru_cache(maxsize, typed)(function)


@cache
def pickler_of_results() -> Any:
    """Return the class of picklers for what goes back to the process with the real ``__main__``.

    What came from that process goes back as a name.  The name means the object there,
    even if the worker has changed its own.
    """
    import cloudpickle  # noqa: PLC0415 - see above
    from cloudpickle.cloudpickle import _get_or_create_tracker_id  # noqa: PLC0415

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is LAZY:
                return resolved(obj)
            if is_definition(obj):
                path: str = obj.__qualname__
                if path.partition(".")[0] in _digests and is_at(path, obj):
                    is_class = isinstance(obj, type)
                    tracker = _get_or_create_tracker_id(obj) if is_class else None
                    return own_object, (path, tracker)
            return without_hooks(obj, mended(obj, super().reducer_override(obj)))

    return Pickler
