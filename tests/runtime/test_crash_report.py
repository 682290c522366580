"""Tests of asyncpool/_runtime/state/crash_report.py."""

from __future__ import annotations

import asyncio
import signal
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool._core.pickling.functions import Function
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.slots import Slot
from asyncpool._core.wire.frames import HEADER_SIZE
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state import crash_report as postmortem
from asyncpool._runtime.state.crash_report import (
    Coroner,
    crash_error,
    deliveries,
    describe_next_step,
)
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.events import Crash

pytestmark = pytest.mark.asyncio


class Owner:
    """What jobs ask."""

    def is_running(self, _job: Job[Any], /) -> bool:
        raise AssertionError

    def on_cancel(self, _job: Job[Any], /) -> None:
        raise AssertionError

    def give_credit(self, _job: Job[Any], /) -> None:
        raise AssertionError


class DeadWorker:
    """One that has not taken the last bytes that were put for it; its page and outbox, too."""

    loading = killed = broke_protocol = False
    status = -signal.SIGKILL
    detail = traceback = silence = ""
    slot = generation = pid = 1
    began_at = 0.0
    stderr_tail = ()

    def __init__(self, unsent: int = 0, begun: int = 0) -> None:
        self.unsent = unsent
        self.page = self.outbox = self
        self._begun = begun

    def begun(self, job: int, attempt: int) -> bool:
        return (job, attempt) == (self._begun, 1)


def job_of(number: int, size: int, ahead: int = 0) -> Job[Any]:
    loop = asyncio.get_running_loop()
    job: Job[Any] = Job(number, Function(0, b""), JobOptions(), Owner(), loop)
    job.attempt, job.payload, job.ahead = 1, bytes(size), ahead
    return job


CRASH = Crash(
    slot=0,
    generation=1,
    pid=4242,
    exit_code=3,
    signal=None,
    kind="crash",
    uptime=1.0,
    job_id=None,
    attempt=0,
    detail="",
    stderr_tail=(),
    next_step="",
)

LAST = HEADER_SIZE + 10
MIDDLE = HEADER_SIZE + 20


@pytest.mark.parametrize(
    ("unsent", "expected"),
    [
        (0, ["sent", "sent", "sent"]),
        (1, ["sent", "sent", "never sent"]),
        (LAST, ["sent", "sent", "never sent"]),
        (LAST + 1, ["sent", "never sent", "never sent"]),
        (LAST + MIDDLE, ["sent", "never sent", "never sent"]),
        # What goes ahead of a job does not tell against the one before.
        (LAST + MIDDLE + 1, ["sent", "never sent", "never sent"]),
        (LAST + MIDDLE + 50, ["sent", "never sent", "never sent"]),
        (LAST + MIDDLE + 51, ["never sent", "never sent", "never sent"]),
    ],
)
async def test_how_far_jobs_have_come(unsent: int, expected: list[str]) -> None:
    jobs = [job_of(1, 30), job_of(2, 20, ahead=50), job_of(3, 10)]
    worker = cast("WorkerHandle", DeadWorker(unsent))
    assert deliveries(jobs, worker) == expected


async def test_what_has_begun_was_sent() -> None:
    jobs = [job_of(1, 30), job_of(2, 20, ahead=50)]
    worker = cast("WorkerHandle", DeadWorker(MIDDLE + 50, begun=1))
    assert deliveries(jobs, worker) == ["started", "never sent"]


@pytest.mark.parametrize(
    ("again_in", "told"),
    [(None, ""), (0.0, ", next try at once"), (0.25, ", next try in 0.25 s")],
)
async def test_what_comes_after_a_replacement_that_has_failed(
    again_in: float | None, told: str
) -> None:
    failed = cmd.Keep(2, again_in)
    step = describe_next_step(2, [cmd.Keep(1, None), failed, cmd.Spawn(2, 3)])
    assert step == f"the worker that it was to replace stays{told}"


@pytest.mark.parametrize(
    ("counts", "kind", "detail"),
    [
        ((3, 4), "out of memory", ""),
        ((3, 3), "crash", ""),
        ((None, None), "crash", "not by the pool: perhaps for want of memory"),
    ],
)
async def test_who_was_killed_by_somebody_else(
    counts: tuple[int | None, ...],
    kind: str,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, then = counts
    answers = chain([before], repeat(then))
    kills = SimpleNamespace(count=lambda: next(answers))
    monkeypatch.setattr(postmortem, "OomKills", lambda: kills)
    coroner = Coroner(start_timeout=30.0)
    worker = cast("WorkerHandle", DeadWorker())
    slot = Slot(0, ready_at=1.0)
    found = coroner.kind_of(worker, slot, 2.0)
    crash = coroner.report(
        worker,
        kind=found,
        planned=False,
        jobs=[],
        doomed=None,
        now=2.0,
        next_step="",
    )
    assert (crash.kind, crash.detail, crash.signal) == (kind, detail, "SIGKILL")


async def test_each_kill_for_want_of_memory_is_one_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = SimpleNamespace(number=3)
    counter = SimpleNamespace(count=lambda: kills.number)
    monkeypatch.setattr(postmortem, "OomKills", lambda: counter)
    coroner = Coroner(start_timeout=30.0)
    worker, slot = cast("WorkerHandle", DeadWorker()), Slot(0, ready_at=1.0)
    kills.number = 5
    found = [coroner.kind_of(worker, slot, 2.0)]
    coroner.look(2.5)  # the first one is followed by then
    found += [coroner.kind_of(worker, slot, 2.5) for _ in range(2)]
    assert found == ["out of memory", "out of memory", "crash"]
    kills.number = 6
    coroner.look(10.0)
    assert coroner.kind_of(worker, slot, 11.5) == "crash", "that was somebody else"


@pytest.mark.parametrize(
    ("planned", "detail"),
    [(False, "killed since it was not ready within 30 s"), (True, "")],
)
async def test_a_start_has_taken_too_long_unless_it_was_called_off(
    *, planned: bool, detail: str
) -> None:
    worker = DeadWorker()
    worker.killed = True
    crash = Coroner(start_timeout=30.0).report(
        cast("WorkerHandle", worker),
        kind="failed start",
        planned=planned,
        jobs=[],
        doomed=None,
        now=2.0,
        next_step="",
    )
    assert crash.detail == detail


@pytest.mark.parametrize(("begun", "expected"), [(0, "sent"), (1, "started")])
async def test_an_earlier_attempt_may_have_had_effects_too(
    begun: int, expected: str
) -> None:
    job = job_of(1, 30)
    job.attempt, job.crashes = begun, (CRASH,)
    assert crash_error(job, "sent").delivery == expected
