"""A call or a value whose large parts are in memory that its sender has lent."""

from __future__ import annotations

import struct
from typing import NamedTuple

from asyncpool._remote.reliable_link import MAX_PAYLOAD
from asyncpool._wire.buffers import LARGE
from asyncpool.errors import ProtocolError

# How such a payload begins; others begin with the number of their parts, see pack_parts().
LENT = b"\xff\xff\xff\xff"

# the beginning, the segment, number of areas
_HEAD = struct.Struct(">4sII")

# As in _engine/worker.py: so many areas may be small.
_SMALL_ONES = 16


class LentParts(NamedTuple):
    """What names them.

    Attributes:
        segment: The number of the segment that they are in.
        sizes: The size of each, in the order of :func:`lay_out`.
        payload: What travels besides: the stream, unless that is long.
    """

    segment: int
    sizes: list[int]
    payload: bytes

    def pack(self) -> bytes:
        """Return it as bytes."""
        head = _HEAD.pack(LENT, self.segment, len(self.sizes))
        return head + struct.pack(f">{len(self.sizes)}Q", *self.sizes) + self.payload

    @classmethod
    def unpack(cls, data: bytes) -> LentParts:
        """Read what :meth:`pack` has returned.

        Raises:
            ProtocolError: If it is something else, or has too many bytes or parts.
        """
        try:
            _, segment, count = _HEAD.unpack_from(data)
            if count > MAX_PAYLOAD // LARGE + _SMALL_ONES:
                raise ProtocolError(f"a call or a value has {count} parts")
            sizes = struct.unpack_from(f">{count}Q", data, _HEAD.size)
        except struct.error as error:
            raise ProtocolError(f"what is lent cannot be read: {error}") from None
        size = sum(sizes)
        if size > MAX_PAYLOAD or count > size // LARGE + _SMALL_ONES:
            raise ProtocolError(f"{count} parts of {size} bytes are too many")
        return cls(segment, list(sizes), data[_HEAD.size + 8 * count :])
