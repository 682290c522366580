"""What names the large parts of a call or a value that are in lent memory."""

from __future__ import annotations

import pytest

from asyncpool._core.remote.lent_parts import LENT, LentParts
from asyncpool._core.remote_wire.remote_messages import PLAIN, pack_parts
from asyncpool.errors import ProtocolError


def test_it_is_read_as_it_was_written_and_looks_like_nothing_else() -> None:
    parts = LentParts(7, [1 << 20, 1 << 16], b"stream")
    assert LentParts.unpack(parts.pack()) == parts
    assert parts.pack().startswith(LENT)
    assert pack_parts(b"stream").startswith(PLAIN)


@pytest.mark.parametrize(
    "data",
    [
        LENT,
        LentParts(7, [1 << 20] * 3, b"").pack()[:-1],
        LentParts(7, [1 << 30, 1 << 30], b"").pack(),  # more than a call may have
        LentParts(7, [1] * 17, b"").pack(),  # small ones belong in the stream
        LENT + (7).to_bytes(4) + (1 << 31).to_bytes(4),
    ],
)
def test_what_breaks_the_rules_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        LentParts.unpack(data)
