"""Tests of asyncpool/_runtime/state/crash_report.py."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.slots import Slot
from asyncpool._runtime.channel.outbox import NOT_PUT
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state import crash_report
from asyncpool._runtime.state.crash_report import (
    AfterExit,
    CrashReporter,
    after_exit,
)
from asyncpool._runtime.state.job_errors import crash_error, delivery_of
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, Delivery, NextStep
from asyncpool.events import Crash
from tests.helpers.functions import known_function

pytestmark = pytest.mark.asyncio


class Owner:
    """What jobs ask."""

    def is_running(self, _job: Job[Any], /) -> bool:
        raise AssertionError

    def on_cancel(self, _job: Job[Any], /) -> None:
        raise AssertionError

    async def stack_of(self, _: Job[Any], /) -> str:
        return ""

    def give_credit(self, _job: Job[Any], /) -> None:
        raise AssertionError


class Kernel:
    """What counts its kills."""

    def __init__(self, number: int) -> None:
        self.number = number

    def count(self) -> int:
        return self.number


class DeadWorker:
    """One that has taken so many of the bytes that were put for it; its page and outbox, too."""

    loading = killed = broke_protocol = lacked_memory = final = False
    status = -signal.SIGKILL
    detail = traceback = silence = late_stacks = ""
    slot = generation = pid = 1
    began_at = 0.0
    stderr_tail = ()

    def __init__(self, taken: int = 0, begun: int = 0) -> None:
        self.taken = taken
        self.page = self.outbox = self
        self._begun = begun

    def begun(self, job: int, attempt: int) -> bool:
        return (job, attempt) == (self._begun, 1)


def job_of(number: int, end: int) -> Job[Any]:
    loop = asyncio.get_running_loop()
    job: Job[Any] = Job(number, known_function(), JobOptions(), Owner(), loop)
    job.attempt, job._frame_end = 1, end
    return job


CRASH = Crash(
    slot=0,
    generation=1,
    pid=4242,
    exit_code=3,
    signal=None,
    kind=CrashKind.CRASH,
    uptime=1.0,
    job_id=None,
    attempt=0,
    detail="",
    stderr_tail=(),
    next_step=NextStep.CLOSE,
)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (0, ["never sent", "never sent", "never sent"]),
        (99, ["never sent", "never sent", "never sent"]),
        (100, ["sent", "never sent", "never sent"]),
        # Half a frame is of no use to the worker.
        (299, ["sent", "sent", "never sent"]),
        (300, ["sent", "sent", "sent"]),
    ],
)
async def test_how_far_jobs_have_come(taken: int, expected: list[str]) -> None:
    worker = cast("WorkerHandle", DeadWorker(taken))
    jobs = [job_of(1, 100), job_of(2, 200), job_of(3, 300)]
    assert [delivery_of(job, worker) for job in jobs] == expected


async def test_what_was_not_put_was_never_sent() -> None:
    worker = cast("WorkerHandle", DeadWorker(1 << 40))
    assert delivery_of(job_of(1, NOT_PUT), worker) == "never sent"


async def test_what_has_begun_was_sent() -> None:
    worker = cast("WorkerHandle", DeadWorker(100, begun=1))
    jobs = [job_of(1, 100), job_of(2, 200)]
    assert [delivery_of(job, worker) for job in jobs] == ["started", "never sent"]


@pytest.mark.parametrize(
    ("again_in", "told"),
    [(None, ""), (0.0, ", next try at once"), (0.25, ", next try in 0.25 s")],
)
async def test_what_comes_after_a_replacement_that_has_failed(
    again_in: float | None, told: str
) -> None:
    failed = cmd.KeepWorker(2, again_in)
    found = after_exit(2, [cmd.KeepWorker(1, None), failed, cmd.Spawn(2, 3)])
    assert found == (NextStep.KEEP_WORKER, again_in, "")
    text = replace(CRASH, **found._asdict()).next_step_text
    assert text == f"the worker that it was to replace stays{told}"


@pytest.mark.parametrize(
    ("command", "is_last", "expected", "text"),
    [
        (
            cmd.TellRestart(2, 0.25),
            False,
            (NextStep.RESTART, 0.25, ""),
            "restarting in 0.25 s",
        ),
        (cmd.Spawn(2, 3), False, (NextStep.RESTART, 0.0, ""), "restarting at once"),
        (
            cmd.ParkSlot(2, "3 died", 1.5),
            False,
            (NextStep.PARK, 1.5, "3 died"),
            "3 died, next try in 1.5 s",
        ),
        (
            cmd.ParkSlot(2, "3 died", None),
            False,
            (NextStep.GIVE_UP, None, "3 died"),
            "giving up: 3 died",
        ),
        (
            cmd.ParkSlot(2, "3 died", 1.5),
            True,
            (NextStep.GIVE_UP, None, "3 died"),
            "giving up: 3 died",
        ),
        (
            cmd.LeaveEmpty(2),
            False,
            (NextStep.LEAVE_EMPTY, None, ""),
            "not replaced: there are enough other workers",
        ),
        (
            cmd.Spawn(1, 3),
            False,
            (NextStep.CLOSE, None, ""),
            "no replacement: the pool is closing",
        ),
    ],
)
async def test_what_the_supervisor_does_is_a_member_and_a_text(
    *, command: cmd.Command, is_last: bool, expected: tuple[object, ...], text: str
) -> None:
    found = after_exit(2, [command], is_last=is_last)
    assert found == expected
    assert replace(CRASH, **found._asdict()).next_step_text == text


async def test_a_worker_whose_own_cgroup_was_full_lacked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        crash_report, "OomKills", lambda: Kernel(3)
    )  # counts another cgroup
    dead = DeadWorker()
    dead.lacked_memory = True
    coroner, slot = CrashReporter(start_timeout=30.0), Slot(0, ready_at=1.0)
    worker = cast("WorkerHandle", dead)
    assert coroner.kind_of(worker, slot, 1.0) is CrashKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("counts", "kind", "detail"),
    [
        ((3, 4), "out of memory", ""),
        ((3, 3), "crash", ""),
        ((None, None), "crash", "not by the pool; perhaps there was no memory left"),
    ],
)
async def test_who_was_killed_by_somebody_else(
    counts: tuple[int | None, ...],
    kind: str,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter(counts)
    kills = SimpleNamespace(count=lambda: next(answers))
    monkeypatch.setattr(crash_report, "OomKills", lambda: kills)
    coroner = CrashReporter(start_timeout=30.0)
    worker, slot = cast("WorkerHandle", DeadWorker()), Slot(0, ready_at=1.0)
    found = coroner.kind_of(worker, slot, 1.0)
    crash = coroner.report(
        worker,
        kind=found,
        planned=False,
        jobs=[],
        killed_for=None,
        now=2.0,
        after=AfterExit(NextStep.CLOSE),
    )
    assert (crash.kind, crash.detail, crash.signal) == (kind, detail, "SIGKILL")


async def test_several_may_lack_memory_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = Kernel(3)
    monkeypatch.setattr(crash_report, "OomKills", lambda: kills)
    coroner = CrashReporter(start_timeout=30.0)
    worker, slot = cast("WorkerHandle", DeadWorker()), Slot(0, ready_at=1.0)
    starting = Slot(1)
    kills.number = 6
    found = [coroner.kind_of(worker, slot, now=7.0)]
    coroner.look(7.1)  # its successor is there
    found.append(coroner.kind_of(worker, starting, now=7.2))
    found += [coroner.kind_of(worker, slot, now=7.3) for _ in range(2)]
    assert found == ["out of memory", "failed start", "out of memory", "crash"]


async def test_whom_the_pool_has_killed_the_kernel_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = Kernel(0)
    monkeypatch.setattr(crash_report, "OomKills", lambda: kills)
    coroner = CrashReporter(start_timeout=30.0)
    ours, theirs, ended = DeadWorker(), DeadWorker(), DeadWorker()
    ours.killed, ended.status = True, 3
    kills.number, slot = 1, Slot(0, ready_at=1.0)
    found = [
        coroner.kind_of(cast("WorkerHandle", worker), slot, now=7.0)
        for worker in (ours, ended, theirs)
    ]
    assert found == ["crash", "crash", "out of memory"]


@pytest.mark.parametrize(
    ("planned", "detail"),
    [(False, "killed since it was not ready within 30 s (start_timeout)"), (True, "")],
)
async def test_a_start_has_taken_too_long_unless_it_was_called_off(
    *, planned: bool, detail: str
) -> None:
    worker = DeadWorker()
    worker.killed = True
    crash = CrashReporter(start_timeout=30.0).report(
        cast("WorkerHandle", worker),
        kind=CrashKind.FAILED_START,
        planned=planned,
        jobs=[],
        killed_for=None,
        now=2.0,
        after=AfterExit(NextStep.CLOSE),
    )
    assert crash.detail == detail


@pytest.mark.parametrize(("begun", "expected"), [(0, "sent"), (1, "started")])
async def test_an_earlier_attempt_may_have_had_effects_too(
    begun: int, expected: str
) -> None:
    job = job_of(1, 100)
    job.attempt, job._crashes = begun, (CRASH,)
    assert crash_error(job, Delivery.SENT).delivery == expected
