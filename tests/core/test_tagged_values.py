"""Values that came tagged: whoever reads believes nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from asyncpool._core.codec.tagged_values import MalformedError, Untag, private


def test_a_name_that_no_value_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        Untag([])("object", [])


def test_a_copy_is_made_in_pieces() -> None:
    pauses: list[None] = []
    data = bytes(range(256)) * 4000
    copy = private(memoryview(data), lambda: pauses.append(None))
    assert copy == data
    assert len(pauses) == 4


def alike(count: int) -> list[int]:
    """Return ints of one hash."""
    return [number * sys.hash_info.modulus for number in range(count)]


@pytest.mark.parametrize("name", ["set", "frozenset", "dict"])
def test_keys_that_were_chosen_for_their_hash_are_not_collected(name: str) -> None:
    def told(keys: list[int]) -> list[Any]:
        return [[key, None] for key in keys] if name == "dict" else [*keys]

    honest = [*alike(100), *range(1, 5000)]
    found = Untag([])(name, told(honest))
    assert found == (dict.fromkeys(honest) if name == "dict" else set(honest))
    with pytest.raises(MalformedError, match="of the keys have the same hash"):
        Untag([])(name, told([*alike(101), *range(1, 5000)]))
