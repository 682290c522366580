"""The way of a job is what docs/architecture.md says, step by step."""

from __future__ import annotations

import operator
import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import asyncpool
from asyncpool import Pool
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.scripts import ROOT

PACKAGE = Path(asyncpool.__file__).parent

# | 9 | `Dispatcher.submit` | `_core/dispatch/dispatcher` |
_ROW = re.compile(r"^\| \d+ \| (.*) \| `([\w/]+)` \|$", re.MULTILINE)

# In the table, the worker has the job between these two.
_SENT, _RECEIVED = "Channel.flush", "Channel._read_some"


def steps() -> list[tuple[str, str]]:
    """Return the functions of the table, each with its module."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = _ROW.findall(text)
    return [
        (module, name) for step, module in rows for name in re.findall(r"`(.*?)`", step)
    ]


async def calls_for_a_job() -> list[tuple[str, str]]:
    """Return what is called in this process for one job: each function with its module."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            module = path.relative_to(PACKAGE).with_suffix("").as_posix()
            calls.append((module, frame.f_code.co_qualname))

    async with patience(), Pool(1) as pool:
        await pool.submit(operator.neg, 1)  # its worker knows the function from now on
        sys.setprofile(note)
        try:
            await pool.submit(operator.neg, 2)
        finally:
            sys.setprofile(None)
    return calls


@pytest.mark.parametrize("step", steps(), ids=str)
def test_each_step_is_in_its_module(step: tuple[str, str]) -> None:
    module, name = step
    text = (PACKAGE / f"{module}.py").read_text()
    for word in name.split("."):
        assert re.search(rf"^\s*(class|def) {word}\b", text, re.MULTILINE)


@BOTH_LOOPS
async def test_a_job_takes_these_steps_in_this_order() -> None:
    way = steps()
    sent = next(at for at, (_, name) in enumerate(way) if name == _SENT)
    received = next(at for at, (_, name) in enumerate(way) if name == _RECEIVED)
    rest = iter(await calls_for_a_job())
    for step in way[: sent + 1] + way[received:]:
        assert step in rest, f"{step} is not called, or not behind those before it"


def test_there_are_not_too_many_of_them() -> None:
    rows = _ROW.findall((ROOT / "docs/architecture.md").read_text())
    assert 0 < len(rows) <= 25
