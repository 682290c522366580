"""Tests of asyncpool/_core/remote/remote_functions.py: ``__main__`` goes abroad by value."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from asyncpool._core.figures.function_figures import FunctionTotals
from asyncpool._core.main import main_module
from asyncpool._core.main.scripts import Script
from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.remote.remote_functions import RemoteFunctionTable
from tests.helpers import jobs

SOURCE = """
FACTOR = 3

def work(x):
    return x * FACTOR
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Have a ``__main__`` that the workers of this program can import."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(SOURCE, vars(module))
    own = frozenset(("FACTOR", "work"))
    main_module.know(Script("", "/script.py", own, own))
    yield vars(module)
    main_module.know(None)


def test_a_function_of_a_module_has_a_number_as_in_any_table() -> None:
    for table in (
        FunctionTable(FunctionTotals()),
        RemoteFunctionTable(FunctionTotals()),
    ):
        known = table.find(jobs.square)
        assert known.number == 1
        assert pickle.loads(known.payload) is jobs.square


def test_one_of_main_is_named_here_and_sent_abroad(main: dict[str, Any]) -> None:
    here, abroad = (
        FunctionTable(FunctionTotals()),
        RemoteFunctionTable(FunctionTotals()),
    )
    for _ in range(2):  # neither remembers what the other did
        known = here.find(main["work"])
        assert known.number == 1
        call = known.serializer.pack_job(main["work"], (2,), {}, number=known.number)
        assert isinstance(call, bytes)
        assert b"FACTOR" not in call
        known = abroad.find(main["work"])
        assert (known.number, known.payload) == (0, b"")
        call = known.serializer.pack_job(main["work"], (2,), {}, number=known.number)
        assert isinstance(call, bytes)
        assert b"FACTOR" in call
    assert main_module.script() is not None


def test_it_is_so_while_something_is_pickled_and_not_after_it(
    main: dict[str, Any],
) -> None:
    with main_module.Abroad():
        assert main_module.script() is None
        assert not main_module.is_importable(main["work"])
    assert main_module.is_importable(main["work"])
