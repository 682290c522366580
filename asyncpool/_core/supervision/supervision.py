"""Everything that a supervisor decides, and nothing that it does.

A :class:`Supervision` puts the parts together, and decides about the end of the pool.
The pool's side (``_runtime``) does the I/O.  It tells each part what concerns that part:
``jobs``, ``workers``, ``sessions``, ``termination``, ``replacements``.  The hot path is
:meth:`JobAssignment.submit`, :meth:`JobAssignment.outcome` and
:meth:`JobAssignment.refill`, which return what to send where.  Every other method returns
commands, and ``CommandPerformer`` performs them in their order.  It never waits for the
result of a command: the result comes with a later call.  Times are arguments, and
:meth:`Supervision.next_deadline` says when to call :meth:`Supervision.on_timer`.
"""

from __future__ import annotations

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.placement.pinned_jobs import PinnedJobs
from asyncpool._core.placement.sessions import Sessions
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Command
from asyncpool._core.slots.lifecycle import STOP_GRACE, SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import UP, Slot
from asyncpool._core.supervision.closing import Closing, Finish
from asyncpool._core.supervision.draining import DrainingWorkers
from asyncpool._core.supervision.job_assignment import (
    CLOSED,
    JobAssignment,
    SupervisionParts,
)
from asyncpool._core.supervision.overdue_workers import OverdueWorkers
from asyncpool._core.supervision.replacement import Replacements
from asyncpool._core.supervision.resizing import Resizing
from asyncpool._core.supervision.session_workers import SessionWorkers
from asyncpool._core.supervision.termination import Termination
from asyncpool._core.supervision.worker_life import WorkerLife

_NO_LIMITS = WorkerLimits()


class Supervision:
    """The state of a pool, as far as decisions depend on it.

    Args:
        workers: The least and the most number of workers.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        limits: When workers are due for recycling.
        idle_timeout: After how many seconds an idle worker goes, if the size may
            shrink.
        concurrency: How many jobs each worker runs at once.
        max_surge: How many workers there may be beyond the size of the pool during
            planned exits.
        max_unavailable: How many workers may be missing during planned exits.
        stop_grace: Seconds that a stopped worker has to end by itself.
        end_grace: The same if the whole pool ends; by default as many.
        serving: Whether workers serve as long as they live, and have no jobs.  The
            core treats them as idle.

    Attributes:
        slots: Every slot.
        jobs: Which worker has which job.
        workers: The life of each worker.
        sessions: The workers that belong to sessions.
        termination: The jobs that the pool ends.
        replacements: Planned exits.
        closing: The end of the pool.
        dispatcher: The jobs that have no worker, and which workers may have them.
        overdue_workers: Which workers the pool asks for their stacks.
    """

    def __init__(
        self,
        *,
        workers: tuple[int, int],
        policy: RestartPolicy,
        start_timeout: float,
        limits: WorkerLimits = _NO_LIMITS,
        idle_timeout: float = 60.0,
        concurrency: int = 1,
        max_surge: int = 1,
        max_unavailable: int = 0,
        stop_grace: float = STOP_GRACE,
        end_grace: float | None = None,
        serving: bool = False,
    ) -> None:
        least, most = workers
        self.dispatcher = Dispatcher()
        self._lifecycle = SlotLifecycle(
            workers=least,
            count=most + max_surge,
            most=most,
            limits=limits,
            policy=policy,
            start_timeout=start_timeout,
            stop_grace=stop_grace,
            concurrency=concurrency,
            dispatcher=self.dispatcher,
        )
        self.slots = self._lifecycle.slots
        self._pinned = PinnedJobs(self.slots, self.dispatcher)
        self.closing = Closing(
            self._lifecycle, self.dispatcher, self._pinned, end_grace
        )
        self.overdue_workers = OverdueWorkers(self.slots, self.closing)
        self.termination = Termination(self._lifecycle, self.dispatcher)
        sizing = Sizing(least, most, idle_timeout)
        budget = Budget(
            self.slots,
            sizing,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
            serving=serving,
        )
        affinity_slots = AffinitySlots(self.slots, self.dispatcher)
        self.replacements = self._replacements_of(
            affinity_slots, sizing, budget, policy, limits.drain_timeout
        )
        parts = SupervisionParts(
            lifecycle=self._lifecycle,
            dispatcher=self.dispatcher,
            pinned=self._pinned,
            sessions=Sessions(self.slots, self.dispatcher, self._pinned),
            affinity_slots=affinity_slots,
            termination=self.termination,
            closing=self.closing,
            replacements=self.replacements,
            serving=serving,
        )
        self.jobs = JobAssignment(parts)
        self.workers = WorkerLife(parts, self.jobs)
        self.sessions = SessionWorkers(parts, self.jobs)

    def _replacements_of(
        self,
        affinity_slots: AffinitySlots,
        sizing: Sizing,
        budget: Budget,
        policy: RestartPolicy,
        drain_timeout: float | None,
    ) -> Replacements:
        """Return what decides about planned exits, with what it needs for that alone."""
        leaving = DrainingWorkers(
            self._lifecycle, self.dispatcher, self._pinned, drain_timeout
        )
        resizing = Resizing(
            self._lifecycle,
            self.dispatcher,
            leaving=leaving,
            sizing=sizing,
            budget=budget,
        )
        return Replacements(
            self._lifecycle,
            affinity_slots=affinity_slots,
            leaving=leaving,
            resizing=resizing,
            sizing=sizing,
            budget=budget,
            policy=policy,
            closing=self.closing,
        )

    @property
    def broken(self) -> str | None:
        """Why the pool is broken, or has given up; ``None`` if it has not."""
        return self._lifecycle.broken

    @property
    def waiting(self) -> int:
        """How many jobs have not begun: in the queue, or in a worker behind other jobs."""
        ahead = sum(
            max(0, len(slot.in_flight.jobs) - slot.concurrency) for slot in self.slots
        )
        return self.dispatcher.waiting + ahead

    @property
    def pipelining(self) -> bool:
        """Whether a job waits inside a worker for its turn."""
        return any(len(slot.in_flight.jobs) > slot.concurrency for slot in self.slots)

    @property
    def unbalanced(self) -> bool:
        """Whether a worker is idle while jobs wait in other workers, and were not asked back."""
        return self.dispatcher.idle > 0 and any(
            len(slot.in_flight.jobs) > slot.concurrency and not slot.in_flight.revoking
            for slot in self.slots
        )

    @property
    def minimum_ready(self) -> bool:
        """Whether as many workers are ready as there must be at the least."""
        ready = sum(slot.state in UP and not slot.draining for slot in self.slots)
        return ready >= self.replacements.sizing.least

    @property
    def failure(self) -> str | None:
        """How starts have failed, if so that the pool may be broken."""
        ledger = self._lifecycle.ledger
        return ledger.reason if ledger.breaks_pool else None

    @property
    def starts_fail(self) -> bool:
        """Whether so many starts have failed in a row that the next ones will, too."""
        return self._lifecycle.ledger.starts_fail

    @property
    def kills(self) -> int:
        """How many processes had to be killed."""
        return self._lifecycle.kills

    @property
    def restarts(self) -> int:
        """How many workers were started after others, or to replace them."""
        return self._lifecycle.restarts

    # The end of the pool.

    def close(
        self, finish: Finish, deadline: float | None, now: float
    ) -> list[Command]:
        """Finish what *finish* says, by *deadline* if there is one, and stop every worker."""
        commands: list[Command] = []
        pinned_jobs: dict[int, Slot] = {}
        if max(finish, self.closing.finish or Finish.ALL) is not Finish.ALL:
            commands += self.replacements.stop(CLOSED)
            pinned_jobs = self._pinned.take_all()
            commands += fail_jobs(list(pinned_jobs), "closed")
        commands += self.closing.begin(finish, deadline, now)
        if self.closing.finish is not Finish.ALL:  # unless the time is over already
            commands += self.sessions.refuse(now)
        for index in {slot.index: None for slot in pinned_jobs.values()}:
            commands += self.jobs.refill(index, now)  # the worker may have free lanes
        return [*commands, *self.jobs.settle(now)]

    def hold(self) -> None:
        """Record that more jobs are to come, even if the pool closes meanwhile."""
        self.closing.holds += 1

    def release(self, now: float) -> list[Command]:
        """Record that the jobs announced by :meth:`hold` have come."""
        self.closing.holds -= 1
        return self.jobs.settle(now)

    # Time.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(
            self._lifecycle.next_deadline(),
            self.replacements.next_deadline(),
            self.closing.due,
        )

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands = self.closing.on_timer(now)
        if self.closing.finish is Finish.NONE:
            commands += self.sessions.refuse(now)
        commands += self.termination.on_timer(now)
        commands += self._lifecycle.on_timer(now)
        commands += self.replacements.on_timer(now)
        return [*commands, *self.jobs.settle(now)]
