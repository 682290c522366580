"""Planned exits: which worker goes, and when its replacement is started.

There are four reasons for a planned exit.  A worker is due for recycling.  A worker has
been idle for too long.  There are too many workers since the pool was resized.  A roll
replaces the worker.  All of them use one *budget*: how many workers
there may be beyond the pool's size (*max_surge*), and how many may be missing
(*max_unavailable*).  So the pool never takes out more workers of its size at a time
than the budget allows.

A worker that is to be replaced goes on working until its replacement is ready.  Then it
*leaves*.  The replacement starts in a slot that is not needed otherwise, an *unused* one.

A worker of a cluster that fails also finishes what it has.  But its end is a crash, and
needs no grant: its successor starts at once, outside the budget.  There may be as many
such workers as the pool may have workers.

If a replacement fails to start, the old worker stays.  Such a failure does not count as
a crash of the pool, and cannot break the pool.  A roll stops there.  The pool tries all
other replacements again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpool._core.deadlines import earliest
from asyncpool._core.lifecycle import EMPTY, NOT_NEEDED, Aftermath
from asyncpool._core.slots import (
    ALIVE,
    STARTING_OR_UP,
    UP,
    Sizing,
    Slot,
    SlotEvent,
    StopStage,
)
from asyncpool.enums import NextStep, SlotState

if TYPE_CHECKING:
    from asyncpool._core.core import Core

# A roll: the pool replaces every worker that was there when the roll began.
#
# The roll is over when none of those workers is left.
#
# A start that had begun before the roll is *early*.  Such a worker may already run old
# code, or fail because of it.  If an early replacement fails to start, that says nothing
# about the roll.  If it becomes ready, it replaces its worker as planned, and the roll
# then replaces it too.

# The reason for recycling that a roll gives.
ROLL = "roll"

# In all other states, the start in a slot that was parked is still pending.  A worker that was told
# to end before it was ready has failed: its end is the result of its start.
_DECIDED = UP | NOT_NEEDED


class Roll:
    """The rolls of a pool, one at a time.

    Args:
        core: The core of the pool.

    Attributes:
        under_way: Whether a roll is under way.
    """

    def __init__(self, core: Core) -> None:
        self.under_way = False
        self._core = core
        self._slots = core.slots
        # The workers that have to go, by slot and generation, and whether each counts as replaced
        # when it has gone.  Of a worker and its early replacement, which both have to go, only one
        # counts: the worker, or the replacement once that is ready.
        self._old: dict[tuple[int, int], bool] = {}
        self._unfilled: list[Slot] = []
        self._replaced = self._filled = 0
        self._failed_since = (
            False  # whether a start has failed that began after the roll did
        )
        self._most_failures = (
            0  # the longest streak of failed starts that began before it
        )

    def begin(self) -> None:
        """Roll every worker that is there now; the caller then calls :meth:`go_on`.

        A worker that is being started counts, too, since it may already have read old
        code.  The roll also fills parked slots: the new code may be what their starts
        need.
        """
        self.under_way, self._old = True, {}
        for slot in self._slots:
            # The pool may have broken off the start that is under way in it.
            starts = slot.state in ALIVE and slot.ready_at is None
            stays = slot.state in UP or (starts and not slot.exit_planned)
            if slot.replaces is not None or (stays and not slot.draining):
                self._old[_worker(slot)] = slot.replaces is None
        self._unfilled = [it for it in self._slots if it.state is SlotState.PARKED]
        self._replaced = self._filled = 0
        self._failed_since = False

    def has(self, slot: Slot) -> bool:
        """Tell whether the worker of *slot* has to go, which was there when the roll began."""
        return _worker(slot) in self._old

    def is_early(self, slot: Slot) -> bool:
        """Tell whether the replacement in *slot* was started before the roll began."""
        return self._old.get(_worker(slot)) is False

    def inherit(self, successor: Slot, old: Slot) -> None:
        """Record that the worker of *successor* has replaced that of *old*."""
        if self.is_early(successor):
            # From now on the successor is the worker to replace.  But both of them have to
            # go.
            self._old[_worker(successor)] = True
            if self.has(old):
                self._old[_worker(old)] = False

    def start_failed(self, slot: Slot) -> None:
        """Record that a start in *slot* has failed; an early one may have, because of old code."""
        self._failed_since = not self.has(slot)

    def fill(self, now: float) -> None:
        """Try one start in each slot whose starts have failed, without waiting."""
        failures = self._core.lifecycle.ledger.failures
        # Not counted one by one: the ledger counts starts that fail together once.
        if not self._failed_since or failures < self._most_failures:
            self._most_failures = failures  # none of them is the roll's own, so far
        rolled = [self._slots[index] for index, _ in self._old]
        if not any(slot.state is SlotState.PARKED for slot in rolled) and not any(
            slot.state not in _DECIDED for slot in self._unfilled
        ):
            return
        if failures > self._most_failures:
            self.end("a start failed again")
        else:
            self._core.lifecycle.try_now(now)

    def go_on(self) -> None:
        """Replace the workers that are left, and end the roll if there are none."""
        if not self.under_way:
            return
        for (index, generation), counts in [*self._old.items()]:
            slot = self._slots[index]
            if slot.generation == generation and slot.state not in EMPTY:
                if slot.state in UP and slot.replace_reason is None:
                    slot.replace_reason = ROLL
                continue
            del self._old[index, generation]
            if counts and slot.state is SlotState.PARKED:
                self._unfilled.append(slot)
            elif counts:
                self._replaced += 1
        self._filled += sum(slot.state in UP for slot in self._unfilled)
        self._unfilled = [slot for slot in self._unfilled if slot.state not in _DECIDED]
        if not self._old and not self._unfilled:
            self.end("")

    def end(self, why: str) -> None:
        """End the roll, if there is one: for the reason *why*, or because it is complete.

        Workers whose replacement has not begun stay.
        """
        if not self.under_way:
            return
        self.under_way, self._old, self._unfilled = False, {}, []
        coming = {slot.replaces for slot in self._slots}
        for slot in self._slots:
            stays = not slot.draining and slot.index not in coming
            if slot.replace_reason == ROLL and stays:
                slot.replace_reason = None
        self._core.do("roll_ended", self._replaced, why, self._filled)


def _worker(slot: Slot) -> tuple[int, int]:
    return slot.index, slot.generation


class Exits:
    """Which workers go, which ones replace them, and how many there are.

    A worker *counts* unless it is about to leave, or is the replacement of one that is
    not about to leave yet.  The pool keeps as many workers that count as its size says
    (``slots.py``).

    Args:
        core: The core of the pool, with its options.
        sizing: How many workers the pool should have.

    Attributes:
        stopped: Whether no planned exit is granted any more, since the pool ends.
        sizing: As above.
    """

    def __init__(self, core: Core, sizing: Sizing) -> None:
        self.stopped = False
        self.sizing = sizing
        self._core = core
        self._slots = core.slots
        self._lifecycle = core.lifecycle
        self._surge = core.options.max_surge
        self._drain_timeout = core.options.worker_limits.drain_timeout
        self._failed = 0  # replacements in a row
        self._retry_at: float | None = None
        self._more = 0  # by how many the size has grown that are not started yet
        self._roll = Roll(core)
        self._told_size = sizing.size

    # Workers that are there, and how many more the budget allows.

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self._roll.under_way

    def counts(self, slot: Slot) -> bool:
        """Tell whether the worker of *slot* counts for the size of the pool."""
        if slot.state in NOT_NEEDED or slot.draining:
            return False
        return slot.replaces is None or self._slots[slot.replaces].draining

    @property
    def missing(self) -> int:
        """How many workers are still to be started; below zero, how many are too many."""
        return self.sizing.size - sum(map(self.counts, self._slots))

    @property
    def coming(self) -> int:
        """How many workers are being started."""
        return sum(slot.state is SlotState.STARTING for slot in self._slots)

    def needs(self, slot: Slot) -> bool:
        """Tell whether a worker should be started in an empty *slot*."""
        return self.missing + self.counts(slot) > 0

    @property
    def settled(self) -> bool:
        """Whether as many workers are ready as there should be, and none comes or goes."""
        return not self.missing and not any(
            slot.draining
            or slot.state is SlotState.STARTING
            or (self.counts(slot) and slot.state not in UP)
            for slot in self._slots
        )

    @property
    def _free(self) -> int:
        """How many more workers there may be.  Failing workers take up nothing."""
        filled = sum(slot.state not in NOT_NEEDED for slot in self._slots)
        return self.sizing.size + self._surge - filled + self._failing

    @property
    def _can_miss(self) -> bool:
        """Whether a worker may go before another one is started."""
        taking = sum(slot.state in UP and not slot.draining for slot in self._slots)
        return self.sizing.size - taking < self._core.options.max_unavailable

    @property
    def _failing(self) -> int:
        """How many workers have failed, and have a successor before they have finished."""
        if not self._core.serving:
            return 0
        return sum(
            it.faulty and it.draining and not it.exit_planned for it in self._slots
        )

    @property
    def _grants_nothing(self) -> bool:
        broken = self._lifecycle.broken is not None
        return self.stopped or broken or self._core.closing.no_worker_needed

    # Workers leave: they get no more jobs, finish what they have begun, and end.

    def drain(self, slot: Slot, why: str, now: float) -> None:
        """Let the worker of *slot* leave, unless it already does; a faulty one's end is a crash.

        The pool asks it for the jobs that it has not begun, and drops its pinned jobs.  A
        worker that takes longer than *drain_timeout* is killed.
        """
        if slot.draining or slot.state not in STARTING_OR_UP:
            return
        slot.draining, slot.exit_reason = True, why
        self._core.dispatcher.exclude(slot.index)
        self._lifecycle.pass_on_probe(slot, now)
        self._core.do("retiring", slot.index, why)
        self._core.sessions.drop_pinned(slot)
        if slot.state is SlotState.BUSY:
            if self._drain_timeout is not None:
                slot.drain_deadline = now + self._drain_timeout
            self._core.revoke(slot, slot.in_flight.waiting())
            return
        idle = slot.state is SlotState.IDLE
        how = StopStage.ASKED if idle else StopStage.TERMINATED
        self._lifecycle.stop(slot, how, now, planned=not slot.faulty)

    def _kill_late(self, now: float) -> None:
        """Kill the workers that have not left in time."""
        for slot in self._slots:
            due = slot.drain_deadline
            if due is not None and due <= now:
                reason = (
                    f"it was to leave, and had not within {self._drain_timeout:g} s"
                )
                self._lifecycle.stop(slot, StopStage.KILLED, now, reason=reason)

    # Workers are replaced.

    def replace(self, slot: Slot, why: str, now: float) -> None:
        """Replace the worker of *slot* as soon as the budget allows it."""
        if slot.state in UP and not slot.draining and slot.replace_reason is None:
            slot.replace_reason = why
            self.reconcile(now)

    def drain_now(
        self, slot: Slot, why: str, now: float, *, unsent: int | None
    ) -> None:
        """Let the worker of *slot* begin no other job, even if no replacement is ready.

        *unsent* is the job that was assigned to it but not sent yet.
        """
        if slot.state not in UP:
            return
        self.drain(slot, why, now)
        # The worker may not have begun the first one either.
        sent = [job for job in slot.in_flight.jobs if job != unsent]
        self._core.revoke(slot, sent)
        self.reconcile(now)

    def fail_after_drain(self, slot: Slot, why: str, now: float) -> None:
        """Let the worker of *slot* finish what it has; its end is a crash.

        Its successor starts at once, or after a delay.  But if the pool is to give up, or if too
        many workers have failed and not finished yet, it starts only when this worker has
        gone, which keeps its slot until then.
        """
        delay = self._lifecycle.decide_early(slot, now)
        if delay is None or self._failing >= self.sizing.size + self._surge:
            self._lifecycle.stop(slot, StopStage.ASKED, now)
            return
        self.drain(slot, why, now)
        if not self._promote(slot) and self.needs(slot):
            self._lifecycle.add(now, delay=delay)
        self.reconcile(now)

    def roll(self, now: float) -> None:
        """Replace every worker that is there now, as many at a time as the budget allows.

        The roll also tries a start in each parked slot at once.  It is over when these
        slots have workers, too.
        """
        # Replacements that have failed before may be tried at once, too.
        self._retry_at = None
        self._roll.begin()
        self.reconcile(now)

    def ready(self, slot: Slot, now: float) -> None:
        """Record that the worker of *slot* is ready; call this before it gets anything to do.

        The worker may leave at once, if a roll began while it was being started.
        """
        if slot.replaces is not None:
            old, slot.replaces = self._slots[slot.replaces], None
            self._roll.inherit(slot, old)
            self._failed = 0
            self.drain(old, old.replace_reason or "", now)
        self._replace_some(now)
        self._core.sessions.update_buckets()

    def gone(self, slot: Slot) -> None:
        """Record that the worker of *slot* is gone; a worker that was to replace it stays."""
        if slot.ready_at is None and not slot.exit_planned:
            self._roll.start_failed(slot)
        slot.draining = False
        slot.drain_deadline = slot.replace_reason = slot.replaces = None
        self._promote(slot)

    def failed(self, slot: Slot, old: Slot, now: float, jitter: float) -> Aftermath:
        """Record that the worker of *slot*, which was to replace that of *old*, failed to start.

        If its start began before a roll that is under way, another one follows at once.
        """
        slot.apply(SlotEvent.RELEASE)
        if self._roll.is_early(slot):
            return Aftermath(NextStep.KEEP_WORKER, 0.0)
        self._failed += 1
        if self._roll.has(old):
            self._roll.end("a replacement did not start")
        if old.replace_reason == ROLL:  # its roll is over, since another start failed
            old.replace_reason = None
        self._age(now)
        if old.replace_reason is None:
            return Aftermath(NextStep.KEEP_WORKER)
        delay = self._core.options.restart_policy.delay(self._failed, jitter=jitter)
        self._retry_at = now + delay
        return Aftermath(NextStep.KEEP_WORKER, delay)

    def stop(self) -> None:
        """Grant no more planned exits, since the pool ends; replacements that are ready stay.

        A pool that drains does not end yet, and grants what an open pool does.
        """
        if not self.stopped:
            self.stopped = True
            self.suspend("the pool was closed")

    def suspend(self, why: str) -> None:
        """Forget which workers were to replace which."""
        for slot in self._slots:
            slot.replaces = slot.replace_reason = None
        self._roll.end(why)

    # The size.

    def resize(self, least: int, most: int, now: float) -> None:
        """Keep the size between *least* and *most* from now on."""
        self._lifecycle.try_now(now)
        self._lifecycle.ensure_slots(most + self._surge)
        self._lifecycle.ledger.workers = most
        self.sizing.limit(least, most, now)
        self._tell_size()
        self.reconcile(now)

    def close_surplus(self) -> None:
        """Mark empty slots as not needed, as many as there are too many."""
        for slot in sorted(self._empty, key=_removal_order)[: max(0, -self.missing)]:
            self._lifecycle.leave_empty(slot)

    # Time, and what follows from all that has happened.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        leave_by = earliest(*(slot.drain_deadline for slot in self._slots))
        if self._grants_nothing:
            return leave_by
        grow_at, shrink_at = self.sizing.grow_at, self.sizing.shrink_at
        # Asked after every decision, so that a pool that does not shrink looks at no worker.
        if shrink_at is not None and not self._may_let_idle_go:
            shrink_at = None
        old_at = [_old_at(slot) for slot in self._slots]
        return earliest(leave_by, grow_at, shrink_at, self._retry_at, *old_at)

    def on_timer(self, now: float) -> None:
        """Do what is due."""
        self._kill_late(now)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
        self.reconcile(now)

    def reconcile(self, now: float) -> None:
        """Grant what the budget allows now, and do what follows from all that has happened."""
        if not self.stopped:
            self._roll.fill(now)
        if not self._grants_nothing:
            self._keep_size(now)
            self._replace_some(now)
        self._core.sessions.update_buckets()

    def _keep_size(self, now: float) -> None:
        """Start workers that are missing; let workers go that are too many or idle for too long."""
        waiting = self._core.dispatcher.unserved
        self.sizing.grow(now, waiting=waiting, coming=self.coming)
        self._tell_size()
        missing = self.missing
        self._more = min(self._more, max(0, missing))
        for _ in range(min(missing, self._free)):
            self._lifecycle.add(now, new=self._more > 0)
            self._more = max(0, self._more - 1)
        self._shrink(now)
        if self._may_let_idle_go:
            self._let_idle_go(now)

    def _tell_size(self) -> None:
        size = self.sizing.size
        grown, self._told_size = size - self._told_size, size
        self._more = max(0, self._more + grown)
        if grown:
            self._core.do("resized", size)

    def _shrink(self, now: float) -> None:
        """Let workers go that are too many, those that do not work yet, or not now, first."""
        self.close_surplus()
        while (slot := self._surplus) is not None:
            # Its replacement, if one is on its way, is surplus from now on, too.
            self.drain(slot, "resize", now)

    def _let_idle_go(self, now: float) -> None:
        idle = [
            (slot.idle_since, slot.index)
            for slot in self._slots
            if slot.state is SlotState.IDLE and not slot.draining
            if slot.session is None
        ]
        index = self.sizing.shrink(now, idle)
        if index is None:
            return
        # A slot whose starts fail goes before a worker that is well.
        self._tell_size()
        self.close_surplus()
        if self.missing < 0:
            self.drain(self._slots[index], "idle", now)
            self._shrink(now)  # its replacement is surplus, too

    @property
    def _empty(self) -> list[Slot]:
        """The slots that wait for a start, and that no session waits for."""
        return [
            slot
            for slot in self._slots
            if slot.state in EMPTY and self.counts(slot) and slot.session is None
        ]

    @property
    def _live(self) -> int:
        """How many workers are ready and stay."""
        return sum(slot.state in UP and self.counts(slot) for slot in self._slots)

    @property
    def _may_let_idle_go(self) -> bool:
        """Whether one worker less leaves enough that are ready, or takes an empty slot."""
        enough = self._live >= self.sizing.size or bool(self._empty)
        return enough and not any(slot.draining for slot in self._slots)

    @property
    def _surplus(self) -> Slot | None:
        """The slot whose worker goes next, if there are too many, and one may go."""
        # Those with sessions go when these are over.
        free = [s for s in self._slots if self.counts(s) and s.session is None]
        staying = [slot for slot in free if slot.state is not SlotState.STOPPING]
        if len(free) - len(staying) >= -self.missing or not staying:
            return None
        slot = min(staying, key=_removal_order)
        # If the others are not ready, they may never be.
        is_needed = slot.state in UP and self._live <= self.sizing.size
        return None if is_needed else slot

    def _replace_some(self, now: float) -> None:
        if not self._grants_nothing:
            self._age(now)
            self._roll.go_on()
            self._replace_due(now)

    def _age(self, now: float) -> None:
        for slot in self._slots:
            old_at = _old_at(slot)
            if old_at is not None and old_at <= now:
                slot.replace_reason = "max_age"

    def _replace_due(self, now: float) -> None:
        if self._retry_at is not None:
            return
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
            if self._free > 0 and self._surge > 0:
                self._lifecycle.add(now, replaces=slot.index)
            elif self._can_miss:
                self.drain(slot, slot.replace_reason or "", now)

    def _promote(self, slot: Slot) -> bool:
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


# In which order workers go that are too many; among equals, the longest idle one first.
_WORTH = (
    SlotState.PARKED,
    SlotState.VACANT,
    SlotState.STARTING,
    SlotState.IDLE,
    SlotState.BUSY,
)


def _removal_order(slot: Slot) -> tuple[int, float]:
    return _WORTH.index(slot.state), slot.idle_since
