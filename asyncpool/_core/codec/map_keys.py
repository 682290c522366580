"""Read MessagePack without collecting keys that were chosen for their hash.

To collect n keys of one hash takes n * n steps.  Python makes the hashes of texts differ, and few
ints of 64 bits have one hash.  But msgspec takes arrays for keys, as tuples, whose hash is known to
whoever sends them: 0.8 MB of them kept an event loop for 10 s.
"""

from __future__ import annotations

from asyncpool._core.codec.plain_data import MalformedError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# In so many bytes, keys of one hash cost next to nothing.
SMALL = 2048

# In how many containers that are larger than that a value may be.  Each is looked through once
# more for each container around it.
_DEEPEST = 32


class KeyGuard:
    """Reads plain data; if it is large, the keys of its maps before it collects them.

    Args:
        msgspec: The package.
        decode: What reads a message, or part of one, that is known to have no such keys.
    """

    def __init__(self, msgspec: Any, decode: Callable[[Any], Any]) -> None:
        raw, decoder = msgspec.Raw, msgspec.msgpack.Decoder
        self._decode = decode
        self._split_array = decoder(list[raw]).decode  # type: ignore[valid-type]
        self._split_map = decoder(dict[str | int, raw]).decode  # type: ignore[valid-type]
        self._mismatch = msgspec.ValidationError

    def read(self, data: Any, depth: int = _DEEPEST) -> Any:
        """Return the value in *data*.

        Raises:
            MalformedError: If a map has other keys than texts and ints, or too much is nested.
            Exception: If there is no value.
        """
        # Parts are small nearly always, so the whole can be read at once then.
        if len(data) <= SMALL or not _may_have_many_keys(data):
            return self._decode(data)
        if not depth:
            raise MalformedError(f"more than {_DEEPEST} large containers are nested")
        first = bytes(data[:1])
        if _is_array(first):
            items = self._split_array(data)
            if all(len(memoryview(item)) <= SMALL for item in items):
                return self._decode(data)
            return [self.read(bytes(item), depth - 1) for item in items]
        if _is_map(first):
            try:
                values = self._split_map(data)
            except self._mismatch as error:
                raise MalformedError(
                    "a large map has keys that are no text or int"
                ) from error
            if all(len(memoryview(value)) <= SMALL for value in values.values()):
                return self._decode(data)
            return {
                key: self.read(bytes(value), depth - 1) for key, value in values.items()
            }
        return self._decode(data)


def _may_have_many_keys(data: Any) -> bool:
    # A map of 16 entries or more begins with one of them.
    data = bytes(data)
    return b"\xde" in data or b"\xdf" in data


def _is_array(first: bytes) -> bool:
    return b"\x90" <= first <= b"\x9f" or first in {b"\xdc", b"\xdd"}


def _is_map(first: bytes) -> bool:
    return b"\x80" <= first <= b"\x8f" or first in {b"\xde", b"\xdf"}
