"""Tests of asyncpool/_core/main/class_reduction.py; test_by_value.py has the round trips."""

from __future__ import annotations

import functools
import io
import pickle
import typing
from typing import Any

import cloudpickle
import pytest

from asyncpool._core.main.class_reduction import mended


def remake(reduced: Any) -> Any:
    make, args, state, *rest = reduced
    made = make(*args)
    if rest:  # a class: what sets its state
        rest[-1](made, state)
    else:
        vars(made).update(state)
    return made


@pytest.mark.parametrize("slots", ["x", ("x", "y"), ("x", "__weakref__"), ()])
def test_a_class_keeps_its_slots(slots: Any) -> None:
    cls = type("Point", (), {"__slots__": slots, "__module__": "__main__"})
    pickler = cloudpickle.Pickler(io.BytesIO())
    before = pickler.reducer_override(cls)
    after = mended(cls, before)
    assert "__slots__" not in before[1][3]
    assert after[1][3]["__slots__"] == slots
    assert after[2:] == before[2:]


def test_a_class_without_slots_is_as_it_was() -> None:
    class Base:
        __slots__ = ("x",)

    class Plain(Base):
        pass

    reduced = (object, ())
    assert mended(Plain, reduced) is reduced
    assert mended(Base, reduced) is not None
    assert mended(3, NotImplemented) is NotImplemented


def test_a_cached_property_leaves_its_lock_behind() -> None:
    def area(_: object) -> list[int]:
        """Say how large it is."""
        return [3]

    found = functools.cached_property(area)
    found.__set_name__(object, "area")
    made = remake(mended(found, NotImplemented))
    assert (made.func, made.attrname, made.__doc__) == (area, "area", area.__doc__)
    pickle.dumps(
        {k: v for k, v in mended(found, NotImplemented)[2].items() if k != "func"}
    )


def test_a_named_tuple_is_made_from_its_real_bases() -> None:
    class Pair(typing.NamedTuple):
        left: int

    reduced = cloudpickle.Pickler(io.BytesIO()).reducer_override(Pair)
    _, (metaclass, name, bases, namespace, *_), *_ = mended(Pair, reduced)
    assert (metaclass, name, bases) == (type, "Pair", (tuple,))
    assert namespace["__slots__"] == ()
    assert namespace["__qualname__"] == Pair.__qualname__
