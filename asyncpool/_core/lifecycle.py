"""The slots of a pool: how workers start and end in them, and what follows a death.

The restart ledger (``options.py``) decides whether a dead worker is replaced, and when.
This module turns that decision into effects and deadlines.  It does not know what the
workers do while they live.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from asyncpool._core.deadlines import earliest
from asyncpool._core.options import (
    GiveUpRestarting,
    RestartDecision,
    RestartLedger,
    RestartPolicy,
    RestartWorker,
    RetryStart,
    WorkerLimits,
)
from asyncpool._core.slots import COMING, UP, Slot, SlotEvent, StopStage
from asyncpool.enums import NextStep, SlotState

if TYPE_CHECKING:
    from asyncpool._core.core import Core

# Seconds that a worker has to end after each step, before the pool takes the next step.
STOP_GRACE = 2.0
TERM_GRACE = 2.0
KILL_GRACE = 5.0

# When a caller wants to use a broken pool, the pool tries a start this many seconds
# after the last one, however long the backoff has become.  That costs little, and the
# caller waits for it.
WANTED_AGAIN = 1.0

# The states of a slot that has no process and may have one again.
EMPTY = frozenset({SlotState.VACANT, SlotState.PARKED, SlotState.UNUSED})

# The states of a slot that no worker is for.
NOT_NEEDED = frozenset({SlotState.UNUSED, SlotState.RETIRED})


class Aftermath(NamedTuple):
    """What follows the end of a worker in its slot.

    Attributes:
        next_step: What comes next.
        next_start: In how many seconds; ``None`` for never, or if there is nothing to wait for.
        park_reason: Why the slot stays empty, if it does because starts fail.
    """

    next_step: NextStep
    next_start: float | None = None
    park_reason: str = ""


class Lifecycle:
    """Every slot of a pool, and what is due there.

    Args:
        core: The core of the pool.
        least: How many slots get a worker at first.
        count: How many slots there are.
        most: How many workers there may be, without surge.
        limits: When workers are due for recycling.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        stop_grace: Seconds that a stopped worker has to end by itself.
        concurrency: How many jobs a worker runs at once.

    Attributes:
        most: As above; it may change.
        broken: Why the pool is broken, if it is: no worker can be started, and
            there is none.
        gave_up: Whether the pool has given up for good, and tries no more starts.
        kills: How many processes had to be killed.
        restarts: How many workers were started after others, or to replace them.
    """

    def __init__(
        self,
        core: Core,
        *,
        least: int,
        count: int,
        most: int,
        limits: WorkerLimits,
        policy: RestartPolicy,
        start_timeout: float,
        stop_grace: float,
        concurrency: int,
    ) -> None:
        self._core = core
        self.slots = core.slots
        self._concurrency = concurrency
        self.most = most
        self.ensure_slots(least, SlotState.VACANT)
        self.ensure_slots(count)
        self.broken: str | None = None
        self.gave_up = False
        self.kills = self.restarts = 0
        self.ledger = RestartLedger(policy, least)
        self._limits = limits
        self._start_timeout = start_timeout
        self._grace = {
            StopStage.STOPPED: stop_grace,
            StopStage.TERMINATED: TERM_GRACE,
            StopStage.KILLED: KILL_GRACE,
        }
        self._retry_at: float | None = None
        self._tried_at = float("-inf")
        self._announced: dict[int, RestartDecision] = {}

    def ensure_slots(self, count: int, state: SlotState = SlotState.UNUSED) -> None:
        """Have at least *count* slots; new ones begin in *state*."""
        for index in range(len(self.slots), count):
            self.slots.append(
                Slot(index, state, rank=index, concurrency=self._concurrency)
            )

    def unused_slot(self) -> Slot:
        """Return a slot that is not needed now; make one if there is none."""
        for slot in self.slots:
            if slot.state is SlotState.UNUSED:
                return slot
        self.ensure_slots(len(self.slots) + 1)
        return self.slots[-1]

    # A worker starts.

    def spawn(
        self,
        slot: Slot,
        now: float,
        *,
        new: bool = False,
        replaces: int | None = None,
    ) -> None:
        """Start a worker in an empty slot.

        Args:
            slot: The slot.
            now: The time.
            new: Whether it is one more worker than there were.
            replaces: The slot whose worker it replaces as soon as it is ready.
        """
        self.restarts += not new
        slot.apply(SlotEvent.SPAWN)
        slot.renew()
        slot.replaces = replaces
        slot.rank = rank_of(slot, self.slots, self.most)
        self._announced.pop(slot.index, None)
        slot.recycle_limits = self._limits.recycle_limits(slot.index, slot.generation)
        slot.in_flight.most = slot.recycle_limits.jobs
        slot.began_at = now
        # Set before the fork, so that the pool notices a start that hangs anywhere.
        slot.due = now + self._start_timeout
        self._core.do("spawn", slot.index, slot.generation)

    def on_ready(self, slot: Slot, now: float) -> None:
        """Record that a worker is ready, which shows that starts succeed, in all slots.

        Call :meth:`spawn_parked` next.
        """
        recovers = self.ledger.failures > 0
        self.ledger.ready(now - slot.began_at, now)
        self.broken = self._retry_at = None
        for other in self.slots:
            other.is_probe = False
        if recovers:
            self._core.do("recovered", slot.index)

    def spawn_parked(self, now: float) -> None:
        """Start a worker in every slot that has waited for starts to succeed."""
        for slot in self.slots:
            if slot.state is SlotState.PARKED:
                self.spawn(slot, now)

    def try_sooner(self, now: float) -> None:
        """Record that the pool refused a caller; a broken pool then tries the next start soon."""
        if self._retry_at is not None:
            soon = max(now, self._tried_at + WANTED_AGAIN)
            self._retry_at = min(self._retry_at, soon)

    def try_now(self, now: float) -> None:
        """Try the next start now, if starts fail: what made them fail may be over."""
        if self._retry_at is not None:
            self._retry_at = now

    def pass_on_probe(self, slot: Slot, now: float) -> None:
        """Let another parked slot try now, if *slot*, whose worker is to leave, is the one that tries.

        Nobody learns from that worker whether starts succeed, and the others would wait for ever.
        """
        if slot.is_probe:
            slot.is_probe = False
            if any(other.state is SlotState.PARKED for other in self.slots):
                self._retry_at = now

    def retry_in(self, now: float) -> float | None:
        """Return in how many seconds the pool tries the next start; ``None`` for never."""
        if self.gave_up:
            return None
        return 0.0 if self._retry_at is None else max(0.0, self._retry_at - now)

    # A worker ends.

    def stop(
        self,
        slot: Slot,
        how: StopStage,
        now: float,
        *,
        planned: bool = False,
        reason: str = "",
        grace: float | None = None,
    ) -> None:
        """Give a worker no more jobs, and make its process end.

        The pool takes the next step after *grace* seconds, or after *stop_grace* by
        default.
        """
        if slot.stop_stage >= how:
            return
        self._core.dispatcher.exclude(slot.index)
        slot.exit_planned = slot.exit_planned or planned
        if slot.state is not SlotState.STOPPING:
            slot.apply(SlotEvent.STOP)
        slot.stop_stage = how
        slot.due = now + (self._grace[how] if grace is None else grace)
        if how is StopStage.KILLED:
            self.kills += 1
            self._core.do("kill", slot.index, reason)
        else:
            self._core.do(
                "stop" if how is StopStage.STOPPED else "terminate", slot.index
            )

    def leave_empty(self, slot: Slot) -> Aftermath:
        """Mark an empty slot as not needed."""
        slot.apply(SlotEvent.CLOSE)
        slot.due = slot.bucket = None
        self._core.do("left_empty", slot.index)
        return Aftermath(NextStep.LEAVE_EMPTY)

    def park(self, slot: Slot, reason: str, now: float) -> Aftermath:
        """Keep an empty slot empty until starts succeed again."""
        slot.apply(SlotEvent.PARK)
        slot.due = None
        self._core.do("parked", slot.index, reason, self.retry_in(now))
        return Aftermath(NextStep.PARK, self.retry_in(now), reason)

    def start_successor(self, slot: Slot, now: float) -> float | None:
        """Decide what follows a death while the dying worker still has something to finish.

        Returns:
            In how many seconds its successor may start; ``None`` for not before it is gone.
        """
        decision = self._announced[slot.index] = self.ledger.died(now, blamed=False)
        return decision.delay if isinstance(decision, RestartWorker) else None

    def start_in(self, slot: Slot, delay: float, now: float) -> None:
        """Start a worker in an unused slot, in *delay* seconds."""
        if delay <= 0:
            self.spawn(slot, now)
            return
        slot.apply(SlotEvent.REOPEN)
        slot.due = now + delay
        self._core.do("restarting", slot.index, delay)

    def follow_death(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, jitter: float
    ) -> Aftermath:
        """Decide what follows a death in a slot in which a worker is *needed*."""
        decision = self._decide(slot, now, blamed=blamed, jitter=jitter)
        if isinstance(decision, GiveUpRestarting) and not self.gave_up:
            self.gave_up, self._retry_at = True, None
            parked = self.park(slot, decision.reason, now)
            self._break(decision.reason, now)
            return parked
        # A broken pool needs at least one slot, to try again.
        if not needed and (self.broken is None or self._will_try()):
            return self.leave_empty(slot)
        if isinstance(decision, RetryStart):
            parked = self.park(slot, decision.reason, now)
            if decision.breaks_pool and self.broken is None and self._is_deserted():
                self._break(decision.reason, now)
            return parked
        if self.broken is not None:
            return self.park(slot, self.broken, now)
        assert isinstance(decision, RestartWorker)
        self._core.do("restarting", slot.index, decision.delay)
        if decision.delay > 0:
            slot.due = now + decision.delay
        else:
            self.spawn(slot, now)
        return Aftermath(NextStep.RESTART, decision.delay)

    def _decide(
        self, slot: Slot, now: float, *, blamed: bool, jitter: float
    ) -> RestartDecision:
        announced = self._announced.pop(slot.index, None)
        if announced is not None:
            return announced
        if slot.ready_at is not None:
            return self.ledger.died(now, blamed=blamed)
        began, final = slot.began_at, slot.hopeless
        decision = self.ledger.start_failed(began, now, jitter=jitter, final=final)
        self._tried_at = now
        coming = self._retry_at is not None or self._is_trying()
        if isinstance(decision, RetryStart) and not coming:
            self._retry_at = now + decision.delay
        return decision

    def _break(self, reason: str, now: float) -> None:
        self.broken = reason
        self._core.do("broken", reason)
        self._core.fail(self._core.dispatcher.take_all(), "broken")
        for slot in self.slots:
            if slot.state is SlotState.VACANT:
                self.park(slot, reason, now)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                self.stop(slot, StopStage.STOPPED, now, planned=True)

    # Time.

    def next_deadline(self) -> float | None:
        """When something is due; ``None`` if nothing is."""
        return earliest(self._retry_at, *(slot.due for slot in self.slots))

    def on_timer(self, now: float) -> None:
        """Do what is due."""
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            self._try(now)
        for slot in self.slots:
            if slot.due is not None and slot.due <= now:
                self._slot_is_due(slot, now)

    def stop_trying(self) -> None:
        """Try no more whether workers can be started again."""
        self._retry_at = None

    def retire_all(self) -> bool:
        """If every slot is retired, cancel all that is due; return whether that is so."""
        if any(slot.state is not SlotState.RETIRED for slot in self.slots):
            return False
        self._retry_at = None
        return True

    def _slot_is_due(self, slot: Slot, now: float) -> None:
        if slot.state in EMPTY:
            self.spawn(slot, now)
        elif slot.state is SlotState.STARTING:
            self.stop(slot, StopStage.KILLED, now)
        elif slot.state in UP:
            self.stop(slot, StopStage.KILLED, now, planned=not slot.hung)
        elif slot.stop_stage is StopStage.KILLED:
            slot.due = None
            self._core.do("abandon", slot.index)
        else:
            self.stop(slot, StopStage(slot.stop_stage + 1), now)

    def _try(self, now: float) -> None:
        """Start one worker, to find out for all parked slots whether starts succeed."""
        for slot in self.slots:
            if slot.state is SlotState.PARKED:
                slot.is_probe, self._tried_at = True, now
                self.spawn(slot, now)
                return

    def _is_trying(self) -> bool:
        return any(slot.is_probe and not slot.exit_planned for slot in self.slots)

    def _will_try(self) -> bool:
        """Tell whether a broken pool has a slot for its next start."""
        parked = any(slot.state is SlotState.PARKED for slot in self.slots)
        return parked or self._is_trying()

    def _is_deserted(self) -> bool:
        """Tell whether no worker takes jobs now, and none will soon."""
        return all(
            slot.draining
            or (
                slot.state not in COMING
                and (slot.state is not SlotState.VACANT or slot.due is None)
            )
            for slot in self.slots
        )


# The rank of a worker: a number from 0 on that no other worker has which takes jobs.
#
# Jobs read it as ``current_job().slot``, and ``worker_env`` gets it.  It is for what there is
# once for each worker: a GPU, a port, a core.  The number of the worker's slot would not do.
# A replacement starts in a slot beyond the size of the pool while the old worker still works,
# so the slots in use wander.  A replacement has the rank of the worker that it replaces, from
# its start on, since the environment of a process cannot change with the end of another one.


def rank_of(slot: Slot, slots: Sequence[Slot], most: int) -> int:
    """Return the rank of the worker that is started in *slot*.

    Args:
        slot: It knows whose worker the new one replaces, and the rank of its last worker.
        slots: All slots.
        most: How many workers the pool may have, without surge.  Ranks are less than that.
    """
    others = [it for it in slots if it is not slot and it.state not in NOT_NEEDED]
    if slot.replaces is not None and slots[slot.replaces].rank < most:
        return slots[slot.replaces].rank
    # A worker that leaves takes no more jobs.  Its rank is free for its successor, which may
    # start before it has gone, but one that nobody has is better.
    staying = {it.rank for it in others if not it.draining}
    leaving = {it.rank for it in others if it.draining}
    free = [rank for rank in range(most) if rank not in staying]
    if not free:  # in a cluster, workers that fail have successors beyond the size
        return next(rank for rank in itertools.count(most) if rank not in staying)
    return min(free, key=lambda rank: (rank in leaving, rank != slot.rank, rank))
