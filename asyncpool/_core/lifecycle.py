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
from asyncpool._core.in_flight import InFlight
from asyncpool._core.options import RestartLedger
from asyncpool._core.slots import (
    EMPTY,
    NOT_NEEDED,
    STARTING_OR_UP,
    UP,
    Slot,
    SlotEvent,
    StopStage,
)
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
        core: The core of the pool, with its options.
        least: How many slots get a worker at first.
        most: How many workers there may be, without surge.

    Attributes:
        broken: Why the pool is broken, if it is: no worker can be started, and
            there is none.
        gave_up: Whether the pool has given up for good, and tries no more starts.
        kills: How many processes had to be killed.
        restarts: How many workers were started after others, or to replace them.
        ledger: What the restart policy remembers.
        retry_at: When the next start is tried, after starts that failed.
    """

    def __init__(self, core: Core, least: int, most: int) -> None:
        self._core = core
        self._slots = core.slots
        self.ensure_slots(least, SlotState.VACANT)
        self.ensure_slots(most + core.options.max_surge)
        self.broken: str | None = None
        self.gave_up = False
        self.kills = self.restarts = 0
        self.ledger = RestartLedger(core.options.restart_policy, least)
        self._grace = {
            StopStage.ASKED: core.options.stop_grace,
            StopStage.TERMINATED: TERM_GRACE,
            StopStage.KILLED: KILL_GRACE,
        }
        self.retry_at: float | None = None
        self._tried_at = float("-inf")
        # The slot whose start is to show, for all parked ones, whether starts succeed again.
        self._probe: Slot | None = None
        # What follows a death that is still to come: see decide_early().
        self._decided: dict[int, float | None] = {}

    def ensure_slots(self, count: int, state: SlotState = SlotState.UNUSED) -> None:
        """Have at least *count* slots; new ones begin in *state*."""
        for index in range(len(self._slots), count):
            in_flight = InFlight(self._core.concurrency)
            self._slots.append(Slot(index, state, rank=index, in_flight=in_flight))

    # A worker starts.

    def spawn(
        self, slot: Slot, now: float, *, new: bool = False, replaces: int | None = None
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
        slot.rank = rank_of(slot, self._slots, self._core.exits.sizing.most)
        self._decided.pop(slot.index, None)
        slot.recycle_limits = self._core.options.worker_limits.recycle_limits(
            slot.index, slot.generation
        )
        slot.in_flight.max_sent = slot.recycle_limits.jobs
        slot.began_at = now
        # Set before the fork, so that the pool notices a start that hangs anywhere.
        slot.due = now + self._core.options.start_timeout
        self._core.do("spawn", slot.index, slot.generation)

    def add(
        self,
        now: float,
        *,
        new: bool = False,
        replaces: int | None = None,
        delay: float = 0.0,
    ) -> None:
        """Start a worker in a slot that is not needed now, in *delay* seconds; see :meth:`spawn`."""
        unused = (slot for slot in self._slots if slot.state is SlotState.UNUSED)
        slot = next(unused, None)
        if slot is None:
            self.ensure_slots(len(self._slots) + 1)
            slot = self._slots[-1]
        if delay <= 0:
            self.spawn(slot, now, new=new, replaces=replaces)
            return
        slot.apply(SlotEvent.REOPEN)
        slot.due = now + delay
        self._core.do("restarting", slot.index, delay)

    def on_ready(self, slot: Slot, now: float) -> None:
        """Record that a worker is ready, which shows that starts succeed, in all slots."""
        recovers = self.ledger.failures > 0
        self.ledger.ready(now - slot.began_at, now)
        self.broken = self.retry_at = self._probe = None
        if recovers:
            self._core.do("recovered", slot.index)

    def try_sooner(self, now: float) -> None:
        """Record that the pool refused a caller; a broken pool then tries the next start soon."""
        if self.retry_at is not None:
            soon = max(now, self._tried_at + WANTED_AGAIN)
            self.retry_at = min(self.retry_at, soon)

    def try_now(self, now: float) -> None:
        """Try the next start now, if starts fail: what made them fail may be over."""
        if self.retry_at is not None:
            self.retry_at = now

    def pass_on_probe(self, slot: Slot, now: float) -> None:
        """Let another parked slot try now, if *slot*, whose worker is to leave, is the one that tries.

        Nobody learns from that worker whether starts succeed, and the others would wait for ever.
        """
        if slot is self._probe:
            self._probe = None
            if any(other.state is SlotState.PARKED for other in self._slots):
                self.retry_at = now

    def retry_in(self, now: float) -> float | None:
        """Return in how many seconds the pool tries the next start; ``None`` for never."""
        if self.gave_up:
            return None
        return 0.0 if self.retry_at is None else max(0.0, self.retry_at - now)

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
        slot.stop_stage, slot.drain_deadline = how, None
        slot.due = now + (self._grace[how] if grace is None else grace)
        if how is StopStage.KILLED:
            self.kills += 1
            self._core.do("kill", slot.index, reason)
        else:
            self._core.do("stop" if how is StopStage.ASKED else "terminate", slot.index)

    def gone(self, slot: Slot) -> InFlight:
        """Record that the process in *slot* is gone, and return what it had in flight."""
        in_flight, slot.in_flight = (
            slot.in_flight,
            InFlight(self._core.concurrency),
        )
        slot.due = None
        slot.apply(SlotEvent.EXITED)
        if slot is self._probe:
            self._probe = None
        return in_flight

    def leave_empty(self, slot: Slot) -> Aftermath:
        """Mark an empty slot as not needed."""
        slot.apply(SlotEvent.RELEASE)
        slot.due = slot.bucket = None
        self._core.do("left_empty", slot.index)
        return Aftermath(NextStep.LEAVE_EMPTY)

    def park(self, slot: Slot, reason: str, now: float) -> Aftermath:
        """Keep an empty slot empty until starts succeed again."""
        slot.apply(SlotEvent.PARK)
        slot.due = None
        self._core.do("parked", slot.index, reason, self.retry_in(now))
        return Aftermath(NextStep.PARK, self.retry_in(now), reason)

    def decide_early(self, slot: Slot, now: float) -> float | None:
        """Decide what follows a death while the dying worker still has something to finish.

        Returns:
            In how many seconds its successor may start; ``None`` for not before it is gone.
        """
        delay = self._decided[slot.index] = self.ledger.died(now, blamed=False)
        return delay

    def follow_death(
        self, slot: Slot, now: float, *, blamed: bool, jitter: float, final: bool
    ) -> Aftermath:
        """Decide what follows a death; see :meth:`RestartLedger.died` and ``start_failed``."""
        ledger, start_failed = self.ledger, slot.ready_at is None
        trying = self.retry_at is not None or self._is_trying()
        if slot.index in self._decided:
            delay = self._decided.pop(slot.index)
        elif not start_failed:
            delay = ledger.died(now, blamed=blamed)
        else:
            began = slot.began_at
            delay = ledger.start_failed(began, now, jitter=jitter, final=final)
            self._tried_at = now
            if delay is not None and not trying:
                self.retry_at = now + delay
        if delay is None and not self.gave_up:
            self.gave_up, self.retry_at = True, None
            parked = self.park(slot, ledger.given_up, now)
            self._break(ledger.given_up, now)
            return parked
        if not self._core.exits.needs(slot):
            # A broken pool needs at least one slot, to try again.
            parks = any(other.state is SlotState.PARKED for other in self._slots)
            if self.broken is None or parks or self._is_trying():
                return self.leave_empty(slot)
        if delay is not None and start_failed:
            parked = self.park(slot, ledger.reason, now)
            if ledger.breaks_pool and self.broken is None and self._is_deserted():
                self._break(ledger.reason, now)
            return parked
        if self.broken is not None:
            return self.park(slot, self.broken, now)
        assert delay is not None, "a pool that has given up is broken"
        self._core.do("restarting", slot.index, delay)
        if delay > 0:
            slot.due = now + delay
        else:
            self.spawn(slot, now)
        return Aftermath(NextStep.RESTART, delay)

    def _break(self, reason: str, now: float) -> None:
        self.broken = reason
        self._core.do("broken", reason)
        self._core.fail(self._core.dispatcher.take_all(), "broken")
        for slot in self._slots:
            if slot.state is SlotState.VACANT:
                self.park(slot, reason, now)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                self.stop(slot, StopStage.ASKED, now, planned=True)

    # Time.

    def next_deadline(self) -> float | None:
        """When something is due; ``None`` if nothing is."""
        return earliest(self.retry_at, *(slot.due for slot in self._slots))

    def on_timer(self, now: float) -> None:
        """Do what is due."""
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at = None
            self._try(now)
        for slot in self._slots:
            if slot.due is not None and slot.due <= now:
                self._slot_is_due(slot, now)

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
        for slot in self._slots:
            if slot.state is SlotState.PARKED:
                self._probe, self._tried_at = slot, now
                self.spawn(slot, now)
                return

    def _is_trying(self) -> bool:
        return self._probe is not None and not self._probe.exit_planned

    def _is_deserted(self) -> bool:
        """Tell whether no worker takes jobs now, and none will soon."""
        return all(
            slot.draining
            or (
                slot.state not in STARTING_OR_UP
                and (slot.state is not SlotState.VACANT or slot.due is None)
            )
            for slot in self._slots
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
