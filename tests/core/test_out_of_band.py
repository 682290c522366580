"""Large objects, and the large parts of others."""

from __future__ import annotations

import copyreg
import pickle
import random
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.buffers import (
    HEAVY,
    LARGE,
    OutOfBandPickle,
    OverLimitError,
    lay_out,
)
from asyncpool._wire.pickling import dump, loads, pack_job, pack_value
from tests.helpers.parcels import Array, Pause, arrived

# What a pickler writes at a time, and an unpickler reads.
PIECE = 65_536
plain_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=8,
)
sizes = st.sampled_from([0, 1, 3_000, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])
arrays = st.builds(
    lambda cls, size, byte: Array(cls([byte]) * size),
    st.sampled_from([bytes, bytearray]),
    sizes,
    st.integers(0, 255),
)
large_values = st.recursive(
    arrays
    | st.integers()
    | st.builds(str.__mul__, st.sampled_from(["x", "\u20ac", "__main__"]), sizes)
    | st.builds(bytes, sizes)
    | st.builds(bytearray, sizes),
    lambda inner: st.lists(inner) | st.tuples(inner, inner),
    max_leaves=8,
)


def there(value: object) -> Any:
    """Do what the two sides do with a value."""
    return loads(arrived(dump(value)))


def stream_of(value: object) -> bytes:
    return b"".join(dump(value).pieces)


# There and back.


@given(plain_values)
def test_a_plain_value_is_pickled_as_always(value: object) -> None:
    parcel = dump(value)
    assert parcel.payload == pickle.dumps(value, 5)
    assert len(parcel) == len(parcel.payload)
    assert (parcel.buffers, parcel.areas) == ([], [])
    assert loads(parcel.payload) == value


@given(large_values)
def test_a_large_value_comes_back_as_it_was_with_and_without_a_pause(
    value: object,
) -> None:
    pause = Pause()
    parcel = dump(value, pause=pause)
    assert pause.calls >= len(parcel.pieces)
    assert loads(arrived(parcel)) == value
    assert loads(arrived(parcel), pause=pause) == value
    again = dump(value)
    assert (again.pieces, again.buffers) == (parcel.pieces, parcel.buffers)


# What stays out of the stream.


def test_nothing_large_is_copied_when_it_is_pickled() -> None:
    data, text = bytearray(LARGE), bytes(LARGE)
    parcel = dump([Array(data), Array(memoryview(data)[1:]), text])
    data[1] = 77
    first, *other = parcel.buffers
    assert first[1] == 77
    assert not other, "the second one is too small"
    assert any(piece is text for piece in parcel.pieces)
    longer = bytes(HEAVY + 1)
    assert any(piece is longer for piece in parcel_of(longer, "result").pieces)
    assert parcel.areas[-1] == [first]
    assert parcel.areas[-1][0] is first


# Where areas lie.


@given(st.lists(st.integers(0, 200) | st.integers(0, 1 << 40)))
def test_areas_are_aligned_and_do_not_overlap(given_sizes: list[int]) -> None:
    offsets, end = lay_out(given_sizes)
    last = 0
    for offset, size in zip(offsets, given_sizes, strict=True):
        assert offset % 64 == 0
        assert last <= offset < last + 64, "no more is wasted than it takes"
        last = offset + size
    assert end == last


# The limit.


@given(large_values, st.integers(0, 3))
def test_a_stream_has_at_most_as_many_bytes_as_the_limit(
    value: object, room: int
) -> None:
    length = len(stream_of(value))
    assert stream_of(value) == b"".join(dump(value, limit=length + room).pieces)
    with pytest.raises(OverLimitError):
        dump(value, limit=length - 1 - room)


SCRIPT = """
class Point:
    def __init__(self, x):
        self.x = x
"""


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make something of a class that lives in ``__main__``, as a script does."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    monkeypatch.setattr(sys.modules["__main__"], "Point", names["Point"], raising=False)
    return names["Point"](4)


def is_by_value(value: object) -> bool:
    return b"cloudpickle" in stream_of(value)


def test_what_lives_in_main_is_found_wherever_a_piece_ends(point: Any) -> None:
    for size in range(PIECE - 150, PIECE):
        assert is_by_value([bytes(size), point]), size
    assert not is_by_value([bytes(PIECE - 100), Array(b"")])


@pytest.mark.parametrize(
    "beside",
    [
        [1 << 9 * PIECE],
        [1 << 20 * PIECE],
        [bytes(2 * PIECE), bytearray(2 * PIECE), "x" * 2 * PIECE],
    ],
    ids=["a large number", "a heavy number", "what needs no frame"],
)
def test_what_lives_in_main_is_found_beside_what_is_large(
    beside: list[object], point: Any
) -> None:
    if not is_by_value([point, *beside]):
        pytest.fail("it goes by a name that nobody there can find")
    if not is_by_value([*beside, point]):
        pytest.fail("it goes by a name that nobody there can find")


@given(st.integers(0), st.booleans())
def test_a_stream_that_is_cut_short_is_an_error(where: int, pausing: bool) -> None:  # noqa: FBT001
    stream = stream_of([*range(30_000), bytes(LARGE), "end"])
    pause = Pause() if pausing else None
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        loads(stream[: where % len(stream)], pause=pause)


@pytest.mark.parametrize("size", [10, LARGE, 5 * HEAVY])
def test_large_buffers_may_be_a_part_of_the_stream(size: int) -> None:
    block = bytearray(random.Random(1).randbytes(size))
    parcel = dump([1, pickle.PickleBuffer(block), "end"], in_band=True)
    assert parcel.buffers == []
    assert pickle.loads(b"".join(parcel.pieces)) == [1, block, "end"]
    with pytest.raises(OverLimitError):
        dump([1, pickle.PickleBuffer(block), "end"], in_band=True, limit=size)


# Arrays whose buffer NumPy would leave in the pickle.

ODD = ["M8[ns]", ">M8[25s]", "m8[D]", [("when", "M8[us]"), ("what", "f4")]]
PLAIN = ["u1", ">i4", "f8", "c16", "S5", "U3", "V6", "?", [("a", "f8"), ("b", "i2")]]


def make(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make an array in which no two neighbours are the same."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    found: Any = (np.arange(size, dtype=np.int64) % 117 % 2).astype("u1")
    return found.view(dtype).reshape(shape)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda array: array,
    "transposed": lambda array: array.T,
    "axes exchanged": lambda array: array.swapaxes(0, 1),
    "every other one": lambda array: array[:, ::2],
    "backwards": lambda array: array[::-1, :, ::-1],
    "exchanged and cut": lambda array: array.swapaxes(0, 2)[1:],
    "repeated": lambda array: np.broadcast_to(array[:1], array.shape),
}


def parcel_of(value: object, way: str) -> OutOfBandPickle:
    """Pickle *value* in one of the ways in which that is done."""
    if way == "argument":
        found: Any = dump(value)
    elif way == "argument by value":
        found = dump([value, lambda: 1])
        return OutOfBandPickle(found.pieces, found.buffers)
    elif way == "result by value":
        found = pack_value([value, lambda: 1])
    else:
        found = pack_value(value)
    assert isinstance(found, OutOfBandPickle)
    return found


WAYS = ["argument", "argument by value", "result", "result by value"]


def back(value: object, way: str) -> tuple[Any, OutOfBandPickle]:
    """Return what arrives, and what has travelled."""
    parcel = parcel_of(value, way)
    found = loads(arrived(parcel))
    return (found[0] if "by value" in way else found), parcel


@given(
    dtype=st.sampled_from(ODD + PLAIN),
    layout=st.sampled_from(list(LAYOUTS)),
    way=st.sampled_from(WAYS),
    writeable=st.booleans(),
    columns=st.integers(LARGE // 16, LARGE // 8),
)
def test_they_are_what_a_plain_pickle_makes_of_them(
    *, dtype: Any, layout: str, way: str, writeable: bool, columns: int
) -> None:
    array = LAYOUTS[layout](make((4, columns, 10), dtype))
    if not writeable:
        array.flags.writeable = False
    found, parcel = back(array, way)
    by_numpy = pickle.loads(pickle.dumps(array, 5))
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.dtype.byteorder == array.dtype.byteorder
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable == by_numpy.flags.writeable
    if layout != "axes exchanged" or dtype in PLAIN:
        assert found.strides == by_numpy.strides
    # All of it has travelled beside the stream.
    assert [len(view) for view in parcel.buffers] == [array.nbytes]


def test_nothing_is_copied_that_need_not_be() -> None:
    array = make((3, LARGE), "M8[s]")
    for value in (array, array.T, make((LARGE,), "f8")):
        [view] = dump(value).buffers
        assert np.shares_memory(np.frombuffer(view, "u1"), value)


class Own(np.ndarray[Any, Any]):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, ("its own way",)


@pytest.mark.parametrize(
    "value",
    [
        make((LARGE // 8 - 1,), "M8[s]"),
        np.array([None, "x"] * LARGE),
        np.zeros(LARGE, [("when", "M8[s]"), ("who", "O")]),
        np.ma.masked_array(np.arange(LARGE), mask=[0, 1] * (LARGE // 2)),
        make((LARGE, 2), "M8[s]")[:, 0].view(Own),
    ],
    ids=["small", "objects", "dates and objects", "masked", "a class of its own"],
)
def test_all_others_are_left_to_themselves(value: Any) -> None:
    parcel = dump(value)
    assert parcel.buffers == []
    assert b"".join(parcel.pieces) == by_pickle(value)


def by_pickle(value: object) -> bytes:
    found: list[pickle.PickleBuffer] = []
    return pickle.dumps(value, 5, buffer_callback=found.append)


def test_what_others_have_registered_is_used_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = copyreg.dispatch_table
    monkeypatch.setitem(table, Fraction, lambda _: (str, ("a fraction",)))
    for way in WAYS:
        value = [make((LARGE,), "M8[s]"), Fraction(1, 2)]
        assert back(value, way)[0][1] == "a fraction"
    assert np.ndarray not in table
    assert np.ndarray not in cloudpickle.Pickler.dispatch_table


def test_numpy_is_not_imported_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.delitem(sys.modules, "multiprocessing.connection", raising=False)
    value = [bytes(LARGE), {1: "x"}]
    assert pack_value(value) == pickle.dumps(value, 5)
    packed = pack_job(print, (value,), {}, number=1)
    assert packed == pickle.dumps(((value,), {}), 5)
    assert "numpy" not in sys.modules
