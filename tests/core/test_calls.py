"""Tests of asyncpool/_core/pickling/calls.py: calls and values."""

from __future__ import annotations

import array
import enum
import functools
import math
import operator
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.pickling import calls as outcome
from asyncpool._core.pickling.calls import (
    dumps,
    load_job,
    load_value,
    pack_job,
    pack_value,
)
from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    MAIN,
    OutOfBandPickle,
    ReceivedPickle,
    StreamTooLongError,
)
from asyncpool._core.pickling.reducers import LARGE
from asyncpool.errors import JobNotPicklableError
from tests.core import specimens
from tests.core.specimens import LOCK, Counter, FailsTwice, FailsWhenSaved, add
from tests.helpers.parcels import Array, GivenUpError, Pause, arrived, plain

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(""),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


def send(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do what the two sides of a channel do with a call."""
    call, its_args, its_kwargs = load_job(plain(pack_job(function, args, kwargs)))
    return load_value(plain(pack_value(call(*its_args, **its_kwargs))))


@given(values)
def test_values_come_back_as_they_were(value: object) -> None:
    assert load_value(plain(pack_value(value))) == value


@given(st.lists(values), st.dictionaries(st.text(), values))
def test_arguments_come_back_as_they_were(
    args: list[object], kwargs: dict[str, object]
) -> None:
    loaded = load_job(plain(pack_job(math.factorial, tuple(args), kwargs)))
    assert loaded == (math.factorial, tuple(args), kwargs)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "result"),
    [
        (math.factorial, (5,), {}, 120),
        (add, (1,), {"right": 2}, 3),
        (Counter(10).plus, (2,), {"times": 3}, 16),
        (Counter.fresh, (), {}, 7),
        (functools.partial(add, 5), (6,), {}, 11),
        (functools.partial(Counter(1).plus, times=2), (4,), {}, 9),
        (operator.methodcaller("upper"), ("x",), {}, "X"),
        (str.split, ("a b",), {}, ["a", "b"]),
        ([3, 4].index, (4,), {}, 1),
    ],
    ids=lambda part: getattr(part, "__qualname__", None),
)
def test_what_can_be_imported_travels_by_name(
    function: Callable[..., Any], args: Any, kwargs: Any, result: object
) -> None:
    assert b"cloudpickle" not in plain(pack_job(function, args, kwargs))
    assert send(function, *args, **kwargs) == result


def test_a_name_is_all_that_is_sent_of_a_function() -> None:
    assert len(pack_job(math.factorial, (5,), {})) < 60


@given(st.lists(values), st.dictionaries(st.text(), values), st.integers(1))
def test_of_a_function_with_a_number_only_the_arguments_are_sent(
    args: list[object], kwargs: dict[str, object], number: int
) -> None:
    payload = plain(pack_job(math.factorial, tuple(args), kwargs, number=number))
    assert payload == dumps((tuple(args), kwargs))
    assert load_job(payload, add) == (add, tuple(args), kwargs)


def test_a_function_without_a_number_comes_along() -> None:
    payload = plain(pack_job(add, (1,), {"right": 2}))
    assert payload == pack_job(add, (1,), {"right": 2}, number=0)
    assert pickle.loads(payload) == (add, (1,), {"right": 2})


def test_a_function_with_a_number_is_not_even_looked_at() -> None:
    payload = plain(pack_job(LOCK.acquire, (1,), {"a": 2}, number=1))
    assert pickle.loads(payload) == ((1,), {"a": 2})


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((LOCK, 1), {}, "args[0]"),
        ((1, [{"deep": LOCK}]), {}, "args[1]"),
        ((1,), {"right": LOCK}, "kwargs['right']"),
        ((FailsTwice(), 1), {}, "the call"),
    ],
)
def test_an_argument_is_named_also_if_the_function_has_a_number(
    args: Any, kwargs: Any, name: str
) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack_job(add, args, kwargs, number=3)
    assert (caught.value.name, caught.value.direction) == (name, "arguments")
    assert str(caught.value).startswith(f"{name} cannot be pickled: ")


def test_a_function_that_counts_as_false_is_one_all_the_same() -> None:
    class Falsy:
        def __call__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return False

    function = Falsy()
    payload = plain(pack_job(function, (1,), {}, number=1))
    assert load_job(payload, function) == (function, (1,), {})


def test_a_call_read_the_other_way_is_an_error() -> None:
    whole, numbered = (plain(pack_job(add, (1,), {}, number=n)) for n in (0, 1))
    with pytest.raises(ValueError, match="too many values to unpack"):
        _function, _args, _kwargs = load_job(whole, add)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        _function, _args, _kwargs = load_job(numbered)


def test_lambdas_and_closures_travel_by_value() -> None:
    factor = 3
    numbers = [1, 2]

    def scale(value: int, *, offset: int = 0) -> list[int]:
        return [factor * number * value + offset for number in numbers]

    assert send(lambda a, b: a - b, 5, 2) == 3
    assert send(scale, 2, offset=1) == [7, 13]
    assert send(functools.partial(scale, 1)) == [3, 6]


def test_a_class_in_a_function_travels_by_value() -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    back = send(Local, 5)
    assert (type(back).__qualname__, back.value) == (Local.__qualname__, 5)


SCRIPT = """
SCALE = 10
class Point:
    def __init__(self, x):
        self.x = x
def scaled(point):
    return Point(SCALE * point.x)
def add(left, right):
    return left + right
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a script as ``__main__``, as a user would."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    for name in ("SCALE", "Point", "scaled", "add"):
        monkeypatch.setattr(sys.modules["__main__"], name, names[name], raising=False)
    return names


def test_what_lives_in_main_travels_by_value(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = plain(pack_job(script["scaled"], (script["Point"](4),), {}))
    # A name would be found here; what the worker has is another main module.
    for name in ("SCALE", "Point", "scaled", "add"):
        monkeypatch.delattr(sys.modules["__main__"], name)
    function, args, kwargs = load_job(payload)
    assert function is not script["scaled"]
    assert function(*args, **kwargs).x == 40


def test_arguments_of_a_class_in_main_travel_by_value_to_any_function(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = plain(pack_job(add, (script["Point"](4),), {}, number=9))
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    function, args, kwargs = load_job(payload, add)
    assert (function, args[0].x, kwargs) == (add, 4, {})


def test_values_of_a_class_in_main_travel_by_value(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = plain(pack_value({"point": script["Point"](4)}))
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    assert load_value(payload)["point"].x == 4


def test_the_word_main_in_a_value_does_no_harm() -> None:
    assert MAIN == b"__main__"
    assert load_value(plain(pack_value(["__main__"]))) == ["__main__"]
    assert send(add, "__ma", "in__") == "__main__"


def test_out_of_two_serializers_the_fast_one_is_tried_first() -> None:
    assert dumps([1, "two"]) == pickle.dumps([1, "two"], 5)


def test_a_class_that_was_changed_by_name_is_found_by_name() -> None:
    assert load_value(plain(pack_value(Counter))) is Counter
    assert load_value(plain(pack_value(specimens))) is specimens


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "name"),
    [
        (add, (LOCK, 1), {}, "args[0]"),
        (add, (1, LOCK), {}, "args[1]"),
        (add, (1, [{"deep": LOCK}]), {}, "args[1]"),
        (add, (1,), {"right": LOCK}, "kwargs['right']"),
        (add, (1, FailsWhenSaved()), {"right": LOCK}, "args[1]"),
        (LOCK.acquire, (), {}, "fn"),
        (functools.partial(print, LOCK), (1,), {}, "fn"),
        (lambda: None, (LOCK,), {}, "args[0]"),
        (add, (FailsTwice(), 1), {}, "the call"),
    ],
)
def test_an_argument_that_cannot_be_pickled_is_named(
    function: Callable[..., Any], args: Any, kwargs: Any, name: str
) -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack_job(function, args, kwargs)
    error = caught.value
    assert (error.name, error.direction) == (name, "arguments")
    cause = error.__cause__
    assert cause is not None
    assert str(error) == (
        f"{name} cannot be pickled: {type(cause).__qualname__}: {cause}"
    )


def test_a_closure_over_what_cannot_be_pickled_is_the_culprit() -> None:
    lock = threading.Lock()
    with pytest.raises(JobNotPicklableError, match="fn cannot be pickled") as caught:
        pack_job(lambda: lock, (1,), {})
    assert caught.value.name == "fn"


def test_a_result_that_cannot_be_pickled_is_named_by_its_type() -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack_value(FailsWhenSaved())
    assert str(caught.value) == (
        "the job's result, of type FailsWhenSaved, cannot be pickled: "
        "RuntimeError: not to be saved"
    )
    assert (caught.value.name, caught.value.direction) == ("FailsWhenSaved", "result")


def test_a_value_in_itself_and_a_very_deep_one() -> None:
    knot: list[object] = []
    knot.append(knot)
    assert load_value(plain(pack_value(knot)))[0][0] is not knot
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(JobNotPicklableError, match="excessively deep"):
        pack_value(deep)


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x80\x05.", b"I17\n"])
def test_a_result_that_is_no_pickle_is_the_jobs_own_failure(payload: bytes) -> None:
    with pytest.raises(
        JobNotPicklableError, match="cannot be unpickled here"
    ) as caught:
        load_value(payload)
    assert caught.value.direction == "result"


@pytest.mark.parametrize(
    "hostile",
    [
        specimens.FailsWhenLoaded(),
        specimens.ExitsWhenLoaded(),
        specimens.InterruptsWhenLoaded(),
    ],
    ids=lambda hostile: type(hostile).__name__,
)
def test_loading_a_result_cannot_end_the_process_that_waits_for_it(
    hostile: object,
) -> None:
    payload = plain(pack_value(hostile))
    with pytest.raises(JobNotPicklableError, match="cannot be unpickled here"):
        load_value(payload)


def test_unpickling_a_call_may_raise_what_it_likes() -> None:
    # In the worker, where whatever comes out of this is the job's outcome.
    with pytest.raises(ValueError, match="not a number"):
        load_job(plain(pack_job(add, (specimens.FailsWhenLoaded(),), {})))
    with pytest.raises(SystemExit):
        load_job(plain(pack_job(add, (specimens.ExitsWhenLoaded(),), {})))


# Which calls are plainly small, so that nobody need count their bytes.


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


def is_flat(*args: object, **kwargs: object) -> bool:
    """Tell whether a call is pickled without a look at the limit."""
    try:
        payload = pack_job(add, args, kwargs, number=1, limit=0)
    except StreamTooLongError:
        return False
    assert payload == dumps((args, kwargs))
    return True


@pytest.mark.parametrize(
    ("args", "flat"),
    [
        ((), True),
        ((1, 2.5, True, None, "text", b"bytes"), True),
        (("x" * (LARGE - 9),), True),
        ((b"x" * (LARGE - 9),), True),
        (("x" * (LARGE - 28), b"x", 5), True),
        (("x" * (LARGE - 8),), False),
        ((b"x" * (LARGE - 8),), False),
        (("x" * (LARGE - 27), 5, b"x"), False),
        (([],), False),
        ((1, ()), False),
        ((bytearray(),), False),
        ((Colour.RED,), False),
        ((Name("x"),), False),
        ((1j,), False),
    ],
    ids=lambda value: (
        ",".join(type(part).__name__ for part in value)
        if isinstance(value, tuple)
        else ""
    ),
)
def test_a_call_is_flat_if_it_has_nothing_but_short_strings_and_numbers(
    args: tuple[object, ...],
    flat: bool,  # noqa: FBT001
) -> None:
    assert is_flat(*args) is flat
    assert is_flat(**{f"name{n}": arg for n, arg in enumerate(args)}) is flat
    assert is_flat(1, "two", last=args) is False
    assert is_flat(*args, last=3) is flat


def test_a_function_that_comes_along_is_never_flat() -> None:
    with pytest.raises(StreamTooLongError):
        pack_job(add, (), {}, limit=0)


@pytest.mark.parametrize(
    "args", [tuple(range(2 * HEAVY)), (1 << 20 * HEAVY,)], ids=["many", "long"]
)
def test_a_call_with_more_numbers_than_the_limit_allows_is_not_flat(
    args: tuple[int, ...],
) -> None:
    with pytest.raises(StreamTooLongError):
        pack_job(add, args, {}, number=1, limit=HEAVY)


@pytest.mark.parametrize(
    "giant",
    [
        "x" * (HEAVY + 1),
        ["x", "x" * (HEAVY + 1)],
        {"key": "x" * (HEAVY + 1)},
        (1, "x" * (HEAVY + 1)),
        1 << 8 * HEAVY,
        array.array("d", bytes(HEAVY + 8)),
    ],
    ids=["str", "list", "dict", "tuple", "int", "array"],
)
def test_a_giant_is_found_before_it_is_pickled(
    giant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be copied as a whole, however soon the writing ends."""
    monkeypatch.setattr(outcome, "dump", None)  # nobody can call it
    with pytest.raises(StreamTooLongError):
        pack_job(add, (giant,), {}, number=1, limit=HEAVY)
    with pytest.raises(StreamTooLongError):
        pack_job(add, (), {"name": giant}, number=1, limit=HEAVY)


def test_there_is_a_limit_to_the_search_for_giants() -> None:
    crowd = ["x"] * 10_000
    payload = plain(pack_job(add, (crowd,), {}, number=1, limit=HEAVY))
    assert load_job(payload, add)[1] == (crowd,)


# What travels beside the frames.


def padded(
    size: int, pack: Callable[[bytes], bytes | OutOfBandPickle]
) -> bytes | OutOfBandPickle:
    """Return what *pack* makes of as many bytes as have *size* then."""
    about = size - 200
    return pack(bytes(size - (len(pack(bytes(about))) - about)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_call_travels_in_its_frame_up_to_128_kib(number: int) -> None:
    def pack(data: bytes) -> bytes | OutOfBandPickle:
        return pack_job(add, ([data],), {}, number=number)

    function = add if number else None
    light, heavy = padded(HEAVY, pack), padded(HEAVY + 1, pack)
    assert len(plain(light)) == HEAVY
    assert isinstance(heavy, OutOfBandPickle)
    assert (len(heavy), heavy.payload, heavy.buffers) == (HEAVY + 1, b"", [])
    for payload in (light, heavy):
        call, [[data]], kwargs = load_job(arrived(payload), function)
        assert (call, set(data), kwargs) == (add, {0}, {})


def test_a_value_travels_in_its_frame_up_to_128_kib() -> None:
    light, heavy = padded(HEAVY, pack_value), padded(HEAVY + 1, pack_value)
    assert len(plain(light)) == HEAVY
    assert isinstance(heavy, OutOfBandPickle)
    assert (len(heavy), heavy.payload, heavy.buffers) == (HEAVY + 1, b"", [])
    for payload in (light, heavy):
        assert set(load_value(arrived(payload))) == {0}


@pytest.mark.parametrize("number", [0, 1])
def test_large_buffers_travel_beside_their_call(number: int) -> None:
    data = bytearray(LARGE)
    array, small = Array(data), Array(bytearray(LARGE - 1))
    payload = pack_job(add, (array, small), {"right": array}, number=number)
    assert isinstance(payload, OutOfBandPickle)
    data[7] = 77
    assert [len(view) for view in payload.buffers] == [LARGE]
    assert payload.buffers[0][7] == 77, "it was not copied"
    call, args, kwargs = load_job(arrived(payload), add if number else None)
    assert (call, args, kwargs) == (add, (array, small), {"right": array})
    assert args[0] is kwargs["right"]


def test_large_buffers_travel_beside_their_value() -> None:
    data = bytearray(LARGE)
    payload = pack_value({"array": Array(data), "small": Array(b"abc")})
    assert isinstance(payload, OutOfBandPickle)
    data[7] = 77
    assert [view[7] for view in payload.buffers] == [77]
    found = load_value(arrived(payload))
    assert found == {"array": Array(data), "small": Array(b"abc")}


def test_of_a_call_by_value_each_buffer_is_sent_once() -> None:
    payload = pack_job(lambda: 17, (Array(bytes(LARGE)),), {})
    assert isinstance(payload, OutOfBandPickle)
    assert len(payload.buffers) == 1
    assert load_job(arrived(payload))[0]() == 17


def test_of_a_value_by_value_each_buffer_is_sent_once(script: dict[str, Any]) -> None:
    payloads = [
        pack_value([Array(bytes(LARGE)), lambda: 17]),
        pack_value([Array(bytes(LARGE)), script["Point"](4)]),
    ]
    for payload in payloads:
        assert isinstance(payload, OutOfBandPickle)
        assert len(payload.buffers) == 1
        assert b"cloudpickle" in payload.payload or b"own_object" in payload.payload


def test_a_payload_can_be_a_view() -> None:
    call, value = plain(pack_job(add, (1,), {})), plain(pack_value([1, 2]))
    assert load_job(memoryview(call)) == (add, (1,), {})
    assert load_value(memoryview(value)) == [1, 2]
    assert load_value(ReceivedPickle(b"", [memoryview(value)])) == [1, 2]


# The limit, and the pause.


class Saved:
    """Counts how often anything like it is pickled."""

    count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        Saved.count += 1
        return Saved, ()


def test_a_call_above_the_limit_is_left_to_others() -> None:
    args = (list(range(HEAVY)),)
    with pytest.raises(StreamTooLongError):
        pack_job(add, args, {}, limit=HEAVY)
    payload = pack_job(add, args, {})
    assert isinstance(payload, OutOfBandPickle)
    again = pack_job(add, args, {}, limit=len(payload))
    assert isinstance(again, OutOfBandPickle)
    assert again.pieces == payload.pieces
    with pytest.raises(StreamTooLongError):
        pack_job(add, args, {}, limit=len(payload) - 1)


def test_buffers_are_not_counted() -> None:
    payload = pack_job(add, (Array(bytes(20 * LARGE)),), {}, limit=HEAVY)
    assert isinstance(payload, OutOfBandPickle)
    assert len(payload) > 20 * LARGE


@pytest.mark.parametrize("name", ["", "left"])
def test_nothing_of_a_call_with_a_long_string_is_pickled(name: str) -> None:
    Saved.count = 0
    long = "x" * 1_001
    args, kwargs = ((Saved(), long), {}) if not name else ((Saved(),), {name: long})
    with pytest.raises(StreamTooLongError):
        pack_job(add, args, kwargs, limit=1_000)
    assert Saved.count == 0
    pack_job(add, args, kwargs)
    assert Saved.count == 1


def test_whoever_is_too_long_need_not_be_picklable() -> None:
    with pytest.raises(StreamTooLongError):
        pack_job(add, (list(range(HEAVY)), LOCK), {}, limit=HEAVY)
    with pytest.raises(JobNotPicklableError) as caught:
        pack_job(add, (LOCK, list(range(HEAVY))), {}, limit=HEAVY)
    assert caught.value.name == "args[0]"


@pytest.mark.parametrize("number", [0, 1])
def test_who_packs_a_heavy_call_makes_way(number: int) -> None:
    args, pause = (list(range(HEAVY)),), Pause()
    payload = pack_job(add, args, {}, number=number, pause=pause)
    assert isinstance(payload, OutOfBandPickle)
    assert pause.calls == len(payload.pieces) > 5
    for last in (1, 3):
        pause = Pause(last)
        with pytest.raises(GivenUpError):
            pack_job(add, args, {}, number=number, pause=pause)
        assert pause.calls == last


def test_who_loads_a_heavy_value_makes_way() -> None:
    value, pause = list(range(HEAVY)), Pause()
    payload = pack_value(value)
    assert isinstance(payload, OutOfBandPickle)
    assert load_value(arrived(payload), pause) == value
    assert pause.calls > 5
    again = Pause()
    assert load_value(pickle.dumps(value), again) == value
    assert again.calls > 5
    # What it raises is as good as any other failure: nobody waits for it.
    with pytest.raises(JobNotPicklableError) as caught:
        load_value(arrived(payload), Pause(3))
    assert type(caught.value.__cause__) is GivenUpError


def test_who_looks_for_the_culprit_makes_way_too() -> None:
    large = list(range(HEAVY))
    payload, pause = pack_job(add, (large,), {}), Pause()
    assert isinstance(payload, OutOfBandPickle)
    with pytest.raises(JobNotPicklableError):
        pack_job(add, (large, LOCK), {}, pause=pause)
    # With one serializer, with the other one, and alone.
    pieces = len(payload.pieces) - 1  # the last one was not complete
    assert pause.calls >= 3 * pieces


def test_the_culprit_is_named_beside_large_objects_too() -> None:
    with pytest.raises(JobNotPicklableError) as caught:
        pack_job(add, (Array(bytes(LARGE)), list(range(HEAVY))), {"right": LOCK})
    assert caught.value.name == "kwargs['right']"
    with pytest.raises(JobNotPicklableError) as caught:
        pack_value([Array(bytes(LARGE)), FailsWhenSaved()])
    assert str(caught.value) == (
        "the job's result, of type list, cannot be pickled: "
        "RuntimeError: not to be saved"
    )
