"""The ways of a job and of a death are what docs/architecture.md says, step by step."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import asyncpool
from asyncpool import Pool, WorkerCrashedError
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.scripts import ROOT

PACKAGE = Path(asyncpool.__file__).parent

# | 9 | `Dispatcher.submit` | `_core/dispatch/dispatcher` |
_ROW = re.compile(r"^\| \d+ \| (.*) \| `([\w/]+)` \|$", re.MULTILINE)

JOB, DEATH = "The way of a job", "The way of a death"

# In the table, the worker has the job between these two.
_SENT, _RECEIVED = "Channel.flush", "Channel._read_some"


def rows_of(title: str) -> list[tuple[str, str]]:
    """Return the steps of the table below a heading, each with its module."""
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return _ROW.findall(section)


def steps(title: str) -> list[tuple[str, str]]:
    """Return the functions of the table below a heading, each with its module."""
    return [
        (module, name)
        for step, module in rows_of(title)
        for name in re.findall(r"`(.*?)`", step)
    ]


@contextmanager
def noted_calls() -> Generator[list[tuple[str, str]]]:
    """Note what is called in this process: each function with its module."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            module = path.relative_to(PACKAGE).with_suffix("").as_posix()
            calls.append((module, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def assert_in_order(way: list[tuple[str, str]], calls: list[tuple[str, str]]) -> None:
    rest = iter(calls)
    for step in way:
        assert step in rest, f"{step} is not called, or not behind those before it"


def assert_is_in(module: str, name: str) -> None:
    text = (PACKAGE / f"{module}.py").read_text()
    for word in name.split("."):
        assert re.search(rf"^\s*(async )?(class|def) {word}\b", text, re.MULTILINE)


@pytest.mark.parametrize("step", steps(JOB) + steps(DEATH), ids=str)
def test_each_step_is_in_its_module(step: tuple[str, str]) -> None:
    assert_is_in(*step)


@BOTH_LOOPS
async def test_a_job_takes_these_steps_in_this_order() -> None:
    way = steps(JOB)
    sent = next(at for at, (_, name) in enumerate(way) if name == _SENT)
    received = next(at for at, (_, name) in enumerate(way) if name == _RECEIVED)
    async with patience(), Pool(1) as pool:
        await pool.submit(operator.neg, 1)  # its worker knows the function from now on
        with noted_calls() as calls:
            await pool.submit(operator.neg, 2)
    assert_in_order(way[: sent + 1] + way[received:], calls)


def test_there_are_not_too_many_of_them() -> None:
    assert 0 < len(rows_of(JOB)) <= 25


@BOTH_LOOPS
async def test_a_death_takes_these_steps_in_this_order() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(operator.neg, 1)
        with noted_calls() as calls, pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
    assert_in_order(steps(DEATH), calls)


def test_the_drawing_of_a_death_has_the_names_of_its_steps() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    drawing = text.partition(f"## {DEATH}\n")[2].partition("```text")[2]
    named = re.findall(r"\b[A-Z]\w+\.\w+", drawing.partition("```")[0])
    beside = "WorkerHandle._watch_errors"  # no step: it only waits
    assert named
    assert set(named) <= {name for _, name in steps(DEATH)} | {beside}
    assert_is_in("_runtime/worker/handle", beside)
