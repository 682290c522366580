"""Functions by name."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncpool._core.codec.formats import format_of
from asyncpool._core.codec.function_names import (
    FunctionNames,
    Plan,
    check_name,
    name_of,
)
from asyncpool.errors import JobNotPicklableError
from tests.helpers.data_jobs import HOME, Order, echo, make_order


def test_a_function_of_a_module_has_a_name_by_which_it_is_found() -> None:
    names = FunctionNames(None)
    for function in (echo, math.sqrt, Order, Order.__init__):
        assert names.find(names.name_of(function)) is function


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: None, "is a lambda"),
        (functools.partial(echo, 1), "is an object of a partial"),
        ([].append, "is an object of a builtin"),
        (Order("a", []).__eq__, "is not this function but"),
    ],
)
def test_what_has_none_says_why(function: Any, why: str) -> None:
    with pytest.raises(LookupError, match=why):
        name_of(function)
    with pytest.raises(JobNotPicklableError, match="around cannot be sent by its name"):
        check_name("around", function)


def test_a_list_of_functions_bounds_both_sides() -> None:
    names = FunctionNames([echo, "math:*"])
    assert names.allowed == (f"{HOME}:echo", "math:*")
    assert names.find("math:sqrt") is math.sqrt
    for name in (f"{HOME}:make_order", "os:system"):
        with pytest.raises(
            LookupError, match="is not among the functions of this pool"
        ):
            names.find(name)


@pytest.mark.parametrize("wrong", ["math", ":sqrt", "math:", 3])
def test_an_entry_of_that_list_that_names_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="functions takes functions and names"):
        FunctionNames([wrong])


def test_annotations_tell_of_arguments_results_and_items() -> None:
    how = format_of("msgspec")
    plan = Plan(make_order, how)
    assert (plan.typed, plan.argument(0).kind, plan.named("count").kind) == (
        True,
        str,
        int,
    )
    assert plan.result.kind is Order

    def numbers(one: int) -> Any:
        raise NotImplementedError

    numbers.__annotations__ = {"one": int, "return": AsyncIterator[int]}
    plan = Plan(numbers, how)
    assert (plan.item.kind, plan.result.kind) == (int, None)
    assert not Plan(make_order, format_of("json")).typed
