"""The formats: their names, and which annotations they can make use of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import numpy as np
import pytest

from asyncpool._core.codec import formats
from asyncpool._core.codec.formats import PLAIN, MismatchError, PluggedFormat, format_of
from asyncpool._core.codec.plain_data import NotDataError
from tests.helpers.data_jobs import Order, Reversed


def test_formats_have_names_and_are_made_once() -> None:
    assert format_of("json") is format_of("json")
    assert format_of("msgspec").name == "msgspec"
    codec = Reversed()
    assert format_of(codec).name == "reversed"
    assert format_of(codec) == format_of(codec) != format_of(Reversed())
    assert hash(format_of(codec)) == hash(format_of(codec))


@pytest.mark.parametrize("wrong", ["pickle", "", "marshal"])
def test_there_is_no_codec_of_another_name(wrong: str) -> None:
    with pytest.raises(ValueError, match="codec must be 'json', 'msgspec' or a Codec"):
        format_of(wrong)


def test_a_codec_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    formats._msgspec_format.cache_clear()
    with pytest.raises(ImportError, match=r"install asyncpool-supervised\[msgspec\]"):
        format_of("msgspec")


@pytest.mark.parametrize(
    "kind",
    [int, str | None, list[int], dict[str, tuple[int, ...]], Order, set[str], datetime],
)
def test_an_annotation_that_says_all_is_used(kind: Any) -> None:
    assert format_of("msgspec").cost(kind)


@pytest.mark.parametrize(
    "kind",
    [
        Any,
        object,
        list,
        dict[str, Any],
        tuple[int, list[Any]],
        Annotated[list[object], "what"],
        Iterator[int],
        np.ndarray,
        list[Reversed],
        dict[int, str],  # the hash of an int is known to whoever sends it
        list[set[float]],
        frozenset[datetime],
    ],
)
def test_an_annotation_with_a_hole_is_none(kind: Any) -> None:
    assert format_of("msgspec").cost(kind) is None


@pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "\N{GRINNING FACE}"])
def test_json_writes_half_a_surrogate_pair(text: str) -> None:
    how = format_of("json")
    assert how.parse(how.text([text, {text: 1}])) == [text, {text: 1}]


def test_json_does_not_join_two_halves_in_silence() -> None:
    halves = "\ud83d" + "\ude00"
    for value in (halves, {halves: 1, "\N{GRINNING FACE}": 2}):
        with pytest.raises(NotDataError, match="both halves of a surrogate pair"):
            format_of("json").text(value)


def test_a_value_of_another_type_is_a_mismatch_with_its_path() -> None:
    how = format_of("msgspec")
    with pytest.raises(
        MismatchError, match=r"Expected `int`, got `str` - at `\$\[1\]`"
    ):
        how.typed_of([1, "2"], list[int])


def test_a_codec_that_returns_no_bytes_is_refused() -> None:
    class Wrong(Reversed):
        def encode(self, value: Any) -> Any:
            return repr(value)

    with pytest.raises(TypeError, match=r"its encode\(\) has returned a str"):
        PluggedFormat(Wrong()).plain(1, PLAIN)
