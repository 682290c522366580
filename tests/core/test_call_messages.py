"""Values as messages: each comes back as it was, or is refused, and bytes are believed nothing."""

from __future__ import annotations

import math
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asyncpool._core.codec.call_messages import (
    load_call,
    load_value,
    pack_call,
    pack_value,
)
from asyncpool._core.codec.formats import Format, format_of
from asyncpool._core.codec.function_names import Place, Plan
from asyncpool._core.pickling.out_of_band import (
    OutOfBandPickle,
    ReceivedPickle,
    StreamTooLongError,
)
from asyncpool.errors import JobNotPicklableError, ProtocolError

ANY = Place()
FORMATS = [format_of("json"), format_of("msgspec")]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text(st.characters())  # halves of surrogate pairs too
    | st.text("$ab")
    | st.binary()
    | st.builds(bytearray, st.binary())
    | st.complex_numbers()
    | st.builds(object)
)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("$ab") | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.frozensets(inner),
    max_leaves=4,
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(hashable)
        | st.frozensets(hashable)
        | st.dictionaries(hashable, inner)
        | st.dictionaries(st.text("$abc"), inner)
    ),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, in all of their types and their order too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    if isinstance(one, set | frozenset):
        types = Counter(map(type, one)), Counter(map(type, other))
        return one == other and types[0] == types[1]
    return bool(one == other)


def sent(packed: bytes | OutOfBandPickle) -> bytes | ReceivedPickle:
    """Return what comes of a message at the other end."""
    if isinstance(packed, bytes):
        return packed
    areas = [memoryview(bytearray().join(pieces)) for pieces in packed.areas]
    return ReceivedPickle(packed.payload, areas)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(value=values)
def test_a_value_comes_back_as_it_was_or_is_refused(how: Format, value: Any) -> None:
    try:
        packed = pack_value(how, ANY, value, "it", None)
    except JobNotPicklableError:
        return
    assert same(load_value(how, ANY, sent(packed)), value)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(args=st.lists(values).map(tuple), kwargs=st.dictionaries(st.text("$ab"), values))
def test_so_do_the_arguments_of_a_call(
    how: Format, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    plan = Plan(None, how)
    try:
        packed = pack_call(how, plan, args, kwargs)
    except JobNotPicklableError:
        return
    found, named = load_call(how, plan, sent(packed))
    assert same(tuple(found), args)
    assert same(named, kwargs)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@pytest.mark.parametrize(
    "value",
    [
        "x" * 200_000,
        '[{"a, b": 1}, ' * 100_000,
        ["\u20ac" * 200_000, "\N{GRINNING FACE}" * 9000],
        list(range(100_000)),
        {f"k{number}": [number, {}] for number in range(20_000)},
        [10**4000] * 300,
        [[None]] * 40_000,
        -0.0,
    ],
)
def test_large_values_come_back_too(how: Format, value: Any) -> None:
    assert same(
        load_value(how, ANY, sent(pack_value(how, ANY, value, "it", None))), value
    )


@pytest.mark.parametrize(
    "value",
    [
        b"x" * 70_000,
        bytearray(b"x" * 70_000),
        [b"x" * 70_000, {"k": (b"y" * 70_000,)}],
        {2**70: 1},
        {(number, "x"): b"x" for number in range(30_000)},
        frozenset(range(50_000)),
        [(number, 1.5) for number in range(40_000)],
    ],
)
def test_msgspec_sends_what_json_does_not_know(value: Any) -> None:
    how = format_of("msgspec")
    packed = pack_value(how, ANY, value, "it", None)
    assert same(load_value(how, ANY, sent(packed)), value)
    plan = Plan(None, how)
    for in_band in (False, True):
        packed = pack_call(how, plan, (1,), {"it": value}, in_band=in_band)
        assert same([*load_call(how, plan, sent(packed))], [[1], {"it": value}])


@pytest.mark.parametrize("dtype", ["?", "<i2", ">f8", "c16", "M8[ns]", "U3", "S5"])
def test_arrays_come_back_with_type_shape_and_order(dtype: str) -> None:
    how = format_of("msgspec")
    for shape in [(), (0,), (3, 4), (300, 200), (0, 7), (1, 2, 3)]:
        array: Any = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
        for same_items in [array, array.T, array[..., ::-1] if shape else array]:
            packed = pack_value(how, ANY, same_items, "it", None)
            found = load_value(how, ANY, sent(packed))
            assert (found.dtype, found.shape) == (same_items.dtype, same_items.shape)
            assert np.array_equal(found, same_items)
            if same_items.flags.forc:
                assert found.flags.c_contiguous == same_items.flags.c_contiguous
            assert found.flags.writeable


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(data=st.binary(max_size=60), tagged=st.integers(0, 1))
def test_any_bytes_are_a_value_or_no_message(
    how: Format, data: bytes, tagged: int
) -> None:
    with suppress(ProtocolError):
        load_value(how, ANY, bytes((how.number, tagged)) + data)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(value=values, data=st.data())
def test_a_damaged_message_is_a_value_or_no_message(
    how: Format, value: Any, data: st.DataObject
) -> None:
    try:
        packed = pack_value(how, ANY, value, "it", None)
    except JobNotPicklableError:
        return
    damaged = bytearray(packed if isinstance(packed, bytes) else packed.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(damaged) - 1))
        damaged[where] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError, JobNotPicklableError):
        load_value(how, ANY, bytes(damaged))


def test_an_array_does_not_make_the_service_import_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how = format_of("msgspec")
    packed = pack_value(how, ANY, np.arange(3), "it", None)
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(JobNotPicklableError, match="has not imported numpy"):
        load_value(how, ANY, sent(packed))


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 1000] * 200,
        "x" * 200_000,
        [[1] * 100] * 200,
        {f"{n}": [n] for n in range(20_000)},
    ],
)
def test_what_is_too_long_for_the_event_loop_is_found_before_it_is_written(
    value: Any,
) -> None:
    for how in FORMATS:
        with pytest.raises(StreamTooLongError):
            pack_call(how, Plan(None, how), (value,), {}, limit=131_072)


def test_annotations_with_a_hole_are_not_used() -> None:
    def function(one: int, two: Any) -> int:
        raise NotImplementedError

    how = format_of("msgspec")
    function.__annotations__ = {"one": int, "two": "Unknown"}
    assert not Plan(function, how).typed  # one of them cannot be read, so that none is

    def other(one: int, two: list[Any], *more: float, data: bytes) -> tuple[int, ...]:
        raise NotImplementedError

    other.__annotations__ = {
        "one": int,
        "two": list[Any],
        "more": float,
        "data": bytes,
        "return": tuple[int, ...],
    }
    plan = Plan(other, how)
    assert [plan.argument(n).kind for n in range(4)] == [int, None, float, float]
    assert plan.named("data").expected is bytes
    assert plan.result.kind == tuple[int, ...]
