"""The contract of execute(): every job has one outcome, whatever it does."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import asyncpool
from asyncpool import JobNotPicklableError, JobRaisedError
from asyncpool._core.frames import Frame, Kind
from asyncpool._core.outcome import load_value, pack_job
from asyncpool._core.raised import load_error
from asyncpool._worker.execute import execute
from tests.helpers import jobs, values

LIMIT = 1 << 20


def run(function: Callable[..., Any], *args: Any, limit: int = LIMIT) -> Any:
    """Return the value of a job, or raise what it raised."""
    payload = pack_job(function, args, {})
    kind, outcome = execute(Frame(Kind.JOB, 7, 3, payload), limit)
    if kind is Kind.VALUE:
        return load_value(outcome)
    raise load_error(outcome)


def test_a_value() -> None:
    assert run(jobs.square, 12) == 144
    assert run(lambda: None) is None


def test_a_job_knows_its_number_and_attempt_and_nobody_else_does() -> None:
    assert run(jobs.attempt) == (7, 3)
    with pytest.raises(RuntimeError):
        asyncpool.current_job()


def test_the_number_is_forgotten_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError):
        run(jobs.divide, 1, 0)
    with pytest.raises(RuntimeError):
        asyncpool.current_job()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr
)
def test_what_would_end_a_program_is_an_outcome(error: BaseException) -> None:
    with pytest.raises(JobRaisedError) as caught:
        run(jobs.fail, error)
    assert type(caught.value.exception) is type(error)


def test_the_traceback_begins_in_the_job() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(jobs.divide, 1, 0)
    text = str(caught.value.__cause__)
    assert text.count("  File ") == 1
    assert "the line that fails" in text


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT + 1])
def test_a_result_above_the_limit_is_an_error(size: int) -> None:
    if size < LIMIT:
        assert run(bytes, size) == bytes(size)
    else:
        with pytest.raises(JobNotPicklableError, match=f"max_message is {LIMIT}"):
            run(bytes, size)


def test_an_error_above_the_limit_is_named() -> None:
    with pytest.raises(JobNotPicklableError, match="ValueError"):
        run(functools.partial(jobs.fail, ValueError("x" * 600)), limit=1024)


def test_arguments_that_cannot_be_unpickled_are_the_jobs_error() -> None:
    with pytest.raises(LookupError, match="there"):
        run(jobs.take, values.ExplodesThere(LookupError("there")))


def test_nothing_of_a_job_is_kept() -> None:
    alive: list[weakref.ref[Any]] = []
    _ALIVE.append(alive)
    run(_remember)
    gc.collect()
    assert [ref() for ref in _ALIVE.pop()] == [None]


_ALIVE: list[list[weakref.ref[Any]]] = []


def _remember() -> None:
    value = values.Point(1, 2)
    _ALIVE[-1].append(weakref.ref(value))
