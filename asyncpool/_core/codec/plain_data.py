"""Which values are plain data, and how those that a format does not know are written.

A format such as JSON turns a tuple into a list and a number that is none into null, and says
nothing.  So a value is looked at before it is written.  A format writes what comes back as the
same value.  Other values that are plain data become *tagged*: they are written as a name and a
content that the format knows.  Everything else is refused.

Whoever reads believes nothing: it makes values of built-in types and NumPy's arrays, and checks
every number in them.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from binascii import a2b_base64, b2a_base64
from collections import Counter
from io import BytesIO
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

# How many bytes are copied at once while the thread holds the GIL.
_PIECE = 262_144

# The types of arrays: booleans, numbers, times, and texts of fixed length.
_DTYPE = re.compile(r"[<>|=][biufcmMSU][1-9][0-9]{0,6}(\[[0-9]{0,6}[A-Za-zμ]{1,7}\])?")
_DIMENSIONS = 32

# How many keys of a set or dict may have one hash.  Those of honest messages have two, as -1 and -2.
_MOST_ALIKE = 100


class NotDataError(TypeError):
    """A value is no plain data."""


class MalformedError(Exception):
    """Bytes are no message of a format, or say of a value what cannot be."""


class MissingPackageError(Exception):
    """A value needs a package that this process has not imported."""


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
        if not _DTYPE.fullmatch(dtype.str) or array.ndim > _DIMENSIONS:
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


class Untag:
    """Makes values of tagged ones, for one message; it believes nothing.

    Args:
        buffers: What came beside the message.
        copy: Whether the sender is a worker, which may write into the buffers later on, and must
            not make this process import anything.
        pause: Called now and then while a buffer is copied.
    """

    def __init__(
        self,
        buffers: list[memoryview],
        *,
        copy: bool = True,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self._buffers: list[memoryview | None] = list(buffers)
        self._copy = copy
        self._pause = pause

    def __call__(self, name: str, content: Any) -> Any:
        """Return the value that was tagged.

        Raises:
            Exception: If there is no such value.
        """
        return _READERS[name](self, content)

    def _sequence(self, content: Any) -> list[Any]:
        if type(content) is not list:
            raise MalformedError("a sequence has no items")
        return content

    def _tuple(self, content: Any) -> Any:
        return tuple(self._sequence(content))

    def _set(self, content: Any) -> Any:
        return set(_hashed_apart(self._sequence(content)))

    def _frozenset(self, content: Any) -> Any:
        return frozenset(_hashed_apart(self._sequence(content)))

    def _dict(self, content: Any) -> Any:
        _hashed_apart([key for key, _ in self._sequence(content)])
        return {key: value for key, value in content}  # noqa: C416 - checks the pairs

    def _bytes(self, content: Any) -> Any:
        return a2b_base64(content, strict_mode=True)

    def _bytearray(self, content: Any) -> Any:
        if type(content) is not bytes:
            raise MalformedError("a bytearray has no bytes")
        return bytearray(content)

    def _int(self, content: Any) -> Any:
        return int(
            content, 16
        )  # takes a time in proportion to its length, unlike base 10

    def _buffer(self, content: Any) -> Any:
        return private(self._take(content), self._pause)

    def _take(self, index: Any) -> memoryview:
        """Return a buffer, once: a message that named it often would take any memory."""
        known = type(index) is int and 0 <= index < len(self._buffers)
        found: memoryview | None = self._buffers[index] if known else None
        if found is None:
            raise MalformedError("there is no such buffer")
        self._buffers[index] = None
        return found

    def _array(self, content: Any) -> Any:
        dtype, shape, order, data = content
        if not (type(dtype) is str and _DTYPE.fullmatch(dtype) and order in ("C", "F")):
            raise MalformedError("there is no such type of array")
        if (
            type(shape) is not list
            or len(shape) > _DIMENSIONS
            or any(type(size) is not int or size < 0 for size in shape)
        ):
            raise MalformedError("an array has no such shape")
        numpy = _numpy() if self._copy else importlib.import_module("numpy")
        real = numpy.dtype(dtype)
        beside = type(data) is int
        if beside:
            data = self._take(data)
        elif type(data) is not bytes:
            raise MalformedError("an array has no bytes")
        if len(data) != math.prod(shape) * real.itemsize:
            raise MalformedError("the bytes of an array do not fit its shape")
        array = numpy.ndarray(shape, real, data, order=order)
        # What is in bytes cannot be written to.
        return array if beside and not self._copy else array.copy("A")


def _hashed_apart(keys: list[Any]) -> list[Any]:
    """Return *keys* if not too many of them have one hash.

    To collect n keys of one hash takes n * n steps.  Python makes the hashes of texts differ, but
    the hash of an int is known to whoever sends it.
    """
    if len(keys) > _MOST_ALIKE and max(Counter(map(hash, keys)).values()) > _MOST_ALIKE:
        raise MalformedError("too many of the keys have the same hash")
    return keys


def _numpy() -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        raise MissingPackageError(
            "a NumPy array has come, and this process has not imported numpy"
        )
    return numpy


_READERS: dict[str, Callable[[Untag, Any], Any]] = {
    "tuple": Untag._tuple,
    "set": Untag._set,
    "frozenset": Untag._frozenset,
    "dict": Untag._dict,
    "bytes": Untag._bytes,
    "bytearray": Untag._bytearray,
    "int": Untag._int,
    "buffer": Untag._buffer,
    "array": Untag._array,
}


def private(view: memoryview, pause: Callable[[], None] | None = None) -> bytes:
    """Return a copy that nobody else can write into, made in pieces."""
    view = view.cast("B")
    copy = BytesIO()
    for start in range(0, len(view), _PIECE):
        copy.write(view[start : start + _PIECE])
        if pause is not None:
            pause()
    return copy.getvalue()  # which is the object itself, and no other copy
