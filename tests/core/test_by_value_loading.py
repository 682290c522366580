"""Tests of asyncpool/_core/main/by_value_loading.py; most of them are in test_by_value.py."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from asyncpool._core.main import by_value_loading as arrivals
from asyncpool._core.main.by_value_loading import own_object, unpack


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(arrivals, "_digests", {})
    return vars(module)


def unit(digest: int, **values: object) -> tuple[Any, ...]:
    return tuple(values), digest, [pickle.dumps(values)], ()


def arrive(*units: tuple[Any, ...], missing: tuple[str, ...] = ()) -> object:
    data = pickle.dumps("call")
    return unpack(list(units), missing, [data[:3], data[3:]], ())


def test_a_unit_is_set_when_its_digest_is_another(main: dict[str, Any]) -> None:
    assert arrive(unit(1, x=1, y=1)) == "call"
    main["x"] = 5
    arrive(unit(1, x=1, y=1))
    assert (main["x"], main["y"]) == (5, 1)
    arrive(unit(2, x=2, y=2), unit(1, z=3))
    assert (main["x"], main["y"], main["z"]) == (2, 2, 3)


def test_what_is_missing_goes_only_if_it_came_from_there(main: dict[str, Any]) -> None:
    arrive(unit(1, x=1))
    main["own"] = 2
    arrive(missing=("x", "own", "never"))
    assert "x" not in main
    assert main["own"] == 2


def test_what_is_not_there_is_an_error(main: dict[str, Any]) -> None:
    main["x"] = 1
    assert own_object("x") == 1
    assert own_object("x", "no such class") == 1
    with pytest.raises(KeyError, match="y"):
        own_object("y")
