"""Arrays whose buffer NumPy would leave in the pickle come apart, and are what they were."""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, strategies as st

from asyncpool._core.pickling import reducers
from asyncpool._core.pickling.calls import pack_job, pack_value
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, dump, loads
from asyncpool._core.pickling.reducers import LARGE
from tests.helpers.parcels import arrived

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


def there(value: object, way: str) -> tuple[Any, OutOfBandPickle]:
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
    found, parcel = there(array, way)
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


def test_what_a_type_says_besides_is_kept() -> None:
    dtype: Any = np.dtype(">M8[25s]", metadata={"zone": "UTC"})
    found, parcel = there(np.zeros(LARGE, dtype), "result")
    assert len(parcel.buffers) == 1
    assert found.dtype.metadata == {"zone": "UTC"}
    assert str(found.dtype) == ">M8[25s]"


@pytest.mark.parametrize("way", WAYS)
def test_one_array_twice_is_one_array_there(way: str) -> None:
    array = make((LARGE,), "M8[s]")
    found, parcel = there([array, array], way)
    assert found[0] is found[1]
    assert len(parcel.buffers) == 1


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
        assert there(value, way)[0][1] == "a fraction"
    assert np.ndarray not in table
    assert np.ndarray not in cloudpickle.Pickler.dispatch_table


def test_numpy_is_not_imported_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.delitem(sys.modules, "multiprocessing.connection", raising=False)
    assert not reducers.possible()
    value = [bytes(LARGE), {1: "x"}]
    assert pack_value(value) == pickle.dumps(value, 5)
    packed = pack_job(print, (value,), {}, number=1)
    assert packed == pickle.dumps(((value,), {}), 5)
    assert "numpy" not in sys.modules
