"""The exit of workers: what the end of one means for its jobs, its slot and the log."""

from __future__ import annotations

import random
from collections.abc import Iterator

from asyncpool import events
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.exit_reasons import CRASH, exit_cause, reason_for_job
from asyncpool._runtime.base.callbacks import Reporter
from asyncpool._runtime.pool.parts import Parts
from asyncpool._runtime.state.crash_report import (
    CrashReporter,
    after_exit,
    crash_of_job,
)
from asyncpool._runtime.state.job_errors import crash_error
from asyncpool._runtime.state.losses import Loss
from asyncpool._runtime.state.pool_state import decision
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.errors import JobTimeoutError


class WorkerExit:
    """Does what the end of a worker requires: for its jobs, its slot, the log and listeners.

    Args:
        parts: The parts of the pool.
    """

    def __init__(self, parts: Parts) -> None:
        state = self._state = parts.state
        config = state.config
        self._traffic = parts.traffic
        self._heartbeats = parts.traffic.heartbeats
        self._replacement = parts.replacement
        self._serving = parts.serving
        self._sessions = parts.sessions
        self._status = parts.status
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
        commands = core.workers.ended(
            handle.slot,
            now,
            started=blamed,
            requeue=[loss.job.id for loss in losses if loss.again],
            jitter=random.random(),  # noqa: S311 - jitter
        )
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
            after=after_exit(handle.slot, commands, is_last=self._status.cannot_start),
        )
        handle.page.close()
        reason = self._reason(decided, killed_for, losses)
        if crashed:
            self._on_crash(crash)
        else:
            self._on_exit(crash, reason)
            if was_ready:  # told in the next turn, and before what follows from it
                self._log_exit(crash, handle, losses, reason, killed_for)
        # Told before the commands, since with them an idle worker gets such a job at once, and
        # that is its next attempt.
        self._take_over(losses, commands, crash)
        self._queue_again(losses)
        # The next worker starts before a log handler, a callback or a future hears of this end:
        # those take half a millisecond and more.
        self._state.performer.perform(commands)
        if crashed:
            report = handle.connections.take_report()
            self._reporter.report(crash, handle.late_stacks, report)
        else:
            handle.connections.release_report()
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

    def _take_over(
        self, losses: list[Loss], commands: list[cmd.Command], crash: events.Crash
    ) -> None:
        """Count and tell which jobs wait for another worker, or get one with *commands*."""
        registry, hub = self._state.registry, self._state.hub
        taken = {
            loss.job.id: loss
            for loss in losses
            # One that is not blamed had not begun, and is only queued again.
            if loss.again and loss.blamed and not loss.job.done()
        }
        for number in _given_up(commands):
            taken.pop(number, None)
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
        """Fail a job that is not tried again, unless its end came with the commands."""
        job = loss.job
        if not job.done():
            self._note(loss, crash)
            error = loss.error or crash_error(job, loss.delivery)
            self._state.registry.fail(job, error)

    def _note(self, loss: Loss, crash: events.Crash) -> None:
        if loss.error is None:
            loss.job._crashes += (crash_of_job(loss.job, crash),)


def _given_up(commands: list[cmd.Command]) -> Iterator[int]:
    """Yield the jobs that *commands* end: they can have no other worker."""
    for command in commands:
        match command:
            case (
                cmd.DropPinnedJobs(numbers)
                | cmd.FailJobs(numbers)
                | cmd.EndSession(_, numbers)
            ):
                yield from numbers
            case _:
                pass
