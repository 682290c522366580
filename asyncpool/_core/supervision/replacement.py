"""Planned exits: which worker goes, and when its replacement is started.

There are four reasons for a planned exit.  A worker is due for recycling.  A worker has
been idle for too long.  There are too many workers since the pool was resized.  A roll
replaces the worker.  All of them use one *budget* (``capacity.py``): how many workers
there may be beyond the pool's size (*max_surge*), and how many may be missing
(*max_unavailable*).  So the pool never takes out more workers of its size at a time
than the budget allows.

A worker that is to be replaced goes on working until its replacement is ready.  Then it
*leaves* (``draining.py``).  The replacement starts in a slot that is not needed
otherwise, an *unused* one.

A worker of a cluster that fails also finishes what it has.  But its end is a crash, and
needs no grant: its successor starts at once, outside the budget.  There may be as many
such workers as the pool may have workers.

If a replacement fails to start, the old worker stays.  Such a failure does not count as
a crash of the pool, and cannot break the pool.  A roll stops there.  The pool tries all
other replacements again later.
"""

from __future__ import annotations

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Command, KeepWorker
from asyncpool._core.slots.lifecycle import SlotLifecycle
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, StopStage
from asyncpool._core.supervision.closing import Closing
from asyncpool._core.supervision.draining import DrainingWorkers
from asyncpool._core.supervision.resizing import Resizing
from asyncpool._core.supervision.rolling_restart import (
    ROLL,
    RollingRestart,
    may_fail_to_start,
)


class Replacements:
    """Which workers go, and which ones replace them.

    Args:
        lifecycle: The slots.
        affinity_slots: What needs to know when a worker comes or goes.
        leaving: What lets workers leave.
        resizing: What keeps the number of workers at the size, with the same
            budget.
        sizing: How many workers the pool should have.
        budget: How many workers may come and go at this moment.
        policy: How long to wait after a replacement has failed to start.
        closing: The end of the pool, which knows whether jobs may still need a
            worker.

    Attributes:
        stopped: Whether no planned exit is granted any more, since the pool ends.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        *,
        affinity_slots: AffinitySlots,
        leaving: DrainingWorkers,
        resizing: Resizing,
        sizing: Sizing,
        budget: Budget,
        policy: RestartPolicy,
        closing: Closing,
    ) -> None:
        self.stopped = False
        self.resizing = resizing
        self.sizing = sizing
        self.budget = budget
        self._slots = lifecycle.slots
        self._lifecycle = lifecycle
        self._affinity_slots = affinity_slots
        self._leaving = leaving
        self._policy = policy
        self._failed = 0
        self._retry_at: float | None = None
        self._closing = closing
        self._roll = RollingRestart(self._slots)
        self._most_failures = 0  # in a row, while a roll fills slots
        self._started_before: set[tuple[int, int]] = set()  # that roll, by generation
        self._failed_since_roll = False  # the last start that failed

    # Questions.

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self._roll.under_way

    # What happens.

    def replace(self, slot: Slot, why: str, now: float) -> list[Command]:
        """Replace the worker of *slot* as soon as the budget allows it."""
        if slot.state not in UP or slot.draining or slot.replace_reason is not None:
            return []
        slot.replace_reason = why
        return self.step(now)

    def retire(
        self, slot: Slot, why: str, now: float, *, unsent: int | None
    ) -> list[Command]:
        """Let the worker of *slot* begin no other job, even if no replacement is ready.

        *unsent* is the job that was assigned to it but not sent yet.
        """
        if slot.state not in UP:
            return []
        commands = self._leaving.begin(slot, why, now)
        # The worker may not have begun the first one either.
        not_begun = [job for job in slot.in_flight.jobs if job != unsent]
        commands += self._leaving.ask_back(slot, not_begun)
        return [*commands, *self.step(now)]

    def release(self, slot: Slot, why: str, now: float) -> list[Command]:
        """Let the worker of *slot* go, even if no replacement is ready."""
        return [*self._leaving.begin(slot, why, now), *self.step(now)]

    def fail_after_drain(
        self, slot: Slot, why: str, now: float, delay: float | None
    ) -> list[Command]:
        """Let the worker of *slot* finish what it has; its end is a crash.

        Its successor starts in *delay* seconds.  If *delay* is ``None``, or if too many
        workers have failed and not finished yet, the successor starts only when this
        worker has gone, which keeps its slot until then.
        """
        if delay is None or not self.budget.can_fail:
            return self._lifecycle.stop_worker(slot, StopStage.STOPPED, now)
        commands = self._leaving.begin(slot, why, now, planned=False)
        if not self._let_stay(slot) and self.budget.needs(slot):
            commands.append(
                self._lifecycle.start_successor(
                    self._lifecycle.unused_slot(), delay, now
                )
            )
        return [*commands, *self.step(now)]

    def resize(self, least: int, most: int, now: float) -> list[Command]:
        """Keep the size between *least* and *most* from now on."""
        self.try_start(now)
        return [*self.resizing.limit(least, most, now), *self.step(now)]

    def try_start(self, now: float) -> None:
        """If starts fail, try the next one now: what made them fail may be over."""
        self._lifecycle.try_now(now)

    def roll(self, now: float) -> list[Command]:
        """Replace every worker that is there now, as many at a time as the budget allows.

        The roll also tries a start in each parked slot at once.  It is over when these
        slots have workers, too.
        """
        self._failed_since_roll = False
        self._started_before = {
            (slot.index, slot.generation)
            for slot in self._slots
            if may_fail_to_start(slot)
        }
        # Replacements that have failed before may be tried at once, too.
        self._retry_at = None
        self._roll.begin()
        return self.step(now)

    def ready(self, slot: Slot, now: float) -> list[Command]:
        """Record that the worker of *slot* is ready; call this before it gets anything to do.

        The worker may leave at once, if a roll began while it was being started.
        """
        commands: list[Command] = []
        if slot.replaces is not None:
            old, slot.replaces = self._slots[slot.replaces], None
            self._roll.inherit(slot, old)
            self._failed = 0
            commands += self._leaving.begin(old, old.replace_reason or "", now)
        return [*commands, *self._exchange(now), *self._affinity_slots.update()]

    def gone(self, slot: Slot) -> None:
        """Record that the worker of *slot* is gone; a worker that was to replace it stays."""
        if slot.ready_at is None and not slot.exit_planned:
            # A start from before the roll may have failed because of old code.
            before_roll = (slot.index, slot.generation) in self._started_before
            self._failed_since_roll = not before_roll
        slot.draining, slot.drain_deadline, slot.replace_reason, slot.replaces = (
            False,
            None,
            None,
            None,
        )
        self._let_stay(slot)

    def failed(self, slot: Slot, old: Slot, now: float, jitter: float) -> list[Command]:
        """Record that the worker of *slot*, which was to replace that of *old*, failed to start.

        If its start began before a roll that is under way, another one follows at once.
        """
        slot.apply(SlotEvent.CLOSE)
        if self._roll.is_early(slot):
            return [KeepWorker(slot.index, 0.0)]
        self._failed += 1
        commands: list[Command] = []
        if self._roll.has(old):
            commands += self._roll.end("a replacement did not start")
        if old.replace_reason == ROLL:  # its roll is over, since another start failed
            old.replace_reason = None
        self._age(now)
        if old.replace_reason is None:
            return [KeepWorker(slot.index, None), *commands]
        delay = self._policy.delay(self._failed, jitter=jitter)
        self._retry_at = now + delay
        return [KeepWorker(slot.index, delay), *commands]

    def stop(self, why: str) -> list[Command]:
        """Grant no more planned exits, since the pool ends; replacements that are ready stay.

        A pool that drains does not end yet, and grants what an open pool does.
        """
        if self.stopped:
            return []
        self.stopped = True
        return self.suspend(why)

    def suspend(self, why: str) -> list[Command]:
        """Forget which workers were to replace which."""
        for slot in self._slots:
            slot.replaces = slot.replace_reason = None
        return self._roll.end(why)

    # Time.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        leave_by = self._leaving.next_deadline()
        if self._grants_nothing:
            return leave_by
        resize_at = self.resizing.next_deadline()
        old_at = [_old_at(slot) for slot in self._slots]
        return earliest(leave_by, resize_at, self._retry_at, *old_at)

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands = self._leaving.on_timer(now)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
        return [*commands, *self.step(now)]

    # What follows.

    def step(self, now: float) -> list[Command]:
        """Grant what the budget allows now, and do what follows from all that has happened."""
        return [
            *self._fill_parked(now),
            *self._grant(now),
            *self._affinity_slots.update(),
        ]

    def _fill_parked(self, now: float) -> list[Command]:
        """For a roll, try one start in each slot whose starts have failed, without waiting."""
        failures = self._lifecycle.ledger.failures
        # Not counted one by one: the ledger counts starts that fail together once.
        if not self._failed_since_roll or failures < self._most_failures:
            self._most_failures = failures  # none of them is the roll's own, so far
        if self.stopped or not self._roll.fills:
            return []
        if failures > self._most_failures:
            return self._roll.end("a start failed again")
        self._lifecycle.try_now(now)
        return []

    def _grant(self, now: float) -> list[Command]:
        if self._grants_nothing:
            return []
        return [*self.resizing.step(now), *self._exchange(now)]

    def _exchange(self, now: float) -> list[Command]:
        if self._grants_nothing:
            return []
        self._age(now)
        return [*self._roll.go_on(), *self._replace(now)]

    @property
    def _grants_nothing(self) -> bool:
        broken = self._lifecycle.broken is not None
        return self.stopped or broken or self._closing.needs_nobody

    def _age(self, now: float) -> None:
        for slot in self._slots:
            old_at = _old_at(slot)
            if old_at is not None and old_at <= now:
                slot.replace_reason = "max_age"

    def _replace(self, now: float) -> list[Command]:
        commands: list[Command] = []
        if self._retry_at is not None:
            return commands
        coming = {slot.replaces for slot in self._slots}
        due = [
            slot
            for slot in self._slots
            if slot.replace_reason is not None
            and not slot.draining
            and slot.state in UP
            and slot.index not in coming
            and slot.session is None
        ]
        # In the order of their starts.  Workers that are due again as soon as they are ready would
        # otherwise take the whole budget, and leave none to those in later slots.
        due.sort(key=lambda slot: slot.began_at)
        for slot in due:
            if self.budget.can_replace:
                spare = self._lifecycle.unused_slot()
                commands.append(self._lifecycle.spawn(spare, now, replaces=slot.index))
            elif self.budget.can_miss:
                commands += self._leaving.begin(slot, slot.replace_reason or "", now)
        return commands

    def _let_stay(self, slot: Slot) -> bool:
        """Let the replacement of *slot*'s worker, if there is one, stay in its own right."""
        for other in self._slots:
            if other.replaces == slot.index:
                other.replaces = None
                if other.draining:
                    return False
                self._roll.inherit(other, slot)
                other.bucket, slot.bucket = slot.bucket, None
                return True
        return False


def _old_at(slot: Slot) -> float | None:
    age = slot.recycle_limits.age
    if age is None or slot.ready_at is None or slot.replace_reason is not None:
        return None
    return None if slot.draining or slot.state not in UP else slot.ready_at + age
