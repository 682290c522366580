"""Keys of large maps in MessagePack are looked at before they are collected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.codec.call_messages import loader
from asyncpool._core.codec.formats import MsgspecFormat, format_of
from asyncpool._core.codec.function_names import Plan
from asyncpool._core.codec.map_keys import KeyCheck
from asyncpool._core.codec.tagged_values import MalformedError, Untag
from asyncpool.errors import ProtocolError

msgspec = pytest.importorskip("msgspec")

OTHERS = "a large map has keys that are no text or int"


def read(data: bytes) -> Any:
    return KeyCheck(msgspec).before(msgspec.msgpack.Decoder().decode)(data)


def pack(value: Any) -> bytes:
    data: bytes = msgspec.msgpack.encode(value)
    return data


def chosen(count: int) -> dict[tuple[int, int], int]:
    """Return a dict whose keys MessagePack has as arrays."""
    return {(number, 0): 1 for number in range(count)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda it: it,
        lambda it: [1, it],
        lambda it: {"a": it},
        lambda it: [{"rows": [[it]]}] * 2,
        lambda it: {5: ["x" * 70_000, it]},
    ],
)
def test_arrays_are_no_keys_of_a_large_map(wrap: Any) -> None:
    with pytest.raises(MalformedError, match=OTHERS):
        read(pack(wrap(chosen(3000))))


def test_in_a_small_message_they_cost_too_little_to_look() -> None:
    assert read(pack(chosen(300))) == chosen(300)


@pytest.mark.parametrize(
    ("data", "untag"),
    [
        (pack(chosen(3000)), None),
        (pack([msgspec.msgpack.Ext(0, pack([chosen(3000)]))]), Untag([])),
    ],
    ids=["plain", "tagged"],
)
def test_a_format_reads_no_large_map_with_such_keys(
    data: bytes, untag: Untag | None
) -> None:
    with pytest.raises(MalformedError, match=OTHERS):
        format_of("msgspec").read(data, untag)


def answer() -> dict[str, Any]:
    return {}


def test_nor_does_it_where_a_type_leaves_a_part_open() -> None:
    form = format_of("msgspec")
    load = loader(form, Plan(answer, form).result, "the result")
    with pytest.raises(ProtocolError, match=OTHERS):
        load(form.untagged + pack({"a": chosen(3000)}))
    big = {f"k{number}": [number] for number in range(3000)}
    assert load(form.untagged + pack(big)) == big


def test_a_key_hides_no_value_behind_another_one() -> None:
    key = pack("a")
    for twice in (
        b"\x82" + key + pack(chosen(3000)) + key + pack(1),
        b"\xde\x00\x02" + key + pack(chosen(3000)) + key + pack(1),
        b"\xdf\x00\x00\x00\x02" + key + pack(chosen(3000)) + key + pack(1),
    ):
        with pytest.raises(MalformedError, match="a large map has a key twice"):
            read(twice)


def test_keys_that_a_type_names_are_read() -> None:
    kind = dict[tuple[int, int], int]
    assert MsgspecFormat().reader(kind)(pack(chosen(3000))) == chosen(3000)


def test_what_is_nested_too_deeply_is_refused() -> None:
    value: Any = {f"k{number}": number for number in range(3000)}
    for _ in range(40):
        value = [value]
    with pytest.raises(
        MalformedError, match="more than 32 large containers are nested"
    ):
        read(pack(value))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
plain = st.recursive(
    scalars | st.floats(allow_nan=False) | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 300), inner)
    ),
)


@given(plain, st.sampled_from([b"", b"\xde" * 3000]), st.integers(1, 300))
def test_all_plain_data_comes_out_as_it_was(
    value: Any, more: bytes, times: int
) -> None:
    whole = [{f"k{number}": value for number in range(times)}, more]
    assert read(pack(whole)) == whole
