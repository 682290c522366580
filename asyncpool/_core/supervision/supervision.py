"""Everything that a supervisor decides, and nothing that it does.

A :class:`Supervision` puts the parts together, and decides about the end of the pool.
The pool's side (``_runtime``) does the I/O.  It tells each part what concerns that part:
``jobs``, ``workers``, ``sessions``, ``termination``, ``replacements``.  The hot path is
:meth:`JobAssignment.submit`, :meth:`JobAssignment.outcome` and
:meth:`JobAssignment.refill`, which return what to send where.  Every other method returns
commands, and ``Supervisor.perform`` performs them in their order.  It never waits for the
result of a command: the result comes with a later call.  Times are arguments, and
:meth:`Supervision.next_deadline` says when to call :meth:`Supervision.on_timer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.placement.sessions import PinnedJobs, Sessions
from asyncpool._core.policies.restart import RestartPolicy, RestartWorker
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Command
from asyncpool._core.slots.lifecycle import STOP_GRACE, SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, StopStage
from asyncpool._core.supervision.closing import Closing, Finish
from asyncpool._core.supervision.job_assignment import (
    CLOSED,
    JobAssignment,
    SupervisionParts,
)
from asyncpool._core.supervision.replacement import (
    DrainingWorkers,
    Replacements,
    Resizing,
)
from asyncpool._core.supervision.termination import STACK_GRACE, Termination
from asyncpool.enums import SlotState

# The life of workers: they start, become ready, and end.
#
# This module decides all that is not planned: what follows an end that nobody asked for,
# and which workers are killed at once.  Planned exits are in ``replacement.py``.


class WorkerLife:
    """The workers of a pool, from the start of each to its end.

    Args:
        parts: The state of the pool.
        jobs: What gives jobs to workers, and takes them back.
    """

    def __init__(self, parts: SupervisionParts, jobs: JobAssignment) -> None:
        self._slots = parts.lifecycle.slots
        self._lifecycle = parts.lifecycle
        self._dispatcher = parts.dispatcher
        self._pinned = parts.pinned
        self._sessions = parts.sessions
        self._affinity_slots = parts.affinity_slots
        self._closing = parts.closing
        self._replacements = parts.replacements
        self._serving = parts.serving
        self._jobs = jobs

    def start(self, now: float) -> list[Command]:
        """Fill every slot, unless the pool already closes and has nothing to do."""
        if self._closing.needs_nobody:
            return []
        commands = [
            self._lifecycle.spawn(slot, now, new=True)
            for slot in self._slots
            if slot.state is SlotState.VACANT
        ]
        self._affinity_slots.open()
        return commands

    def ready(self, index: int, now: float) -> list[Command]:
        """Record that the worker in slot *index* has said hello."""
        slot = self._slots[index]
        if slot.state is not SlotState.STARTING:
            return []
        slot.apply(SlotEvent.READY)
        slot.is_overdue = False  # it may have been asked just before
        slot.ready_at, slot.idle_since, slot.due = now, now, None
        was_broken = self._lifecycle.broken is not None
        commands = self._lifecycle.on_ready(slot, now)
        # Sessions that ended in a broken pool may leave more slots than its size.
        commands += self._replacements.resizing.close_surplus()
        commands += self._lifecycle.spawn_parked(now)
        if was_broken:
            for other in self._slots:
                if 0 < len(other.in_flight.jobs) < other.concurrency:
                    # It has free lanes, and may get jobs again.
                    commands += self._jobs.refill(other.index, now)
        self._affinity_slots.assign(slot)
        commands += self._replacements.ready(slot, now)
        if not slot.draining:
            commands += self._jobs.feed(slot, now)
        commands += self._replacements.step(now)
        self._replacements.resizing.count(now)
        return [*commands, *self._jobs.settle(now)]

    def ended(
        self,
        index: int,
        now: float,
        *,
        started: bool,
        requeue: Sequence[int],
        jitter: float,
    ) -> list[Command]:
        """Record that the process in slot *index* is gone.

        Args:
            index: The slot.
            now: The time.
            started: Whether the worker had begun one of its jobs, or had served a
                connection.
            requeue: Which of its jobs are tried again, oldest first.
            jitter: A random number in ``[0, 1)``, which shortens the delay.
        """
        slot = self._slots[index]
        self._dispatcher.exclude(index)
        in_flight, slot.in_flight = slot.in_flight, InFlight(slot.concurrency)
        slot.due = None
        slot.is_probe = False
        slot.apply(SlotEvent.EXITED)
        old = None if slot.replaces is None else self._slots[slot.replaces]
        self._replacements.gone(slot)
        needed = self._replacements.budget.needs(slot)
        commands = self._pinned.drop(slot)
        commands += self._jobs.put_back(
            {job: in_flight.traits_of(job) for job in requeue}
        )
        commands += self._follow(
            slot, old, now, needed=needed, started=started, jitter=jitter
        )
        commands += self._sessions.gone(slot)
        commands += self._sessions.hand_out()
        commands += self._replacements.step(now)
        self._replacements.resizing.count(now)
        return [*commands, *self._jobs.settle(now)]

    def _follow(
        self,
        slot: Slot,
        old: Slot | None,
        now: float,
        *,
        needed: bool,
        started: bool,
        jitter: float,
    ) -> list[Command]:
        """Decide what follows in *slot*; its worker may have been the replacement of *old*'s."""
        if self._closing.needs_nobody:
            return []
        if old is not None and not slot.exit_planned:
            return self._replacements.failed(slot, old, now, jitter)
        if not slot.exit_planned:
            by_jobs = slot.faulty and slot.outcomes > 0 and not self._serving
            blamed = started or by_jobs
            return self._decide_after_death(
                slot, now, needed=needed, blamed=blamed, jitter=jitter
            )
        if not needed:
            return self._lifecycle.leave_empty(slot)
        if self._lifecycle.broken is not None:
            return self._lifecycle.park(slot, self._lifecycle.broken, now)
        return [self._lifecycle.spawn(slot, now)]

    def served(self, index: int, served: int, now: float) -> list[Command]:
        """Record how many connections the worker in slot *index* has served in all."""
        slot = self._slots[index]
        slot.outcomes = served
        if served >= slot.recycle_limits.jobs:
            return self._replacements.replace(slot, "max_jobs", now)
        return []

    def replace_faulty(self, index: int, now: float) -> list[Command]:
        """Replace the faulty worker in slot *index*, once it has nothing in flight.

        The successor of a worker that serves starts before that.
        """
        slot = self._slots[index]
        slot.faulty = True
        self._dispatcher.exclude(index)
        if slot.state is SlotState.BUSY:
            return []
        if self._serving and slot.ready_at is not None:
            if slot.state is SlotState.IDLE:
                return self._let_finish(slot, now)
            return []  # it drains already
        return self._lifecycle.stop_worker(slot, StopStage.KILLED, now)

    def oversized(self, index: int, reason: str, now: float) -> list[Command]:
        """Kill the worker in slot *index*, which has more memory than it may have."""
        slot = self._slots[index]
        if slot.state not in UP:
            return []
        slot.oversized = True
        return self._lifecycle.stop_worker(slot, StopStage.KILLED, now, reason=reason)

    def kill(self, index: int, now: float) -> list[Command]:
        """Kill the worker in slot *index*, which was ready, because the user asked for it.

        So its end is no crash, unless the worker was about to end for another reason.
        """
        slot = self._slots[index]
        planned = not (slot.faulty or slot.hung)
        how, reason = StopStage.KILLED, "kill() was called"
        slot.exit_reason = "kill"
        return self._lifecycle.stop_worker(
            slot, how, now, planned=planned, reason=reason
        )

    def try_sooner(self, now: float) -> None:
        """Record that the pool refused a caller because it is broken."""
        self._lifecycle.try_sooner(now)

    def retry_in(self, now: float) -> float | None:
        """Return in how many seconds a broken pool tries to start a worker; ``None`` for never."""
        return self._lifecycle.retry_in(now)

    def _decide_after_death(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, jitter: float
    ) -> list[Command]:
        before = self._lifecycle.broken
        commands = self._lifecycle.decide_after_death(
            slot, now, needed=needed, blamed=blamed, jitter=jitter
        )
        if self._lifecycle.broken != before:
            commands += self._replacements.suspend("the pool broke")
            commands += fail_jobs(list(self._pinned.take_all()), "broken")
            commands += self._sessions.break_off()
        return commands

    def _let_finish(self, slot: Slot, now: float) -> list[Command]:
        """Let a faulty worker finish what it serves, and start its successor."""
        decision = self._lifecycle.decide_early(slot, now)
        delay = decision.delay if isinstance(decision, RestartWorker) else None
        return self._replacements.fail_after_drain(
            slot, "uncaught exception", now, delay
        )


# Workers that belong to a session, and what that means for all other parts.
#
# ``placement/sessions.py`` knows which session has which worker, and which call is next
# there.  This module decides what follows for jobs, keys and planned exits.


class SessionWorkers:
    """The sessions of a pool.

    Args:
        parts: The state of the pool.
        jobs: What gives jobs to workers that have no session.
    """

    def __init__(self, parts: SupervisionParts, jobs: JobAssignment) -> None:
        self._sessions = parts.sessions
        self._affinity_slots = parts.affinity_slots
        self._replacements = parts.replacements
        self._jobs = jobs

    def want_worker(self) -> list[Command]:
        """Offer the next idle worker to a caller that waits for a session."""
        return [*self._sessions.want(), *self._affinity_slots.update()]

    def leave_queue(self, now: float) -> list[Command]:
        """Record that a caller that waited wants no session any more."""
        self._sessions.leave()
        return self._jobs.feed_released(now)

    def call(self, job: int, traits: SessionTraits) -> list[Command]:
        """Let the worker of a session run *job*, after the session's other calls."""
        return self._sessions.call(job, traits)

    def end(self, session: int, now: float, *, fresh: bool) -> list[Command]:
        """Return the worker of *session* to the pool, or replace it by a *fresh* one.

        The session must have no calls that wait.
        """
        slot = self._sessions.end(session)
        if slot is None:
            return []
        commands: list[Command] = []
        if fresh and slot.ready_at is not None:
            commands += self._replacements.release(slot, "session", now)
        elif slot.in_flight.exhausted and slot.state is SlotState.IDLE:
            commands += self._replacements.retire(slot, "max_jobs", now, unsent=None)
        elif slot.state in UP:
            self._affinity_slots.assign(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                commands += self._jobs.feed(slot, now)
        commands += self._replacements.step(now)
        self._replacements.resizing.count(now)
        return [*commands, *self._jobs.settle(now)]

    def refuse(self, now: float) -> list[Command]:
        """Refuse all callers that wait for a session.

        Workers that were held back for them have room for jobs that are tried again.
        """
        return [*self._sessions.refuse(), *self._jobs.feed_released(now)]


# Workers that the pool is about to kill, since they have not ended in time.
#
# The pool asks each of them for its stacks shortly before its time is over.  So the
# answer takes no extra time, and a worker that ends in time after all has lost nothing.


class OverdueWorkers:
    """Which workers the pool asks for their stacks, and when.

    Args:
        slots: The slots of the pool.
        closing: The end of the pool, whose time may be limited.
    """

    def __init__(self, slots: Sequence[Slot], closing: Closing) -> None:
        self._slots = slots
        self._closing = closing

    def next_deadline(self) -> float | None:
        """When to call :meth:`take`; ``None`` if no worker's time is limited."""
        due = earliest(*map(self._due, self._slots))
        return None if due is None else due - STACK_GRACE

    def take(self, now: float) -> list[tuple[int, float]]:
        """Return the slots of the workers to ask now, each with the end of the worker's time."""
        found: list[tuple[int, float]] = []
        for slot in self._slots:
            due = self._due(slot)
            if due is not None and due - STACK_GRACE <= now:
                slot.is_overdue = True
                found.append((slot.index, due))
        return found

    def _due(self, slot: Slot) -> float | None:
        """Return when the pool kills the worker of *slot*, unless it was asked already."""
        if slot.is_overdue:
            return None
        if slot.state is SlotState.BUSY:
            jobs = slot.in_flight.jobs
            # A cancelled job has had time to end.  Nobody needs to know why it did not.
            if jobs and not any(map(slot.job_endings.is_wanted, jobs)):
                return None
            return earliest(slot.drain_deadline, self._closing.due)
        if slot.state is SlotState.STARTING:
            return slot.due
        if slot.state is SlotState.STOPPING and slot.stop_stage is not StopStage.KILLED:
            return earliest(slot.due, self._closing.due)
        return None


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
