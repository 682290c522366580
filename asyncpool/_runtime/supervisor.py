"""The task that owns a pool's workers, and carries out what the core decides.

There is one place where commands become effects, :meth:`Supervisor._perform`, and
what comes of them returns through the ``_on_...`` methods.  All of it runs on the
loop's thread and none of it waits in between, so there are no locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, assert_never

import anyio

from asyncpool import events
from asyncpool._core import commands as cmd
from asyncpool._core.attempts import AttemptPolicy
from asyncpool._core.frames import Frame
from asyncpool._core.outcome import pack_job
from asyncpool._core.supervision import Finish, Supervision
from asyncpool._runtime.book import JobBook
from asyncpool._runtime.callbacks import Reporter
from asyncpool._runtime.channel import READ_SIZE
from asyncpool._runtime.config import SupervisorConfig
from asyncpool._runtime.handle import WorkerHandle, WorkerSetup
from asyncpool._runtime.hub import EventHub
from asyncpool._runtime.jobs import Job
from asyncpool._runtime.launcher import Launcher, LaunchError
from asyncpool._runtime.postmortem import (
    Coroner,
    broken_error,
    crash_error,
    delivery_of,
    describe_next_step,
)
from asyncpool.errors import (
    JobNotPicklableError,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
)

__all__ = ["Supervisor"]

_LOGGER = logging.getLogger("asyncpool")

_CRASHES_KEPT = 10

# Failing a job takes some microseconds, and a queue may have a million of them.
_FAILED_A_TURN = 500


P = ParamSpec("P")
R = TypeVar("R")


def _decision(
    method: Callable[Concatenate[Supervisor, P], R],
) -> Callable[Concatenate[Supervisor, P], R]:
    """Have cancellations wait until *method* is through; see ``_on_cancel``."""

    @functools.wraps(method)
    def decide(self: Supervisor, *args: P.args, **kwargs: P.kwargs) -> R:
        self._deciding = True
        try:
            return method(self, *args, **kwargs)
        finally:
            self._deciding = False

    return decide  # type: ignore[return-value] # only the name of self differs


class Supervisor:
    """Everything that lives as long as a pool.

    Attributes:
        up: Done when the first worker is ready, failed if the pool broke before.
        done: Done when nothing of the pool is left.
        hub: The pool's events.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = self._loop.create_future()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.hub = EventHub()
        self._config = config
        self._core = Supervision(
            workers=config.workers,
            policy=config.restart,
            start_timeout=config.start_timeout,
        )
        self._launcher = Launcher(self._loop, fork=config.fork, preload=config.preload)
        self._setup = WorkerSetup(
            launcher=self._launcher,
            config=config.worker.pack(),
            buffer=memoryview(bytearray(READ_SIZE)),
            max_payload=config.worker.max_payload,
            output=config.output,
            on_ready=self._on_ready,
            on_fault=self._on_fault,
            on_outcome=self._on_outcome,
            on_spawned=self._on_spawned,
        )
        self._book = JobBook()
        self._handles: dict[int, WorkerHandle] = {}
        self._coroner = Coroner(config.start_timeout)
        self._reporter = Reporter(self._loop, config.on_crash)
        self._crashes: deque[events.Crash] = deque(maxlen=_CRASHES_KEPT)
        self._finished = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._saturated = False
        self._deciding = False
        # Not anyio's: workers are started from timers and readers too, where there
        # is no current task, which anyio needs.
        self._workers = asyncio.TaskGroup()

    # A job's way in.

    @_decision
    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        policy: AttemptPolicy,
    ) -> Job[Any]:
        """Queue a call, or send it to a worker at once; return its future."""
        if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001 - 30 ns, not 90
            raise RuntimeError(
                "submit() must be called in the pool's event loop; from another thread "
                "use asyncio.run_coroutine_threadsafe() or loop.call_soon_threadsafe()"
            )
        self._check_admission()
        job: Job[Any] = Job(self._book.next_id(), policy, self._on_cancel, self._loop)
        try:
            job.payload = pack_job(function, args, kwargs)
            self._check_size(job)
        except JobNotPicklableError as error:
            error.job_id = job.id
            self._book.refuse(job, error)
            return job
        self._book.open(job)
        slot = self._core.submit(job.id)
        if slot is not None:
            self._send(slot, job)
        return job

    def _check_admission(self) -> None:
        core, limit = self._core, self._config.max_pending
        if core.closing is not None or self.done.done():
            raise PoolClosedError
        if core.broken is not None:
            raise self._broken_errors()(None)
        waiting = core.dispatcher.waiting
        if limit is not None and waiting >= limit and not core.dispatcher.idle:
            if not self._saturated:
                self._saturated = True
                self.hub.publish(events.Saturated(waiting))
            raise PoolFullError(waiting=waiting, max_pending=limit)

    def _check_size(self, job: Job[Any]) -> None:
        limit = self._config.worker.max_payload
        if len(job.payload) > limit:
            raise JobNotPicklableError(
                f"the call has {len(job.payload)} bytes when pickled, and max_message "
                f"is {limit}",
                direction="arguments",
                name="the call",
            )

    def _send(self, slot: int, job: Job[Any]) -> None:
        handle = self._handles[slot]
        # Counted before the worker can die of it.
        job.attempt += 1
        job.slot, job.worker = slot, handle.pid
        handle.send_job(job.id, job.attempt, job.payload)

    # Its way out.

    @_decision
    def _on_outcome(self, handle: WorkerHandle, frame: Frame) -> None:
        job = self._book.jobs.get(frame.job)
        slot = self._core.slots[handle.slot]
        if job is None or slot.job != frame.job or job.attempt != frame.attempt:
            handle.accuse(f"it sent an outcome of job {frame.job}, which it has not")
            return
        # The worker gets its next job before this one's outcome is even looked at.
        self._perform(self._core.outcome(handle.slot, self._loop.time()))
        if self._book.settle(job, frame):
            self._perform(self._core.give_back(job.id))
        if self._saturated and not self._core.dispatcher.waiting:
            self._saturated = False
            self.hub.publish(events.Drained())

    def _on_cancel(self, job: Job[Any]) -> None:
        if self._deciding:
            # asyncio's handler of Ctrl-C cancels tasks between any two bytecodes.
            self._loop.call_soon(self._on_cancel, job)
        elif self._book.cancelled(job):
            self._perform(self._core.cancel(job.id, self._loop.time()))

    # The life of the workers.

    async def run(self) -> None:
        """Keep the pool alive until it is closed.

        Cancellation:
            Costs everything: workers are killed, open jobs fail.
        """
        reason = PoolClosedError("the pool was closed before the job was done")
        try:
            async with self._workers:
                self._perform(self._core.start(self._loop.time()))
                await self._finished.wait()
            await self._reporter.finish()
        except Exception as error:
            _LOGGER.exception("the supervisor of pool %s failed", self._config.name)
            reason = PoolClosedError(f"the supervisor failed: {error!r}")
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._core.closing, self._core.finished = Finish.NONE, True
            self._book.fail_all(reason)
            with anyio.CancelScope(shield=True):
                await self._launcher.close()
            self.hub.end()
            for future in (self.up, self.done):
                if not future.done():
                    future.set_result(None)

    @_decision
    def close(self, finish: Finish, timeout: float) -> None:
        """Begin to close, or close faster than was asked before."""
        if not self._core.finished and not self.done.done():
            now = self._loop.time()
            self._book.mark_close(self._core.kills)
            self._perform(self._core.close(finish, now + timeout, now))
            self._rearm()  # there may be nothing to do but to watch the deadline

    async def _tend(self, handle: WorkerHandle) -> None:
        try:
            await handle.live()
        except (LaunchError, OSError) as error:
            handle.detail = str(error)
            if handle.killed and self._core.closing is None:
                self._launcher.abort()  # it has not answered for start_timeout
        self._on_ended(handle)

    def _on_spawned(self, handle: WorkerHandle) -> None:
        self._book.spawned += 1
        self._coroner.look()
        assert handle.pid is not None
        self.hub.publish(events.Spawned(handle.slot, handle.generation, handle.pid))

    @_decision
    def _on_ready(self, handle: WorkerHandle) -> None:
        now = self._loop.time()
        assert handle.pid is not None
        self.hub.publish(
            events.Ready(
                handle.slot, handle.generation, handle.pid, now - handle.began_at
            )
        )
        self._perform(self._core.ready(handle.slot, now))
        if not self.up.done():
            self.up.set_result(None)

    @_decision
    def _on_fault(self, handle: WorkerHandle) -> None:
        self._perform(self._core.faulty(handle.slot, self._loop.time()))

    @_decision
    def _on_ended(self, handle: WorkerHandle) -> None:
        """Bury a worker: the one place where its job and its slot hear of it."""
        slot, now = self._core.slots[handle.slot], self._loop.time()
        job = None if slot.job is None else self._book.jobs[slot.job]
        planned, kind = slot.planned, self._coroner.kind_of(handle, slot)
        delivery: events.Delivery = "never sent"
        requeue = False
        if job is not None:
            delivery = delivery_of(job, handle)
            requeue = self._book.lost(job, kind, delivery)
        commands = self._core.ended(
            handle.slot,
            now,
            started=delivery == "started",
            requeue=requeue,
            roll=random.random(),  # noqa: S311 - jitter
        )
        handle.release_page()
        if planned:
            self.hub.publish(events.Exited(handle.slot, handle.generation, handle.pid))
        else:
            step = describe_next_step(handle.slot, commands)
            running = job if delivery == "started" else None
            crash = self._coroner.report(
                handle, kind=kind, job=running, now=now, next_step=step
            )
            self._tell(crash)
            if job is not None:
                job.crashes += (crash,)
        if job is not None:
            self._settle_lost(job, delivery, requeue=requeue)
        self._perform(commands)

    def _settle_lost(
        self, job: Job[Any], delivery: events.Delivery, *, requeue: bool
    ) -> None:
        if not requeue:
            self._book.fail(job, crash_error(job, delivery))
            return
        lost = job.attempt if delivery == "started" else 0
        if not lost:
            job.attempt -= 1
        self._book.takeovers += 1
        self.hub.publish(events.TakenOver(job.id, lost))

    def _tell(self, crash: events.Crash) -> None:
        self._crashes.append(crash)
        self._book.crashes += 1
        with contextlib.suppress(Exception):  # a handler or filter of the user's
            _LOGGER.warning(
                "pool %s: %s; %s", self._config.name, crash, crash.next_step
            )
        self.hub.publish(events.Crashed(crash))
        self._reporter.report(crash)

    # Effects.

    def _perform(self, commands: list[cmd.Command]) -> None:
        lifecycle = False
        for command in commands:
            if isinstance(command, cmd.Assign):
                self._send(command.slot, self._book.jobs[command.job])
            else:
                lifecycle = True
                self._carry_out(command)
        if lifecycle:
            self._rearm()

    def _carry_out(self, command: cmd.Command) -> None:  # noqa: C901, PLR0912 - a table
        match command:
            case cmd.Spawn(slot, generation):
                self._spawn(slot, generation)
            case cmd.Stop(slot):
                self._handles[slot].stop()
            case cmd.Terminate(slot):
                self._handles[slot].terminate()
            case cmd.Kill(slot):
                self._handles[slot].kill()
            case cmd.Abandon(slot):
                self._handles[slot].abandon()
            case cmd.FailJobs(jobs, why):
                self._fail_jobs(jobs, why)
            case cmd.ScheduleRestart(slot, delay):
                self.hub.publish(events.Restarting(slot, delay))
            case cmd.ParkSlot(slot, reason, probe_in):
                self.hub.publish(events.Parked(slot, reason, probe_in))
            case cmd.GiveUp(reason):
                self._give_up(reason)
            case cmd.Recover(slot):
                self.hub.publish(events.Recovered(slot))
            case cmd.Finished():
                self._finished.set()
            case cmd.Assign():
                raise AssertionError("assignments take the short way")
            case _:
                assert_never(command)

    def _spawn(self, slot: int, generation: int) -> None:
        if generation > 1:
            self._book.restarts += 1
        handle = WorkerHandle(self._loop, slot, generation, self._setup)
        self._handles[slot] = handle
        self._workers.create_task(self._tend(handle), name=f"slot {slot}")

    def _fail_jobs(self, numbers: tuple[int, ...], why: str) -> None:
        jobs = iter([self._book.jobs[number] for number in numbers])
        error_for: Callable[[Job[Any]], Exception] = self._closed_error
        if why == "broken":
            error_for = self._broken_errors()
        self._fail_some(jobs, error_for)
        if len(numbers) > _FAILED_A_TURN:
            rest = self._fail_the_rest(jobs, error_for)
            self._workers.create_task(rest, name="failing what is queued")

    def _fail_some(
        self, jobs: Iterator[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> bool:
        some = list(itertools.islice(jobs, _FAILED_A_TURN))
        for job in some:
            self._book.fail(job, error_for(job))
        return bool(some)

    async def _fail_the_rest(
        self, jobs: Iterator[Job[Any]], error_for: Callable[[Job[Any]], Exception]
    ) -> None:
        more = True
        while more:
            await asyncio.sleep(0)
            more = self._fail_some(jobs, error_for)

    def _closed_error(self, job: Job[Any]) -> PoolClosedError:
        delivery: events.Delivery = "never sent"
        if job.slot is not None:
            delivery = delivery_of(job, self._handles[job.slot])
        text = f"the pool was closed before job {job.id} was done"
        return PoolClosedError(text, job_id=job.id, delivery=delivery)

    def _give_up(self, reason: str) -> None:
        _LOGGER.error("pool %s is broken: %s", self._config.name, reason)
        self.hub.publish(events.GaveUp(reason, tuple(self._crashes)))
        if not self.up.done():
            self.up.set_exception(self._broken_errors()(None))
            self.up.exception()  # whoever starts the pool may have left

    def _broken_errors(self) -> Callable[[Job[Any] | None], PoolBrokenError]:
        """Return what makes the error of each job, from what is known now."""
        return functools.partial(
            broken_error,
            self._core.broken or "",
            tuple(self._crashes),
            self._config.restart.probe_after,
        )

    def _rearm(self) -> None:
        """Keep one timer, set to the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer, deadline)

    @_decision
    def _on_timer(self, deadline: float) -> None:
        # A timer may fire a clock tick early, and the core must not see that.
        self._timer = None
        self._perform(self._core.on_timer(max(deadline, self._loop.time())))
        self._rearm()

    # Figures.

    def stats(self) -> events.PoolStats:
        """Return the pool as it stands."""
        return self._book.stats(self._core, self._handles, self.hub)

    def summary(self) -> events.CloseSummary:
        """Return what the close did."""
        return self._book.summary(self._core.kills)
