"""Find out what a worker died of, and which error its jobs get for that."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from asyncpool._core.policies.attempts import begun_attempts
from asyncpool._core.policies.oom import OomLedger
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.slots import Slot
from asyncpool._runtime.base.machine import OomKills
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, Delivery, NextStep
from asyncpool.errors import (
    JobTimeoutError,
    PoolBrokenError,
    WorkerCrashedError,
    WorkerHungError,
    WorkerOutOfMemoryError,
    WorkerStartError,
)
from asyncpool.events import Crash

_ERRORS: dict[CrashKind, type[WorkerCrashedError]] = {
    CrashKind.CRASH: WorkerCrashedError,
    CrashKind.PROTOCOL: WorkerCrashedError,
    CrashKind.FAILED_START: WorkerStartError,
    CrashKind.OUT_OF_MEMORY: WorkerOutOfMemoryError,
    CrashKind.HUNG: WorkerHungError,
}


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
        detail, stack = handle.detail, handle.traceback or handle.late_stacks
        late = kind is CrashKind.FAILED_START and handle.killed and not planned
        if late and not detail:
            detail = f"it was not ready within {self._start_timeout:g} s"
        if self._was_killed(handle) and self._ledger is None:
            detail = detail or "not by the pool; perhaps there was no memory left"
        if killed_for is not None and not detail:
            beside = ", which it ran too," if jobs else ""
            detail = f"job {killed_for}{beside} did not end"
        killed_by_us = handle.killed and detail != ""
        if kind is CrashKind.HUNG:
            stack = handle.page.read_stacks() if job is None else stacks_of(job, handle)
            detail, killed_by_us = handle.silence, False
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
            detail=f"killed since {detail}" if killed_by_us else detail,
            stack=stack,
            stderr_tail=handle.stderr_tail,
            **after._asdict(),
        )
        if job is None:
            return crash
        return _with_job(job, crash, tuple(other.id for other in jobs[1:]))


def crash_of_job(job: Job[object], crash: Crash) -> Crash:
    """Return the crash report as *job* shows it, which has lost an attempt by it."""
    first = crash.job_id
    if first is None or first == job.id or not crash.concurrent_jobs:
        return crash
    all_jobs = (first, *crash.concurrent_jobs)
    beside = tuple(number for number in all_jobs if number != job.id)
    return _with_job(job, crash, beside)


def _with_job(job: Job[object], crash: Crash, beside: tuple[int, ...]) -> Crash:
    """Return *crash* as the one of *job*, which the worker ran beside other jobs."""
    return replace(
        crash,
        job_id=job.id,
        attempt=job.attempt,
        concurrent_jobs=beside,
        function=job._function.name,
    )


def stacks_of(job: Job[object], handle: WorkerHandle) -> str:
    """Return the stack of a job that its worker has written, and erase it."""
    parts = (handle.page.stack(job.id, job.attempt), handle.page.read_stacks())
    return "\n".join(part for part in parts if part)


def delivery_of(job: Job[object], handle: WorkerHandle) -> Delivery:
    """Return how far *job*, which was assigned to a worker, has got on its way."""
    if handle.page.begun(job.id, job.attempt):
        return Delivery.STARTED
    # A worker that has a part of the frame cannot begin the job.
    taken = job._frame_end <= handle.outbox.taken
    return Delivery.SENT if taken else Delivery.NEVER_SENT


def crash_error(job: Job[object], delivery: Delivery) -> WorkerCrashedError:
    """Return the error of a job whose worker has crashed."""
    if begun_attempts(attempts=job.attempt, times_returned=job._times_returned):
        delivery = Delivery.STARTED  # in an earlier attempt, if not in this one
    cls = _ERRORS[job._crashes[-1].kind]
    return cls(
        job_id=job.id,
        crashes=job._crashes,
        delivery=delivery,
        function=job._function.name,
    )


def timeout_error(job: Job[object], stack: str = "") -> JobTimeoutError:
    """Return the error for a job that has exceeded a time limit."""
    limit = job._exceeded
    assert limit is not None
    seconds = getattr(job._limits, limit)
    attempt = job.attempt if job._began is not None else 0
    return JobTimeoutError(
        job_id=job.id,
        attempt=attempt,
        limit=limit,
        seconds=seconds,
        stack=stack,
        function=job._function.name,
    )


def late_error(job: Job[object], now: float) -> JobTimeoutError:
    """Return the error for a job that has not begun, or is not done, in time before *now*."""
    job._exceeded = job._limits.exceeded(now, running=job._began is not None)
    return timeout_error(job)


def broken_error(
    reason: str,
    crashes: tuple[Crash, ...],
    retry_after: float | None,
    job: Job[object] | None,
) -> PoolBrokenError:
    """Return the error for callers and jobs of a broken pool."""
    error = PoolBrokenError(reason=reason, crashes=crashes, retry_after=retry_after)
    if job is not None and crashes[-1].kind is CrashKind.FAILED_START:
        error.__cause__ = WorkerStartError(
            job_id=job.id,
            crashes=crashes[-1:],
            delivery=Delivery.NEVER_SENT,
            function=job._function.name,
        )
    return error


def after_exit(
    slot: int, commands: Iterable[cmd.Command], *, is_last: bool = False
) -> AfterExit:
    """Find in *commands* what the pool does after the end of the worker in *slot*.

    *is_last* says that the pool was never ready, and tries no more.
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
