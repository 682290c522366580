"""Find large objects that a pickler copies or builds as a whole before it writes anything.

For 64 MB that takes 30 to 120 ms, even if the pickler then stops writing soon.  So it
must not happen on an event loop.  But to look for large objects takes the loop's time,
too.  So the number of objects that are checked is limited, and what the check misses
does take that time.
"""

from __future__ import annotations

from itertools import islice

from asyncpool._core.pickling.out_of_band import StreamTooLongError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Types whose values hold no other object, and are written at once or in pieces.
_PLAIN: frozenset[type] = frozenset((float, bool, type(None), bytes))

_CONTAINERS: frozenset[type] = frozenset((list, tuple, dict))

# How many arguments, and items of containers among them, are checked; and how many
# attributes of one object.  That takes 5 us.
_LOOKS = 100

# How many objects of users' classes may be pickled: a pickler needs 1 to 10 us for
# each.
_OBJECTS = 400


class SizeProbe:
    """Looks for large objects in one call.

    Args:
        limit: How many bytes an object may have without being large.
    """

    __slots__ = ("_limit", "_objects", "_ordinary")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._objects = _OBJECTS
        # Classes whose objects have only attributes.
        self._ordinary: set[type] = set()

    def search(self, values: Iterable[Any]) -> bool:
        """Check *values*, and the items of containers among them.

        Returns:
            Whether every object was checked, so that no pickler needs :meth:`watch`.

        Raises:
            StreamTooLongError: If there is a large object.
        """
        limit, seen_all = self._limit, True
        found = list(islice(values, _LOOKS))  # the list grows during the loop
        for value in found:
            cls = type(value)
            if cls is str:
                if len(value) > limit:
                    raise StreamTooLongError
            elif cls is int:
                if value.bit_length() > 8 * limit:
                    raise StreamTooLongError
            elif cls in _CONTAINERS:
                room = _LOOKS - len(found)
                seen_all = seen_all and len(value) <= room
                found += islice(value.values() if cls is dict else value, room)
            elif cls not in _PLAIN:
                seen_all = False
                if _is_large(value, limit):
                    raise StreamTooLongError
        return seen_all and len(found) < _LOOKS

    def watch(self, value: Any) -> None:
        """Check an object of a user's class that is about to be pickled.

        Raises:
            StreamTooLongError: If the object is large, or holds a large one, or if
                there are too many.
        """
        self._objects -= 1
        if self._objects < 0:
            raise StreamTooLongError
        cls = type(value)
        if cls not in self._ordinary:
            if _is_large(value, self._limit):
                raise StreamTooLongError
            if issubclass(cls, dict):
                self.search(dict[object, object].values(value))
            elif issubclass(cls, tuple):
                self.search(tuple[object, ...].__iter__(value))
            elif issubclass(cls, list):
                self.search(list[object].__iter__(value))
            elif not issubclass(cls, str | int) and not _has_bytes(cls):
                self._ordinary.add(cls)
        try:
            attributes = value.__dict__
        except Exception:  # noqa: BLE001 - it has no attributes, or does not show them
            return
        if type(attributes) is dict and attributes:
            self.search(attributes.values())


def _is_large(value: Any, limit: int) -> bool:
    cls = type(value)
    if issubclass(cls, str):
        return str.__len__(value) > limit
    if issubclass(cls, int):
        return int.bit_length(value) > 8 * limit
    if not _has_bytes(cls):
        return False
    try:
        if cls.__module__ == "array":
            return bool(len(value) * value.itemsize > limit)
        return bool(value.nbytes > limit and not _goes_apart(value))
    except Exception:  # noqa: BLE001 - it has no buffer to offer
        return True


def _has_bytes(cls: type) -> bool:
    return hasattr(cls, "nbytes") or cls.__module__ == "array"


def _goes_apart(array: Any) -> bool:
    """Tell whether the buffer of *array* stays out of the stream.

    The pickle of a class that is derived from NumPy's, such as a masked array, has a
    copy of it.  The pickle of an array of objects has a list.

    Raises:
        Exception: If it has no buffer to offer.
    """
    view = memoryview(array)
    return (
        view.contiguous
        and "O" not in view.format
        and not any(
            (base.__module__, base.__name__) == ("numpy", "ndarray")
            for base in type(array).__mro__[1:]
        )
    )
