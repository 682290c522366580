"""Tests of asyncpool/_core/outcome.py: calls and values."""

from __future__ import annotations

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

from asyncpool._core.outcome import (
    MAIN,
    dumps,
    load_job,
    load_value,
    pack_job,
    pack_value,
)
from asyncpool.errors import JobNotPicklableError
from tests.core import specimens
from tests.core.specimens import LOCK, Counter, FailsTwice, FailsWhenSaved, add

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(""),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


def send(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do what the two sides of a channel do with a call."""
    call, its_args, its_kwargs = load_job(pack_job(function, args, kwargs))
    return load_value(pack_value(call(*its_args, **its_kwargs)))


@given(values)
def test_values_come_back_as_they_were(value: object) -> None:
    assert load_value(pack_value(value)) == value


@given(st.lists(values), st.dictionaries(st.text(), values))
def test_arguments_come_back_as_they_were(
    args: list[object], kwargs: dict[str, object]
) -> None:
    loaded = load_job(pack_job(math.factorial, tuple(args), kwargs))
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
    assert b"cloudpickle" not in pack_job(function, args, kwargs)
    assert send(function, *args, **kwargs) == result


def test_a_name_is_all_that_is_sent_of_a_function() -> None:
    assert len(pack_job(math.factorial, (5,), {})) < 60


@given(st.lists(values), st.dictionaries(st.text(), values), st.integers(1))
def test_of_a_function_with_a_number_only_the_arguments_are_sent(
    args: list[object], kwargs: dict[str, object], number: int
) -> None:
    payload = pack_job(math.factorial, tuple(args), kwargs, number=number)
    assert payload == dumps((tuple(args), kwargs))
    assert load_job(payload, add) == (add, tuple(args), kwargs)


def test_a_function_without_a_number_comes_along() -> None:
    payload = pack_job(add, (1,), {"right": 2})
    assert payload == pack_job(add, (1,), {"right": 2}, number=0)
    assert pickle.loads(payload) == (add, (1,), {"right": 2})


def test_a_function_with_a_number_is_not_even_looked_at() -> None:
    assert pickle.loads(pack_job(LOCK.acquire, (1,), {"a": 2}, number=1)) == (
        (1,),
        {"a": 2},
    )


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
    payload = pack_job(function, (1,), {}, number=1)
    assert load_job(payload, function) == (function, (1,), {})


def test_a_call_read_the_other_way_is_an_error() -> None:
    with pytest.raises(ValueError, match="unpack"):
        load_job(pack_job(add, (1,), {}), add)
    with pytest.raises(ValueError, match="unpack"):
        load_job(pack_job(add, (1,), {}, number=1))


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
    payload = pack_job(script["scaled"], (script["Point"](4),), {})
    # A name would be found here; what the worker has is another main module.
    for name in ("SCALE", "Point", "scaled", "add"):
        monkeypatch.delattr(sys.modules["__main__"], name)
    function, args, kwargs = load_job(payload)
    assert function is not script["scaled"]
    assert function(*args, **kwargs).x == 40


def test_arguments_of_a_class_in_main_travel_by_value_to_any_function(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = pack_job(add, (script["Point"](4),), {}, number=9)
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    function, args, kwargs = load_job(payload, add)
    assert (function, args[0].x, kwargs) == (add, 4, {})


def test_values_of_a_class_in_main_travel_by_value(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = pack_value({"point": script["Point"](4)})
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    assert load_value(payload)["point"].x == 4


def test_the_word_main_in_a_value_does_no_harm() -> None:
    assert MAIN == b"__main__"
    assert load_value(pack_value(["__main__"])) == ["__main__"]
    assert send(add, "__ma", "in__") == "__main__"


def test_out_of_two_serializers_the_fast_one_is_tried_first() -> None:
    assert dumps([1, "two"]) == pickle.dumps([1, "two"], 5)


def test_a_class_that_was_changed_by_name_is_found_by_name() -> None:
    assert load_value(pack_value(Counter)) is Counter
    assert load_value(pack_value(specimens)) is specimens


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
    assert load_value(pack_value(knot))[0][0] is not knot
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
    payload = pack_value(hostile)
    with pytest.raises(JobNotPicklableError, match="cannot be unpickled here"):
        load_value(payload)


def test_unpickling_a_call_may_raise_what_it_likes() -> None:
    # In the worker, where whatever comes out of this is the job's outcome.
    with pytest.raises(ValueError, match="not a number"):
        load_job(pack_job(add, (specimens.FailsWhenLoaded(),), {}))
    with pytest.raises(SystemExit):
        load_job(pack_job(add, (specimens.ExitsWhenLoaded(),), {}))
