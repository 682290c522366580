"""What is plain data, and what a format writes as it is."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from typing import Any

import pytest

from asyncpool._core.codec.formats import format_of
from asyncpool._core.codec.plain_data import NotDataError, Walk, is_native
from asyncpool._core.pickling.out_of_band import StreamTooLongError

JSON, MSGSPEC = format_of("json"), format_of("msgspec")


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value", [Color.RED, OrderedDict(a=1), memoryview(b"a"), 1j, object(), [Color.RED]]
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    assert not is_native([value], MSGSPEC, None)
    with pytest.raises(NotDataError, match="is no plain data"):
        Walk(MSGSPEC, None).plain(value)


def test_formats_differ_in_what_they_write_as_it_is() -> None:
    for value, in_json, in_msgspec in [
        ([1, [2.0, {"a": None}]], True, True),
        (b"a", False, True),
        (b"a" * 70_000, False, False),
        ({1: 2}, False, True),
        ({None: 2}, False, False),
        ((1,), False, False),
    ]:
        assert is_native([value], JSON, None) is in_json
        assert is_native([value], MSGSPEC, None) is in_msgspec


def test_what_holds_itself_is_not_looked_at_for_ever() -> None:
    value: list[Any] = []
    value += [value, value]
    assert not is_native([value], JSON, None)


def test_a_limit_bounds_the_look() -> None:
    with pytest.raises(StreamTooLongError):
        is_native([["x" * 1000] * 10], JSON, 5000)
    with pytest.raises(StreamTooLongError):
        Walk(JSON, None, limit=5000).probe([[1] * 1000])
