"""The slots of a pool: how workers start in them, are replaced, and end; and how many there are.

The restart ledger (``options.py``) decides whether a dead worker is replaced, and when.
This module turns that decision into effects and deadlines.

There are four reasons for a *planned exit*.  A worker is due for recycling.  A worker has
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

import itertools
from typing import TYPE_CHECKING, NamedTuple

from asyncpool._core.deadlines import earliest
from asyncpool._core.dispatcher import InFlight
from asyncpool._core.options import RestartLedger
from asyncpool._core.slots import (
    ALIVE,
    EMPTY,
    NOT_NEEDED,
    STARTING_OR_UP,
    UP,
    RollPart,
    Sizing,
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

# A roll waits no more for a parked slot in one of these states: its start has succeeded, or nobody needs
# it.  (A worker that was told to end before it was ready has not succeeded: its end is the result of its
# start.)
_FILLED_OR_NOT_NEEDED = UP | NOT_NEEDED


class Lifecycle:
    """Every slot of a pool, and what is due there: which workers come, and which ones go.

    A worker *counts* unless it is about to leave, or is the replacement of one that is
    not about to leave yet.  The pool keeps as many workers that count as its size says
    (``slots.py``).

    Args:
        core: The core of the pool, with its options.

    Attributes:
        sizing: How many workers the pool should have.
        broken: Why the pool is broken, if it is: no worker can be started, and
            there is none.
        gave_up: Whether the pool has given up for good, and tries no more starts.
        stopped: Whether no planned exit is granted any more, since the pool ends.
        rolling: Whether a roll is under way; ``Slot.roll_part`` says which workers have to go.
        kills: How many processes had to be killed.
        restarts: How many workers were started after others, or to replace them.
        ledger: What the restart policy remembers.
        retry_at: When the next start is tried, after starts that failed.
    """

    def __init__(self, core: Core) -> None:
        self._core, self._slots = core, core.slots
        self._options = options = core.options
        least, most = options.workers
        self.sizing = Sizing(least, most, options.idle_timeout)
        self.ensure_slots(least, SlotState.VACANT)
        self.ensure_slots(most + options.max_surge)
        self.broken: str | None = None
        self.gave_up = self.stopped = self.rolling = False
        self.kills = self.restarts = 0
        self.ledger = RestartLedger(options.restart_policy, most)
        self._grace = 0.0, options.stop_grace, TERM_GRACE, KILL_GRACE  # by StopStage
        self.retry_at: float | None = None
        self._tried_at = float("-inf")
        # The slot whose start is to show, for all parked ones, whether starts succeed again.
        self._probe: Slot | None = None
        # What follows a death that is still to come: see fail_after_drain().
        self._restart_delays: dict[int, float | None] = {}
        self._failed_in_a_row = 0  # replacements
        self._replace_at: float | None = None  # when to try again after them
        # How many of the workers to start are additional ones, since the pool has grown: their starts
        # are no restarts.
        self._to_add = 0
        self._told_size = least
        # The parked slots that the roll fills, and how many workers it has replaced and slots it has filled.
        self._unfilled: list[Slot] = []
        self._replaced = self._filled = 0
        # A failed start ends the roll only if that start began after the roll did.  So: whether the
        # last failed start had, and up to which count of the ledger's failures they do not speak
        # against the roll; each failed start that began before it moves this up.
        self._last_failed_start_is_of_roll, self._failures_excused = False, 0

    def ensure_slots(self, count: int, state: SlotState = SlotState.UNUSED) -> None:
        """Have at least *count* slots; new ones begin in *state*."""
        for index in range(len(self._slots), count):
            in_flight = InFlight(self._core.concurrency)
            self._slots.append(Slot(index, state, rank=index, in_flight=in_flight))

    # Workers that are there, and how many more the budget allows.

    def slots_in(self, state: SlotState) -> list[Slot]:
        """Return the slots that are in a state."""
        return [slot for slot in self._slots if slot.state is state]

    def counts(self, slot: Slot) -> bool:
        """Tell whether *slot* counts for the size: it has a worker that counts, or is to have one."""
        if slot.state in NOT_NEEDED or slot.draining:
            return False
        return slot.replaces is None or self._slots[slot.replaces].draining

    @property
    def missing(self) -> int:
        """How many slots more are to get a worker, besides the empty ones; below 0, how many are too many."""
        return self.sizing.size - sum(map(self.counts, self._slots))

    @property
    def coming(self) -> int:
        """How many workers are being started."""
        return len(self.slots_in(SlotState.STARTING))

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
    def _growth_left(self) -> int:
        """How many more workers there may be.

        In a cluster two kinds of workers do not count against this, since their clients may keep them
        for as long as they like: those that have failed; and those that drain, up to the size of
        the cluster.
        """
        filled = sum(slot.state not in NOT_NEEDED for slot in self._slots)
        left = self.sizing.size + self._options.max_surge - filled
        if self._core.serving:
            leaving = sum(slot.draining for slot in self._slots) - self._failing
            left += self._failing + min(leaving, self.sizing.size)
        return left

    @property
    def _failing(self) -> int:
        """How many workers have failed, and have a successor before they have finished."""
        return sum(
            it.faulty and it.draining and not it.exit_planned for it in self._slots
        )

    @property
    def _grants_nothing(self) -> bool:
        ends = self.stopped or self.broken is not None
        return ends or self._core.closing.no_worker_needed

    @property
    def _empty(self) -> list[Slot]:
        """The slots that wait for a start."""
        return [
            slot for slot in self._slots if slot.state in EMPTY and self.counts(slot)
        ]

    @property
    def _live(self) -> int:
        """How many of the ready workers count."""
        return sum(slot.state in UP and self.counts(slot) for slot in self._slots)

    @property
    def _may_let_idle_go(self) -> bool:
        """Whether the size may shrink by one idle worker, or an empty slot can go in its place."""
        enough = self._live >= self.sizing.size or bool(self._empty)
        return enough and not any(slot.draining for slot in self._slots)

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
        self._note_rolled(slot)
        slot.apply(SlotEvent.SPAWN)
        slot.renew()
        slot.replaces = replaces
        slot.rank = self._rank_of(slot)
        self._restart_delays.pop(slot.index, None)
        limits = self._options.worker_limits
        slot.recycle_limits = limits.recycle_limits(slot.index, slot.generation)
        slot.in_flight.max_sent = slot.recycle_limits.jobs
        slot.began_at = now
        # Set before the fork, so that the pool notices a start that hangs anywhere.
        slot.due = now + self._options.start_timeout
        self._core.do("spawn", slot.index, slot.generation)

    def _unused(self) -> Slot:
        """Return a slot that is not needed now."""
        if not self.slots_in(SlotState.UNUSED):
            self.ensure_slots(len(self._slots) + 1)
        return self.slots_in(SlotState.UNUSED)[0]

    # The rank of a worker: a number from 0 on that no other worker has which takes jobs.
    #
    # Jobs read it as ``current_job().slot``, and ``worker_env`` gets it.  It is for what there is
    # once for each worker: a GPU, a port, a core.  The number of the worker's slot would not do.
    # A replacement starts in a slot beyond the size of the pool while the old worker still works,
    # so the slots in use wander.  A replacement has the rank of the worker that it replaces, from
    # its start on, since the environment of a process cannot change with the end of another one.

    def _rank_of(self, slot: Slot) -> int:
        """Return the rank of the worker that is started in *slot*; it may have had another."""
        slots, most = self._slots, self.sizing.most
        if slot.replaces is not None and slots[slot.replaces].rank < most:
            return slots[slot.replaces].rank
        # A worker that leaves takes no more jobs.  Its rank is free for its successor, which may
        # start before it has gone, but one that nobody has is better.
        others = [it for it in slots if it is not slot and it.state not in NOT_NEEDED]
        staying = {it.rank for it in others if not it.draining}
        leaving = {it.rank for it in others if it.draining}
        free = [rank for rank in range(most) if rank not in staying]
        if not free:  # in a cluster, workers that fail have successors beyond the size
            return next(rank for rank in itertools.count(most) if rank not in staying)
        return min(free, key=lambda rank: (rank in leaving, rank != slot.rank, rank))

    def on_ready(self, slot: Slot, now: float) -> None:
        """Record that a worker is ready, which shows that starts succeed, in all slots."""
        recovers = self.ledger.failures > 0
        self.ledger.ready(now - slot.began_at, now)
        self.broken = self.retry_at = self._probe = None
        if recovers:
            self._core.do("recovered", slot.index)
        # Sessions that ended in a broken pool may leave more slots than its size.
        self.release_surplus()
        for other in self.slots_in(SlotState.PARKED):
            self.spawn(other, now)

    def finish_replacement(self, slot: Slot, now: float) -> None:
        """Let the worker of *slot*, which is ready, take the place of the one that it was started to replace.

        It may leave at once, if a roll began while it was being started.  So the caller calls this
        before it gets anything to do.
        """
        if slot.replaces is not None:
            old, slot.replaces = self._slots[slot.replaces], None
            self._inherit_roll(slot, old)
            self._failed_in_a_row = 0
            self.drain(old, old.replace_reason or "", now)
        self._replace_some(now)
        self._core.affinity.update_buckets()

    def try_sooner(self, now: float) -> None:
        """Record that the pool refused a caller; a broken pool then tries the next start soon."""
        if self.retry_at is not None:
            soon = max(now, self._tried_at + WANTED_AGAIN)
            self.retry_at = min(self.retry_at, soon)

    def try_now(self, now: float) -> None:
        """Try the next start now, if starts fail: what made them fail may be over."""
        if self.retry_at is not None:
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

        The pool takes the next step after *grace* seconds; by default after those that this
        step has.
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

    def gone(self, slot: Slot) -> tuple[InFlight, Slot | None]:
        """Record that the process in *slot* is gone; a worker that was to replace it stays.

        Returns:
            What it had in flight, and the slot whose worker it was to replace, if it was.
        """
        in_flight, slot.in_flight = slot.in_flight, InFlight(self._core.concurrency)
        old = None if slot.replaces is None else self._slots[slot.replaces]
        slot.apply(SlotEvent.EXITED)
        if slot is self._probe:
            self._probe = None
        if slot.ready_at is None and not slot.exit_planned:
            # One that began before the roll did may have failed because of old code.
            self._last_failed_start_is_of_roll = not slot.roll_part
        slot.draining = False
        slot.due = slot.drain_deadline = slot.replace_reason = slot.replaces = None
        self._promote(slot)
        return in_flight, old

    def follow_end(
        self,
        slot: Slot,
        old: Slot | None,
        now: float,
        *,
        blamed: bool,
        jitter: float,
        final: bool,
    ) -> Aftermath:
        """Decide what follows in *slot*, whose worker is gone, and was to replace that of *old*.

        For the other arguments see :meth:`RestartLedger.died` and ``start_failed``.
        """
        if self._core.closing.no_worker_needed:
            return Aftermath(NextStep.CLOSE)
        if slot.exit_planned:
            if not self.needs(slot):
                return self._leave_empty(slot)
            if self.broken is not None:
                return self._park(slot, self.broken, now)
            self.spawn(slot, now)
            return Aftermath(NextStep.RESTART, 0.0)
        if old is not None:
            return self._replacement_failed(slot, old, now, jitter)
        ledger, start_failed = self.ledger, slot.ready_at is None
        trying = self.retry_at is not None or self._is_trying
        if slot.index in self._restart_delays:
            delay = self._restart_delays.pop(slot.index)
        elif not start_failed:
            delay = ledger.died(now, blamed=blamed)
        else:
            delay = ledger.start_failed(slot.began_at, now, jitter=jitter, final=final)
            self._tried_at = now
            if delay is not None and not trying:
                self.retry_at = now + delay
        if delay is None and not self.gave_up:
            self.gave_up, self.retry_at = True, None
            aftermath = self._park(slot, ledger.given_up, now)
            self._break(ledger.given_up, now)
            return aftermath
        if not self.needs(slot):
            # A broken pool needs at least one slot, to try again.
            parked = self.slots_in(SlotState.PARKED)
            if self.broken is None or parked or self._is_trying:
                return self._leave_empty(slot)
        if delay is not None and start_failed:
            aftermath = self._park(slot, ledger.reason, now)
            comes = any(it.due is not None for it in self.slots_in(SlotState.VACANT))
            works = (
                it.state in STARTING_OR_UP and not it.draining for it in self._slots
            )
            deserted = not comes and not any(works)
            if ledger.breaks_pool and self.broken is None and deserted:
                self._break(ledger.reason, now)
            return aftermath
        if self.broken is not None:
            return self._park(slot, self.broken, now)
        assert delay is not None, "a pool that has given up is broken"
        self._core.do("restarting", slot.index, delay)
        if delay > 0:
            slot.due = now + delay
        else:
            self.spawn(slot, now)
        return Aftermath(NextStep.RESTART, delay)

    def _replacement_failed(
        self, slot: Slot, old: Slot, now: float, jitter: float
    ) -> Aftermath:
        """Keep the worker of *old*: the one in *slot*, which was to replace it, failed to start.

        If its start began before a roll that is under way, another one follows at once.
        """
        slot.apply(SlotEvent.RELEASE)
        if slot.roll_part is RollPart.GOES:
            return Aftermath(NextStep.KEEP_WORKER, 0.0)
        self._failed_in_a_row += 1
        if old.roll_part:
            self._end_roll("a replacement did not start")
        if old.replace_reason == ROLL:  # of a roll that has ended meanwhile
            old.replace_reason = None
        self._age(now)
        if old.replace_reason is None:
            return Aftermath(NextStep.KEEP_WORKER)
        policy = self._options.restart_policy
        delay = policy.delay(self._failed_in_a_row, jitter=jitter)
        self._replace_at = now + delay
        return Aftermath(NextStep.KEEP_WORKER, delay)

    def _leave_empty(self, slot: Slot) -> Aftermath:
        """Mark an empty slot as not needed."""
        slot.apply(SlotEvent.RELEASE)
        slot.due = slot.bucket = None
        self._core.do("left_empty", slot.index)
        return Aftermath(NextStep.LEAVE_EMPTY)

    def _park(self, slot: Slot, reason: str, now: float) -> Aftermath:
        """Keep an empty slot empty until starts succeed again."""
        slot.apply(SlotEvent.PARK)
        slot.due = None
        self._core.do("parked", slot.index, reason, self.retry_in(now))
        return Aftermath(NextStep.PARK, self.retry_in(now), reason)

    def _break(self, reason: str, now: float) -> None:
        core, self.broken = self._core, reason
        core.do("broken", reason)
        core.fail(core.dispatcher.take_all(), "broken")
        for slot in self._slots:
            if slot.state is SlotState.VACANT:
                self._park(slot, reason, now)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                self.stop(slot, StopStage.ASKED, now, planned=True)
        self._forget_replacements("the pool broke")
        core.fail(core.affinity.take_all(), "broken")
        core.affinity.break_off(now)

    @property
    def _is_trying(self) -> bool:
        return self._probe is not None and not self._probe.exit_planned

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
        if slot is self._probe:
            # Nobody learns from it whether starts succeed.  Without another slot that tries, the
            # parked ones would wait for ever.
            self._probe = None
            if self.slots_in(SlotState.PARKED):
                self.retry_at = now
        self._core.do("draining", slot.index, why)
        self._core.affinity.drop_pinned(slot)
        if slot.state is SlotState.BUSY:
            timeout = self._options.worker_limits.drain_timeout
            if timeout is not None:
                slot.drain_deadline = now + timeout
            self._core.revoke(slot, slot.in_flight.waiting_jobs())
            return
        idle = slot.state is SlotState.IDLE
        how = StopStage.ASKED if idle else StopStage.TERMINATED
        self.stop(slot, how, now, planned=not slot.faulty)

    def drain_now(
        self, slot: Slot, why: str, now: float, *, unsent: int | None = None
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
        delay = self._restart_delays[slot.index] = self.ledger.died(now, blamed=False)
        most = self.sizing.size + self._options.max_surge
        if delay is None or self._failing >= most:
            self.stop(slot, StopStage.ASKED, now)
            return
        self.drain(slot, why, now)
        if not self._promote(slot) and self.needs(slot):
            successor = self._unused()
            if delay > 0:
                successor.apply(SlotEvent.REOPEN)
                successor.due = now + delay
                self._core.do("restarting", successor.index, delay)
            else:
                self.spawn(successor, now)
        self.reconcile(now)

    # Workers are replaced.

    def replace(self, slot: Slot, why: str, now: float) -> None:
        """Replace the worker of *slot* as soon as the budget allows it."""
        if slot.stays and slot.replace_reason is None:
            slot.replace_reason = why
            self.reconcile(now)

    def roll(self, now: float) -> None:
        """Replace every worker that is there now, as many at a time as the budget allows.

        A worker that is being started is replaced, too, since it may already have read old
        code.  The roll also tries a start in each parked slot at once: the new code may be what
        their starts need.  It is over when these slots have workers, too.
        """
        # Replacements that have failed before may be tried at once, too.
        self._replace_at = None
        self.rolling = True
        for slot in self._slots:
            # The pool may have broken off the start that is under way in it.
            starts = slot.state in ALIVE and slot.ready_at is None
            stays = slot.state in UP or (starts and not slot.exit_planned)
            goes = slot.replaces is not None or (stays and not slot.draining)
            part = RollPart.COUNTED if slot.replaces is None else RollPart.GOES
            slot.roll_part = part if goes else RollPart.NONE
        self._unfilled = self.slots_in(SlotState.PARKED)
        self._replaced = self._filled = 0
        self._last_failed_start_is_of_roll = False
        self.reconcile(now)

    def _inherit_roll(self, successor: Slot, old: Slot) -> None:
        """Note for the roll that the worker of *successor* has replaced that of *old*."""
        if successor.roll_part is RollPart.GOES:
            # From now on the successor is the worker to replace.  But both of them have to
            # go.
            successor.roll_part = RollPart.COUNTED
            if old.roll_part:
                old.roll_part = RollPart.GOES

    def _fill_parked(self, now: float) -> None:
        """Try the parked slots that the roll is to fill; or end the roll, if a start that began after it has failed."""
        failures = self.ledger.failures
        # Read from the ledger and not counted here: starts that fail together count once there.
        if not self._last_failed_start_is_of_roll or failures < self._failures_excused:
            self._failures_excused = failures
        parked = any(slot.roll_part for slot in self.slots_in(SlotState.PARKED))
        if parked or any(
            slot.state not in _FILLED_OR_NOT_NEEDED for slot in self._unfilled
        ):
            if failures > self._failures_excused:
                self._end_roll("a start failed again")
            else:
                self.try_now(now)

    def _go_on_rolling(self) -> None:
        """Replace the workers that are left, and end the roll if there are none."""
        for slot in self._slots:
            if slot.roll_part and slot.state not in EMPTY:
                if slot.state in UP and slot.replace_reason is None:
                    slot.replace_reason = ROLL
            elif slot.roll_part is RollPart.COUNTED and slot.state is SlotState.PARKED:
                slot.roll_part = RollPart.NONE
                self._unfilled.append(slot)
            else:
                self._note_rolled(slot)
        self._filled += sum(slot.state in UP for slot in self._unfilled)
        self._unfilled = [
            slot for slot in self._unfilled if slot.state not in _FILLED_OR_NOT_NEEDED
        ]
        if not self._unfilled and not any(it.roll_part for it in self._slots):
            self._end_roll("")

    def _note_rolled(self, slot: Slot) -> None:
        """Count the worker of *slot*, which has gone, as replaced, if it had to go."""
        self._replaced += slot.roll_part is RollPart.COUNTED
        slot.roll_part = RollPart.NONE

    def _end_roll(self, why: str) -> None:
        """End the roll, if there is one: for the reason *why*, or because it is complete.

        Workers whose replacement has not begun stay.
        """
        if not self.rolling:
            return
        self.rolling, self._unfilled = False, []
        coming = {slot.replaces for slot in self._slots}
        for slot in self._slots:
            slot.roll_part = RollPart.NONE
            stays = not slot.draining and slot.index not in coming
            if slot.replace_reason == ROLL and stays:
                slot.replace_reason = None
        self._core.do("roll_ended", self._replaced, why, self._filled)

    def stop_exits(self) -> None:
        """Grant no more planned exits, since the pool ends; replacements that are ready stay.

        A pool that drains does not end yet, and grants what an open pool does.
        """
        if not self.stopped:
            self.stopped = True
            self._forget_replacements("the pool was closed")

    def _forget_replacements(self, why: str) -> None:
        """Forget which workers were to replace which."""
        for slot in self._slots:
            slot.replaces = slot.replace_reason = None
        self._end_roll(why)

    def _promote(self, slot: Slot) -> bool:
        """Let the replacement of *slot*'s worker count by itself; return whether there is one that stays."""
        for other in self._slots:
            if other.replaces == slot.index:
                other.replaces = None
                if other.draining:
                    return False
                self._inherit_roll(other, slot)
                other.bucket, slot.bucket = slot.bucket, None
                return True
        return False

    # The size.

    def resize(self, least: int, most: int, now: float) -> None:
        """Keep the size between *least* and *most* from now on."""
        self.try_now(now)
        self.ensure_slots(most + self._options.max_surge)
        self.ledger.workers = most
        self.sizing.limit(least, most, now)
        self._tell_size()
        self.reconcile(now)

    def release_surplus(self) -> None:
        """Mark empty slots as not needed, as many as there are too many."""
        for slot in sorted(self._empty, key=_removal_order)[: max(0, -self.missing)]:
            self._leave_empty(slot)

    def _tell_size(self) -> None:
        size = self.sizing.size
        grown, self._told_size = size - self._told_size, size
        self._to_add = max(0, self._to_add + grown)
        if grown:
            self._core.do("resized", size)

    # Time, and what follows from all that has happened.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        dues = [self.retry_at]
        for slot in self._slots:
            dues += slot.due, slot.drain_deadline
        if not self._grants_nothing:
            dues += self._replace_at, self.sizing.grow_at, *map(_old_at, self._slots)
            shrink_at = self.sizing.shrink_at
            # Asked after every decision, so that a pool that does not shrink looks at no worker.
            if shrink_at is not None and self._may_let_idle_go:
                dues.append(shrink_at)
        return earliest(*dues)

    def on_timer(self, now: float) -> None:
        """Do what is due."""
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at = None
            # One start shows for all parked slots whether starts succeed.
            for slot in self.slots_in(SlotState.PARKED)[:1]:
                self._probe, self._tried_at = slot, now
                self.spawn(slot, now)
        for slot in self._slots:
            if slot.due is None or slot.due > now:
                continue
            if slot.state in EMPTY:
                self.spawn(slot, now)
            elif slot.state in STARTING_OR_UP:
                planned = slot.state in UP and not slot.hung
                self.stop(slot, StopStage.KILLED, now, planned=planned)
            elif slot.stop_stage is StopStage.KILLED:
                slot.due = None
                self._core.do("abandon", slot.index)
            else:
                self.stop(slot, StopStage(slot.stop_stage + 1), now)
        for slot in self._slots:
            if slot.drain_deadline is not None and slot.drain_deadline <= now:
                timeout = self._options.worker_limits.drain_timeout
                reason = f"it had not finished within drain_timeout ({timeout:g} s)"
                self.stop(slot, StopStage.KILLED, now, reason=reason)
        if self._replace_at is not None and self._replace_at <= now:
            self._replace_at = None
        self.reconcile(now)

    def reconcile(self, now: float) -> None:
        """Grant what the budget allows now, and do what follows from all that has happened."""
        if self.rolling:
            self._fill_parked(now)
        if not self._grants_nothing:
            self._keep_size(now)
            self._replace_some(now)
        self._core.affinity.update_buckets()

    def _keep_size(self, now: float) -> None:
        """Start workers that are missing; let workers go that are too many or idle for too long."""
        unserved = self._core.dispatcher.unserved
        self.sizing.grow(now, waiting=unserved, coming=self.coming)
        self._tell_size()
        missing = self.missing
        self._to_add = min(self._to_add, max(0, missing))
        for _ in range(min(missing, self._growth_left)):
            self.spawn(self._unused(), now, new=self._to_add > 0)
            self._to_add = max(0, self._to_add - 1)
        self._shrink(now)
        if self._may_let_idle_go:
            self._let_idle_go(now)

    def _shrink(self, now: float) -> None:
        """Let workers go that are too many, those that do not work yet, or not now, first."""
        self.release_surplus()
        while (too_many := -self.missing) > 0:
            # Those with sessions go when these are over.
            free = [s for s in self._slots if self.counts(s) and s.session is None]
            staying = [slot for slot in free if slot.state is not SlotState.STOPPING]
            if len(free) - len(staying) >= too_many or not staying:
                return
            slot = min(staying, key=_removal_order)
            # If the others are not ready, they may never be.
            if slot.state in UP and self._live <= self.sizing.size:
                return
            # Its replacement, if one is on its way, is surplus from now on, too.
            self.drain(slot, "resize", now)

    def _let_idle_go(self, now: float) -> None:
        idle = [
            (slot.idle_since, slot.index)
            for slot in self._slots
            if slot.state is SlotState.IDLE and slot.stays and slot.session is None
        ]
        index = self.sizing.shrink(now, idle)
        if index is None:
            return
        # A slot whose starts fail goes before a worker that is well.
        self._tell_size()
        self.release_surplus()
        if self.missing < 0:
            self.drain(self._slots[index], "idle", now)
            self._shrink(now)  # its replacement is surplus, too

    def _replace_some(self, now: float) -> None:
        if self._grants_nothing:
            return
        self._age(now)
        if self.rolling:
            self._go_on_rolling()
        if self._replace_at is not None:
            return
        coming = {slot.replaces for slot in self._slots}
        # In the order of their starts.  Workers that are due again as soon as they are ready would
        # otherwise take the whole budget, and leave none to those in later slots.
        for slot in sorted(self._slots, key=lambda slot: slot.began_at):
            why, in_session = slot.replace_reason, slot.session is not None
            if why is None or not slot.stays or slot.index in coming or in_session:
                continue
            unavailable = self.sizing.size - sum(it.stays for it in self._slots)
            if self._growth_left > 0 and self._options.max_surge > 0:
                self.spawn(self._unused(), now, replaces=slot.index)
            elif unavailable < self._options.max_unavailable:
                self.drain(slot, why, now)

    def _age(self, now: float) -> None:
        for slot in self._slots:
            old_at = _old_at(slot)
            if old_at is not None and old_at <= now:
                slot.replace_reason = "max_age"


def _old_at(slot: Slot) -> float | None:
    age = slot.recycle_limits.age
    if age is None or slot.ready_at is None or slot.replace_reason is not None:
        return None
    return slot.ready_at + age if slot.stays else None


# In which order workers go that are too many; among equals, the longest idle one first.
# After the parked ones, this is the order of the enum: vacant, starting, idle, busy.
_REMOVAL_ORDER = SlotState.PARKED, *SlotState


def _removal_order(slot: Slot) -> tuple[int, float]:
    return _REMOVAL_ORDER.index(slot.state), slot.idle_since
