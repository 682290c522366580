"""Tests of asyncpool/_core/base/records.py."""

from __future__ import annotations

import pickle

import pytest

from asyncpool._core.base.records import Record


class Point(Record):
    """A place."""

    x: int
    y: int = 7

    def total(self) -> int:
        return self.x + self.y


def test_annotated_names_are_the_fields_of_a_tuple() -> None:
    point = Point(3)
    assert (point.x, point.y, point.total()) == (3, 7, 10)
    assert point == Point(x=3, y=7) == (3, 7)
    assert repr(point) == "Point(x=3, y=7)"
    assert Point.__doc__ == "A place."
    assert point._replace(y=1) == (3, 1)


def test_a_record_is_frozen_and_light() -> None:
    point = Point(3)
    with pytest.raises(AttributeError):
        point.x = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        point.z = 4  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]


def test_a_record_survives_pickling() -> None:
    twin = pickle.loads(pickle.dumps(Point(3, 4)))
    assert type(twin) is Point
    assert twin == (3, 4)
