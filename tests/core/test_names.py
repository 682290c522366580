"""What functions are called."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.names import MAX_NAME, function_name
from asyncpool._worker.api.calls import call_chunk, call_counted
from tests.helpers import jobs, values

HERE = __name__
SQUARE = "tests.helpers.jobs.square"


def local() -> Callable[[], None]:
    def inner() -> None:
        pass

    return inner


@functools.wraps(jobs.square)
def wrapped(*_: Any) -> None:
    pass


@functools.lru_cache
def cached() -> None:
    pass


class Sly(str):
    __slots__ = ()

    def __format__(self, spec: str) -> NoReturn:
        raise SystemExit

    def __str__(self) -> NoReturn:
        raise SystemExit

    def isprintable(self) -> NoReturn:
        raise SystemExit


def with_name(name: Any, module: Any = "shop") -> Callable[[], None]:
    def function() -> None:
        pass

    function.__module__ = module
    function.__qualname__ = name
    return function


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jobs.square, SQUARE),
        (pow, "builtins.pow"),
        (time.sleep, "time.sleep"),
        (int, "builtins.int"),
        ([].append, "list.append"),
        (str.upper, "str.upper"),
        (lambda: None, f"{HERE}.<lambda>"),
        (local(), f"{HERE}.local.<locals>.inner"),
        (wrapped, SQUARE),
        (cached, f"{HERE}.cached"),
        (partial(partial(jobs.square, 3), 4), SQUARE),
        (values.Point(1, 2).scaled, "tests.helpers.values.Point.scaled"),
        (values.Point.origin, "tests.helpers.values.Point.origin"),
        (values.Point(1, 2), "tests.helpers.values.Point"),
        (partial(call_counted, 3, partial(call_chunk, jobs.square)), SQUARE),
        (partial(call_counted), "asyncpool._worker.api.calls.call_counted"),
        (with_name(Sly("sly")), "shop.sly"),
        (with_name("work", None), "work"),
        (with_name("work", 3), "work"),
        (with_name("two\nlines\x1b[2J"), "shop.two\\nlines\\x1b[2J"),
        (with_name("naïve\ud800"), "shop.naïve\\ud800"),
    ],
)
def test_a_function_is_called_what_it_is(function: Any, name: str) -> None:
    assert function_name(function) == name


def test_one_that_answers_for_its_attributes_is_not_asked() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> NoReturn:
            raise SystemExit(name)

    class Hostile(metaclass=Meta):
        def __getattribute__(self, name: str) -> NoReturn:
            raise SystemExit(name)

        def __call__(self) -> None:
            pass

    where = test_one_that_answers_for_its_attributes_is_not_asked.__qualname__
    name = f"{HERE}.{where}.<locals>.Hostile"
    assert function_name(Hostile()) == name
    assert function_name(Hostile) == f"{HERE}.{where}.<locals>.Meta"


def test_a_script_has_one_name_in_all_processes() -> None:
    def work() -> None: ...

    work.__module__, work.__qualname__ = "__mp_main__", "work"
    assert function_name(work) == "__main__.work"


def test_a_long_name_is_cut() -> None:
    name = function_name(with_name("n" * 1000))
    assert len(name) == MAX_NAME
    assert name == f"shop.{'n' * (MAX_NAME - 8)}..."


@given(st.text(), st.text())
def test_every_name_is_printable_and_short(module: str, name: str) -> None:
    found = function_name(with_name(name, module))
    assert found.isprintable()
    assert 0 < len(found) <= MAX_NAME
