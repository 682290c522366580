"""Pools whose calls and values are data only: what is sent, and what bytes are believed."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asyncpool._core.data_only import DataOnly
from asyncpool._wire import formats, schemas
from asyncpool._wire.buffers import OutOfBandPickle, OverLimitError, ReceivedPickle
from asyncpool._wire.formats import Format, format_of
from asyncpool._wire.plain_data import NotDataError
from asyncpool._wire.schemas import DataFunction, load_failure, pack_failure
from asyncpool.errors import (
    HookError,
    JobCancelled,
    JobNotPicklableError,
    JobRaisedError,
    ProtocolError,
    RemoteError,
)
from tests.helpers.data_jobs import Reversed, StockError, echo

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
        return repr(one) == repr(other)  # as for NaN and -0.0
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


def packed_call(how: Format, args: Any, named: Any, **options: Any) -> Any:
    serializer = DataOnly(how).serializer_of(echo, how)
    return serializer.pack_job(echo, args, named, number=1, **options)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(value=values)
def test_a_value_comes_back_as_it_was_or_is_refused(how: Format, value: Any) -> None:
    try:
        packed = how.kind_of(Any).pack(value)
    except JobNotPicklableError:
        return
    assert same(how.kind_of(Any).load(sent(packed)), value)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
@given(args=st.lists(values).map(tuple), kwargs=st.dictionaries(st.text("$ab"), values))
def test_so_do_the_arguments_of_a_call(
    how: Format, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        packed = packed_call(how, args, kwargs)
    except JobNotPicklableError:
        return
    found = DataFunction("a:b", echo, how).load(sent(packed))
    assert same([*found], [[*args], kwargs])


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
    packed = how.kind_of(Any).pack(value)
    assert same(how.kind_of(Any).load(sent(packed)), value)
    for in_band in (False, True):
        packed = packed_call(how, (1,), {"it": value}, in_band=in_band)
        found = DataFunction("a:b", echo, how).load(sent(packed))
        assert same([*found], [[1], {"it": value}])


@pytest.mark.parametrize("dtype", ["?", "<i2", ">f8", "c16", "M8[ns]", "U3", "S5"])
def test_arrays_come_back_with_type_shape_and_order(dtype: str) -> None:
    how = format_of("msgspec")
    for shape in [(), (0,), (3, 4), (300, 200), (0, 7), (1, 2, 3)]:
        array: Any = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
        for same_items in [array, array.T, array[..., ::-1] if shape else array]:
            found = how.kind_of(Any).load(sent(how.kind_of(Any).pack(same_items)))
            assert (found.dtype, found.shape) == (same_items.dtype, same_items.shape)
            assert np.array_equal(found, same_items)
            if same_items.flags.forc:
                assert found.flags.c_contiguous == same_items.flags.c_contiguous
            assert found.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 1000] * 200,
        "x" * 200_000,
        [[1] * 100] * 200,
        {f"{n}": [n] for n in range(20_000)},
        [1.5] * 40_000,
    ],
)
def test_what_is_too_long_for_the_event_loop_is_found_before_it_is_written(
    value: Any,
) -> None:
    for how in FORMATS:
        for args in ((value,), (*value,)):
            with pytest.raises(OverLimitError):
                packed_call(how, args, {}, limit=131_072)


# Formats.


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
    assert not format_of("msgspec").kind_of(kind).typed


def test_what_is_annotated_as_bytes_is_checked() -> None:
    with pytest.raises(JobNotPicklableError, match="Expected `bytes`, got `list`"):
        FORMATS[1].kind_of(bytes).load(b"\x02\x00[]")


@pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "\N{GRINNING FACE}"])
def test_json_writes_half_a_surrogate_pair(text: str) -> None:
    how = format_of("json")
    assert how.parse(how.text([text, {text: 1}])) == [text, {text: 1}]


def test_json_does_not_join_two_halves_in_silence() -> None:
    halves = "\ud83d" + "\ude00"
    for value in (halves, {halves: 1, "\N{GRINNING FACE}": 2}):
        with pytest.raises(NotDataError, match="both halves of a surrogate pair"):
            format_of("json").text(value)


# Exceptions.

ERRORS = schemas.registered([StockError, StopIteration, SystemExit])


def there_and_back(error: BaseException) -> BaseException:
    return load_failure(ERRORS, pack_failure(error))


@pytest.mark.parametrize("error", [StopIteration(1), SystemExit(3), JobCancelled()])
def test_what_must_not_be_raised_here_is_wrapped(error: BaseException) -> None:
    found = there_and_back(error)
    assert isinstance(found, JobRaisedError)
    assert type(found.exception) is type(error)


def test_errors_of_workers_come_as_themselves() -> None:
    error = there_and_back(JobNotPicklableError("no", direction="result", name="X"))
    assert isinstance(error, JobNotPicklableError)
    assert (str(error), error.direction, error.name) == ("no", "result", "X")
    hook = there_and_back(HookError("a:b", stage="exit", exception=StockError("a", 1)))
    assert isinstance(hook, HookError)
    assert (hook.hook, hook.stage, type(hook.exception)) == ("a:b", "exit", StockError)


GOOD: Any = {"type": "a", "text": "b", "traceback": "c", "notes": [], "args": None}


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {**GOOD, "type": 1},
        {**GOOD, "notes": None},
        {**GOOD, "notes": [1]},
        {**GOOD, "args": 3},
    ],
)
def test_what_is_no_exception_breaks_the_protocol(fields: Any) -> None:
    with pytest.raises(ProtocolError, match="it sent an exception"):
        load_failure(ERRORS, b"\x01\x00" + json.dumps(fields).encode())


def test_arguments_may_be_missing() -> None:
    fields = {name: value for name, value in GOOD.items() if name != "args"}
    error = load_failure(ERRORS, b"\x01\x00" + json.dumps(fields).encode())
    assert isinstance(error, RemoteError)
    assert error.args_sent is None


def test_a_text_of_any_length_comes_home() -> None:
    error = there_and_back(ValueError("x" * (20 << 20)))
    assert isinstance(error, RemoteError)
    assert error.text == "x" * (1 << 20)


# Functions by name.


@pytest.mark.parametrize("wrong", ["math", ":sqrt", "math:", 3])
def test_an_entry_of_that_list_that_names_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="functions takes functions and names"):
        schemas.FunctionNames([wrong])


def test_what_came_beside_a_message_is_heavy() -> None:
    serializer = DataOnly(FORMATS[0]).serializer_of(echo, FORMATS[0])
    assert serializer.is_heavy(ReceivedPickle(b"\x01\x00[]", []))
    assert serializer.is_heavy(b"\x01\x01" + bytes(3000))  # in parts
    assert not serializer.is_heavy(b"\x01\x00[]" + bytes(3000))
