"""Everything that a supervisor decides, and nothing that it does.

Two ways lead in.  The hot path, :meth:`Supervision.submit` and
:meth:`Supervision.outcome`, answers with what to send where.  Everything else in a
pool's life (a worker is ready, ended, is faulty; a job is cancelled; a timer fires;
the pool closes) is told by a method that returns the commands to carry out, in
order.  The shell never waits in between: what comes of a command comes back as the
next call.  Times are passed in, and :meth:`Supervision.next_deadline` says when to
call :meth:`Supervision.on_timer`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from asyncpool._core.commands import (
    Abandon,
    Assign,
    Command,
    FailJobs,
    Finished,
    GiveUp,
    Kill,
    ParkSlot,
    Recover,
    ScheduleRestart,
    Spawn,
    Stop,
    Terminate,
)
from asyncpool._core.dispatch import Dispatcher
from asyncpool._core.restart import Break, Park, RestartLedger, RestartPolicy
from asyncpool._core.slots import Ending, Slot, SlotEvent, SlotState

__all__ = ["KILL_GRACE", "STOP_GRACE", "TERM_GRACE", "Finish", "Supervision"]

# Seconds that a worker has to end after each step, before the next one is taken.
STOP_GRACE = 2.0
TERM_GRACE = 2.0
KILL_GRACE = 5.0

_GRACE = {
    Ending.STOPPED: STOP_GRACE,
    Ending.TERMINATED: TERM_GRACE,
    Ending.KILLED: KILL_GRACE,
}
_HOPELESS = frozenset({SlotState.PARKED, SlotState.RETIRED})
_EMPTY = frozenset({SlotState.VACANT, SlotState.PARKED})


class Finish(enum.IntEnum):
    """What a closing pool still does; a later, stricter close tightens it."""

    ALL = 0
    RUNNING = 1
    NONE = 2


class Supervision:
    """The state of a pool as far as decisions depend on it.

    Args:
        workers: How many slots there are.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
    """

    def __init__(
        self, *, workers: int, policy: RestartPolicy, start_timeout: float
    ) -> None:
        self.slots = [Slot(index) for index in range(workers)]
        self.dispatcher = Dispatcher()
        self.closing: Finish | None = None
        self.broken: str | None = None
        self.finished = False
        self.kills = 0
        self._policy = policy
        self._ledger = RestartLedger(policy, workers)
        self._start_timeout = start_timeout
        self._close_at: float | None = None
        self._probe_at: float | None = None

    # The hot path.

    def submit(self, job: int) -> int | None:
        """Return the slot that runs *job* now, or queue it and return ``None``."""
        index = self.dispatcher.submit(job)
        if index is not None:
            self._begin(self.slots[index], job)
        return index

    def give_back(self, job: int) -> list[Command]:
        """Put *job* at the head of the queue, or send it to an idle worker."""
        if self.broken is not None:
            return self._fail([job], "broken")
        index = self.dispatcher.give_back(job)
        if index is None:
            return []
        self._begin(self.slots[index], job)
        return [Assign(index, job)]

    def outcome(self, index: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* finished its job."""
        slot = self.slots[index]
        slot.job = None
        slot.outcomes += 1
        if slot.state is not SlotState.BUSY:
            return []  # it is on its way out already
        slot.apply(SlotEvent.RELEASE)
        if slot.faulty:
            return self._end(slot, Ending.KILLED, now)
        if self.broken is not None:
            return [*self._end(slot, Ending.STOPPED, now, planned=True)]
        return [*self._feed(slot), *self._settle(now)]

    # The life of the workers.

    def start(self, now: float) -> list[Command]:
        """Fill every slot, unless the pool closes already."""
        if self.closing is not None:
            return []
        return [self._spawn(slot, now) for slot in self.slots]

    def ready(self, index: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* said hello."""
        slot = self.slots[index]
        if slot.state is not SlotState.STARTING:
            return []
        slot.apply(SlotEvent.READY)
        slot.ready_at, slot.due = now, None
        commands: list[Command] = []
        if slot.probing:
            slot.probing = False
            commands.append(Recover(index))
            if self.broken is not None:
                self.broken = self._probe_at = None
                commands += [
                    self._spawn(other, now)
                    for other in self.slots
                    if other.state is SlotState.PARKED
                ]
        return [*commands, *self._feed(slot), *self._settle(now)]

    def ended(
        self, index: int, now: float, *, started: bool, requeue: bool, roll: float
    ) -> list[Command]:
        """Take note that the process in slot *index* is gone.

        Args:
            index: The slot.
            now: The time.
            started: Whether the worker had begun the job that it had, if any.
            requeue: Whether that job is to be tried again.
            roll: A random number in ``[0, 1)``, for the jitter.
        """
        slot = self.slots[index]
        self.dispatcher.worker_gone(index)
        job, slot.job, slot.due, slot.probing = slot.job, None, None, False
        slot.apply(SlotEvent.EXITED)
        commands: list[Command] = []
        if job is not None and requeue:
            commands += self.give_back(job)
        if self.closing is not None and not self.dispatcher.waiting:
            pass  # nobody needs another worker
        elif not slot.planned:
            blamed = (job is not None and started) or (
                slot.faulty and slot.outcomes > 0
            )
            commands += self._judge(slot, now, blamed=blamed, roll=roll)
        elif self.broken is not None:
            slot.apply(SlotEvent.PARK)
        else:
            commands.append(self._spawn(slot, now))
        return [*commands, *self._settle(now)]

    def faulty(self, index: int, now: float) -> list[Command]:
        """Replace the worker in slot *index*, once it has finished its job."""
        slot = self.slots[index]
        slot.faulty = True
        if slot.state is SlotState.BUSY:
            return []
        return self._end(slot, Ending.KILLED, now)

    def cancel(self, job: int, now: float) -> list[Command]:
        """Give up *job*: out of the queue, or at the price of its worker."""
        if not self.dispatcher.discard(job):
            for slot in self.slots:
                if slot.job == job:
                    slot.job = None
                    return self._end(slot, Ending.KILLED, now, planned=True)
        return self._settle(now)

    # The end of the pool.

    def close(self, finish: Finish, deadline: float, now: float) -> list[Command]:
        """Finish what *finish* says, by *deadline*, and stop every worker."""
        self.closing = max(finish, self.closing or Finish.ALL)
        if self._close_at is None or deadline < self._close_at:
            self._close_at = deadline
        commands: list[Command] = []
        if self.closing >= Finish.RUNNING:
            commands += self._fail(self.dispatcher.empty(), "closed")
        if self.closing is Finish.NONE:
            commands += self._fail(self._running(), "closed")
            for slot in self.slots:
                if slot.state is SlotState.BUSY:
                    commands += self._end(slot, Ending.TERMINATED, now, planned=True)
        return [*commands, *self._settle(now)]

    # Time.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        times = [slot.due for slot in self.slots if slot.due is not None]
        times += [at for at in (self._close_at, self._probe_at) if at is not None]
        return min(times, default=None)

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands: list[Command] = []
        if self._close_at is not None and self._close_at <= now:
            self._close_at = None
            commands += self._time_is_over(now)
        if self._probe_at is not None and self._probe_at <= now:
            self._probe_at = None
            commands += self._probe(now)
        for slot in self.slots:
            if slot.due is not None and slot.due <= now:
                commands += self._slot_is_due(slot, now)
        return [*commands, *self._settle(now)]

    def _slot_is_due(self, slot: Slot, now: float) -> list[Command]:
        if slot.state in _EMPTY:
            slot.probing = slot.state is SlotState.PARKED
            return [self._spawn(slot, now)]
        if slot.state is SlotState.STARTING:
            return self._end(slot, Ending.KILLED, now)
        if slot.ending is Ending.KILLED:
            slot.due = None
            return [Abandon(slot.index)]
        return self._end(slot, Ending(slot.ending + 1), now)

    def _time_is_over(self, now: float) -> list[Command]:
        self.closing = Finish.NONE
        jobs = [*self._running(), *self.dispatcher.empty()]
        commands = self._fail(jobs, "closed")
        for slot in self.slots:
            if slot.state in _EMPTY:
                slot.due = None
            elif slot.state is not SlotState.RETIRED:
                commands += self._end(slot, Ending.KILLED, now, planned=True)
        return commands

    def _probing(self) -> bool:
        return any(slot.probing for slot in self.slots)

    def _probe(self, now: float) -> list[Command]:
        for slot in self.slots:
            if slot.state is SlotState.PARKED:
                slot.probing = True
                return [self._spawn(slot, now)]
        # Its last workers are on their way out; look again when they are.
        self._probe_at = now + (self._policy.probe_after or 0.0)
        return []

    # The pieces.

    def _spawn(self, slot: Slot, now: float) -> Command:
        slot.apply(SlotEvent.SPAWN)
        slot.renew()
        # Before the fork: a start that hangs anywhere is noticed.
        slot.due = now + self._start_timeout
        return Spawn(slot.index, slot.generation)

    def _begin(self, slot: Slot, job: int) -> None:
        slot.apply(SlotEvent.ASSIGN)
        slot.job = job

    def _feed(self, slot: Slot) -> Iterator[Command]:
        job = self.dispatcher.worker_free(slot.index)
        if job is not None:
            self._begin(slot, job)
            yield Assign(slot.index, job)

    def _end(
        self, slot: Slot, how: Ending, now: float, *, planned: bool = False
    ) -> list[Command]:
        """Take a worker out of service and press its process to end."""
        if slot.ending >= how:
            return []
        self.dispatcher.worker_gone(slot.index)
        slot.planned = slot.planned or planned
        if slot.state is not SlotState.STOPPING:
            slot.apply(SlotEvent.STOP)
        slot.ending = how
        slot.due = now + _GRACE[how]
        if how is Ending.STOPPED:
            return [Stop(slot.index)]
        if how is Ending.TERMINATED:
            return [Terminate(slot.index)]
        self.kills += 1
        return [Kill(slot.index)]

    def _judge(
        self, slot: Slot, now: float, *, blamed: bool, roll: float
    ) -> list[Command]:
        run = None if slot.ready_at is None else now - slot.ready_at
        verdict = self._ledger.record(
            slot.index,
            now=now,
            run=run,
            blamed=blamed,
            outcomes=slot.outcomes,
            roll=roll,
        )
        if self.broken is not None:
            return self._park(slot, self.broken, now)
        if isinstance(verdict, Break):
            return [*self._park(slot, verdict.reason, now), *self._break(verdict, now)]
        if isinstance(verdict, Park):
            commands = self._park(slot, verdict.reason, now)
            if all(other.state in _HOPELESS for other in self.slots):
                reason = f"every slot is parked: {verdict.reason}"
                commands += self._break(Break(reason), now)
            return commands
        if verdict.delay > 0:
            slot.due = now + verdict.delay
            return [ScheduleRestart(slot.index, verdict.delay)]
        return [ScheduleRestart(slot.index, 0.0), self._spawn(slot, now)]

    def _park(self, slot: Slot, reason: str, now: float) -> list[Command]:
        slot.apply(SlotEvent.PARK)
        probe_after = self._policy.probe_after
        if self.broken is None:
            slot.due = None if probe_after is None else now + probe_after
        elif self._probe_at is None and probe_after is not None and not self._probing():
            self._probe_at = now + probe_after
        return [ParkSlot(slot.index, reason, probe_after)]

    def _break(self, verdict: Break, now: float) -> list[Command]:
        self.broken = verdict.reason
        commands: list[Command] = [GiveUp(verdict.reason)]
        commands += self._fail(self.dispatcher.empty(), "broken")
        for slot in self.slots:
            if slot.state is SlotState.VACANT:
                slot.apply(SlotEvent.PARK)
            elif slot.state in {SlotState.IDLE, SlotState.STARTING}:
                commands += self._end(slot, Ending.STOPPED, now, planned=True)
            if slot.state is SlotState.PARKED:
                slot.due = None  # from here on the pool probes as one
        if self._policy.probe_after is not None:
            self._probe_at = now + self._policy.probe_after
        return commands

    def _running(self) -> list[int]:
        jobs = []
        for slot in self.slots:
            if slot.job is not None:
                jobs.append(slot.job)
                slot.job = None
        return jobs

    @staticmethod
    def _fail(jobs: list[int], why: str) -> list[Command]:
        assert why in {"closed", "broken"}
        return (
            [FailJobs(tuple(jobs), "closed" if why == "closed" else "broken")]
            if (jobs)
            else []
        )

    def _settle(self, now: float) -> list[Command]:
        """If the pool closes, let go of what no job needs any more."""
        if self.closing is None or self.finished or self.dispatcher.waiting:
            return []
        commands: list[Command] = []
        for slot in self.slots:
            if slot.state in _EMPTY:
                slot.due = None
                slot.apply(SlotEvent.RETIRE)
            elif slot.state is SlotState.STARTING:
                commands += self._end(slot, Ending.TERMINATED, now, planned=True)
            elif slot.state is SlotState.IDLE:
                commands += self._end(slot, Ending.STOPPED, now, planned=True)
        if all(slot.state is SlotState.RETIRED for slot in self.slots):
            self.finished = True
            self._close_at = self._probe_at = None
            commands.append(Finished())
        return commands
