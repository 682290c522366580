"""The slots of a pool: which workers are in them, how workers end, and when the next one starts.

The restart ledger (``restart.py``) decides whether a dead worker is replaced, and
when.  This module turns that decision into commands and deadlines.  It does not know
what the workers do while they live.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Mapping, Sequence
from typing import Literal

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.policies.restart import (
    GiveUpRestarting,
    RestartDecision,
    RestartLedger,
    RestartPolicy,
    RestartWorker,
    RetryStart,
)
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Abandon,
    Command,
    FailJobs,
    GiveUp,
    Kill,
    LeaveEmpty,
    ParkSlot,
    Recover,
    Spawn,
    Stop,
    TellRestart,
    Terminate,
)
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, StopStage
from asyncpool.enums import SlotState

# What a pool writes of why a worker ended, and what reads it again.
#
# The reason of an end may name a job, or be a text of the user's.  So may its detail.  The cause
# of an end names neither: there are only a few, by which ends are counted.

CRASH = "crash"

# What cannot be counted by itself.
OTHER = "other"

CAUSES = (
    CRASH,
    "cancellation",
    "close",
    "idle",
    "kill",
    "max_age",
    "max_jobs",
    "max_memory",
    "request_replacement",
    "resize",
    "retire",
    "retire_worker",
    "roll",
    "session",
    "timeout",
    "uncaught exception",
    OTHER,
)

# What stands between the cause and the number of a job.
_OF_JOB = " of job "

_NOT_ENDED = re.compile(r"(killed since )?job (\d+)(, which it ran too,)? did not end")


def reason_for_job(cause: str, job: int) -> str:
    """Return the reason of an end that a job was the cause of: ``"timeout of job 12"``."""
    return f"{cause}{_OF_JOB}{job}"


def exit_cause(reason: str) -> str:
    """Return the cause in the reason of a planned exit; of the one above, ``"timeout"``."""
    call, _, _ = reason.partition(":")
    cause, _, _ = call.partition(_OF_JOB)
    cause = cause.removesuffix("()")
    return cause if cause in CAUSES else OTHER


def job_not_ended(job: int, *, beside: bool) -> str:
    """Return the detail of the end of a worker whose job did not end when it had to.

    Args:
        job: The job.
        beside: Whether it was not the only job of the worker.
    """
    return f"job {job}{', which it ran too,' if beside else ''} did not end"


def killed_since(detail: str) -> str:
    """Return the detail of an end that the pool brought about."""
    return f"killed since {detail}"


def reason_for_client(reason: str, numbers: Mapping[int, int]) -> str:
    """Return a reason with the client's number of its job, and none of another's.

    Args:
        reason: What the pool of an agent says.
        numbers: The client's numbers of its jobs, by those of the agent.
    """
    cause, of_job, text = reason.rpartition(_OF_JOB)
    if not of_job or not text.isdecimal():
        return reason
    job = numbers.get(int(text))
    return cause if job is None else reason_for_job(cause, job)


def detail_for_client(detail: str, numbers: Mapping[int, int]) -> str:
    """Return the detail of an end with the client's number of its job, and none of another's.

    Args:
        detail: What the pool of an agent says.
        numbers: See :func:`reason_for_client`.
    """
    found = _NOT_ENDED.fullmatch(detail)
    if found is None:
        return detail
    killed, number, beside = found[1] or "", int(found[2]), bool(found[3])
    if number in numbers:
        return killed + job_not_ended(numbers[number], beside=beside)
    return f"{killed}{'another' if beside else 'a'} job did not end"


# The rank of a worker: a number from 0 on that no other worker has which takes jobs.
#
# Jobs read it as ``current_job().slot``, and ``worker_env`` gets it.  It is for what there is
# once for each worker: a GPU, a port, a core.  The number of the worker's slot would not do.
# A replacement starts in a slot beyond the size of the pool while the old worker still works,
# so the slots in use wander.  A replacement has the rank of the worker that it replaces, from
# its start on, since the environment of a process cannot change with the end of another one.

_NOBODY = frozenset({SlotState.UNUSED, SlotState.RETIRED})


def rank_of(slot: Slot, slots: Sequence[Slot], most: int) -> int:
    """Return the rank of the worker that is started in *slot*.

    Args:
        slot: It knows whose worker the new one replaces, and the rank of its last worker.
        slots: All slots.
        most: How many workers the pool may have, without surge.  Ranks are less than that.
    """
    others = [it for it in slots if it is not slot and it.state not in _NOBODY]
    if slot.replaces is not None and slots[slot.replaces].rank < most:
        return slots[slot.replaces].rank
    # A worker that leaves takes no more jobs.  Its rank is free for its successor, which may
    # start before it has gone, but one that nobody has is better.
    staying = {it.rank for it in others if not it.draining}
    leaving = {it.rank for it in others if it.draining}
    free = [rank for rank in range(most) if rank not in staying]
    if not free:  # in a cluster, workers that fail have successors beyond the size
        return _first_beyond(staying, most)
    return min(free, key=lambda rank: (rank in leaving, rank != slot.rank, rank))


def _first_beyond(taken: Container[int], most: int) -> int:
    return next(rank for rank in itertools.count(most) if rank not in taken)


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


class SlotLifecycle:
    """Every slot of a pool, and what is due there.

    Args:
        workers: How many slots get a worker at first.
        count: How many slots there are.
        most: How many workers there may be, without surge.
        limits: When workers are due for recycling.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        stop_grace: Seconds that a stopped worker has to end by itself.
        concurrency: How many jobs a worker runs at once.
        dispatcher: What decides which worker runs which job.  It must not use a
            worker that goes, and keeps no job while the pool is broken.

    Attributes:
        slots: The slots.
        most: As above; it may change.
        broken: Why the pool is broken, if it is: no worker can be started, and
            there is none.
        gave_up: Whether the pool has given up for good, and tries no more starts.
        kills: How many processes had to be killed.
        restarts: How many workers were started after others, or to replace them.
    """

    def __init__(
        self,
        *,
        workers: int,
        count: int,
        most: int,
        limits: WorkerLimits,
        policy: RestartPolicy,
        start_timeout: float,
        stop_grace: float,
        concurrency: int,
        dispatcher: Dispatcher,
    ) -> None:
        self._concurrency = concurrency
        self.slots: list[Slot] = []
        self.most = most
        self.ensure_slots(workers, SlotState.VACANT)
        self.ensure_slots(count, SlotState.UNUSED)
        self.broken: str | None = None
        self.gave_up = False
        self.kills = self.restarts = 0
        self.ledger = RestartLedger(policy, workers)
        self._limits = limits
        self._start_timeout = start_timeout
        self._grace = {
            StopStage.STOPPED: stop_grace,
            StopStage.TERMINATED: TERM_GRACE,
            StopStage.KILLED: KILL_GRACE,
        }
        self._dispatcher = dispatcher
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
    ) -> Command:
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
        if self._limits.exact:
            slot.in_flight.most = slot.recycle_limits.jobs
        slot.began_at = now
        # Set before the fork, so that the pool notices a start that hangs anywhere.
        slot.due = now + self._start_timeout
        return Spawn(slot.index, slot.generation)

    def on_ready(self, slot: Slot, now: float) -> list[Command]:
        """Record that a worker is ready, which shows that starts succeed, in all slots.

        Call :meth:`spawn_parked` next.
        """
        recovers = self.ledger.failures > 0
        self.ledger.ready(now - slot.began_at, now)
        self.broken = self._retry_at = None
        for other in self.slots:
            other.is_probe = False
        return [Recover(slot.index)] if recovers else []

    def spawn_parked(self, now: float) -> list[Command]:
        """Start a worker in every slot that has waited for starts to succeed."""
        parked = [slot for slot in self.slots if slot.state is SlotState.PARKED]
        return [self.spawn(slot, now) for slot in parked]

    def try_sooner(self, now: float) -> None:
        """Record that the pool refused a caller; a broken pool then tries the next start soon."""
        if self._retry_at is not None:
            soon = max(now, self._tried_at + WANTED_AGAIN)
            self._retry_at = min(self._retry_at, soon)

    def try_now(self, now: float) -> None:
        """Try the next start now, if starts fail."""
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

    def stop_worker(
        self,
        slot: Slot,
        how: StopStage,
        now: float,
        *,
        planned: bool = False,
        reason: str = "",
        grace: float | None = None,
    ) -> list[Command]:
        """Give a worker no more jobs, and make its process end.

        The pool takes the next step after *grace* seconds, or after *stop_grace* by
        default.
        """
        if slot.stop_stage >= how:
            return []
        self._dispatcher.exclude(slot.index)
        slot.exit_planned = slot.exit_planned or planned
        if slot.state is not SlotState.STOPPING:
            slot.apply(SlotEvent.STOP)
        slot.stop_stage = how
        slot.due = now + (self._grace[how] if grace is None else grace)
        if how is StopStage.STOPPED:
            return [Stop(slot.index)]
        if how is StopStage.TERMINATED:
            return [Terminate(slot.index)]
        self.kills += 1
        return [Kill(slot.index, reason)]

    def leave_empty(self, slot: Slot) -> list[Command]:
        """Mark an empty slot as not needed."""
        slot.apply(SlotEvent.CLOSE)
        slot.due = slot.bucket = None
        return [LeaveEmpty(slot.index)]

    def decide_early(self, slot: Slot, now: float) -> RestartDecision:
        """Decide what follows a death while the dying worker still has something to finish."""
        decision = self._announced[slot.index] = self.ledger.died(now, blamed=False)
        return decision

    def start_successor(self, successor: Slot, delay: float, now: float) -> Command:
        """Start the worker that follows one whose death is announced, in an unused slot."""
        if delay <= 0:
            return self.spawn(successor, now)
        successor.apply(SlotEvent.REOPEN)
        successor.due = now + delay
        return TellRestart(successor.index, delay)

    def decide_after_death(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, jitter: float
    ) -> list[Command]:
        """Decide what follows a death in a slot in which a worker is *needed*."""
        decision = self._decision(slot, now, blamed=blamed, jitter=jitter)
        if isinstance(decision, GiveUpRestarting) and not self.gave_up:
            self.gave_up, self._retry_at = True, None
            parked = self.park(slot, decision.reason, now)
            return [*parked, *self._break(decision.reason, now)]
        # A broken pool needs at least one slot, to try again.
        if not needed and (self.broken is None or self._will_try()):
            return self.leave_empty(slot)
        if isinstance(decision, RetryStart):
            commands = self.park(slot, decision.reason, now)
            if decision.breaks_pool and self.broken is None and self._is_deserted():
                commands += self._break(decision.reason, now)
            return commands
        if self.broken is not None:
            return self.park(slot, self.broken, now)
        assert isinstance(decision, RestartWorker)
        if decision.delay > 0:
            slot.due = now + decision.delay
            return [TellRestart(slot.index, decision.delay)]
        return [TellRestart(slot.index, 0.0), self.spawn(slot, now)]

    def _decision(
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

    def park(self, slot: Slot, reason: str, now: float) -> list[Command]:
        """Keep an empty slot empty until starts succeed again."""
        slot.apply(SlotEvent.PARK)
        slot.due = None
        return [ParkSlot(slot.index, reason, self.retry_in(now))]

    def _break(self, reason: str, now: float) -> list[Command]:
        self.broken = reason
        commands: list[Command] = [GiveUp(reason)]
        commands += fail_jobs(self._dispatcher.take_all(), "broken")
        for slot in self.slots:
            if slot.state is SlotState.VACANT:
                commands += self.park(slot, reason, now)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                commands += self.stop_worker(slot, StopStage.STOPPED, now, planned=True)
        return commands

    # Time.

    def next_deadline(self) -> float | None:
        """When something is due; ``None`` if nothing is."""
        return earliest(self._retry_at, *(slot.due for slot in self.slots))

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands: list[Command] = []
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            commands += self._try(now)
        for slot in self.slots:
            if slot.due is not None and slot.due <= now:
                commands += self._slot_is_due(slot, now)
        return commands

    def stop_trying(self) -> None:
        """Try no more whether workers can be started again."""
        self._retry_at = None

    def retire_all(self) -> bool:
        """If every slot is retired, cancel all that is due; return whether that is so."""
        if any(slot.state is not SlotState.RETIRED for slot in self.slots):
            return False
        self._retry_at = None
        return True

    def _slot_is_due(self, slot: Slot, now: float) -> list[Command]:
        if slot.state in EMPTY:
            return [self.spawn(slot, now)]
        if slot.state is SlotState.STARTING:
            return self.stop_worker(slot, StopStage.KILLED, now)
        if slot.state in {SlotState.BUSY, SlotState.IDLE}:
            return self.stop_worker(slot, StopStage.KILLED, now, planned=not slot.hung)
        if slot.stop_stage is StopStage.KILLED:
            slot.due = None
            return [Abandon(slot.index)]
        return self.stop_worker(slot, StopStage(slot.stop_stage + 1), now)

    def _try(self, now: float) -> list[Command]:
        """Start one worker, to find out for all parked slots whether starts succeed."""
        for slot in self.slots:
            if slot.state is SlotState.PARKED:
                slot.is_probe, self._tried_at = True, now
                return [self.spawn(slot, now)]
        return []

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
                slot.state not in UP | {SlotState.STARTING}
                and (slot.state is not SlotState.VACANT or slot.due is None)
            )
            for slot in self.slots
        )


def fail_jobs(
    jobs: list[int], why: Literal["closed", "broken", "expired"]
) -> list[Command]:
    """Return the command that fails *jobs*, if there are any."""
    return [FailJobs(tuple(jobs), why)] if jobs else []
