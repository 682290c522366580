"""Which values are plain data, and how those that a format does not know are written.

A format such as JSON turns a tuple into a list and a number that is none into null, and says
nothing.  So a value is looked at before it is written.  A format writes what comes back as the
same value.  Other values that are plain data become *tagged*: they are written as a name and a
content that the format knows.  Everything else is refused.

``tagged_values.py`` makes the values again.
"""

from __future__ import annotations

import math
import re
import sys
from binascii import b2a_base64
from itertools import chain

from asyncpool._core.pickling.out_of_band import StreamTooLongError
from asyncpool._core.pickling.reducers import LARGE

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol

    class Notation(Protocol):
        """What the walk must know of a format."""

        @property
        def has_bytes(self) -> bool:
            """Whether it writes bytes."""
            ...

        @property
        def key_types(self) -> frozenset[type]:
            """The types of the keys of dicts that it writes."""
            ...

        def tag(self, name: str, content: Any) -> Any:
            """Return what it writes for a tagged value."""
            ...


# What every format writes and reads back as it was, but for large ints and floats such as NaN.
_SCALARS: frozenset[type] = frozenset((str, int, float, bool, type(None)))
_QUICK = _SCALARS

# The same with what holds others, and with bytes, which few formats write.
_FLAT = _SCALARS | {bytes}
_NATIVE = _SCALARS | {list, dict}
_NATIVE_WITH_BYTES = _NATIVE | {bytes}

# What is between these, both included, fits any format.
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1

# The bytes that a value counts with, beside its characters, against a limit.
_EACH = 8

# The types of arrays: booleans, numbers, times, and texts of fixed length.
DTYPE = re.compile(r"[<>|=][biufcmMSU][1-9][0-9]{0,6}(\[[0-9]{0,6}[A-Za-zμ]{1,7}\])?")
DIMENSIONS = 32


class NotDataError(TypeError):
    """A value is no plain data."""


# How deep and how wide a value is looked at that may be written as it is.  What is deeper may hold
# itself.
_LEVELS = 100
_WIDEST = 10_000_000


def is_native(values: Iterable[Any], notation: Notation, limit: int | None) -> bool:
    """Tell whether a format writes all *values*, and what is in them, as they are.

    It looks at one level after the other, and so takes a tenth of the time of a :class:`Walk`.

    Raises:
        StreamTooLongError: If the message would become larger than the limit, roughly.
    """
    native = _NATIVE_WITH_BYTES if notation.has_bytes else _NATIVE
    level, room = [*values], math.inf if limit is None else limit
    for _ in range(_LEVELS):
        kinds = set(map(type, level))
        if not kinds <= native or len(level) > _WIDEST:
            return False
        if limit is not None:
            room -= _EACH * len(level)
            if str in kinds:
                room -= sum(len(one) for one in level if type(one) is str)
            if room < 0:
                raise StreamTooLongError
        if bytes in kinds and any(type(b) is bytes and len(b) >= LARGE for b in level):
            return False
        if kinds <= _FLAT:
            return True
        lists = [one for one in level if type(one) is list]
        dicts = [one for one in level if type(one) is dict]
        keys = [*chain.from_iterable(dicts)]
        if not set(map(type, keys)) <= notation.key_types:
            return False
        if limit is not None:
            room -= sum(len(key) for key in keys if type(key) is str)
        level = [
            *chain.from_iterable(lists),
            *chain.from_iterable(one.values() for one in dicts),
        ]
    return False


class Walk:
    """Makes plain data of values, for one message.

    Args:
        notation: The format.
        buffers: Where large buffers go that stay out of the message; ``None`` if all stay in.
        limit: How large the message may become, roughly; ``None`` for any size.
        wide: Whether each int is looked at, since one was too large for the format.

    Attributes:
        tagged: Whether there was a tagged value.
    """

    def __init__(
        self,
        notation: Notation,
        buffers: list[memoryview] | None,
        *,
        limit: int | None = None,
        wide: bool = False,
    ) -> None:
        self.tagged = False
        self._notation = notation
        self._buffers = buffers
        self._bounded = limit is not None
        self._room: float = math.inf if limit is None else limit
        self._quick = _QUICK - {int} if wide else _QUICK

    def plain(self, value: Any) -> Any:
        """Return what the format writes for *value*.

        Raises:
            NotDataError: If it is no plain data.
            StreamTooLongError: If the message would become larger than the limit.
            RecursionError: If it holds itself, or is nested too deeply.
        """
        cls = type(value)
        if cls in _SCALARS:
            if cls is str:
                self._spend(len(value))
            elif cls is int and not _LEAST <= value <= _GREATEST:
                return self._wide_int(value)
            return value
        make = _WRITERS.get(cls)
        if make is not None:
            return make(self, value)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and cls is getattr(numpy, "ndarray", None):
            return self._array(value)
        name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
        raise NotDataError(f"{name} is no plain data")

    def probe(self, value: Any) -> None:
        """Raise a :exc:`StreamTooLongError` if *value*, of any type, is larger than the limit."""
        if not self._bounded:
            return
        cls = type(value)
        if cls is str or cls is bytes:
            self._spend(len(value))
            return
        self._spend(_EACH)
        if cls is dict:
            parts: Iterable[Any] = value.values()
        elif cls in _SEQUENCES:
            parts = value
        else:
            names = getattr(cls, "__struct_fields__", None)
            attributes = getattr(value, "__dict__", None)
            if names is not None:
                parts = [getattr(value, name) for name in names]
            else:
                parts = attributes.values() if type(attributes) is dict else ()
        for part in parts:
            self.probe(part)

    def _spend(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise StreamTooLongError

    def _tag(self, name: str, content: Any) -> Any:
        self.tagged = True
        return self._notation.tag(name, content)

    def _is_quick(self, values: Any) -> bool:
        """Tell whether all *values* are written as they are."""
        kinds = set(map(type, values))
        if not kinds <= self._quick:
            return False
        if self._bounded:
            self._spend(_EACH * len(values))
            if str in kinds:
                self._spend(sum(len(one) for one in values if type(one) is str))
        return True

    def _items(self, values: Any) -> list[Any]:
        if self._is_quick(values):
            return list(values)
        self._spend(_EACH * len(values))
        return [self.plain(value) for value in values]

    def _list(self, value: list[Any]) -> Any:
        return value if self._is_quick(value) else self._items(value)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return self._tag("tuple", self._items(value))

    def _set(self, value: set[Any]) -> Any:
        return self._tag("set", self._items(value))

    def _frozenset(self, value: frozenset[Any]) -> Any:
        return self._tag("frozenset", self._items(value))

    def _dict(self, value: dict[Any, Any]) -> Any:
        kinds = set(map(type, value))
        plain_keys = kinds <= self._notation.key_types and (
            int not in kinds or int in self._quick
        )
        if not plain_keys or any(type(key) is str and key[:1] == "$" for key in value):
            pairs = [[self.plain(key), self.plain(one)] for key, one in value.items()]
            return self._tag("dict", pairs)
        if self._bounded:
            self._spend(sum(len(key) for key in value if type(key) is str))
        if self._is_quick(value.values()):
            return value
        return {key: self.plain(one) for key, one in value.items()}

    def _bytes(self, value: bytes) -> Any:
        if len(value) >= LARGE and self._buffers is not None:
            return self._buffer(memoryview(value))
        self._spend(len(value))
        if self._notation.has_bytes:
            return value
        return self._tag("bytes", b2a_base64(value, newline=False).decode())

    def _bytearray(self, value: bytearray) -> Any:
        return self._tag("bytearray", self._bytes(bytes(value)))

    def _buffer(self, view: memoryview) -> Any:
        assert self._buffers is not None
        self._buffers.append(view)
        return self._tag("buffer", len(self._buffers) - 1)

    def _wide_int(self, value: int) -> Any:
        self._spend(value.bit_length() >> 3)
        return self._tag("int", hex(value))

    def _array(self, array: Any) -> Any:
        dtype = array.dtype
        if not DTYPE.fullmatch(dtype.str) or array.ndim > DIMENSIONS:
            raise NotDataError(f"an array of type {dtype} is no plain data")
        if not array.flags.forc:
            array = array.copy("C")  # copying releases the GIL
        order = "C" if array.flags.c_contiguous else "F"
        content: Any
        if array.nbytes >= LARGE and self._buffers is not None:
            flat = array.reshape(-1, order=order)
            self._buffers.append(memoryview(flat.view("u1")))
            content = len(self._buffers) - 1
        else:
            content = self._bytes(array.tobytes(order))
        return self._tag("array", [dtype.str, list(array.shape), order, content])


_SEQUENCES: frozenset[type] = frozenset((list, tuple, set, frozenset))

_WRITERS: dict[type, Callable[[Any, Any], Any]] = {
    list: Walk._list,
    dict: Walk._dict,
    tuple: Walk._tuple,
    set: Walk._set,
    frozenset: Walk._frozenset,
    bytes: Walk._bytes,
    bytearray: Walk._bytearray,
}
