"""Tests of asyncpool/_core/pickling/variables.py."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool import JobNotPicklableError
from asyncpool._core.pickling.variables import pack_variables, unpack_variables

values = st.none() | st.integers() | st.text() | st.lists(st.binary(), max_size=3)


@given(st.lists(st.tuples(st.text(), values), max_size=5))
def test_values_come_back_with_their_names(pairs: list[tuple[str, object]]) -> None:
    assert list(unpack_variables(pack_variables(pairs))) == pairs


def test_no_variables_are_no_bytes() -> None:
    assert pack_variables([]) == b""
    assert list(unpack_variables(b"")) == []


@given(st.lists(st.tuples(st.text(), values), max_size=5))
def test_equal_values_are_equal_bytes(pairs: list[tuple[str, object]]) -> None:
    assert pack_variables(pairs) == pack_variables(list(pairs))


def test_what_has_no_name_goes_by_value() -> None:
    [(name, function)] = unpack_variables(pack_variables([("a:b", lambda: 7)]))
    assert (name, function()) == ("a:b", 7)


def test_what_cannot_be_pickled_is_named() -> None:
    generator = (number for number in [1])
    with pytest.raises(JobNotPicklableError) as caught:
        pack_variables([("a:fine", 1), ("a:bad", generator), ("a:worse", generator)])
    error = caught.value
    assert (error.direction, error.name) == ("arguments", "a:bad")
    assert str(error) == (
        "context variable a:bad cannot be pickled: "
        "TypeError: cannot pickle 'generator' object"
    )
    assert type(error.__cause__) is TypeError
