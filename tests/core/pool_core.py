"""The core of a pool as its model and its stories see it: the one module of them that imports it.

:class:`Core` has what an engine tells a core, in the engine's words, and what there is to see of
it.  A core that is made in another way needs another :class:`Core`, and nothing else: what is in
``imaginary/``, ``supervision_rules``, the promises and the stories stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asyncpool._core import core as core_module
from asyncpool._core.dispatcher import OLDEST_EVERY, choose
from asyncpool._core.endings import LEAST_GRACE, REVOKE_GRACE, STACK_GRACE, Finish
from asyncpool._core.functions import (
    BUDGET,
    LEAST_COST,
    LOADING_TRAITS,
    REFILL_BELOW,
    STREAM_TRAITS,
    UNKNOWN_COST,
    JobTraits,
    KeyedTraits,
    SessionTraits,
)
from asyncpool._core.lifecycle import KILL_GRACE, STOP_GRACE, TERM_GRACE
from asyncpool._core.options import BURST, KILL, CancelMode, RestartPolicy, WorkerLimits
from asyncpool._core.slots import (
    BY_ITSELF,
    EMPTY,
    GROW_EVERY,
    UP,
    EndingStage,
    Slot,
    StopStage,
)
from asyncpool.enums import NextStep, SlotState
from tests.core import effects as cmd
from tests.helpers.inside import affinity_queues_of, slots_held

__all__ = [
    "BUDGET",
    "BURST",
    "BY_ITSELF",
    "EMPTY",
    "GROW_EVERY",
    "KILL",
    "KILL_GRACE",
    "LEAST_COST",
    "LEAST_GRACE",
    "LOADING_TRAITS",
    "OLDEST_EVERY",
    "REFILL_BELOW",
    "REVOKE_GRACE",
    "STACK_GRACE",
    "STOP_GRACE",
    "STREAM_TRAITS",
    "TERM_GRACE",
    "UNKNOWN_COST",
    "UP",
    "CancelMode",
    "Core",
    "EndingStage",
    "Finish",
    "JobTraits",
    "KeyedTraits",
    "RestartPolicy",
    "SessionTraits",
    "SlotState",
    "StopStage",
    "WorkerLimits",
    "choose",
    "cmd",
    "gone",
    "pool",
    "short",
    "taking",
]

Commands = list[cmd.Command]


class Core:
    """What decides for a pool: each call says what has happened, and returns what to do about it."""

    def __init__(
        self,
        workers: int,
        most: int | None = None,
        *,
        policy: RestartPolicy | None = None,
        start_timeout: float = 20.0,
        limits: WorkerLimits | None = None,
        **options: Any,
    ) -> None:
        told = core_module.CoreOptions(
            workers=(workers, most or workers),
            restart_policy=policy or RestartPolicy(),
            start_timeout=start_timeout,
            worker_limits=limits or WorkerLimits(),
            **options,
        )
        self._core = core = core_module.Core(told)
        self.closing, self.dispatcher = core.closing, core.dispatcher
        self.lifecycle = core.lifecycle
        # Workers.
        self.start = self._told(core.start)
        self.ready = self._told(core.ready)
        self.fault = self._told(core.replace_faulty)
        self.oversized = self._told(core.oversized)
        self.kill = self._told(core.kill)
        self.served = self._told(core.served)
        self.try_sooner = core.lifecycle.try_sooner
        self.retry_in = core.lifecycle.retry_in
        # Jobs.
        self.submit = core.submit
        self.place = core.place
        self.submit_pinned = self._told(core.affinity.pin)
        self.prepare = core.dispatcher.preparing.setdefault
        self.submit_prepared = self._told(core.submit_prepared)
        self.arguments_loaded = self._told(core.arguments_loaded)
        self.outcome = core.outcome
        self.refill = self._told(core.refill)
        self.outcome_unpacked = self._told(core.outcome_unpacked)
        self.requeue = self._told(core.requeue)
        self.drop = self._told(core.drop)
        self.withdraw = self._told(core.withdraw)
        # Jobs that are to end, or to come back.
        self.cancel = self._told(core.endings.cancel)
        self.revoke = self._told(core.endings.revoke_late)
        self.revoked = self._told(core.endings.revoked)
        self.expire = self._told(core.endings.time_out)
        self.hang = self._told(core.endings.kill_hung)
        self.stacks_signalled = core.endings.stacks_signalled
        self.stacks_written = self._told(core.endings.stacks_written)
        self.check_for_stalls = self._told(core.endings.check_for_stalls)
        self.unanswered = core.endings.unanswered
        # Sessions.
        self.request_worker = self._told(core.affinity.request_session)
        self.cancel_request = self._told(core.affinity.cancel_session_request)
        self.call = self._told(core.affinity.queue_call)
        self.end_session = self._told(core.affinity.end_session)
        # Planned exits.
        self.resize = self._told(core.lifecycle.resize)
        self.roll = self._told(core.lifecycle.roll)
        # The end, and time.
        self.release = self._told(core.hold_released)
        self.close = self._told(core.closing.begin)
        self.abandon = core.closing.abandon
        self.next_deadline = core.next_deadline
        self.on_timer = self._told(core.on_timer)
        self.next_stack_request = core.next_stack_request
        self.overdue = core.take_stack_requests

    def _told(self, call: Callable[..., object]) -> Callable[..., Commands]:
        """Have *call* return what the core wants done because of it."""

        def told(*args: Any, **options: Any) -> Commands:
            call(*args, **options)
            return self._take()

        return told

    def _take(self) -> Commands:
        todo = [cmd.named(effect) for effect in self._core.todo]
        self._core.todo.clear()
        return todo

    def ended(self, slot: int, now: float, **options: Any) -> Commands:
        """Let the process of a worker be gone."""
        after, _ = self._core.ended(slot, now, **options)
        todo = self._take()
        if after.next_step is NextStep.KEEP_WORKER:
            todo.insert(0, cmd.KeepWorker(slot, after.next_start))
        return todo

    def begin_unpacking(self, job: int) -> None:
        """Let a job have an outcome that takes a while to unpickle."""
        self._core.closing.unpacking[job] = None

    def is_unpacking(self, job: int) -> bool:
        return job in self._core.closing.unpacking

    def hold(self) -> None:
        """Let a source hold the pool open."""
        self._core.closing.holds += 1

    def is_revoked(self, job: int, slot: int) -> bool:
        """Whether the pool has asked for a job that was too late, and has no answer yet."""
        return self.slots[slot].job_endings.is_too_late(job)

    def replace(self, slot: int, why: str, now: float) -> Commands:
        """Let a worker be worn: it goes when another one can take its place."""
        return self._told(self._core.lifecycle.replace)(self.slots[slot], why, now)

    def retire(
        self, slot: int, why: str, now: float, *, unsent: int | None = None
    ) -> Commands:
        """Let a worker begin no other job."""
        drain_now = self._told(self._core.lifecycle.drain_now)
        return drain_now(self.slots[slot], why, now, unsent=unsent)

    def let_go(self, slot: int, why: str, now: float) -> Commands:
        """Let a worker go, even if no replacement is ready."""
        self._core.lifecycle.drain(self.slots[slot], why, now)
        return self._told(self._core.lifecycle.reconcile)(now)

    def job_waits(self, now: float) -> None:
        """Let a job have come for which no worker was free, if the core wants to know that."""
        if self._core.lifecycle.sizing.may_grow:
            self._core.lifecycle.sizing.job_waits(now)

    # What there is to see.

    @property
    def slots(self) -> Sequence[Slot]:
        """Each slot: its state, and what is known of its worker."""
        return self._core.slots

    @property
    def broken(self) -> str | None:
        return self._core.broken

    @property
    def over(self) -> bool:
        """Whether the pool has ended."""
        return self._core.closing.over

    @property
    def finish(self) -> Finish | None:
        """What the pool still finishes, if it closes."""
        return self._core.closing.finish

    @property
    def waiting(self) -> int:
        """How many jobs have not begun, wherever they are."""
        return self._core.waiting

    @property
    def pipelining(self) -> bool:
        """Whether a job waits in a worker."""
        return self._core.pipelining

    @property
    def unbalanced(self) -> bool:
        """Whether a worker is idle while jobs wait in others."""
        return self._core.unbalanced

    @property
    def held_back(self) -> set[int]:
        """The slots whose workers get no job since such a caller waits for one of them."""
        return slots_held(self._core)

    def needs(self, slot: int) -> bool:
        """Tell whether a worker should be started in a slot if it is empty."""
        return self._core.lifecycle.needs(self.slots[slot])

    @property
    def grants_no_exit(self) -> bool:
        """Whether no planned exit is granted any more, since the pool ends."""
        return self._core.lifecycle.stopped

    @property
    def longest_grace(self) -> float:
        """How long a job that is to end may still run."""
        return self._core.endings.grace

    @property
    def retry_at(self) -> float | None:
        """When the next start is tried, after those that failed; ``None`` for never."""
        return self._core.lifecycle.retry_at

    def in_hand(self, slot: int) -> int:
        """Return how many jobs a worker has in hand."""
        return len(self.slots[slot].in_flight.jobs)

    def last(self, slot: int) -> int | None:
        """Return the job that a worker was given last."""
        return self.slots[slot].in_flight.last

    def runs(self, slot: int, job: int) -> bool:
        """Tell whether a worker runs *job*, as far as the core knows."""
        return self.slots[slot].in_flight.runs(job)

    def running(self, slot: int) -> Sequence[int]:
        """Return the jobs that a worker runs, as far as the core knows."""
        return self.slots[slot].in_flight.running

    def restart_book(self) -> Any:
        """Return a copy of what is known of starts and deaths, to compare it with later ones."""
        return copy.deepcopy(vars(self._core.lifecycle.ledger))

    def lines(self) -> dict[int | None, Sequence[int]]:
        """Return the jobs with a key that wait, by the place that each waits for."""
        queues = affinity_queues_of(self._core).open
        return {
            place: [entry.job for entry in queue.entries()]
            for place, queue in queues.items()
        }

    def seats(self) -> Mapping[int, int]:
        """Return the slot of each place, as the dispatcher knows it."""
        return affinity_queues_of(self._core).slots_by_bucket

    def places(self) -> Iterable[tuple[int, int]]:
        """Yield each place and its slot."""
        for slot in self.slots:
            if slot.bucket is not None:
                yield slot.bucket, slot.index


def pool(
    workers: int, most: int | None = None, *, ready: int | None = None, **options: Any
) -> Core:
    """Return a pool that has begun at 0.0; so many of its workers, or all, are ready."""
    core = Core(workers, most, **options)
    assert core.start(0.0) == [cmd.Spawn(index, 1) for index in range(workers)]
    for index in range(workers if ready is None else ready):
        core.ready(index, 0.0)
    return core


def short(cost: float = 10.0) -> JobTraits:
    """Return what is known of a function whose calls take so many microseconds."""
    traits = JobTraits()
    traits.cost = cost
    return traits


def gone(core: Core, slot: int, now: float) -> Commands:
    """Let a worker end that had nothing in hand."""
    return core.ended(slot, now, had_begun=False, requeue=(), jitter=0.0)


def taking(core: Core) -> list[int]:
    """Return the slots that get jobs."""
    up = {SlotState.IDLE, SlotState.BUSY}
    return [s.index for s in core.slots if s.state in up and not s.draining]
