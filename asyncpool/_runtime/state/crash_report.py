"""Find out what a worker died of, and report it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from asyncpool._core.policies.oom import OomLedger
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.exit_reasons import job_not_ended, killed_since
from asyncpool._core.slots.slots import Slot
from asyncpool._runtime.base.machine import OomKills
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.job_errors import stacks_of
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, NextStep
from asyncpool.events import Crash


class AfterExit(NamedTuple):
    """What the pool does after the end of a worker; the fields are those of a Crash."""

    next_step: NextStep
    next_start: float | None = None
    park_reason: str = ""


class CrashReporter:
    """Makes a :class:`Crash` of the end of a worker.

    Args:
        start_timeout: Seconds that a worker has to become ready.
    """

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout
        self._counter = OomKills()
        count = self._counter.count()
        self._ledger = None if count is None else OomLedger(count)

    def kind_of(self, handle: WorkerHandle, slot: Slot, now: float) -> CrashKind:
        """Return the kind of an end that nobody asked for."""
        # Claimed first: whatever the kind is, this may be the death that the kernel counted.
        lacked_memory = self._was_killed(handle) and (
            self._claim(now) or handle.lacked_memory
        )
        if handle.broke_protocol:
            return CrashKind.PROTOCOL
        if slot.ready_at is None:
            return CrashKind.FAILED_START
        if slot.oversized or lacked_memory:
            return CrashKind.OUT_OF_MEMORY
        if slot.hung and handle.killed:
            return CrashKind.HUNG
        return CrashKind.CRASH

    def look(self, now: float) -> None:
        """Note the kernel's count of kills, so that old kills are not taken for new ones."""
        count = self._counter.count()
        if self._ledger is not None and count is not None:
            self._ledger.update(count, now)

    def _was_killed(self, handle: WorkerHandle) -> bool:
        """Return whether SIGKILL has ended a worker, and not the pool's."""
        return handle.status == -signal.SIGKILL and not handle.killed

    def _claim(self, now: float) -> bool:
        self.look(now)
        return self._ledger is not None and self._ledger.claim()

    def report(
        self,
        handle: WorkerHandle,
        *,
        kind: CrashKind,
        planned: bool,
        jobs: Sequence[Job[object]],
        killed_for: int | None,
        now: float,
        after: AfterExit,
    ) -> Crash:
        """Return the crash report of a worker.

        *jobs* have lost an attempt by it.  If the pool killed the worker to end a job, that is
        the job *killed_for*.  If the end was *planned*, the worker was to end anyhow.
        """
        job = next(iter(jobs), None)
        status = handle.status
        late = kind is CrashKind.FAILED_START and handle.killed and not planned
        stack = handle.traceback or handle.late_stacks
        if kind is CrashKind.HUNG:
            detail = handle.silence
            stack = handle.page.read_stacks() if job is None else stacks_of(job, handle)
        else:
            detail = self._detail(
                handle,
                late=late,
                killed_for=killed_for,
                beside=any(job.id != killed_for for job in jobs),
            )
        crash = Crash(
            slot=handle.slot,
            generation=handle.generation,
            pid=handle.pid,
            exit_code=status if status is not None and status >= 0 else None,
            signal=_signal_name(-status) if status is not None and status < 0 else None,
            kind=kind,
            uptime=now - handle.began_at,
            job_id=None,
            attempt=0,
            detail=detail,
            stack=stack,
            stderr_tail=handle.stderr_tail,
            final=handle.final and kind is CrashKind.FAILED_START,
            **after._asdict(),
        )
        if job is None:
            return crash
        return with_job(job, crash, tuple(other.id for other in jobs[1:]))

    def _detail(
        self,
        handle: WorkerHandle,
        *,
        late: bool,
        killed_for: int | None,
        beside: bool,
    ) -> str:
        """Return what is known of an end besides its status.

        Args:
            handle: The worker.
            late: Whether the pool killed it since it was not ready in time.
            killed_for: The job for which the pool killed it, if it did so for a job.
            beside: Whether it ran other jobs as well.
        """
        detail = handle.detail
        if not detail and late:
            detail = (
                f"it was not ready within {self._start_timeout:g} s (start_timeout)"
            )
        if not detail and self._was_killed(handle) and self._ledger is None:
            detail = "not by the pool; perhaps there was no memory left"
        if not detail and killed_for is not None:
            detail = job_not_ended(killed_for, beside=beside)
        killed = handle.killed and handle.pid is not None
        return killed_since(detail) if killed and detail else detail


def crash_of_job(job: Job[object], crash: Crash) -> Crash:
    """Return the crash report as *job* shows it, which has lost an attempt by it."""
    first = crash.job_id
    if first is None or first == job.id or not crash.concurrent_jobs:
        return crash
    all_jobs = (first, *crash.concurrent_jobs)
    beside = tuple(number for number in all_jobs if number != job.id)
    return with_job(job, crash, beside)


def with_job(job: Job[object], crash: Crash, beside: tuple[int, ...]) -> Crash:
    """Return *crash* as the one of *job*, with all that a crash tells of a job.

    Args:
        job: The job.
        crash: The crash of its worker.
        beside: The other jobs that the worker ran then.
    """
    return replace(
        crash,
        job_id=job.id,
        attempt=job.attempt,
        concurrent_jobs=beside,
        function=job._function.name,
    )


def after_exit(
    slot: int, commands: Iterable[cmd.Command], *, is_last: bool = False
) -> AfterExit:
    """Find in *commands* what the pool does after the end of the worker in *slot*.

    Args:
        slot: The slot.
        commands: What the core has decided after that end.
        is_last: Whether no start follows: the pool was never ready, and tries no more.
    """
    for command in commands:
        match command:
            case cmd.TellRestart(index, delay) if index == slot:
                return AfterExit(NextStep.RESTART, delay)
            case cmd.Spawn(index, _) if index == slot:
                return AfterExit(NextStep.RESTART, 0.0)
            case cmd.ParkSlot(index, reason, probe_in) if index == slot:
                next_start = None if is_last else probe_in
                step = NextStep.GIVE_UP if next_start is None else NextStep.PARK
                return AfterExit(step, next_start, reason)
            case cmd.LeaveEmpty(index) if index == slot:
                return AfterExit(NextStep.LEAVE_EMPTY)
            case cmd.KeepWorker(index, again_in) if index == slot:
                return AfterExit(NextStep.KEEP_WORKER, again_in)
            case _:
                pass
    return AfterExit(NextStep.CLOSE)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has a number and no name
        return f"signal {number}"
