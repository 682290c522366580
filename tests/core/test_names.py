"""What logs and errors call a function."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool._core.names import function_name

HERE = __name__


class Callable_:  # noqa: N801
    def __call__(self) -> None: ...

    def method(self) -> None: ...


class Evil:
    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    def __call__(self) -> None: ...


def plain() -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (time.sleep, "time.sleep"),
        (plain, f"{HERE}.plain"),
        (functools.partial(functools.partial(plain)), f"{HERE}.plain"),
        (Callable_().method, f"{HERE}.Callable_.method"),
        (functools.partial(Callable_().method), f"{HERE}.Callable_.method"),
        (Callable_, f"{HERE}.Callable_"),
        (Callable_(), f"{HERE}.Callable_"),
        ([].append, "list.append"),
    ],
)
def test_a_function_has_the_name_of_its_definition(
    function: Callable[..., Any], name: str
) -> None:
    assert function_name(function) == name


def test_whatever_the_user_has_defined_there_is_a_name() -> None:
    assert function_name(Evil()) == f"{HERE}.Evil"
    assert function_name(functools.partial(Evil())) == f"{HERE}.Evil"


def test_a_name_is_never_long() -> None:
    def function() -> None: ...

    function.__qualname__ = "x" * 1000
    name = function_name(function)
    assert len(name) == 120
    assert name.startswith(f"{HERE}.xxx")
    assert name.endswith("x...")
