"""Values that came tagged, since their format does not know them: ``plain_data.py`` tags them.

Whoever reads believes nothing: it makes values of built-in types and NumPy's arrays, and checks
every number in them.
"""

from __future__ import annotations

import importlib
import math
import sys
from binascii import a2b_base64
from collections import Counter
from io import BytesIO

from asyncpool._core.codec.plain_data import DIMENSIONS, DTYPE

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How many bytes are copied at once while the thread holds the GIL.
_PIECE = 262_144

# How many keys of a set or dict may have one hash.  Those of honest messages have two, as -1 and -2.
_MOST_ALIKE = 100


class MalformedError(Exception):
    """Bytes are no message of a format, or say of a value what cannot be."""


class MissingPackageError(Exception):
    """A value needs a package that this process has not imported."""


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
        # This takes a time in proportion to the length, unlike base 10.
        return int(content, 16)

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
        if not (type(dtype) is str and DTYPE.fullmatch(dtype) and order in ("C", "F")):
            raise MalformedError("there is no such type of array")
        if (
            type(shape) is not list
            or len(shape) > DIMENSIONS
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
