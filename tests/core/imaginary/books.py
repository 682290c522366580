"""What the shell knows of its pool: the books that every command is checked against."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from tests.core.imaginary.process import Process
from tests.core.list_queue import ListQueue
from tests.core.pool_core import (
    LEAST,
    REFILL,
    UNKNOWN,
    Core,
    Finish,
    JobTraits,
    RestartPolicy,
    StopStage,
    WorkerLimits,
    choose,
)

__all__ = ["COSTS", "IDLE_TIMEOUT", "START_TIMEOUT", "Books"]

START_TIMEOUT = 20.0
IDLE_TIMEOUT = 2.0

# What jobs cost in these stories: those in the middle may share a worker.  Of one that
# has large arguments this is infinite.
COSTS = (UNKNOWN, 80.0, 650.0, 1_450.0, 2_900.0, 6_400.0)


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
            UNKNOWN if job in process.stalled else self._share(job)
            for job in process.hand
        )

    def _share(self, job: int) -> float:
        cost = self.traits[job].cost
        return cost if self.width == 1 else max(LEAST, cost / self.width)

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
        return self._able(process) and self._cost(process) <= REFILL

    def _is_alone(self, process: Process) -> bool:
        """Tell whether a worker runs what nothing runs beside."""
        return any(job in self.errands or job in self.calls for job in process.hand)

    def _has_line(self, process: Process) -> bool:
        """Tell whether somebody waits for *process*, or did when it was last given jobs."""
        waits = any(self.slot_for(job) == process.slot for job in self.keyed)
        return waits or process.line or bool(self.errands_before(process.slot))
