"""The slots of a pool: who is in them, how one is made to go, when the next one comes.

Whether a dead worker is replaced, and when, is the ledger's verdict (``restart.py``);
here it becomes commands and deadlines.  What the workers do meanwhile is no matter of
this module.
"""

from __future__ import annotations

from typing import Literal

from asyncpool._core.commands import (
    Abandon,
    Command,
    FailJobs,
    GiveUp,
    Kill,
    LeaveEmpty,
    ParkSlot,
    Recover,
    ScheduleRestart,
    Spawn,
    Stop,
    Terminate,
)
from asyncpool._core.deadlines import earliest
from asyncpool._core.dispatch import Dispatcher
from asyncpool._core.restart import Break, Park, RestartLedger, RestartPolicy, Verdict
from asyncpool._core.slots import Ending, Slot, SlotEvent, SlotState
from asyncpool._core.wear import WorkerLimits

__all__ = ["EMPTY", "KILL_GRACE", "STOP_GRACE", "TERM_GRACE", "Lives", "fail_jobs"]

# Seconds that a worker has to end after each step, before the next one is taken.
STOP_GRACE = 2.0
TERM_GRACE = 2.0
KILL_GRACE = 5.0

_HOPELESS = frozenset({SlotState.PARKED, SlotState.SPARE, SlotState.RETIRED})

# No process is in these, and there may be one again.
EMPTY = frozenset({SlotState.VACANT, SlotState.PARKED, SlotState.SPARE})


class Lives:
    """Every slot, and what is due there.

    Args:
        workers: How many slots are filled at first.
        seats: How many there are.
        limits: When workers are worn.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        stop_grace: Seconds that one which was stopped has to end by itself.
        width: How many jobs it runs at once.
        dispatcher: Which must not count on a worker that goes, and holds no job for a
            broken pool.

    Attributes:
        slots: The slots.
        broken: Why there is no hope for the pool, if there is none.
        kills: How many processes had to be killed.
        restarts: How many workers have come after others, or to replace them.
    """

    def __init__(
        self,
        *,
        workers: int,
        seats: int,
        limits: WorkerLimits,
        policy: RestartPolicy,
        start_timeout: float,
        stop_grace: float,
        width: int,
        dispatcher: Dispatcher,
    ) -> None:
        self._width = width
        self.slots: list[Slot] = []
        self.seat(workers, SlotState.VACANT)
        self.seat(seats, SlotState.SPARE)
        self.broken: str | None = None
        self.kills = self.restarts = 0
        self.ledger = RestartLedger(policy, workers)
        self._limits = limits
        self._policy = policy
        self._start_timeout = start_timeout
        self._grace = {
            Ending.STOPPED: stop_grace,
            Ending.TERMINATED: TERM_GRACE,
            Ending.KILLED: KILL_GRACE,
        }
        self._dispatcher = dispatcher
        self._probe_at: float | None = None
        self._announced: dict[int, Verdict] = {}

    def seat(self, seats: int, state: SlotState = SlotState.SPARE) -> None:
        """Have so many slots at the least; new ones begin in that state."""
        for index in range(len(self.slots), seats):
            self.slots.append(Slot(index, state, width=self._width))

    # A worker comes.

    def spawn(self, slot: Slot, now: float, *, new: bool = False) -> Command:
        """Fill an empty slot; the worker is *new* if it is one more than there were."""
        self.restarts += not new
        slot.apply(SlotEvent.SPAWN)
        slot.renew()
        self._announced.pop(slot.index, None)
        slot.wear = self._limits.wear(slot.index, slot.generation)
        # Before the fork: a start that hangs anywhere is noticed.
        slot.due = now + self._start_timeout
        return Spawn(slot.index, slot.generation)

    def probe_succeeded(self, slot: Slot, now: float) -> list[Command]:
        """Take note that starting is possible again."""
        slot.probing = False
        commands: list[Command] = [Recover(slot.index)]
        if self.broken is not None:
            self.broken = self._probe_at = None
            commands += [
                self.spawn(other, now)
                for other in self.slots
                if other.state is SlotState.PARKED
            ]
        return commands

    # A worker goes.

    def end(
        self,
        slot: Slot,
        how: Ending,
        now: float,
        *,
        planned: bool = False,
        reason: str = "",
    ) -> list[Command]:
        """Take a worker out of service and press its process to end."""
        if slot.ending >= how:
            return []
        self._dispatcher.worker_gone(slot.index)
        slot.planned = slot.planned or planned
        # What is stopped finds out nothing, and nobody may count on it.
        slot.probing = slot.probing and not planned
        if slot.state is not SlotState.STOPPING:
            slot.apply(SlotEvent.STOP)
        slot.ending, slot.asked = how, {}
        slot.due = now + self._grace[how]
        if how is Ending.STOPPED:
            return [Stop(slot.index)]
        if how is Ending.TERMINATED:
            return [Terminate(slot.index)]
        self.kills += 1
        return [Kill(slot.index, reason)]

    def leave_empty(self, slot: Slot) -> list[Command]:
        """Let nobody come into a slot that is empty."""
        slot.apply(SlotEvent.SPARE)
        slot.due = slot.place = None
        return [LeaveEmpty(slot.index)]

    def announce(self, slot: Slot, now: float, *, roll: float) -> Verdict:
        """Judge a crash whose worker has something to finish before it ends."""
        verdict = self._record(slot, now, blamed=False, roll=roll)
        self._announced[slot.index] = verdict
        return verdict

    def succeed(self, slot: Slot, heir: Slot, delay: float, now: float) -> Command:
        """Have the next worker, after one whose crash is announced, in a spare slot."""
        self.ledger.hand_over(slot.index, heir.index)
        if delay <= 0:
            return self.spawn(heir, now)
        heir.apply(SlotEvent.SEAT)
        heir.due = now + delay
        return ScheduleRestart(heir.index, delay)

    def judge(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, roll: float
    ) -> list[Command]:
        """Decide what follows upon a crash in a slot in which a worker is *needed*."""
        verdict = self._announced.pop(slot.index, None)
        if verdict is None:
            verdict = self._record(slot, now, blamed=blamed, roll=roll)
        # A broken pool needs one seat at least, to find out whether that is over.
        broken = self.broken is not None
        spare = self._will_probe() if broken else not isinstance(verdict, Break)
        if spare and not needed:
            if broken:
                self._probe_later(now)  # in another seat
            return self.leave_empty(slot)
        if self.broken is not None:
            return self._park(slot, self.broken, now)
        if isinstance(verdict, Break):
            return [*self._park(slot, verdict.reason, now), *self._break(verdict, now)]
        if isinstance(verdict, Park):
            commands = self._park(slot, verdict.reason, now)
            if all(other.leaving or other.state in _HOPELESS for other in self.slots):
                reason = f"every slot is parked: {verdict.reason}"
                commands += self._break(Break(reason), now)
            return commands
        if verdict.delay > 0:
            slot.due = now + verdict.delay
            return [ScheduleRestart(slot.index, verdict.delay)]
        return [ScheduleRestart(slot.index, 0.0), self.spawn(slot, now)]

    def _record(self, slot: Slot, now: float, *, blamed: bool, roll: float) -> Verdict:
        return self.ledger.record(
            slot.index,
            now=now,
            run=None if slot.ready_at is None else now - slot.ready_at,
            blamed=blamed,
            outcomes=slot.outcomes,
            roll=roll,
        )

    def _park(self, slot: Slot, reason: str, now: float) -> list[Command]:
        slot.apply(SlotEvent.PARK)
        probe_after = self._policy.probe_after
        if self.broken is None:
            slot.due = None if probe_after is None else now + probe_after
        else:
            self._probe_later(now)
        return [ParkSlot(slot.index, reason, probe_after)]

    def _probe_later(self, now: float) -> None:
        probe_after = self._policy.probe_after
        if self._probe_at is None and probe_after is not None and not self._probing():
            self._probe_at = now + probe_after

    def _break(self, verdict: Break, now: float) -> list[Command]:
        self.broken = verdict.reason
        commands: list[Command] = [GiveUp(verdict.reason)]
        commands += fail_jobs(self._dispatcher.empty(), "broken")
        for slot in self.slots:
            if slot.state is SlotState.VACANT:
                slot.apply(SlotEvent.PARK)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                commands += self.end(slot, Ending.STOPPED, now, planned=True)
            if slot.state is SlotState.PARKED:
                slot.due = None  # from here on the pool probes as one
        if self._policy.probe_after is not None:
            self._probe_at = now + self._policy.probe_after
        return commands

    # Time.

    def next_deadline(self) -> float | None:
        """When something is due; ``None`` if nothing is."""
        return earliest(self._probe_at, *(slot.due for slot in self.slots))

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands: list[Command] = []
        if self._probe_at is not None and self._probe_at <= now:
            self._probe_at = None
            commands += self._probe(now)
        for slot in self.slots:
            if slot.due is not None and slot.due <= now:
                commands += self._slot_is_due(slot, now)
        return commands

    def stop_probing(self) -> None:
        """Find out no more whether a broken pool can start workers again."""
        self._probe_at = None

    def retire_all(self) -> bool:
        """If every slot is retired, let nothing be due, and tell it."""
        if any(slot.state is not SlotState.RETIRED for slot in self.slots):
            return False
        self._probe_at = None
        return True

    def _slot_is_due(self, slot: Slot, now: float) -> list[Command]:
        if slot.state in EMPTY:
            slot.probing = slot.state is SlotState.PARKED
            return [self.spawn(slot, now)]
        if slot.state is SlotState.STARTING:
            return self.end(slot, Ending.KILLED, now)
        if slot.state in {SlotState.BUSY, SlotState.IDLE}:
            return self.end(slot, Ending.KILLED, now, planned=not slot.hung)
        if slot.ending is Ending.KILLED:
            slot.due = None
            return [Abandon(slot.index)]
        return self.end(slot, Ending(slot.ending + 1), now)

    def _probing(self) -> bool:
        return any(slot.probing for slot in self.slots)

    def _will_probe(self) -> bool:
        """Tell whether there is a seat for finding out about a broken pool."""
        return any(
            slot.probing or slot.state is SlotState.PARKED for slot in self.slots
        )

    def _probe(self, now: float) -> list[Command]:
        for slot in self.slots:
            if slot.state is SlotState.PARKED:
                slot.probing = True
                return [self.spawn(slot, now)]
        # Its last workers are on their way out; look again when they are.
        self._probe_at = now + (self._policy.probe_after or 0.0)
        return []


def fail_jobs(
    jobs: list[int], why: Literal["closed", "broken", "late"]
) -> list[Command]:
    """Return the command that tells the callers of *jobs*, if there are any."""
    return [FailJobs(tuple(jobs), why)] if jobs else []
