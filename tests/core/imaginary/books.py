"""What the shell knows of its pool: the books that every command is checked against."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.core.list_queue import ListQueue
from tests.core.pool_core import (
    BUDGET,
    LEAST_COST,
    REFILL_BELOW,
    UNKNOWN_COST,
    CancelMode,
    Core,
    Finish,
    JobTraits,
    RestartPolicy,
    StopStage,
    WorkerLimits,
    choose,
)

__all__ = ["COSTS", "START_TIMEOUT", "Books", "Process"]


@dataclass
class Process:
    """A worker: what the shell knows of it, and what it does by itself."""

    slot: int
    born_at: float
    ready: bool = False
    faulty: bool = False
    told: StopStage = StopStage.NO
    told_at: float = 0.0
    excused: bool = False  # its end is the pool's own wish
    abandoned: bool = False
    # In hand, in their order, each with its place; those that nobody wants any more.
    hand: dict[int, int] = field(default_factory=dict)
    unwanted: dict[int, CancelMode] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # those whose time to wait is over
    width: int = 1
    asked_to_end: dict[int, float] = field(default_factory=dict)  # each until when
    breaks_pool: set[int] = field(default_factory=set)
    hung: bool = False
    silent: int | None = None
    dies_at: float | None = None  # being hung without a job
    writes: bool = False  # where it is
    leaving: bool = False
    oversized: bool = False
    shot: bool = False  # somebody wants it killed
    early: bool = False  # it was being started when the last roll began
    tied: bool = False  # another start failed when it began
    rolled: bool = False  # it was there then, and was to stay
    leave_by: float = math.inf
    sent: int = 0
    most: float = math.inf  # as many jobs as it may get, but for those that come back
    given: int = 0
    stalled: set[int] = field(default_factory=set)
    place: int | None = None
    line: bool = False  # since its last answer, somebody waited for this one
    loading: int | None = None  # in hand, but its arguments are still being copied
    doomed: dict[int, float] = field(default_factory=dict)  # of which, and since when
    # The worker's own view.
    running: list[int] = field(default_factory=list)
    taken: int = 0
    withdrawn: set[int] = field(default_factory=set)
    questions: deque[tuple[int, ...]] = field(default_factory=deque)
    answers: deque[list[int]] = field(default_factory=deque)
    # Asked, and not heard of: the shell's view again.
    pending: deque[tuple[int, ...]] = field(default_factory=deque)
    owing: set[int] = field(
        default_factory=set
    )  # of them, those that would run elsewhere

    @property
    def spent(self) -> bool:
        return self.given >= self.most

    @property
    def state(self) -> str:
        if not self.ready:
            return "starting"
        return "busy" if self.hand else "idle"

    @property
    def owes(self) -> bool:
        """Whether a job may come back that is older than those that wait."""
        return not self.owing.isdisjoint(self.hand.values())

    def begin(self) -> bool:
        """Take the next jobs, if there are any, and tell whether one is running."""
        jobs = {place: job for job, place in self.hand.items()}
        while len(self.running) < self.width and self.taken < self.sent:
            self.taken += 1
            if self.taken not in self.withdrawn and self.taken in jobs:
                self.running.append(jobs[self.taken])
        return bool(self.running)

    def first(self) -> list[int]:
        """Return the jobs that the pool takes for running."""
        return list(self.hand)[: self.width]

    def answer(self) -> None:
        """Decide what was asked, as the worker's other thread does."""
        won = [place for place in self.questions.popleft() if place > self.taken]
        self.withdrawn.update(won)
        self.answers.append(won)


START_TIMEOUT = 20.0


IDLE_TIMEOUT = 2.0


# What jobs cost in these stories: those in the middle may share a worker.  Of one that
# has large arguments this is infinite.
COSTS = (UNKNOWN_COST, 80.0, 650.0, 1_450.0, 2_900.0, 6_400.0)


class Books:
    """Everything that a shell keeps of a :class:`Core`, and what can be read there."""

    def __init__(
        self,
        *,
        workers: int,
        policy: RestartPolicy,
        more: int = 0,
        limits: WorkerLimits | None = None,
        width: int = 1,
        max_surge: int = 1,
        max_unavailable: int = 0,
    ) -> None:
        self.limits = limits = limits or WorkerLimits()
        self.core = Core(
            workers,
            workers + more,
            policy=policy,
            start_timeout=START_TIMEOUT,
            limits=limits,
            idle_timeout=IDLE_TIMEOUT,
            concurrency=width,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
        )
        self.workers = workers  # the size
        self.most = workers + more
        self.surge = max_surge
        self.width = width
        self.drain_timeout = limits.drain_timeout or math.inf
        self.rolling = False
        self.places = 0  # so many workers it is to replace, or slots to fill
        self.put_off = -math.inf  # until when it need not replace anybody
        self.hurried = 0  # starts that a roll may still try before their time
        self.policy = policy
        self.now = 1_000.0
        self.processes: dict[int, Process] = {}
        self.generations: Counter[int] = Counter()
        self.queue = ListQueue()
        self.keys: dict[int, int] = {}  # of every job that has one
        self.keyed: list[int] = []  # those that wait, in any order
        self.back: set[int] = set()  # which of them came back
        self.ranks: dict[int, int] = {}  # their priorities
        self.seats: dict[int, int] = {}
        self.seats_after: dict[int, int] = {}
        self.large: set[int] = set()
        self.errands: dict[int, int] = {}  # open jobs for one worker, and its slot
        self.wanted = 0  # how many wait for a worker to themselves
        self.session_holds = 0  # of them, and of those who have one, or had
        self.departing = 0  # how many of those are about to leave
        self.owners: dict[int, int] = {}  # of slots: the sessions
        self.calls: dict[int, int] = {}  # open jobs of sessions, and whose they are
        self.waiting_calls: list[int] = []  # those that have not begun, in their order
        self.given_back: set[int] = set()  # which of them have left a worker's hands
        self.prepared: set[int] = set()  # those that were prepared apart
        self.preparing: list[int] = []  # open, but they cannot be sent yet
        self.unpacking: list[int] = []  # open, but what has become of them is not known
        self.open: set[int] = set()
        self.traits: dict[int, JobTraits] = {}
        self.closing: Finish | None = None
        self.close_at = math.inf
        self.holds = 0  # how many have more jobs to come
        self.broken = False
        self.finished = False
        self.gave_up = False
        self.parked: set[int] = set()
        self.retry_at = -math.inf  # when one of them may have its next process
        self.last_try: int | None = None  # which of them has one
        # When another slot may have its next process.
        self.not_before: defaultdict[int, float] = defaultdict(float)
        self.interrupts = 0  # to be sent
        self.expired: set[int] = set()  # which have come back too late, just now
        self.seen: Counter[str] = Counter()

    @property
    def jobs(self) -> int:
        """How many jobs there have been."""
        return len(self.traits)

    @property
    def trying(self) -> bool:
        """Whether a parked slot tries for all of them, and may find out something."""
        process = self.processes.get(-1 if self.last_try is None else self.last_try)
        return process is not None and not process.excused

    def free(self) -> list[int]:
        """Return the slots whose workers have nothing to do and could run a job now."""
        slots = [n for n in self.slots("idle") if not self.processes[n].hung]
        return [n for n in slots if n not in self.owners]

    def spacious(self) -> list[int]:
        """Return the slots whose workers could run a job beside others now."""
        found = [self.processes[slot] for slot in self.slots("busy")]
        found = [process for process in found if self._able(process)]
        return [
            process.slot
            for process in found
            if self._lanes_free(process)
            if not self.errands_before(process.slot)
            if not self._is_alone(process)
        ]

    def lanes(self) -> int:
        """Return how many jobs could begin now."""
        able = [self.processes[n] for n in (*self.free(), *self.spacious())]
        return sum(int(min(self.width - len(p.hand), p.most - p.given)) for p in able)

    def slots(self, *states: str, told: bool | None = False) -> list[int]:
        """Return the slots whose processes are in one of *states*."""
        return sorted(
            process.slot
            for process in self.processes.values()
            if process.state in states
            and (told is None or (process.told is not StopStage.NO) is told)
        )

    @property
    def waiting(self) -> list[int]:
        """The jobs that have no worker, those included that cannot be sent yet."""
        return [*self.queue, *self.keyed, *self.preparing]

    def loading(self) -> list[int]:
        """Return the slots whose workers have a job in hand that was not sent."""
        return [p.slot for p in self.processes.values() if p.loading is not None]

    def writing(self) -> list[int]:
        """Return the slots whose workers are asked where they are."""
        return [p.slot for p in self.processes.values() if p.writes]

    def asked(self) -> list[int]:
        """Return the slots whose workers have a question to answer."""
        return [p.slot for p in self.processes.values() if p.questions]

    def answered(self) -> list[int]:
        """Return the slots whose answers the pool has not heard."""
        return [
            p.slot
            for p in self.processes.values()
            if p.answers and p.told is StopStage.NO
        ]

    def behind(self) -> list[tuple[int, int]]:
        """Return the jobs that wait in a worker, and whose time may be over, with its slot."""
        return [
            (process.slot, job)
            for process in self.processes.values()
            if process.told is StopStage.NO
            for job in [*process.hand][process.width :]
            if job not in process.unwanted and job not in process.late
        ]

    @property
    def settled(self) -> bool:
        """Whether the pool has the workers of its size, and none comes or goes."""
        calm = all(p.ready and not p.leaving for p in self.processes.values())
        told = any(p.told for p in self.processes.values())
        return calm and not told and len(self.processes) == self.workers

    @property
    def time_is_over(self) -> bool:
        return self.now >= self.close_at

    @property
    def nobody_is_needed(self) -> bool:
        """Whether the pool closes, and no job may need another worker."""
        if self.closing is None or self.waiting or self.unpacking:
            return False
        if self.closing is not Finish.ALL or self.broken:
            return True
        behind = any(len(p.hand) > self.width for p in self.processes.values())
        holds = self.holds or self.session_holds
        return not (behind or holds or self.waiting_errands)

    def calls_of(self, session: int | None) -> list[int]:
        """Return the calls of a session that have not begun, in their order."""
        return [job for job in self.waiting_calls if self.calls[job] == session]

    def errands_before(self, slot: int) -> list[int]:
        """Return the pinned jobs that a worker has to begin."""
        hand = self.processes[slot].hand if slot in self.processes else ()
        return [
            job
            for job, its in self.errands.items()
            if its == slot and job in self.open and job not in hand
            if job not in self.given_back
        ]

    @property
    def waiting_errands(self) -> list[int]:
        """The pinned jobs that have not begun."""
        return [
            job
            for slot in {*self.errands.values()}
            for job in self.errands_before(slot)
        ]

    def slot_for(self, job: int) -> int | None:
        """Return the slot whose worker a job with a key belongs to."""
        place = choose(self.keys[job], self.seats)
        return None if place is None else self.seats[place]

    def _end(self, job: int, how: str) -> None:
        self.open.remove(job)  # a KeyError means that it has ended twice
        self.seen[how] += 1

    def _cost(self, process: Process) -> float:
        return sum(
            UNKNOWN_COST if job in process.stalled else self._share(job)
            for job in process.hand
        )

    def _share(self, job: int) -> float:
        cost = self.traits[job].cost
        return cost if self.width == 1 else max(LEAST_COST, cost / self.width)

    def _able(self, process: Process) -> bool:
        held = process.slot in self.core.held_back
        if process.slot in self.owners or held:
            return False
        able = process.ready and not process.told and not process.faulty
        able = able and not process.owes
        return able and not (process.doomed or process.asked_to_end or process.leaving)

    def _lanes_free(self, process: Process) -> bool:
        free = len(process.hand) < self.width and process.loading is None
        return free and not process.spent

    def _has_room(self, process: Process) -> bool:
        if process.loading is not None or process.spent:
            return False
        if self._is_alone(process):
            return False
        return self._able(process) and self._cost(process) <= REFILL_BELOW

    def _is_alone(self, process: Process) -> bool:
        """Tell whether a worker runs what nothing runs beside."""
        return any(job in self.errands or job in self.calls for job in process.hand)

    def _has_line(self, process: Process) -> bool:
        """Tell whether somebody waits for *process*, or did when it was last given jobs."""
        waits = any(self.slot_for(job) == process.slot for job in self.keyed)
        return waits or process.line or bool(self.errands_before(process.slot))

    # Who waits, where, and in which order they go to a worker.

    def _enter(self, job: int, priority: int, slot: int | None) -> None:
        if job in self.keys:
            self._enter_line(job, priority, slot)
            return
        leads = self.queue.would_be_first(priority)
        if slot is not None:
            assert leads, "a job overtook the queue"
            self.seen["an urgent job that need not wait"] += bool(self.queue)
            self.queue.pass_by(job)
            self._begin(slot, job)
            return
        assert not self.free(), "a job waits while a worker is idle"
        roomy = [p for p in self.processes.values() if p.hand and self._has_room(p)]
        roomy = [p for p in roomy if not self._has_line(p)]
        assert not leads or not any(map(self._lanes_free, roomy)), "a lane is free"
        short = self.traits[job].cost <= REFILL_BELOW
        assert not leads or not roomy or not short, "a short job might have gone"
        self.queue.add(job, priority)
        self.core.job_waits(self.now)

    def _enter_line(self, job: int, priority: int, slot: int | None) -> None:
        wanted = self.slot_for(job)
        if slot is not None:
            assert slot == wanted, "it is somebody else's"
            rivals = [other for other in self.keyed if self.slot_for(other) == slot]
            assert not rivals, "a job overtook its line"
            idle = slot in self.free()
            assert idle or self.queue.would_be_first(priority), (
                "a job overtook the queue"
            )
            self.queue.pass_by(job)
            self.seen["a keyed job that need not wait"] += 1
            self._begin(slot, job)
            return
        assert wanted not in self.free(), "a job waits for an idle worker"
        self.keyed.append(job)
        self.ranks[job] = priority
        self.seen["a keyed job that waits"] += 1
        self.seen["a keyed job that waits while others are idle"] += bool(self.free())
        self.seen["a keyed job whom nobody is there for"] += wanted is None
        if wanted is not None:
            self.processes[wanted].line = True
        if self.core.dispatcher.unserved:
            self.core.job_waits(self.now)

    def _begin(self, slot: int, job: int) -> None:
        process = self.processes[slot]
        assert process.ready
        assert not process.leaving
        assert process.told is StopStage.NO, "a job for a worker that must go"
        assert not process.faulty
        assert not process.doomed
        assert not process.asked_to_end, "a job behind one that is to end"
        assert process.loading is None, "a job behind one that is not sent"
        assert not process.owes, "a job before one that may come back, and is older"
        own = self.owners.get(slot)
        assert own == self.calls.get(job) or job in self.errands, "it is somebody's own"
        assert own is None or not process.hand, "a call beside another job"
        others = [errand for errand in self.errands_before(slot) if errand != job]
        assert job in self.errands or not others, "a job before an errand"
        if job not in self.errands:
            # A session is not cut short for that.
            spent = process.spent and job not in self.calls
            assert not spent, "more jobs than a worker may have"
            process.given += 1
            self.seen["as many jobs as it may have"] += process.spent
        assert job in self.open
        assert not self.broken
        self.seen["a job beside others"] += 0 < len(process.hand) < self.width
        if len(process.hand) >= self.width:
            cost = self._cost(process) + self._share(job)
            assert cost <= BUDGET, "a job waits behind a long one"
            self.seen["a job that travels ahead"] += 1
        process.hand[job] = process.sent + 1
        if job in self.large:
            process.loading = job
        else:
            process.sent += 1

    def _leave_line(self, slot: int, job: int) -> None:
        """Check that a job with a key is sent where it belongs, and in its turn."""
        self.keyed.remove(job)
        key = self.keys[job]
        before, after = choose(key, self.seats), choose(key, self.seats_after)
        there = None if before is None else self.seats[before]
        assert slot in {there, None if after is None else self.seats_after[after]}, (
            "it is somebody else's"
        )
        if there is not None and there != slot and there in self.processes:
            # It waited there when that worker was last given jobs.
            self.processes[there].line = True
        if job not in self.back and job not in self.prepared:
            for other in self.keyed:
                if self.keys[other] == key and self.ranks.get(other) == self.ranks[job]:
                    assert other > job or other in self.prepared, "not in their order"
                    assert other not in self.back, "who comes back is first"
        if job in self.back:
            self.back.remove(job)
        else:
            self.queue.note_turn_elsewhere(job)
        self.seen["a keyed job that had to wait"] += 1
        self._begin(slot, job)

    def _look_at_places(self) -> None:
        """Take note of who has which place by now, and check who was meant to have it."""
        before, self.seats = self.seats, {}
        for slot in self.core.slots:
            process = self.processes.get(slot.index)
            if slot.bucket is None:
                assert (
                    process is None
                    or not process.ready
                    or (process.leaving or slot.replaces is not None or process.told)
                    or slot.index in self.owners
                ), "a worker without a place"
                if process is not None:
                    process.place = None
                continue
            assert slot.bucket not in self.seats, "two in one place"
            assert process is not None, "nobody is there"
            assert not process.leaving
            assert slot.replaces is None, "it is not there yet"
            assert slot.index not in self.owners, "a key for somebody's own"
            assert process.place in {None, slot.bucket}, "a worker that works was moved"
            process.place = slot.bucket
            self.seats[slot.bucket] = slot.index
        if self.seats != before:
            self.seen["places that changed"] += 1
            for process in self.processes.values():
                process.line = process.line or bool(self.keyed)
        assert self.core.seats() == self.seats

    def _put_back(self, jobs: Iterable[int]) -> None:
        """Let jobs wait before all others, each where it belongs."""
        jobs = list(jobs)
        self.given_back.update(job for job in jobs if job in self.errands)
        calls = [job for job in jobs if job in self.calls]
        self.waiting_calls[:0] = calls
        jobs = [job for job in jobs if job not in self.errands and job not in calls]
        back = [job for job in jobs if job in self.keys]
        self.keyed += back
        self.back.update(back)
        for job in back:
            self.seen["a keyed job that came back"] += 1
            slot = self.slot_for(job)
            if slot in self.processes:
                self.processes[slot].line = True
        self.queue.give_back([job for job in jobs if job not in self.keys])

    def _unqueue(self, job: int) -> None:
        if job in self.preparing:
            self.preparing.remove(job)
        elif job in self.keyed:
            for process in self.processes.values():
                process.line = process.line or process.slot == self.slot_for(job)
            self.keyed.remove(job)
            self.back.discard(job)
        else:
            self.queue.remove(job)
