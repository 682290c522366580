"""The life of workers: they start, become ready, and end.

This module decides all that is not planned: what follows an end that nobody asked for,
and which workers are killed at once.  Planned exits are in ``replacement.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.policies.restart import RestartWorker
from asyncpool._core.slots.commands import Command
from asyncpool._core.slots.lifecycle import fail_jobs
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, StopStage
from asyncpool._core.supervision.job_assignment import JobAssignment, SupervisionParts
from asyncpool.enums import SlotState


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
