"""What the end of a worker requires: find out what it died of, judge its jobs, report, go on.

No logger or callback of the user's can hurt the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import signal
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool import events
from asyncpool._core import log_messages as say
from asyncpool._core.lifecycle import Aftermath
from asyncpool._core.options import costs_attempt
from asyncpool._core.slots import CRASH, JobText, Slot, exit_cause
from asyncpool._dataclass import replace
from asyncpool._engine.job import ChunkJob, PoolJob, StreamJob
from asyncpool._engine.machine import OomKills
from asyncpool._engine.registry import (
    crash_error,
    delivery_of,
    take_stack,
    timed_out,
)
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.posix import signal_name
from asyncpool.enums import CrashKind, Delivery, NextStep, TimeLimit
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine

CrashCallback = Callable[[Crash], object] | Callable[[Crash], Awaitable[object]]


# Seconds that async callbacks have to return after the last worker has ended.  After that they
# are cancelled, and have as long again to end.
_CALLBACK_GRACE = 1.0


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
KILL_EXPLAINS_FOR = 5.0


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
        if now - self._seen_at > KILL_EXPLAINS_FOR:
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


# What a death means for the jobs of the worker.


class Loss(NamedTuple):
    """What the death of a worker means for one of its jobs.

    Attributes:
        job: The job.
        delivery: How far it had got on its way.
        suspect: Whether it may be the cause.
        costs: Whether it has lost an attempt.
        requeued: Whether it goes back to the queue.
        error: What its caller gets if its time was over before the death.
    """

    job: PoolJob[Any]
    delivery: Delivery
    suspect: bool
    costs: bool
    requeued: bool
    error: BaseException | None

    @property
    def begun(self) -> bool:
        """Whether it had begun."""
        return self.delivery is Delivery.STARTED


def judge(
    jobs: Collection[PoolJob[Any]], handle: WorkerHandle, slot: Slot, kind: CrashKind
) -> list[Loss]:
    """Return what the death of a worker means for *jobs*, which it had in flight."""
    losses: list[Loss] = []
    # The worker may have died as it took a job, before it could note that.  So the first job that has
    # not begun is a suspect too, if there was a lane for it; but not a large call that was still on
    # its way.
    may_have_been_taken = not slot.exit_planned and not handle.outbox.lending
    # The page has the latest one; the pool ignores the outcomes of those before it after a breach.
    begun = (
        job.frame_end for job in jobs if delivery_of(job, handle) is Delivery.STARTED
    )
    begun_until = max(begun, default=0) if handle.broke_protocol else 0
    for job in jobs:
        delivery = delivery_of(job, handle)
        # A worker that broke the protocol may have erased its page to have its jobs run twice.
        # If it had the job before that, and it was the job's turn or a later one's, then it has begun.
        had_before = job.frame_end <= handle.sent_before_breach
        its_turn = slot.in_flight.runs(job.id) or job.frame_end < begun_until
        if delivery is Delivery.SENT and had_before and its_turn:
            delivery = Delivery.STARTED
        policy, times = job.attempt_policy, job.times_suspected
        suspect = delivery is Delivery.STARTED
        if not suspect and may_have_been_taken:
            suspect, may_have_been_taken = slot.in_flight.runs(job.id), False
        costs = suspect and costs_attempt(delivery=delivery, times_suspected=times)
        error: BaseException | None = None
        if job.exceeded is not None:
            costs = costs or job.exceeded is TimeLimit.TIMEOUT
            error, may_retry, _ = timed_out(job, handle)
            again = may_retry and policy.after_exception(error, attempt=job.attempt)
        else:
            again = not costs or policy.after_crash(kind, attempt=job.attempt)
        losses.append(Loss(job, delivery, suspect, costs, again, error))
    return losses


# What an end that the pool wanted has in common with a crash.
_EXIT_FIELDS = ("slot", "generation", "pid", "exit_code", "signal", "detail")


class Deaths:
    """Does what the end of a worker requires: for its jobs, its slot, the log and listeners.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kills = OomKills()
        count = self._kills.count()
        self._counted, self._ledger = count is not None, OomLedger(count or 0)
        # Not a task group: a callback that never returns would keep the pool from closing.
        self._callbacks: set[asyncio.Task[None]] = set()

    async def finish(self) -> None:
        """Wait for async callbacks of crashes, and cancel those that do not return.

        Cancellation:
            Safe: the callbacks go on.
        """
        late = self._callbacks
        if late:
            _, late = await asyncio.wait(late, timeout=_CALLBACK_GRACE)
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=_CALLBACK_GRACE)
        if late:
            self._engine.log.now(say.ON_CRASH_IS_SLOW, {"callbacks": len(late)})

    def ended(self, handle: WorkerHandle) -> None:
        """Handle the end of a worker: the one place where its jobs and its slot hear of it."""
        with self._engine.turn as now:
            self._handle(handle, now)
        self._engine.replacement.check_size()

    def _handle(self, handle: WorkerHandle, now: float) -> None:
        engine, registry = self._engine, self._engine.registry
        slot, serving = engine.core.slots[handle.slot], engine.serving
        # 1. What it has left: the last heartbeats of its jobs, and its CPU time.
        engine.heartbeats.look(handle)
        if handle.process is not None:
            engine.figures.exited_cpu += handle.process.cpu
        # 2. What it died of.
        kind, planned = self.kind_of(handle, slot, now), slot.exit_planned
        was_ready, exit_reason = slot.ready_at is not None, slot.exit_reason
        silent, killed_for = slot.job_endings.silent, slot.job_endings.killing
        # 3. What that means for its jobs, which are with no worker from now on.
        found = (registry.jobs.get(number) for number in slot.in_flight.jobs)
        losses = judge([job for job in found if job is not None], handle, slot, kind)
        for loss in losses:
            job = loss.job
            if loss.begun and isinstance(job, ChunkJob):
                has_begun = job.salvage(handle.page)
                if not has_begun and handle.broke_protocol:
                    job.assume_lost()
            if loss.requeued and isinstance(job, StreamJob):
                job.begin_again()
            if loss.begun:
                engine.hub.lost(job, slot, handle.since)
                registry.end_attempt(job)
            else:
                registry.unassign(job, suspect=loss.suspect, costs=loss.costs)
        begun = [loss.job for loss in losses if loss.begun]
        if slot.stacks_requested:
            handle.read_requested_stacks()
        # 4. What follows in its slot.
        had_begun = bool(begun) if serving is None else serving.had_served(handle)
        after, unplaceable = engine.core.ended(
            handle.slot,
            now,
            had_begun=had_begun,
            requeue=[loss.job.id for loss in losses if loss.requeued],
            jitter=random.random(),  # noqa: S311 - jitter
            final=handle.final,
        )
        if after.next_step is NextStep.PARK and (
            after.next_start is None or engine.status.cannot_start
        ):
            after = after._replace(next_step=NextStep.GIVE_UP, next_start=None)
        # 5. The report.  A server that was told to stop may still crash, and cut its connections.
        # Its slot goes on as planned.
        crashed = not planned or (serving is not None and was_ready and handle.failed)
        # It names the first of these: the silent one, if a job was silent.
        begun.sort(key=lambda job: job.id != silent)
        why = killed_for if planned else None
        end = self.report(handle, kind, begun, why, now, after, planned=planned)
        handle.page.close()
        # 6. Counters, events, the log.
        if crashed:
            engine.crashes.append(end)
            engine.sessions.worker_crashed(end)
            engine.figures.crash_kinds[kind] += 1
            engine.figures.exits[CRASH] += 1
            engine.hub.publish(events.Crashed(end))
        else:
            error = next((it.error for it in losses if it.job.id == killed_for), None)
            reason = exit_reason or ("close" if engine.closing else "")
            cause = exit_cause(reason)
            if killed_for is not None:
                cause = "cancellation" if error is None else "timeout"
                reason = JobText(f"{cause} of job {{}}", killed_for, cause)
            engine.figures.exits[cause] += 1
            told = {name: getattr(end, name) for name in _EXIT_FIELDS}
            engine.hub.publish(events.Exited(**told, reason=reason))
            # In the next iteration of the loop, before what follows from it.
            if was_ready:
                engine.log.exited(handle, end, reason, error, killed_for)
        # 7. Which jobs go to another worker.  Told before the effects, since with them an idle
        # worker gets such a job at once, and that is its next attempt.
        self._publish_takeovers(losses, unplaceable, end)
        # 8. The next worker starts before a log handler, a callback or a future hears of this end:
        # those take half a millisecond and more.
        engine.act()
        # 9. The log, and the callback.  Not at once: it may submit, cancel or close, and the
        # engine is in the middle of a decision.  But still before the callbacks
        # of the jobs that fail in step 10.
        stderr = handle.stderr
        report = "" if stderr is None else stderr.end_report(crashed=crashed)
        if crashed:
            engine.loop.call_soon(self._tell_crash, end, handle.late_stacks, report)
        # 10. The jobs that are not tried again, unless their end came with the effects.
        for loss in losses:
            if not loss.requeued and not loss.job.done():
                _note(loss, end)
                error = loss.error or crash_error(loss.job, loss.delivery)
                registry.fail(loss.job, error)
        engine.leases.worker_gone(handle.slot)
        if not planned and not was_ready:
            engine.replacement.start_failed(end, handle.began_at)

    # What it died of.

    def kind_of(self, handle: WorkerHandle, slot: Slot, now: float) -> CrashKind:
        """Return what a worker died of, if nobody had asked for its end.

        An OOM kill that explains this death explains no other one from then on.
        """
        lacked_memory = False
        if _killed_by_others(handle):
            # Whatever the kind is, this may be the death that the kernel counted.
            self.poll_oom_kills(now)
            lacked_memory = self._ledger.claim() or handle.lacked_memory
        if handle.broke_protocol:
            return CrashKind.PROTOCOL
        if slot.ready_at is None:
            return CrashKind.FAILED_START
        if slot.oversized or lacked_memory:
            return CrashKind.OUT_OF_MEMORY
        if slot.hung and handle.killed:
            return CrashKind.HUNG
        return CrashKind.CRASH

    def poll_oom_kills(self, now: float) -> None:
        """Note the kernel's count of kills, so that old kills are not taken for new ones."""
        count = self._kills.count()
        if count is not None:
            self._ledger.update(count, now)

    def report(
        self,
        handle: WorkerHandle,
        kind: CrashKind,
        jobs: Sequence[PoolJob[object]],
        killed_for: int | None,
        now: float,
        after: Aftermath,
        *,
        planned: bool,
    ) -> Crash:
        """Return the report of a death, planned or not.

        *jobs* have lost an attempt by it.  If the pool killed the worker to end a job, that is
        the job *killed_for*.  If the end was *planned*, the worker was to end anyhow.
        """
        job = next(iter(jobs), None)
        status, detail = handle.status, handle.detail
        stack = handle.traceback or handle.late_stacks
        if kind is CrashKind.HUNG:
            detail = handle.silence
            stack = (
                handle.page.take_stacks() if job is None else take_stack(job, handle)
            )
        else:
            if not detail and kind is CrashKind.FAILED_START and not planned:
                seconds = self._engine.config.start_timeout
                late = f"it was not ready within {seconds:g} s (start_timeout)"
                detail = late if handle.killed else ""
            if not detail and _killed_by_others(handle) and not self._counted:
                detail = "not by the pool; perhaps there was no memory left"
            killed = "killed since " * (handle.killed and handle.pid is not None)
            if detail:
                detail = killed + detail
            elif killed_for is not None:
                beside = any(job.id != killed_for for job in jobs)
                which, a = (", which it ran too,", "another") if beside else ("", "a")
                known = f"{killed}job {{}}{which} did not end"
                detail = JobText(known, killed_for, f"{killed}{a} job did not end")
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

    # Who is told of it.

    def _tell_crash(self, crash: Crash, stack: str, report: str) -> None:
        """Log a crash and call the callback.

        Args:
            crash: The crash.
            stack: The stacks of a worker that was killed since it had not ended in time.
            report: What the interpreter has said of its own fatal error.
        """
        self._engine.log.crashed(crash, stack, report)
        callback = self._engine.config.on_crash
        if callback is None:
            return

        async def wait(result: Awaitable[object]) -> None:
            with self._its_errors_logged(crash):
                await result

        with self._its_errors_logged(crash):
            result = callback(crash)
            if inspect.isawaitable(result):
                create = self._engine.loop.create_task
                task = create(wait(result), name="asyncpool on_crash")
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)

    @contextlib.contextmanager
    def _its_errors_logged(self, crash: Crash) -> Generator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is the user's code
            extra = {"slot": crash.slot, "pid": crash.pid}
            self._engine.log.now(say.ON_CRASH_FAILED, extra, error=error)

    def _publish_takeovers(
        self, losses: list[Loss], unplaceable: set[int], crash: Crash
    ) -> None:
        """Count and tell which jobs another worker takes over: those that this one may have begun."""
        hub = self._engine.hub
        for loss in losses:
            job = loss.job
            if not loss.requeued or job.done():
                continue
            if not loss.begun:
                self._engine.timers.watch_requeued(job)
            # What had not begun, and is not suspected, is only queued again.
            if not (loss.suspect or loss.error) or job.id in unplaceable:
                continue
            _note(loss, crash)
            job.function.figures.takeovers += 1
            hub.publish(events.TakenOver(job.id, job.attempt if loss.costs else 0))
            if loss.begun:  # else it is told as given back
                error = loss.error or crash_error(job, loss.delivery)
                hub.attempt_failed(job, error)


def _killed_by_others(handle: WorkerHandle) -> bool:
    """Return whether a SIGKILL that the pool has not sent has ended a worker."""
    return handle.status == -signal.SIGKILL and not handle.killed


def _note(loss: Loss, crash: Crash) -> None:
    """Note in a job that *crash* has cost it an attempt; it shows the crash as its own."""
    job, beside = loss.job, crash.concurrent_jobs
    if loss.error is not None:
        return
    if beside and crash.job_id is not None and crash.job_id != job.id:
        others = tuple(it for it in (crash.job_id, *beside) if it != job.id)
        crash = with_job(job, crash, others)
    job.crashes += (crash,)


def with_job(job: PoolJob[object], crash: Crash, beside: tuple[int, ...]) -> Crash:
    """Return *crash* as the one of *job*, with all that a crash tells of a job.

    Args:
        job: The job.
        crash: The crash of its worker.
        beside: The other jobs that the worker ran then.
    """
    number, attempt, name = job.id, job.attempt, job.function.name
    return replace(
        crash, job_id=number, attempt=attempt, function=name, concurrent_jobs=beside
    )
