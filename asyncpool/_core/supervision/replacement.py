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

from collections.abc import Iterable, Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.placement.sessions import PinnedJobs
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import (
    Command,
    KeepWorker,
    Resized,
    Retiring,
    Revoke,
    RollEnded,
)
from asyncpool._core.slots.lifecycle import EMPTY, SlotLifecycle
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, StopStage
from asyncpool._core.supervision.closing import Closing
from asyncpool.enums import SlotState

# Workers that leave: they get no more jobs, finish what they have begun, and end.
#
# The pool asks such a worker for the jobs that it has not begun, and drops its pinned
# jobs.  It kills a worker that takes longer than the *drain timeout*.


class DrainingWorkers:
    """The workers that leave a pool.

    Args:
        lifecycle: What ends workers.
        dispatcher: What decides which worker runs which job.  It must not use a
            worker that leaves.
        pinned_jobs: The pinned jobs.  Those of a worker that leaves are dropped.
        drain_timeout: Seconds that a worker has to finish; ``None`` for any time.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        dispatcher: Dispatcher,
        pinned_jobs: PinnedJobs,
        drain_timeout: float | None,
    ) -> None:
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._pinned = pinned_jobs
        self._drain_timeout = drain_timeout

    @property
    def any(self) -> bool:
        """Whether a worker is leaving."""
        return any(slot.draining for slot in self._lifecycle.slots)

    def begin(
        self, slot: Slot, why: str, now: float, *, planned: bool = True
    ) -> list[Command]:
        """Let the worker of *slot* leave, unless it already does; its end may count as a crash."""
        if slot.draining or slot.state not in UP | {SlotState.STARTING}:
            return []
        slot.draining, slot.exit_reason = True, why
        self._dispatcher.exclude(slot.index)
        self._lifecycle.pass_on_probe(slot, now)
        commands: list[Command] = [
            Retiring(slot.index, why),
            *self._pinned.drop(slot),
        ]
        if slot.state is SlotState.BUSY:
            if self._drain_timeout is not None:
                slot.drain_deadline = now + self._drain_timeout
            return [*commands, *self.ask_back(slot, slot.in_flight.waiting())]
        how = (
            StopStage.STOPPED if slot.state is SlotState.IDLE else StopStage.TERMINATED
        )
        return [
            *commands,
            *self._lifecycle.stop_worker(slot, how, now, planned=planned),
        ]

    @staticmethod
    def ask_back(slot: Slot, jobs: Iterable[int]) -> list[Command]:
        """Ask the worker of *slot* for those *jobs* that the pool has not asked it for yet."""
        in_flight = slot.in_flight
        not_asked = [job for job in jobs if not in_flight.is_revoking(job)]
        return (
            [Revoke(slot.index, in_flight.begin_revoke(not_asked))] if not_asked else []
        )

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(*map(_due, self._lifecycle.slots))

    def on_timer(self, now: float) -> list[Command]:
        """Kill the workers whose time is over."""
        commands: list[Command] = []
        for slot in self._lifecycle.slots:
            due = _due(slot)
            if due is not None and due <= now:
                reason = (
                    f"it was to leave, and had not within {self._drain_timeout:g} s"
                )
                commands += self._lifecycle.stop_worker(
                    slot, StopStage.KILLED, now, reason=reason
                )
        return commands


def _due(slot: Slot) -> float | None:
    return slot.drain_deadline if slot.state is SlotState.BUSY else None


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

# The states in which a slot that was parked still has a start, or the result of one, to
# come.  A worker that was told to end before it was ready has failed; its end is that
# result.
_UNFILLED = {
    SlotState.PARKED,
    SlotState.VACANT,
    SlotState.STARTING,
    SlotState.STOPPING,
}


class RollingRestart:
    """The rolls of a pool, one at a time.

    Args:
        slots: The slots; there may be more later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._left: list[tuple[Slot, int]] | None = None
        self._empty: list[Slot] = []
        self._early: list[Slot] = []
        self._going: list[tuple[Slot, int]] = []
        self._replaced = self._filled = 0

    @property
    def under_way(self) -> bool:
        """Whether a roll is under way."""
        return self._left is not None

    @property
    def fills(self) -> bool:
        """Whether the roll waits for a start in a slot whose starts have failed."""
        parked = any(slot.state is SlotState.PARKED for slot, _ in self._left or ())
        return parked or any(slot.state in _UNFILLED for slot in self._empty)

    def begin(self) -> None:
        """Roll every worker that is there now; the caller then calls :meth:`go_on`.

        A worker that is being started counts, too, since it may already have read old
        code.  The roll also fills parked slots: the new code may be what their starts
        need.
        """
        self._early = [it for it in self._slots if it.replaces is not None]
        self._left = [
            (it, it.generation)
            for it in self._slots
            if it.state in UP or may_fail_to_start(it)
            if not it.draining and it.replaces is None
        ]
        self._empty = [it for it in self._slots if it.state is SlotState.PARKED]
        self._replaced = self._filled = 0

    def has(self, slot: Slot) -> bool:
        """Tell whether the roll still has to replace the worker of *slot*."""
        return any(slot is rolled for rolled, _ in self._left or ())

    def is_early(self, slot: Slot) -> bool:
        """Tell whether the replacement in *slot* was started before the roll began."""
        return any(slot is early for early in self._early)

    def inherit(self, successor: Slot, old: Slot) -> None:
        """Record that the worker of *successor* has replaced that of *old*."""
        if self._left is None or not self.is_early(successor):
            return
        # From now on the successor is the worker to replace.  But both of them have to
        # go.
        self._going += [rolled for rolled in self._left if rolled[0] is old]
        self._left = [rolled for rolled in self._left if rolled[0] is not old]
        self._left.append((successor, successor.generation))

    def go_on(self) -> list[Command]:
        """Replace the workers that are left, and end the roll if there are none."""
        if self._left is None:
            return []
        there = _there(self._left)
        parked = [slot for slot, _ in self._left if slot.state is SlotState.PARKED]
        self._replaced += len(self._left) - len(there) - len(parked)
        self._empty += parked
        self._left = there
        for slot, _ in there:
            if slot.state in UP and slot.replace_reason is None:
                slot.replace_reason = ROLL
        self._filled += sum(slot.state in UP for slot in self._empty)
        self._empty = [slot for slot in self._empty if slot.state in _UNFILLED]
        # One that leaves, since it is surplus, may also have read old code.
        self._early = [
            slot for slot in self._early if slot.replaces is not None or slot.draining
        ]
        self._going = _there(self._going)
        waits = there or self._empty or self._early or self._going
        return [] if waits else self.end("")

    def end(self, why: str) -> list[Command]:
        """End the roll, if there is one: for the reason *why*, or because it is complete.

        Workers whose replacement has not begun stay.
        """
        if self._left is None:
            return []
        self._left = None
        self._empty, self._early, self._going = [], [], []
        coming = {slot.replaces for slot in self._slots}
        for slot in self._slots:
            if (
                slot.replace_reason == ROLL
                and not slot.draining
                and slot.index not in coming
            ):
                slot.replace_reason = None
        return [RollEnded(self._replaced, why, self._filled)]


def _there(rolled: list[tuple[Slot, int]]) -> list[tuple[Slot, int]]:
    """Return those of *rolled* whose worker is still there."""
    return [
        (slot, generation)
        for slot, generation in rolled
        if slot.generation == generation and slot.state not in EMPTY
    ]


def may_fail_to_start(slot: Slot) -> bool:
    """Tell whether a start in *slot* is under way, which the pool may have broken off."""
    begun = slot.state in {SlotState.STARTING, SlotState.STOPPING}
    return begun and slot.ready_at is None and not slot.exit_planned


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


# How the number of workers follows the pool's size, and the size follows the jobs.
#
# The pool starts a worker that is missing.  If there are too many workers, it drains as
# many, those without a job first.  If the size may shrink, a worker goes that has been
# idle for too long.  ``capacity.py`` decides what the size should be.


class Resizing:
    """Keeps the number of workers at the size.

    Args:
        lifecycle: The slots.
        dispatcher: What knows how many jobs wait.
        leaving: What lets workers leave.
        sizing: How many workers the pool should have.
        budget: How many workers may come and go at this moment.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        dispatcher: Dispatcher,
        *,
        leaving: DrainingWorkers,
        sizing: Sizing,
        budget: Budget,
    ) -> None:
        self._slots = lifecycle.slots
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._leaving = leaving
        self._sizing = sizing
        self._budget = budget
        self._more = 0  # by how many the size has grown that are not started yet

    def limit(self, least: int, most: int, now: float) -> list[Command]:
        """Keep the size between *least* and *most* from now on."""
        self._lifecycle.ensure_slots(self._budget.slots_for(most))
        self._lifecycle.ledger.workers = self._lifecycle.most = most
        size = self._sizing.size
        self._sizing.limit(least, most, now)
        return self._report(size)

    def count(self, now: float) -> None:
        """Record that a worker has come or gone: some jobs may have no worker now."""
        if self._sizing.watching and self._dispatcher.unserved > self._budget.coming:
            self._sizing.job_waits(now)

    def next_deadline(self) -> float | None:
        """When to call :meth:`step` at the latest."""
        # Asked after every decision, so that a pool that does not shrink looks at no worker.
        nobody_goes = self._sizing.shrinks and not self._may_let_idle_go
        return self._sizing.next_deadline(nobody_goes=nobody_goes)

    def step(self, now: float) -> list[Command]:
        """Start workers that are missing; let workers go that are too many or idle for too long."""
        size, waiting = self._sizing.size, self._dispatcher.unserved
        self._sizing.grow(now, waiting=waiting, coming=self._budget.coming)
        commands = self._report(size)
        commands += self._fill(now)
        commands += self._thin_out(now)
        return [*commands, *self._let_idle_go(now)]

    def close_surplus(self) -> list[Command]:
        """Mark empty slots as not needed, as many as there are too many."""
        commands: list[Command] = []
        for slot in sorted(self._empty, key=_worth)[: max(0, -self._budget.missing)]:
            commands += self._lifecycle.leave_empty(slot)
        return commands

    @property
    def _empty(self) -> list[Slot]:
        """The slots that wait for a start, and that no session waits for."""
        return [
            slot
            for slot in self._slots
            if slot.state in EMPTY
            and self._budget.counts(slot)
            and slot.session is None
        ]

    @property
    def _live(self) -> int:
        """How many workers are ready and stay."""
        return sum(
            slot.state in UP and self._budget.counts(slot) for slot in self._slots
        )

    @property
    def _may_let_idle_go(self) -> bool:
        """Whether one worker less leaves enough that are ready, or takes an empty slot."""
        enough = self._live >= self._sizing.size or bool(self._empty)
        return enough and not self._leaving.any

    def _report(self, before: int) -> list[Command]:
        size = self._sizing.size
        self._more = max(0, self._more + size - before)
        return [] if size == before else [Resized(size)]

    def _fill(self, now: float) -> list[Command]:
        missing = self._budget.missing
        self._more = min(self._more, max(0, missing))
        commands: list[Command] = []
        for _ in range(min(missing, self._budget.free)):
            slot = self._lifecycle.unused_slot()
            commands.append(self._lifecycle.spawn(slot, now, new=self._more > 0))
            self._more = max(0, self._more - 1)
        return commands

    def _thin_out(self, now: float) -> list[Command]:
        """Let workers go that are too many, those that do not work yet, or not now, first."""
        commands = self.close_surplus()
        while (slot := self._surplus) is not None:
            # Its replacement, if one is on its way, is surplus from now on, too.
            commands += self._leaving.begin(slot, "resize", now)
        return commands

    @property
    def _surplus(self) -> Slot | None:
        """The slot whose worker goes next, if there are too many, and one may go."""
        # Those with sessions go when these are over.
        free = [s for s in self._slots if self._budget.counts(s) and s.session is None]
        staying = [slot for slot in free if slot.state is not SlotState.STOPPING]
        if len(free) - len(staying) >= -self._budget.missing or not staying:
            return None
        slot = min(staying, key=_worth)
        # If the others are not ready, they may never be.
        is_needed = slot.state in UP and self._live <= self._sizing.size
        return None if is_needed else slot

    def _let_idle_go(self, now: float) -> list[Command]:
        if not self._may_let_idle_go:
            return []
        idle = [
            (slot.idle_since, slot.index)
            for slot in self._slots
            if slot.state is SlotState.IDLE and not slot.draining
            if slot.session is None
        ]
        size = self._sizing.size
        index = self._sizing.shrink(now, idle)
        if index is None:
            return []
        # A slot whose starts fail goes before a worker that is well.
        commands = [*self._report(size), *self.close_surplus()]
        if self._budget.missing < 0:
            commands += self._leaving.begin(self._slots[index], "idle", now)
            commands += self._thin_out(now)  # its replacement is surplus, too
        return commands


def _worth(slot: Slot) -> tuple[int, float]:
    """Return the key to sort by: an empty slot first, then a start, then the longest idle."""
    rank = (
        SlotState.PARKED,
        SlotState.VACANT,
        SlotState.STOPPING,
        SlotState.STARTING,
        SlotState.IDLE,
        SlotState.BUSY,
    )
    return rank.index(slot.state), slot.idle_since
