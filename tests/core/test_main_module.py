"""Tests of asyncpool/_core/main/main_module.py."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from asyncpool._core.main import main_module
from asyncpool._core.main.scripts import Script

SOURCE = """
import functools

class Outer:
    class Inner:
        def method(self): pass

def work(): pass

@functools.lru_cache
def load(): pass

def behind(): pass

def make():
    def inner(): pass
    return inner
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Have a ``__main__`` that workers can import."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(SOURCE, vars(module))
    own = frozenset(("Outer", "work", "load", "behind", "make"))
    main_module.know(Script("", "/script.py", own, own - {"behind"}))
    yield vars(module)
    main_module.know(None)


def test_what_the_import_defines_is_importable(main: dict[str, Any]) -> None:
    inner = main["Outer"].Inner
    for thing in (main["work"], main["load"], main["Outer"], inner, inner.method):
        assert main_module.is_definition(thing)
        assert main_module.is_importable(thing)
        assert not main_module.is_local((thing, (), {}))


def test_all_else_is_not(main: dict[str, Any]) -> None:
    old = main["work"]
    main["work"] = functools.wraps(old)(lambda: None)
    for thing in (main["behind"], main["make"](), old):
        assert not main_module.is_importable(thing)
        assert main_module.is_local((thing, (), {}))
    for thing in (len, functools.reduce, 3, main["Outer"]()):
        assert not main_module.is_importable(thing)
        assert not main_module.is_local((thing, (), {}))
    assert not main_module.is_local(())
    assert not main_module.is_local(main["behind"])


def test_without_a_script_nothing_is(main: dict[str, Any]) -> None:
    script = main_module.script()
    assert script is not None
    assert script.path == "/script.py"
    main_module.know(None)
    assert not main_module.is_importable(main["work"])
    assert main_module.is_local((main["work"], (), {}))


def test_the_script_is_in_use_once_something_of_it_was_sent(
    main: dict[str, Any],
) -> None:
    main_module.is_importable(main["behind"])
    assert not main_module.is_in_use()
    main_module.is_importable(main["work"])
    assert main_module.is_in_use()
    main_module.know(main_module.script())
    assert not main_module.is_in_use()


def test_only_while_it_is_imported_it_is_being_imported() -> None:
    with main_module.Importing("/a.py"):
        assert main_module.importing() == "/a.py"
    assert main_module.importing() == ""
    with (
        pytest.raises(ValueError, match="invalid literal"),
        main_module.Importing("/a.py"),
    ):
        int("x")
    assert main_module.importing() == ""


@pytest.mark.usefixtures("main")
def test_what_is_not_there_is_not_found() -> None:
    assert main_module.find("Outer.Inner").__name__ == "Inner"
    with pytest.raises(KeyError, match="nothing"):
        main_module.find("nothing")
    with pytest.raises(AttributeError, match="nothing"):
        main_module.find("Outer.nothing")
    assert not main_module.is_at("Outer.nothing", None)
    assert not main_module.is_at("nothing", None)
