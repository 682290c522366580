"""Tests of asyncpool/_core/pickling/out_of_band.py: large objects, and the large parts of others."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    MAIN,
    OutOfBandPickle,
    ReceivedPickle,
    StreamTooLongError,
    dump,
    is_heavy,
    lay_out,
    loads,
)
from asyncpool._core.pickling.reducers import LARGE
from tests.core.specimens import LOCK, FailsWhenSaved
from tests.helpers.parcels import Array, GivenUpError, Pause, arrived

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
    assert parcel.is_light
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


@given(large_values)
def test_the_parts_of_a_parcel_are_all_of_it(value: object) -> None:
    parcel = dump(value)
    beside = sum(len(piece) for area in parcel.areas for piece in area)
    assert len(parcel) == len(parcel.payload) + beside
    assert len(parcel.payload) <= HEAVY
    assert all(len(view) >= LARGE for view in parcel.buffers)
    assert parcel.is_light is (not parcel.areas)


@pytest.mark.parametrize("pause", [None, Pause()])
@pytest.mark.parametrize("view", [bytes, memoryview])
def test_a_stream_can_be_loaded_wherever_it_lies(
    view: Callable[[bytes], bytes | memoryview], pause: Callable[[], None] | None
) -> None:
    value = [*range(50_000), "end"]
    assert loads(view(stream_of(value)), pause=pause) == value
    assert loads(ReceivedPickle(view(stream_of(value)), []), pause=pause) == value
    assert (
        loads(ReceivedPickle(b"", [memoryview(stream_of(value))]), pause=pause) == value
    )


# What stays out of the stream.


@pytest.mark.parametrize(
    ("size", "apart"), [(0, False), (LARGE - 1, False), (LARGE, True)]
)
def test_buffers_stay_out_from_64_kib_on(size: int, apart: bool) -> None:  # noqa: FBT001
    parcel = dump(Array(bytearray(size)))
    assert [len(view) for view in parcel.buffers] == ([size] if apart else [])
    assert parcel.is_light is not apart
    assert len(parcel) >= size
    assert len(parcel.payload) < 200 or not apart
    assert loads(arrived(parcel)) == Array(bytes(size))


@pytest.mark.parametrize(("rows", "apart"), [(LARGE // 80 - 1, 0), (LARGE // 16, 1)])
def test_the_size_of_an_array_is_counted_in_bytes(rows: int, apart: int) -> None:
    numbers: Any = memoryview(bytearray(16 * rows)).cast("d")
    table: Any = memoryview(bytearray(16 * rows)).cast("B", [rows, 16])
    parcel = dump([Array(numbers), Array(table)])
    assert [len(view) for view in parcel.buffers] == [16 * rows] * 2 * apart
    assert loads(arrived(parcel)) == [Array(bytes(16 * rows))] * 2


def test_nothing_large_is_copied_when_it_is_pickled() -> None:
    data, text = bytearray(LARGE), bytes(LARGE)
    parcel = dump([Array(data), Array(memoryview(data)[1:]), text])
    data[1] = 77
    first, *other = parcel.buffers
    assert first[1] == 77
    assert not other, "the second one is too small"
    assert any(piece is text for piece in parcel.pieces)
    assert parcel.areas[-1] == [first]
    assert parcel.areas[-1][0] is first


def test_what_can_change_is_copied_into_the_stream() -> None:
    data = bytearray(b"x" * 3 * LARGE)
    parcel = dump([data])
    data[:] = bytes(len(data))
    assert {type(piece) for piece in parcel.pieces} == {bytes}
    assert loads(arrived(parcel)) == [b"x" * 3 * LARGE]


@pytest.mark.parametrize("size", [262_143, 262_144, 262_145, 524_289, 700_000])
@pytest.mark.parametrize("cls", [bytes, bytearray])
def test_what_is_copied_piece_by_piece_is_whole(
    size: int, cls: type[bytes | bytearray]
) -> None:
    data = cls(random.Random(size).randbytes(size))
    parcel = dump(["before", data, "behind"], pause=Pause())
    assert loads(arrived(parcel)) == ["before", data, "behind"]
    pause = Pause()
    assert loads(arrived(parcel), pause=pause) == ["before", data, "behind"]
    assert pause.calls > size // 262_144


def test_nothing_large_is_copied_when_it_is_loaded() -> None:
    bundle = arrived(dump(Array(bytearray(LARGE))))
    assert isinstance(bundle, ReceivedPickle)
    found = loads(bundle)
    bundle.buffers[0][5] = 77
    assert found.data[5] == 77


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_could_be_changed_still_can_and_nothing_else(size: int) -> None:
    writable, fixed = there([Array(bytearray(size)), Array(bytes(size))])
    writable.data[0] = 1
    assert writable == Array(b"\1" + bytes(size - 1))
    with pytest.raises(TypeError):
        fixed.data[0] = 1
    assert fixed == Array(bytes(size))


def test_a_read_only_view_of_what_can_be_changed_stays_read_only() -> None:
    found = there(Array(memoryview(bytearray(LARGE)).toreadonly()))
    with pytest.raises(TypeError):
        found.data[0] = 1


def test_buffers_keep_their_order_and_one_that_is_there_twice_is_sent_once() -> None:
    first, second = Array(bytearray(b"1" * LARGE)), Array(b"2" * (LARGE + 1))
    parcel = dump([first, second, first])
    assert [len(view) for view in parcel.buffers] == [LARGE, LARGE + 1]
    found = loads(arrived(parcel))
    assert found == [first, second, first]
    assert found[0] is found[2]


def test_a_buffer_that_is_missing_is_an_error() -> None:
    bundle = arrived(dump([Array(bytes(LARGE)), Array(bytes(LARGE))]))
    assert isinstance(bundle, ReceivedPickle)
    del bundle.buffers[1]
    for pause in (None, Pause()):
        with pytest.raises(pickle.UnpicklingError, match="not enough out-of-band"):
            loads(bundle, pause=pause)


# How it travels.


@pytest.mark.parametrize(
    ("length", "buffers", "light"),
    [(HEAVY, 0, True), (HEAVY + 1, 0, False), (HEAVY, 1, False), (HEAVY + 1, 1, False)],
)
def test_a_stream_is_in_the_frame_unless_it_is_long(
    length: int,
    buffers: int,
    light: bool,  # noqa: FBT001
) -> None:
    pieces = [b"a" * 60_000, b"b" * (length - 60_000)]
    views = [memoryview(bytes(LARGE))] * buffers
    parcel = OutOfBandPickle(pieces, views)
    assert parcel.is_light is light
    assert len(parcel) == length + buffers * LARGE
    if length <= HEAVY:
        assert parcel.payload == b"".join(pieces)
        assert parcel.areas == [[view] for view in views]
    else:
        assert parcel.payload == b""
        assert parcel.areas == [pieces, *([view] for view in views)]
        assert parcel.areas[0][1] is pieces[1]


def test_a_bundle_has_its_stream_in_the_frame_or_in_the_first_area() -> None:
    areas = [memoryview(b"first"), memoryview(b"second")]
    bundle = ReceivedPickle(b"payload", list(areas))
    assert (bundle.stream, bundle.buffers) == (b"payload", areas)
    bundle = ReceivedPickle(b"", list(areas))
    assert (bundle.stream, bundle.buffers) == (b"first", areas[1:])
    bundle = ReceivedPickle(memoryview(b""), list(areas))
    assert (bundle.stream, bundle.buffers) == (b"first", areas[1:])
    bundle = ReceivedPickle(b"", [])
    assert (bundle.stream, bundle.buffers) == (b"", [])


@pytest.mark.parametrize(("size", "heavy"), [(HEAVY, False), (HEAVY + 1, True)])
def test_what_is_heavy(size: int, heavy: bool) -> None:  # noqa: FBT001
    view = memoryview(bytes(size))
    assert is_heavy(view) is heavy
    assert is_heavy(ReceivedPickle(view, [])) is heavy
    assert is_heavy(ReceivedPickle(b"", [view])) is heavy
    assert not is_heavy(ReceivedPickle(b"small", [view])), "a buffer is not loaded"


def test_the_figures() -> None:
    assert (LARGE, HEAVY, MAIN) == (65_536, 131_072, b"__main__")


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


def test_the_layout() -> None:
    assert lay_out([]) == ([], 0)
    assert lay_out([65, 64, 0, 1, 7]) == ([0, 128, 192, 192, 256], 263)
    assert lay_out(iter([64, 1])) == ([0, 64], 65)


# The limit.


@given(large_values, st.integers(0, 3))
def test_a_stream_has_at_most_as_many_bytes_as_the_limit(
    value: object, room: int
) -> None:
    length = len(stream_of(value))
    assert stream_of(value) == b"".join(dump(value, limit=length + room).pieces)
    with pytest.raises(StreamTooLongError):
        dump(value, limit=length - 1 - room)


def test_the_limit_counts_no_buffers() -> None:
    parcel = dump(Array(bytes(10 * LARGE)), limit=200)
    assert len(parcel) > 10 * LARGE


_saved: list[int] = []


class Saved:
    """Notes when it is pickled, and has so many bytes then."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:
        _saved.append(self.number)
        return Saved, (self.number, self.size), {"padding": b"%d" % 0 * self.size}


def test_what_comes_after_the_limit_is_not_even_pickled() -> None:
    _saved.clear()
    value = [Saved(number, 1_000) for number in range(1_000)]
    with pytest.raises(StreamTooLongError):
        dump(value, limit=2 * PIECE)
    count = len(_saved)
    assert _saved == list(range(count)), "once, by one serializer"
    assert 2 * PIECE <= 1_100 * count <= 4 * PIECE


def test_a_stream_by_value_is_limited_too() -> None:
    value = [lambda: None, bytes(PIECE)]
    length = len(stream_of(value))
    assert len(dump(value, limit=length)) == length
    with pytest.raises(StreamTooLongError):
        dump(value, limit=length - 1)


# The pause.


def test_a_pickler_makes_way_after_each_piece() -> None:
    pause = Pause()
    parcel = dump(list(range(200_000)), pause=pause)
    assert pause.calls == len(parcel.pieces)
    assert len(parcel) > 8 * PIECE
    assert all(len(piece) < 2 * PIECE for piece in parcel.pieces)


def test_an_unpickler_makes_way_before_each_piece() -> None:
    value, pause = list(range(200_000)), Pause()
    parcel = dump(value)
    assert loads(arrived(parcel), pause=pause) == value
    assert len(parcel.pieces) <= pause.calls <= 4 * len(parcel.pieces)


@pytest.mark.parametrize("last", [1, 3])
def test_what_a_pause_raises_ends_the_pickling_at_once(last: int) -> None:
    _saved.clear()
    pause = Pause(last)
    with pytest.raises(GivenUpError):
        dump([Saved(number, 1_000) for number in range(1_000)], pause=pause)
    assert pause.calls == last, "there is no second serializer for this"
    assert _saved == list(range(len(_saved)))
    assert last * PIECE <= 1_100 * len(_saved) <= (last + 1) * PIECE


_loaded: list[int] = []


class Loaded:
    """Notes when it is unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return note_loaded, (self.number, bytes(1_000))


def note_loaded(number: int, padding: bytes) -> None:
    _loaded.append(number)


@pytest.mark.parametrize("last", [1, 8])
def test_what_a_pause_raises_ends_the_unpickling_at_once(last: int) -> None:
    _loaded.clear()
    bundle = arrived(dump([Loaded(number) for number in range(1_000)]))
    pause = Pause(last)
    with pytest.raises(GivenUpError):
        loads(bundle, pause=pause)
    assert pause.calls == last
    assert _loaded == list(range(len(_loaded)))
    assert len(_loaded) < last * PIECE / 1_000


# By value.


def test_what_has_no_name_travels_by_value_with_its_buffers() -> None:
    data = bytearray(LARGE)
    parcel = dump([Array(data), lambda: 17])
    assert len(parcel.buffers) == 1, "what the first serializer kept is not needed"
    data[0] = 5
    array, function = loads(arrived(parcel))
    assert array.data[0] == 5
    assert function() == 17


def test_a_pickler_by_value_makes_way_too() -> None:
    pause = Pause()
    parcel = dump([lambda: 17, list(range(200_000))], pause=pause)
    assert pause.calls >= len(parcel.pieces) > 8
    pause = Pause(12)
    with pytest.raises(GivenUpError):
        dump([list(range(200_000)), lambda: 17], pause=pause)
    assert pause.calls == 12


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


@pytest.mark.parametrize("ahead", [0, 100_000])
@pytest.mark.parametrize("behind", [0, 100_000])
def test_what_lives_in_main_travels_by_value_wherever_it_is(
    ahead: int, behind: int, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcel = dump([list(range(ahead)), point, list(range(behind))])
    # A name would be found here; what the worker has is another main module.
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    first, found, last = loads(arrived(parcel))
    assert (len(first), found.x, len(last)) == (ahead, 4, behind)


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


def test_what_lives_in_main_is_found_in_the_longest_frame_of_small_things(
    point: Any,
) -> None:
    by_name = [
        size
        for size in range(PIECE - 300, PIECE)
        if not is_by_value([point, bytes(size), bytes(PIECE - 1)])
    ]
    assert not by_name


def test_a_long_piece_of_data_is_not_looked_through_for_the_word_main(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # nobody can import it
    text = "__main__" * PIECE
    assert there([text]) == [text]
    data = bytes(text, "ascii")
    assert there([data]) == [data]


def test_the_word_main_does_no_harm() -> None:
    found = there(["__main__", "x" * LARGE, b"__main__", "__main__" * LARGE])
    assert (found[0], found[2]) == ("__main__", b"__main__")
    assert found[3] == "__main__" * LARGE


# What goes wrong.


@pytest.mark.parametrize(
    ("culprit", "error", "text"),
    [
        (LOCK, TypeError, "cannot pickle '_thread.lock' object"),
        (FailsWhenSaved(), RuntimeError, "not to be saved"),
    ],
)
def test_what_cannot_be_pickled_says_why(
    culprit: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        dump([bytes(LARGE), Array(bytes(LARGE)), culprit])
    assert type(caught.value) is error
    assert str(caught.value) == text


@given(st.integers(0), st.booleans())
def test_a_stream_that_is_cut_short_is_an_error(where: int, pausing: bool) -> None:  # noqa: FBT001
    stream = stream_of([*range(30_000), bytes(LARGE), "end"])
    pause = Pause() if pausing else None
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        loads(stream[: where % len(stream)], pause=pause)


def test_a_stream_of_lines_is_nothing_that_anybody_here_has_written() -> None:
    with pytest.raises(pickle.UnpicklingError) as caught:
        loads(b"I17\n.", pause=Pause())
    assert str(caught.value) == "the stream is malformed"


@pytest.mark.parametrize("size", [10, LARGE, 5 * HEAVY])
def test_large_buffers_may_be_a_part_of_the_stream(size: int) -> None:
    block = bytearray(random.Random(1).randbytes(size))
    parcel = dump([1, pickle.PickleBuffer(block), "end"], in_band=True)
    assert parcel.buffers == []
    assert pickle.loads(b"".join(parcel.pieces)) == [1, block, "end"]
    with pytest.raises(StreamTooLongError):
        dump([1, pickle.PickleBuffer(block), "end"], in_band=True, limit=size)
