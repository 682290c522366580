"""What a message consists of, and which part of a value cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest

from asyncpool._core.codec.formats import Format, format_of
from asyncpool._core.codec.function_names import Place
from asyncpool._core.codec.message_bodies import (
    culprit_in,
    joined,
    open_message,
    reason_of,
    refusal_of,
    write_native,
)
from asyncpool._core.codec.plain_data import NotDataError
from asyncpool._core.codec.tagged_values import MalformedError
from asyncpool._core.pickling.out_of_band import HEAVY, OutOfBandPickle

ANY = Place()
JSON, MSGSPEC = format_of("json"), format_of("msgspec")


@pytest.mark.parametrize("how", [JSON, MSGSPEC], ids=lambda how: how.name)
def test_a_message_is_opened_by_its_own_format_only(how: Format) -> None:
    message = joined(how, tagged=False, body=b"1")
    assert isinstance(message, bytes)
    assert open_message(how, message, copy=True) == (b"1", None)
    other = MSGSPEC if how is JSON else JSON
    for wrong in [joined(other, tagged=False, body=b"1"), message[:1] + b"\2" + b"1"]:
        assert isinstance(wrong, bytes)
        with pytest.raises(MalformedError, match=f"it is no message of {how.name}"):
            open_message(how, wrong, copy=True)


def test_only_a_tagged_message_has_what_reads_tagged_values() -> None:
    tagged = joined(MSGSPEC, tagged=True, body=b"1")
    assert isinstance(tagged, bytes)
    body, untag = open_message(MSGSPEC, tagged, copy=True)
    assert body == b"1"
    assert untag is not None


def test_a_long_message_travels_beside_the_frame() -> None:
    assert isinstance(joined(JSON, tagged=False, body=b"x" * HEAVY), OutOfBandPickle)


def test_a_format_writes_what_it_knows_as_it_is() -> None:
    assert write_native(JSON, (), ([1, "a"],), [1, "a"]) == JSON.write([1, "a"])
    assert write_native(JSON, (), ((1,),), (1,)) is None
    assert write_native(JSON, (), (b"a",), b"a") is None
    assert write_native(JSON, (), (1,), 1, in_band=True) is None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "$"),
        ([1, object()], "$[1]"),
        ({"a": (1, {"b c": object()})}, "$.a[1]['b c']"),
        ({"a": {object()}}, "$.a[...]"),
        ({frozenset([object()]): 1}, "$"),
    ],
)
def test_the_part_that_cannot_be_sent_has_a_path(value: Any, path: str) -> None:
    error = refusal_of(JSON, ANY, value)
    assert isinstance(error, NotDataError)
    where, why = culprit_in(JSON, ANY, value, "$", error)
    assert where.startswith(path)
    assert reason_of(why) == "object is no plain data"


def test_what_can_be_sent_is_not_refused() -> None:
    assert refusal_of(JSON, ANY, {"a": [(1, 2), b"b"]}) is None


def test_a_value_that_holds_itself_is_too_deep() -> None:
    value: list[Any] = []
    value.append(value)
    error = refusal_of(JSON, ANY, value)
    assert isinstance(error, RecursionError)
    _, why = culprit_in(JSON, ANY, value, "$", error)
    assert reason_of(why) == "it is nested too deeply, or holds itself"
