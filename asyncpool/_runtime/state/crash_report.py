"""Find out what a worker died of, and report it."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncpool import events
from asyncpool._core.slots.reasons import (
    CRASH,
    exit_cause,
    job_not_ended,
    killed_since,
    reason_for_job,
)
from asyncpool._core.slots.slots import Slot
from asyncpool._core.supervision.lifecycle import Aftermath
from asyncpool._runtime.base.callbacks import Reporter
from asyncpool._runtime.base.machine import OomKills
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.job_errors import crash_error, stacks_of
from asyncpool._runtime.state.pool_state import decision
from asyncpool._runtime.state.registry import Loss
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool._system.processes import signal_name
from asyncpool.enums import CrashKind, NextStep
from asyncpool.errors import JobTimeoutError
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._runtime.pool.supervisor import Supervisor

# Decide which deaths of workers the kernel caused because memory ran out.
#
# The kernel counts the processes that it kills for this reason, but does not say which
# ones they were.  So each such kill explains one death of a worker by a SIGKILL that the
# pool has not sent: the death that the pool finds first.  If the kernel killed several
# workers together, the pool finds the others while it already replaces the first.
#
# The kernel's count also includes processes that are no workers, such as a program that a
# job has started.  Such a kill would explain any death that happens much later.  So the
# pool soon forgets each kill.

# Seconds for which a kill may explain a death.  A process with much memory takes a
# while to end.  If the time is too short, the pool does not recognise a death for lack
# of memory, and may retry a job that takes the memory of the next worker as well.  If
# it is too long, the pool does not retry a job that it could.
FRESH = 5.0


class OomLedger:
    """The kills that have explained no death so far.

    Args:
        count: How many kills the kernel has counted before.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._unclaimed = 0
        self._seen_at = 0.0

    def update(self, count: int, now: float) -> None:
        """Record how many kills the kernel has counted by now."""
        if now - self._seen_at > FRESH:
            self._unclaimed = 0
        if count > self._count:  # it falls only if it could not be read
            self._unclaimed += count - self._count
            self._count, self._seen_at = count, now

    def claim(self) -> bool:
        """Tell whether a kill explains a death that was just found; it explains one death only."""
        if not self._unclaimed:
            return False
        self._unclaimed -= 1
        return True


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
        after: Aftermath,
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
            signal=signal_name(-status) if status is not None and status < 0 else None,
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


# The exit of workers: what the end of one means for its jobs, its slot and the log.


class WorkerExit:
    """Does what the end of a worker requires: for its jobs, its slot, the log and listeners.

    Args:
        supervisor: The supervisor of the pool.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        state = self._state = supervisor.state
        config = state.config
        self._traffic = supervisor.traffic
        self._heartbeats = supervisor.traffic.heartbeats
        self._replacement = supervisor.replacement
        self._serving = supervisor.serving
        self._sessions = supervisor.sessions
        self._status = supervisor.status
        self._crash_reporter = CrashReporter(config.start_timeout)
        self._reporter = Reporter(state.loop, config.name, config.on_crash, state.log)

    def on_spawned(self) -> None:
        """Note the kernel's count of kills, so that a later kill shows as a new one."""
        self._crash_reporter.look(self._state.loop.time())

    @decision
    def handle_exit(self, handle: WorkerHandle) -> None:
        """Handle the end of a worker: the one place where its jobs and its slot hear of it."""
        self._heartbeats.look(handle)
        if handle.process is not None:
            self._state.registry.figures.exited_cpu += handle.process.cpu
        registry, core = self._state.registry, self._state.core
        slot, now = core.slots[handle.slot], self._state.loop.time()
        planned, kind = (
            slot.exit_planned,
            self._crash_reporter.kind_of(handle, slot, now),
        )
        was_ready = slot.ready_at is not None
        slot.hopeless = handle.final and not was_ready
        losses = registry.losses(handle, slot, kind)
        begun = [loss.job for loss in losses if loss.begun]
        if slot.is_overdue:
            handle.read_requested_stacks()
        silent, killed_for = slot.job_endings.silent, slot.job_endings.killing
        decided = slot.exit_reason
        blamed = bool(begun)
        if self._serving is not None:
            blamed = self._serving.ended(handle)
        after, given_up = core.ended(
            handle.slot,
            now,
            started=blamed,
            requeue=[loss.job.id for loss in losses if loss.again],
            jitter=random.random(),  # noqa: S311 - jitter
        )
        if after.next_step is NextStep.PARK and (
            after.next_start is None or self._status.cannot_start
        ):
            after = after._replace(next_step=NextStep.GIVE_UP, next_start=None)
        # A worker that was told to end may still have died of something else, and connections
        # died with it.  (In a pool it has no job in flight then.)  Its slot goes on as planned.
        served = self._serving is not None and was_ready
        crashed = not planned or (served and handle.failed)
        crash = self._crash_reporter.report(
            handle,
            kind=kind,
            planned=planned,
            jobs=sorted(begun, key=lambda job: job.id != silent),
            killed_for=killed_for if planned else None,
            now=now,
            after=after,
        )
        handle.page.close()
        reason = self._reason(decided, killed_for, losses)
        if crashed:
            self._on_crash(crash)
        else:
            self._on_exit(crash, reason)
            if was_ready:  # told in the next turn, and before what follows from it
                self._log_exit(crash, handle, losses, reason, killed_for)
        # Told before the effects, since with them an idle worker gets such a job at once, and
        # that is its next attempt.
        self._take_over(losses, given_up, crash)
        self._queue_again(losses)
        # The next worker starts before a log handler, a callback or a future hears of this end:
        # those take half a millisecond and more.
        self._state.performer.act()
        if crashed:
            report = handle.take_report()
            self._reporter.report(crash, handle.late_stacks, report)
        else:
            handle.release_report()
        for loss in losses:
            if not loss.again:
                self._fail(loss, crash)
        registry.leases.worker_gone(handle.slot)
        if not planned and not was_ready:
            self._replacement.resize_waits.start_failed(crash, handle.began_at)
        self._replacement.resize_waits.check()

    def _on_crash(self, crash: events.Crash) -> None:
        self._state.crashes.append(crash)
        self._sessions.worker_crashed(crash)
        self._state.registry.figures.crash_kinds[crash.kind] += 1
        self._state.registry.figures.exits[CRASH] += 1
        self._state.hub.publish(events.Crashed(crash))

    def _on_exit(self, end: events.Crash, reason: str) -> None:
        self._state.registry.figures.exits[exit_cause(reason)] += 1
        self._state.hub.publish(
            events.Exited(
                slot=end.slot,
                generation=end.generation,
                pid=end.pid,
                exit_code=end.exit_code,
                signal=end.signal,
                detail=end.detail,
                reason=reason,
            )
        )

    def _reason(self, decided: str, killed_for: int | None, losses: list[Loss]) -> str:
        """Return why a worker has ended that was asked to."""
        if killed_for is not None:
            late = {loss.job.id for loss in losses if loss.error is not None}
            cause = "timeout" if killed_for in late else "cancellation"
            return reason_for_job(cause, killed_for)
        closing = self._state.core.closing.finish is not None
        return decided or ("close" if closing else "")

    def _log_exit(
        self,
        end: events.Crash,
        handle: WorkerHandle,
        losses: list[Loss],
        reason: str,
        killed_for: int | None,
    ) -> None:
        """Log an exit that the pool wanted, and for which job, if it was for one."""
        log = self._state.log
        errors = (it.error for it in losses if it.job.id == killed_for)
        error = next(errors, None)
        if isinstance(error, JobTimeoutError):
            log.killed_for_timeout(handle, end, error)
        elif killed_for is not None:
            log.killed_for_cancellation(handle, end, killed_for)
        elif handle.late_stacks and self._serving is None:  # a cluster says that itself
            log.killed_late(handle, end)
        else:
            log.worker_ended(handle, end, reason)

    async def finish(self) -> None:
        """Wait for the callbacks that report crashes; see :meth:`Reporter.finish`.

        Cancellation:
                Safe: the callbacks go on.
        """
        await self._reporter.finish()

    def _take_over(self, losses: list[Loss], lost: set[int], crash: Crash) -> None:
        """Count and tell which jobs wait for another worker, or are about to get one."""
        registry, hub = self._state.registry, self._state.hub
        taken = {
            loss.job.id: loss
            for loss in losses
            # One that is not blamed had not begun, and is only queued again.
            if loss.again and loss.blamed and not loss.job.done()
            if loss.job.id not in lost
        }
        for number, loss in taken.items():
            job = loss.job
            self._note(loss, crash)
            registry.figures.takeovers += 1
            job._function.figures.takeovers += 1
            hub.publish(events.TakenOver(number, job.attempt if loss.costs else 0))
            if hub.watched and loss.begun:  # else it is told as given back
                registry.watch.again(job, loss.error or crash_error(job, loss.delivery))

    def _queue_again(self, losses: list[Loss]) -> None:
        """Watch how long those jobs wait for a worker that have not begun in this one."""
        for loss in losses:
            if loss.again and not loss.begun and not loss.job.done():
                self._traffic.timers.wait_again(loss.job)

    def _fail(self, loss: Loss, crash: events.Crash) -> None:
        """Fail a job that is not tried again, unless its end came with the effects."""
        job = loss.job
        if not job.done():
            self._note(loss, crash)
            error = loss.error or crash_error(job, loss.delivery)
            self._state.registry.fail(job, error)

    def _note(self, loss: Loss, crash: events.Crash) -> None:
        if loss.error is None:
            loss.job._crashes += (crash_of_job(loss.job, crash),)
