"""Tests of asyncpool/_core/main/class_reduction.py; test_kinds_of_classes.py has more."""

from __future__ import annotations

import functools

import pytest

from asyncpool._core.main.class_reduction import (
    make_dispatcher,
    make_without_hooks,
    register_all,
)


def test_a_base_has_its_hook_again_whatever_happens() -> None:
    called: list[type] = []

    class Base:
        def __init_subclass__(cls) -> None:
            called.append(cls)

    hook = vars(Base)["__init_subclass__"]
    made = make_without_hooks([Base, int], type, "Made", (Base,), {}, None, None)
    assert issubclass(made, Base)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        make_without_hooks([Base], type, "Made", (Base, bool), {}, None, None)
    assert vars(Base)["__init_subclass__"] is hook
    assert called == []
    assert type("Other", (Base,), {}) in called


def test_what_singledispatch_has_made_is_made_again() -> None:
    made = make_dispatcher(len)
    register_all(made, {int: abs})
    assert (made([1]), made(-3)) == (1, 3)
    assert made.__code__ is functools.singledispatch(id).__code__  # type: ignore[attr-defined]
