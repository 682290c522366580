"""A shell whose processes exist only as dictionary entries.

It does what :class:`asyncpool._runtime.supervisor.Supervisor` does with the pure
core, keeps books of its own, and checks every command against them.  What it checks
are the promises of the design, so a failure here is a broken promise.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from asyncpool._core import commands as cmd
from asyncpool._core.affinity import choose
from asyncpool._core.closing import Finish
from asyncpool._core.limits import KILL, Press
from asyncpool._core.lives import KILL_GRACE, STOP_GRACE, TERM_GRACE
from asyncpool._core.pressing import REVOKE_GRACE, STACK_GRACE
from asyncpool._core.profiles import (
    BUDGET,
    LEAST,
    LOADING,
    REFILL,
    UNKNOWN,
    Keyed,
    Profile,
)
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.slots import Ending
from asyncpool._core.supervision import Supervision
from asyncpool._core.wear import WorkerLimits
from tests.core.list_queue import ListQueue

__all__ = ["COSTS", "IDLE_TIMEOUT", "START_TIMEOUT", "ImaginaryShell", "Process"]

START_TIMEOUT = 20.0
IDLE_TIMEOUT = 2.0

# What jobs cost in these stories: those in the middle may share a worker.  Of one that
# has large arguments this is infinite.
COSTS = (UNKNOWN, 80.0, 650.0, 1_450.0, 2_900.0, 6_400.0)


@dataclass
class Process:
    """A worker: what the shell knows of it, and what it does by itself."""

    slot: int
    born_at: float
    ready: bool = False
    faulty: bool = False
    told: Ending = Ending.NO
    told_at: float = 0.0
    excused: bool = False  # its end is the pool's own wish
    abandoned: bool = False
    # In hand, in their order, each with its place; those that nobody wants any more.
    hand: dict[int, int] = field(default_factory=dict)
    unwanted: dict[int, Press] = field(default_factory=dict)
    width: int = 1
    asked_to_end: dict[int, float] = field(default_factory=dict)  # each until when
    hopeless: set[int] = field(default_factory=set)
    hung: bool = False
    silent: int | None = None
    dies_at: float | None = None  # being hung without a job
    writes: bool = False  # where it is
    leaving: bool = False
    oversized: bool = False
    leave_by: float = math.inf
    sent: int = 0
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

    @property
    def state(self) -> str:
        if not self.ready:
            return "starting"
        return "busy" if self.hand else "idle"

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


class ImaginaryShell:
    """Feeds a :class:`Supervision` and carries out what it wants done."""

    def __init__(  # noqa: PLR0915 - the books
        self,
        *,
        workers: int,
        policy: RestartPolicy,
        more: int = 0,
        limits: WorkerLimits | None = None,
        width: int = 1,
        surge: int = 1,
        unavailable: int = 0,
    ) -> None:
        limits = limits or WorkerLimits()
        self.core = Supervision(
            workers=(workers, workers + more),
            policy=policy,
            start_timeout=START_TIMEOUT,
            limits=limits,
            idle_timeout=IDLE_TIMEOUT,
            width=width,
            surge=surge,
            unavailable=unavailable,
        )
        self.workers = workers  # the size
        self.surge = surge
        self.width = width
        self.drain_timeout = limits.drain_timeout or math.inf
        self.rolling = False
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
        self.given_back: set[int] = set()  # which of them have left a worker's hands
        self.late: set[int] = set()  # those that were announced
        self.announced: list[int] = []  # open, but they cannot be sent yet
        self.landing: list[int] = []  # open, but what has become of them is not known
        self.open: set[int] = set()
        self.profiles: dict[int, Profile] = {}
        self.closing: Finish | None = None
        self.close_at = math.inf
        self.broken = False
        self.finished = False
        self.parked: set[int] = set()
        # When a slot may have its next process.
        self.not_before: defaultdict[int, float] = defaultdict(float)
        self.interrupts = 0  # to be sent
        self.seen: Counter[str] = Counter()
        self.feed(self.core.start(self.now))
        assert len(self.processes) == workers, "every worker is started"

    # What happens.

    @property
    def jobs(self) -> int:
        """How many jobs there have been."""
        return len(self.profiles)

    def submit(
        self, cost: float = UNKNOWN, priority: int = 0, key: int | None = None
    ) -> None:
        job = self._come(cost, key)
        self.seen["submit"] += 1
        submit = self.core.submit if key is None else self.core.submit_keyed
        slot = submit(job, self.profiles[job], priority)
        self._enter(job, priority, slot)

    def announce(self, cost: float, key: int | None = None) -> None:
        """Let a job come that must be pickled first."""
        job = self._come(cost, key)
        self.seen["announced"] += 1
        self.announced.append(job)
        self.late.add(job)
        self.core.announce(job)

    def arrive(self, job: int, priority: int = 0) -> None:
        """Let a job that was announced be pickled by now."""
        self.announced.remove(job)
        self.seen["arrived"] += 1
        if self.closing is not None:
            self.seen["arrived while the pool closes"] += 1
        commands = self.core.arrive(job, self.profiles[job], self.now, priority)
        match commands:
            case [cmd.Assign(slot, (first,)), *rest]:
                assert first == job
                self._enter(job, priority, slot)
                self.feed(rest)
            case _:
                self._enter(job, priority, None)
                self.feed(commands)

    def refuse(self, job: int) -> None:
        """Let it turn out that a job which was announced cannot be pickled."""
        self._end(job, "refused")
        self.announced.remove(job)
        self.feed(self.core.drop(job, self.now))

    def _come(self, cost: float, key: int | None) -> int:
        job = self.jobs + 1
        profile: Profile = LOADING
        if cost == math.inf:
            self.large.add(job)
        if cost < math.inf:
            profile = Profile()
            profile.cost = profile.least = cost
        if key is not None:
            profile = Keyed(profile, key)
            self.keys[job] = key
        self.profiles[job] = profile
        self.open.add(job)
        return job

    def _enter(self, job: int, priority: int, slot: int | None) -> None:
        if job in self.keys:
            self._enter_line(job, priority, slot)
            return
        leads = self.queue.leads(priority)
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
        short = self.profiles[job].cost <= REFILL
        assert not leads or not roomy or not short, "a short job might have gone"
        self.queue.add(job, priority)
        if self.core.rotation.sizing.watching:
            self.core.rotation.sizing.crowded(self.now)

    def _enter_line(self, job: int, priority: int, slot: int | None) -> None:
        wanted = self.slot_for(job)
        if slot is not None:
            assert slot == wanted, "it is somebody else's"
            rivals = [other for other in self.keyed if self.slot_for(other) == slot]
            assert not rivals, "a job overtook its line"
            idle = slot in self.free()
            assert idle or self.queue.leads(priority), "a job overtook the queue"
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
        dispatcher, sizing = self.core.dispatcher, self.core.rotation.sizing
        if sizing.watching and dispatcher.crowd:
            sizing.crowded(self.now)

    def _has_line(self, process: Process) -> bool:
        """Tell whether somebody waits for *process*, or did when it was last given jobs."""
        waits = any(self.slot_for(job) == process.slot for job in self.keyed)
        return waits or process.line or bool(self.errands_before(process.slot))

    def _leave_line(self, slot: int, job: int) -> None:
        """Check that a job with a key is sent where it belongs, and in its turn."""
        self.keyed.remove(job)
        key = self.keys[job]
        now = choose(key, self.seats), choose(key, self.seats_after)
        assert slot in {
            None if now[0] is None else self.seats[now[0]],
            None if now[1] is None else self.seats_after[now[1]],
        }, "it is somebody else's"
        if job not in self.back and job not in self.late:
            for other in self.keyed:
                if self.keys[other] == key and self.ranks.get(other) == self.ranks[job]:
                    assert other > job or other in self.late, "not in their order"
                    assert other not in self.back, "who comes back is first"
        if job in self.back:
            self.back.remove(job)
        else:
            self.queue.passed_by(job)
        self.seen["a keyed job that had to wait"] += 1
        self._begin(slot, job)

    def slot_for(self, job: int) -> int | None:
        """Return the slot whose worker a job with a key belongs to."""
        place = choose(self.keys[job], self.seats)
        return None if place is None else self.seats[place]

    def _look_at_places(self) -> None:
        """Take note of who has which place by now, and check who was meant to have it."""
        before, self.seats = self.seats, {}
        for slot in self.core.slots:
            process = self.processes.get(slot.index)
            if slot.place is None:
                assert (
                    process is None
                    or not process.ready
                    or (process.leaving or slot.replaces is not None or process.told)
                ), "a worker without a place"
                if process is not None:
                    process.place = None
                continue
            assert slot.place not in self.seats, "two in one place"
            assert process is not None, "nobody is there"
            assert not process.leaving
            assert slot.replaces is None, "it is not there yet"
            assert process.place in {None, slot.place}, "a worker that works was moved"
            process.place = slot.place
            self.seats[slot.place] = slot.index
        if self.seats != before:
            self.seen["places that changed"] += 1
            for process in self.processes.values():
                process.line = process.line or bool(self.keyed)
        assert self.core.dispatcher._lines.seats == self.seats

    def _put_back(self, jobs: Iterable[int]) -> None:
        """Let jobs wait before all others, each where it belongs."""
        jobs = list(jobs)
        self.given_back.update(job for job in jobs if job in self.errands)
        jobs = [job for job in jobs if job not in self.errands]
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
        if job in self.announced:
            self.announced.remove(job)
        elif job in self.keyed:
            for process in self.processes.values():
                process.line = process.line or process.slot == self.slot_for(job)
            self.keyed.remove(job)
            self.back.discard(job)
        else:
            self.queue.remove(job)

    def errand(self, slot: int) -> None:
        """Have a job come for one worker."""
        process = self.processes[slot]
        job = self._come(UNKNOWN, None)
        self.errands[job] = slot
        self.seen["an errand"] += 1
        commands = self.core.errand(slot, job)
        if slot in self.free():
            assert commands == [cmd.Assign(slot, (job,))]
        else:
            assert commands == []
            process.line = True
        self.feed(commands)

    def errands_before(self, slot: int) -> list[int]:
        """Return the errands that a worker has to begin."""
        hand = self.processes[slot].hand if slot in self.processes else ()
        return [
            job
            for job, its in self.errands.items()
            if its == slot and job in self.open and job not in hand
            if job not in self.given_back
        ]

    @property
    def waiting_errands(self) -> list[int]:
        """The errands that have not begun."""
        return [
            job
            for slot in {*self.errands.values()}
            for job in self.errands_before(slot)
        ]

    def load(self, slot: int) -> None:
        """Let the arguments of a job have arrived where its worker sees them."""
        process = self.processes[slot]
        assert process.loading is not None
        process.sent += 1
        assert list(process.hand.items())[-1] == (process.loading, process.sent)
        process.loading = None
        self.seen["loaded"] += 1
        self.feed(self.core.loaded(slot, self.now))

    def ready(self, slot: int) -> None:
        process = self.processes[slot]
        if process.told is not Ending.NO or process.ready:
            self.seen["a late hello"] += 1
            assert self.core.ready(slot, self.now) == []
            return
        process.ready = True
        self.seen["ready"] += 1
        self.feed(self.core.ready(slot, self.now))

    def outcome(
        self, slot: int, *, count: int = 1, again: bool = False, heavy: bool = False
    ) -> None:
        """Let a worker answer *count* jobs.

        *again* if they are to be retried, *heavy* if the answer must be loaded first.
        """
        process, errands = self.processes[slot], {*self.errands}
        assert process.told is Ending.NO
        jobs: list[int] = []
        while len(jobs) < count and process.begin():
            # Any of those that run may be the next one that ends.
            jobs.append(process.running.pop(len(jobs) * 3 % len(process.running)))
        for job in jobs:
            self.core.outcome(slot, job)
            del process.hand[job]
            self.errands.pop(job, None)
            self._forgive(process, job, "an outcome")
        if self._cost(process) <= REFILL:
            process.line = False
        self.feed(self.core.refill(slot, self.now))
        for job in jobs:
            if job not in self.open:
                continue  # its caller has left
            if heavy:
                self.landing.append(job)
                self.core.landing(job)
                continue
            if not again or job in errands:
                self._end(job, "completed")
                continue
            self._again(job)

    def _forgive(self, process: Process, job: int, what: str) -> None:
        """Take note that a job has left, of which the worker may have had to die."""
        process.stalled.discard(job)
        if job in process.asked_to_end:
            self.seen[f"{what} of a job that was asked to end"] += 1
            self.seen["hung no more"] += process.silent == job
            del process.asked_to_end[job]
        if job in process.unwanted:
            self.seen[f"{what} that nobody wanted"] += 1
            del process.unwanted[job]
        process.doomed.pop(job, None)
        process.hopeless.discard(job)
        if job == process.silent:
            process.hung, process.silent = False, None

    def land(self, job: int, *, again: bool = False) -> None:
        """Let an answer be loaded."""
        self.landing.remove(job)
        self.seen["landed"] += 1
        self.seen["landed while the pool closes"] += self.closing is not None
        if again:
            self._again(job)
        else:
            self._end(job, "completed")
        self.feed(self.core.landed(job, self.now))

    def _again(self, job: int) -> None:
        self.seen["an answer to retry after"] += 1
        self._put_back([job])
        self.feed(self.core.give_back({job: self.profiles[job]}, self.now))

    def answer(self, slot: int) -> None:
        """Let a worker answer what it was asked."""
        self.processes[slot].answer()

    def hear(self, slot: int) -> None:
        """Let the pool hear such an answer."""
        process = self.processes[slot]
        won = process.answers.popleft()
        back = [job for job, place in process.hand.items() if place in won]
        for job in back:
            del process.hand[job]
        self.seen["a revoked job" if won else "a revoke in vain"] += 1
        for job in back:
            self._forgive(process, job, "a job given back")
        answered = process.pending.popleft()
        for job in process.running:
            if job in process.unwanted and process.hand.get(job) in answered:
                self._make_end(process, job, process.unwanted[job])
        commands = self.core.revoked(slot, won, self.now)
        left = [c.jobs for c in commands if isinstance(c, cmd.Unassign)]
        assert left == [tuple(back)] * bool(back), "each is with no worker any more"
        self.feed(commands)
        # What was wanted is somewhere now.
        placed = {job for p in self.processes.values() for job in p.hand}
        assert self.open == placed.difference(
            *(p.unwanted for p in self.processes.values())
        ) | {*self.waiting, *self.landing, *self.waiting_errands}

    def expire(self, slot: int, press: Press, job: int) -> None:
        """Let the time of a job be over that a worker runs."""
        process = self.processes[slot]
        if press.how == "kill" or press.grace < STACK_GRACE:
            self._make_end(process, job, Press("kill", STACK_GRACE))
        else:
            self._make_end(process, job, Press("interrupt", press.grace))
        commands = self.core.expire(job, self.now, index=slot, press=press)
        assert cmd.WriteStacks(slot, job) in commands or process.told is not Ending.NO
        self.feed(commands)

    def write(self, slot: int) -> None:
        """Let a worker have said where it is."""
        process = self.processes[slot]
        process.writes = False
        hopeless = [job for job in process.asked_to_end if job in process.hopeless]
        if process.told is Ending.NO:
            for job in hopeless:
                self._doom(process, job)
                self.seen["killed when it had said where it was"] += 1
        if process.dies_at is not None:
            process.dies_at = self.now
        self.feed(self.core.stacks_written(slot, self.now))

    def hang(self, slot: int, job: int | None = None) -> None:
        """Let it be noticed that a worker is silent, or a job that it runs."""
        process = self.processes[slot]
        able = process.ready and process.told is Ending.NO
        if not able or process.hung or process.doomed:
            assert self.core.hang(slot, self.now, job) == []
            return
        due = self.now + STACK_GRACE
        silent = next(iter(process.hand), None) if job is None else job
        process.hung, process.silent = True, silent
        self.seen["hung" if silent else "hung without a job"] += 1
        if silent is None:
            process.dies_at = due
        else:
            process.hopeless.add(silent)
            if silent in process.asked_to_end:
                self.seen["hung while it was to end"] += 1
            until = process.asked_to_end.get(silent, due)
            process.asked_to_end[silent] = min(until, due)
            process.stalled.add(silent)
        commands = self.core.hang(slot, self.now, job)
        assert cmd.WriteStacks(slot, silent) in commands
        self.feed(commands)

    # Planned exits.

    def wear_out(self, slot: int) -> None:
        self.feed(self.core.rotation.wear_out(self.core.slots[slot], "worn", self.now))

    def retire(self, slot: int) -> None:
        process = self.processes[slot]
        unsent, process.loading = process.loading, None
        if not process.ready or process.told:
            unsent, process.loading = None, unsent
        rotation, core = self.core.rotation, self.core.slots[slot]
        self.feed(rotation.retire(core, "asked", self.now, unsent=unsent))
        assert process.leaving or not process.ready or process.told, "it goes at once"
        if unsent is not None:
            self.seen["retired before it was sent a job"] += 1
            del process.hand[unsent]
            self._forgive(process, unsent, "a job withdrawn")
            self.feed(self.core.withdraw(slot, unsent, self.now))
            profile = self.profiles[unsent]
            self.feed(self.core.give_back({unsent: profile}, self.now))

    def roll(self) -> None:
        self.seen["roll"] += 1
        self.rolling = True
        self.feed(self.core.rotation.roll(self.now))

    def resize(self, least: int, most: int) -> None:
        self.seen["resize"] += 1
        self.feed(self.core.rotation.resize(least, most, self.now))
        assert least <= self.workers <= most

    def oversized(self, slot: int) -> None:
        process = self.processes[slot]
        if process.ready and process.told is Ending.NO:
            process.oversized = True
        self.feed(self.core.rotation.oversized(self.core.slots[slot], "", self.now))

    def _make_end(self, process: Process, job: int, press: Press) -> None:
        """Expect a job to end by itself for a while, or its worker to die of it."""
        if process.told is not Ending.NO or press.how == "wait":
            return
        if job in process.asked_to_end:
            return
        if job == process.silent:
            process.hung, process.silent = False, None
        if press.grace:
            process.asked_to_end[job] = self.now + press.grace
            process.doomed.pop(job, None)
            process.stalled.add(job)
            if press.how == "kill":
                process.hopeless.add(job)
            self.interrupts += press.how == "interrupt"
        else:
            self._doom(process, job)

    def _doom(self, process: Process, job: int) -> None:
        process.doomed.setdefault(job, self.now)
        process.asked_to_end.pop(job, None)

    def look_for_stalls(self) -> None:
        first = {p.slot: p.first() for p in self.processes.values()}
        for command in self.core.look_for_stalls():
            assert isinstance(command, cmd.Revoke)
            process = self.processes[command.slot]
            assert len(process.hand) > self.width
            assert command.places == tuple(process.hand.values())[self.width :]
            process.stalled.update(first[command.slot])
            self.seen["a stall"] += 1
            self.feed([command])

    def die(  # noqa: PLR0915 - a story
        self, slot: int, *, requeue: bool = False, roll: float = 0.5
    ) -> None:
        """End a process; *requeue* if its death is one to retry after."""
        process = self.processes.pop(slot)
        wanted = [job for job in process.hand if job not in process.unwanted]
        started = any(job in wanted for job in process.running)
        self.seen["died beside others"] += len(process.running) > 1
        waits = next((job for job in process.first() if job not in process.running), 0)
        back = []
        for job in wanted:
            touched = job in process.running or (job == waits and not process.excused)
            if job == process.loading:
                self.seen["requeued before it was sent"] += 1
                back.append(job)
            elif touched and not requeue:
                self._end(job, "lost")
            else:
                self.seen["requeued" if touched else "untouched by a death"] += 1
                back.append(job)
        self._put_back(back)
        self.seen[f"died {process.state}, told {process.told.name.lower()}"] += 1
        ledger = copy.deepcopy(self.core._lives.ledger)
        broken = self.broken
        commands = self.core.ended(
            slot, self.now, started=started, requeue=back, roll=roll
        )
        verdicts = [
            command
            for command in commands
            if isinstance(
                command,
                cmd.ScheduleRestart | cmd.ParkSlot | cmd.LeaveEmpty | cmd.Keep,
            )
        ]
        self.feed(commands)
        if process.excused:
            assert self.core._lives.ledger == ledger, "a planned exit was counted"
            assert all(isinstance(verdict, cmd.LeaveEmpty) for verdict in verdicts)
            verdicts = [verdict for verdict in verdicts if verdict.slot == slot]
            if self.closing is None and not broken:
                assert slot in self.processes or verdicts, "replaced at once"
        elif self.closing is None:
            assert [verdict.slot for verdict in verdicts] == [slot]
            if started and not self.policy.count_blamed and not broken:
                assert self.core._lives.ledger._window == ledger._window
                assert isinstance(verdicts[0], cmd.ScheduleRestart | cmd.LeaveEmpty)
            if isinstance(verdicts[0], cmd.Keep):
                assert self.core._lives.ledger == ledger, "it cannot break the pool"

    def fault(self, slot: int) -> None:
        """Let an uncaught exception end one of a worker's other threads."""
        self.processes[slot].faulty = True
        self.seen["a fault"] += 1
        self.feed(self.core.faulty(slot, self.now))

    def cancel(self, job: int, press: Press = KILL) -> None:
        self._end(job, "cancelled")
        if job in self.waiting:
            self._unqueue(job)
            self.feed(self.core.drop(job, self.now))
            return
        if job in self.landing:
            self.landing.remove(job)
            self.feed(self.core.landed(job, self.now))
            return
        if not any(job in p.hand for p in self.processes.values()):
            self.feed(self.core.drop(job, self.now))
            return
        (process,) = (p for p in self.processes.values() if job in p.hand)
        if job == process.loading:
            self._withdraw(process)
            return
        process.unwanted[job] = press
        begun = job in process.running
        if begun:
            self._make_end(process, job, press)
        commands = self.core.cancel(
            job, self.now, index=process.slot, begun=begun, press=press
        )
        self.feed(commands)
        if begun and press is KILL and job in process.doomed:
            alone = len(process.hand) <= self.width
            asked = process.questions or process.answers
            assert process.told or asked, "a job runs on that nobody wants"
            assert process.told is Ending.KILLED or not alone

    def _withdraw(self, process: Process) -> None:
        """Give up a job of which its worker has never heard."""
        job, process.loading = process.loading, None
        assert job is not None
        del process.hand[job]
        self._forgive(process, job, "a job withdrawn")
        commands = self.core.withdraw(process.slot, job, self.now)
        assert commands[0] == cmd.Unassign((job,))
        news = [type(command) for command in commands]
        assert cmd.Revoke not in news, "there is nothing to ask for"
        assert cmd.Kill not in news or process.faulty, "the worker has done nothing"
        self.seen["withdrawn"] += 1
        self.seen["withdrawn, and another one sent"] += cmd.Assign in news
        self.feed(commands)

    def close(self, finish: Finish, timeout: float) -> None:
        self.seen["close again" if self.closing is not None else "close"] += 1
        self.closing = max(finish, self.closing or Finish.ALL)
        self.close_at = min(self.close_at, self.now + timeout)
        self.feed(self.core.close(finish, self.now + timeout, self.now))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(20_000):
            self.bury_the_abandoned()
            deadline = self.core.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.seen["a timer"] += 1
            self._notice_who_has_not_ended()
            commands = self.core.on_timer(self.now)
            assert commands or self.core.next_deadline() != deadline, "a busy loop"
            self.feed(commands)
        else:
            raise AssertionError("timers without end")
        self.now = end

    def _notice_who_has_not_ended(self) -> None:
        for process in self.processes.values():
            for job, until in [*process.asked_to_end.items()]:
                if until <= self.now and process.told is Ending.NO:
                    self._doom(process, job)

    def bury_the_abandoned(self) -> None:
        for process in list(self.processes.values()):
            if process.abandoned:
                self.die(process.slot)

    # What there is.

    def free(self) -> list[int]:
        """Return the slots whose workers have nothing to do and could run a job now."""
        return [n for n in self.slots("idle") if not self.processes[n].hung]

    def spacious(self) -> list[int]:
        """Return the slots whose workers could run a job beside others now."""
        found = [self.processes[slot] for slot in self.slots("busy")]
        found = [process for process in found if self._able(process)]
        return [
            process.slot
            for process in found
            if self._lanes_free(process)
            if not self.errands_before(process.slot)
            if not any(job in self.errands for job in process.hand)
        ]

    def lanes(self) -> int:
        """Return how many jobs could begin now."""
        beside = [self.width - len(self.processes[n].hand) for n in self.spacious()]
        return len(self.free()) * self.width + sum(beside)

    def slots(self, *states: str, told: bool | None = False) -> list[int]:
        """Return the slots whose processes are in one of *states*."""
        return sorted(
            process.slot
            for process in self.processes.values()
            if process.state in states
            and (told is None or (process.told is not Ending.NO) is told)
        )

    @property
    def waiting(self) -> list[int]:
        """The jobs that have no worker, those included that cannot be sent yet."""
        return [*self.queue, *self.keyed, *self.announced]

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
            p.slot for p in self.processes.values() if p.answers and p.told is Ending.NO
        ]

    @property
    def time_is_over(self) -> bool:
        return self.now >= self.close_at

    def _cost(self, process: Process) -> float:
        return sum(
            UNKNOWN if job in process.stalled else self._share(job)
            for job in process.hand
        )

    def _share(self, job: int) -> float:
        cost = self.profiles[job].cost
        return cost if self.width == 1 else max(LEAST, cost / self.width)

    def _lanes_free(self, process: Process) -> bool:
        return len(process.hand) < self.width and process.loading is None

    def _able(self, process: Process) -> bool:
        able = process.ready and not process.told and not process.faulty
        return able and not (process.doomed or process.asked_to_end or process.leaving)

    def _has_room(self, process: Process) -> bool:
        if process.loading is not None:
            return False
        if any(job in self.errands for job in process.hand):
            return False
        return self._able(process) and self._cost(process) <= REFILL

    # What is to be done about it.

    def feed(self, commands: list[cmd.Command]) -> None:
        self.seats_after = {
            slot.place: slot.index for slot in self.core.slots if slot.place is not None
        }
        for command in commands:
            assert not self.finished, "a command after Finished"
            self.seen[type(command).__name__] += 1
            self._carry_out(command)
        self._look_at_places()

    def _carry_out(self, command: cmd.Command) -> None:  # noqa: C901, PLR0912, PLR0915 - a table
        match command:
            case cmd.Spawn(slot, generation):
                self._spawn(slot, generation)
            case cmd.Assign(slot, jobs):
                assert jobs
                for job in jobs:
                    if job in self.errands:
                        assert self.errands_before(slot)[0] == job
                        assert not self.processes[slot].hand
                        self.seen["an errand that begins"] += 1
                        self._begin(slot, job)
                        continue
                    if job in self.keys:
                        self._leave_line(slot, job)
                        continue
                    first = min(self.queue.came, default=job)
                    assert self.queue.pop() == job, "jobs begin in their order"
                    self.seen["a job that overtakes others"] += job > first
                    self._begin(slot, job)
            case cmd.Unassign(jobs):
                assert not any(
                    job in p.hand for p in self.processes.values() for job in jobs
                )
                self._put_back([job for job in jobs if job in self.open])
            case cmd.DropErrands(jobs):
                for job in jobs:
                    if job in self.given_back:
                        self.given_back.remove(job)
                        self.seen["an errand that came back"] += 1
                    else:
                        process = self.processes.get(self.errands[job])
                        assert process is None or process.leaving or process.told
                    self._end(job, "an errand that nobody runs")
            case cmd.Revoke(slot, places):
                assert places
                self.processes[slot].questions.append(places)
                self.processes[slot].pending.append(places)
            case cmd.Interrupt(slot, place):
                process = self.processes[slot]
                assert place in [process.hand[job] for job in process.asked_to_end]
                self.interrupts -= 1
            case cmd.WriteStacks(slot, written):
                process = self.processes[slot]
                assert written in process.asked_to_end or process.hung
                process.writes = True
            case cmd.Stop(slot):
                self._press(self.processes[slot], Ending.STOPPED)
            case cmd.Terminate(slot):
                self._press(self.processes[slot], Ending.TERMINATED)
            case cmd.Kill(slot):
                self._press(self.processes[slot], Ending.KILLED)
            case cmd.Abandon(slot):
                self._abandon(self.processes[slot])
            case cmd.FailJobs(jobs, why):
                self._fail(jobs, why)
            case cmd.ScheduleRestart(slot, delay):
                assert slot not in self.processes
                assert 0 <= delay <= self.policy.cap
                self.not_before[slot] = self.now + delay
            case cmd.ParkSlot(slot, _, probe_in):
                self._park(slot, probe_in)
            case cmd.LeaveEmpty(slot) | cmd.Keep(slot, _):
                assert slot not in self.processes
                self.parked.discard(slot)
                self.not_before.pop(slot, None)
            case cmd.Retiring(slot, why):
                self._leave(self.processes[slot], why)
            case cmd.Resized(workers):
                self.workers = workers
            case cmd.Rolled(_, trouble):
                assert self.rolling
                self.rolling = False
                self.seen["a roll in vain" if trouble else "a complete roll"] += 1
            case cmd.GiveUp():
                assert not self.broken
                self.broken = True
                self._postpone_the_probe()
            case cmd.Recover(slot):
                self._recover(slot)
            case cmd.Finished():
                self._finish()

    def _leave(self, process: Process, why: str) -> None:
        assert not process.leaving
        assert process.told is Ending.NO
        self.seen[f"left: {why}"] += 1
        self.seen["left a job behind"] += bool(process.hand)
        process.leaving = True
        process.leave_by = self.now + self.drain_timeout

    def _begin(self, slot: int, job: int) -> None:
        process = self.processes[slot]
        assert process.ready
        assert not process.leaving
        assert process.told is Ending.NO, "a job for a worker that must go"
        assert not process.faulty
        assert not process.doomed
        assert not process.asked_to_end, "a job behind one that is to end"
        assert process.loading is None, "a job behind one that is not sent"
        others = [errand for errand in self.errands_before(slot) if errand != job]
        assert job in self.errands or not others, "a job before an errand"
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

    def _spawn(self, slot: int, generation: int) -> None:
        assert slot not in self.processes, "two processes in one slot"
        assert generation == self.generations[slot] + 1
        assert self.now >= self.not_before[slot], "before the delay was over"
        assert self.now <= self.close_at
        if self.closing is not None:
            assert self.waiting or self.landing, "a worker that no job needs"
        if self.broken:
            self.seen["a probe of a broken pool"] += 1
            probes = [
                process
                for process in self.processes.values()
                if not process.excused and not (process.faulty and process.told)
            ]
            assert all(p.state == "busy" for p in probes), "one probe at a time"
            self._postpone_the_probe()
        staying = sum(not p.leaving for p in self.processes.values())
        # Somebody must find out about a broken pool, too, while its last ones are busy.
        budget = self.workers + self.surge + self.broken
        assert self.closing or staying < budget, "over the budget"
        self.generations[slot] = generation
        self.processes[slot] = Process(slot, self.now, width=self.width)

    def _press(self, process: Process, how: Ending) -> None:
        """Check that a process is pressed to end for a reason and step by step."""
        told, told_at = process.told, process.told_at
        assert told < how, "a step back, or the same one twice"
        # Or it is killed for a job, in the moment before the timer.
        over = self.time_is_over and not self.core.in_hand(process.slot)
        if self.closing is Finish.NONE or (over and how is Ending.KILLED):
            assert process.unwanted.keys() >= process.hand.keys(), "a job was forgotten"
            process.hand.clear()
            process.loading = None
        if how is Ending.STOPPED:
            assert not process.hand
            assert self.closing is not None or self.broken or process.leaving
            process.excused = True
        elif how is Ending.TERMINATED:
            assert not process.hand, "its jobs were not settled first"
            early = self.closing is not None or process.leaving
            assert early or told is Ending.STOPPED
            assert told is Ending.NO or self.now >= told_at + STOP_GRACE
            process.excused = True
        elif told is not Ending.TERMINATED or self.now < told_at + TERM_GRACE:
            self._shoot(process)
        process.told, process.told_at = how, self.now

    def _shoot(self, process: Process) -> None:
        """Check that there is a reason for a SIGKILL out of turn."""
        if process.faulty and (process.told or not process.hand):
            return
        if process.oversized:
            self.seen["killed for its size"] += 1
            return
        if self.time_is_over and not process.hand:
            # Two reasons may coincide.
            hung = process.dies_at is not None and self.now >= process.dies_at
            process.excused = not hung or self.core.slots[process.slot].planned
            return
        if process.doomed:
            late = self.now >= min(process.doomed.values()) + REVOKE_GRACE
            alone = len(process.hand) <= self.width
            assert alone or late, "others might begin meanwhile"
            self.seen["killed beside others"] += len(process.hand) > 1
            self.seen["killed for a job, late" if late else "killed for a job"] += 1
            self.seen["killed since it hung"] += process.hung
            process.excused = not process.hung
            return
        if process.dies_at is not None:
            assert self.now >= process.dies_at, "it was to say where it is"
            return
        if process.leaving and process.hand:
            assert self.now >= process.leave_by, "it has time to finish its job"
            self.seen["killed since it would not leave"] += 1
            return
        assert process.state == "starting", "killed for nothing"
        assert self.now >= process.born_at + START_TIMEOUT

    def _abandon(self, process: Process) -> None:
        assert process.told is Ending.KILLED
        assert self.now >= process.told_at + KILL_GRACE
        assert not process.abandoned
        process.abandoned = True

    def _finish(self) -> None:
        assert self.closing is not None
        assert not self.processes, "a process outlives the pool"
        assert not self.open, "a job outlives the pool"
        self.finished = True

    def _fail(self, jobs: tuple[int, ...], why: str) -> None:
        assert jobs
        assert self.broken if why == "broken" else self.closing is not None
        for job in jobs:
            if job in self.waiting_errands or job in self.given_back:
                self.given_back.discard(job)
                self._end(job, why)
                continue
            self._end(job, why)
            if job in self.waiting:
                self._unqueue(job)
                assert why == "broken" or self.closing or self.time_is_over
            else:
                assert self.closing is Finish.NONE or self.time_is_over
                if job in self.landing:
                    self.landing.remove(job)
                    self.seen["closed while it landed"] += 1
                for process in self.processes.values():
                    if process.hand.pop(job, None) and process.loading == job:
                        process.loading = None
                        self.seen["closed before it was sent"] += 1

    def _end(self, job: int, how: str) -> None:
        self.open.remove(job)  # a KeyError means that it has ended twice
        self.seen[how] += 1

    def _park(self, slot: int, probe_in: float | None) -> None:
        assert slot not in self.processes
        assert probe_in == self.policy.probe_after
        self.parked.add(slot)
        if not self.broken:  # then it probes as one
            self.not_before[slot] = self.now + (probe_in or math.inf)

    def _postpone_the_probe(self) -> None:
        probe_at = self.now + (self.policy.probe_after or math.inf)
        self.not_before = defaultdict(lambda: probe_at)

    def _recover(self, slot: int) -> None:
        assert self.processes[slot].state == "idle"
        if self.broken:
            self.seen["a broken pool recovered"] += 1
            self.broken = False
            self.parked.clear()
            self.not_before.clear()
            self.not_before.default_factory = float
        else:
            assert slot in self.parked
            self.parked.remove(slot)
