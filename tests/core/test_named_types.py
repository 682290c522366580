"""Tests of asyncpool/_core/main/by_value.py; test_kinds_of_classes.py has more."""

from __future__ import annotations

import typing

from asyncpool._core.main.by_value import NAMED_TYPES, of_named_type


def test_a_type_that_has_a_name_only_is_made_again() -> None:
    new = typing.NewType("new", int)
    new.__module__ = "__main__"
    make, arguments = of_named_type(new)
    made = make(*arguments)
    assert made is not new
    assert (repr(made), made.__supertype__) == ("__main__.new", int)
    new.__module__ = "elsewhere"
    assert of_named_type(new) is NotImplemented

    class NewType:  # of somebody else
        __module__ = "__main__"

    assert "NewType" in NAMED_TYPES
    assert of_named_type(NewType()) is NotImplemented
