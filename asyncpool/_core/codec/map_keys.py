"""Find keys in MessagePack that were chosen for their hash, before anybody collects them.

To collect n keys of one hash takes n * n steps.  Python makes the hashes of texts differ, and few
ints of 64 bits have one hash.  But msgspec takes arrays for keys, as tuples, whose hash is known to
whoever sends them: 0.8 MB of them kept an event loop for 10 s.
"""

from __future__ import annotations

from asyncpool._core.codec.tagged_values import MalformedError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# In so many bytes, keys of one hash cost next to nothing.
SMALL = 2048

_MAP_16 = 0xDE

# In how many containers that are larger than that a value may be.  Each is looked through once
# more for each container around it.
_DEEPEST = 32


class KeyCheck:
    """Looks at the keys of large maps, as long as nobody has collected them.

    Args:
        msgspec: The package.
    """

    def __init__(self, msgspec: Any) -> None:
        raw, decoder = msgspec.Raw, msgspec.msgpack.Decoder
        self._split_array = decoder(list[raw]).decode  # type: ignore[valid-type]
        self._split_map = decoder(dict[str | int, raw]).decode  # type: ignore[valid-type]
        self._mismatch = msgspec.ValidationError

    def before(self, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a *decode* for plain data that checks it before."""

        def decode_checked(data: Any) -> Any:
            if len(data) > SMALL:
                self.check(data)
            return decode(data)

        return decode_checked

    def check(self, data: Any, depth: int = _DEEPEST) -> None:
        """Check *data*, which is larger than :data:`SMALL`.

        Raises:
            MalformedError: If a map has other keys than texts and ints, or too much is nested.
            Exception: If there is no value.
        """
        if not _may_have_many_keys(data):
            return
        if not depth:
            raise MalformedError(f"more than {_DEEPEST} large containers are nested")
        for part in self._parts(data):
            if len(memoryview(part)) > SMALL:
                self.check(bytes(part), depth - 1)

    def _parts(self, data: Any) -> Any:
        """Return what an array or a map holds; nothing for any other value."""
        first = bytes(data[:1])
        if _is_array(first):
            return self._split_array(data)
        if not _is_map(first):
            return ()
        try:
            found = self._split_map(data)
        except self._mismatch as error:
            raise MalformedError(
                "a large map has keys that are no text or int"
            ) from error
        # Of two values of a key, the first would not be looked at.
        if len(found) != _entries(data):
            raise MalformedError("a large map has a key twice")
        return found.values()


def _may_have_many_keys(data: Any) -> bool:
    # A map of 16 entries or more begins with one of them.
    data = bytes(data)
    return b"\xde" in data or b"\xdf" in data


def _is_array(first: bytes) -> bool:
    return b"\x90" <= first <= b"\x9f" or first in {b"\xdc", b"\xdd"}


def _is_map(first: bytes) -> bool:
    return b"\x80" <= first <= b"\x8f" or first in {b"\xde", b"\xdf"}


def _entries(data: Any) -> int:
    """Return how many entries a map announces."""
    first = data[0]
    if first < _MAP_16:
        return int(first & 15)
    return int.from_bytes(data[1 : 3 if first == _MAP_16 else 5], "big")
