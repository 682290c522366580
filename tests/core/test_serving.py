"""The supervision of workers that serve, and have no jobs.

A cluster's workers are idle to the core, for ever; what else can happen to them is here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.models import run_until_seen
from tests.core.pool_core import (
    BURST,
    Core,
    Finish,
    RestartPolicy,
    StopStage,
    WorkerLimits,
    cmd,
)

GRACE = 6.0
START_TIMEOUT = 20.0
POLICY = RestartPolicy(initial_delay=1.0)

# So long they have worked, where that is to make no difference.
SERVED = 1.0


def core_of(workers: int, *, max_surge: int = 1, max_jobs: int | None = None) -> Core:
    return Core(
        workers,
        policy=POLICY,
        start_timeout=START_TIMEOUT,
        limits=WorkerLimits(max_jobs=max_jobs),
        max_surge=max_surge,
        stop_grace=GRACE,
        serving=True,
    )


def serving(workers: int, **options: int) -> Core:
    """Return a core whose workers are ready since 0."""
    core = core_of(workers, **options)
    core.start(0.0)
    for index in range(workers):
        core.ready(index, 0.0)
    return core


def end(
    core: Core, index: int, now: float, *, started: bool = False
) -> list[cmd.Command]:
    return core.ended(index, now, had_begun=started, requeue=(), jitter=0.0)


def test_while_too_many_have_failed_the_next_is_replaced_when_it_is_gone() -> None:
    core = serving(1)
    now = 0.0
    for index in (0, 1):
        now += SERVED
        assert cmd.Spawn(index + 1, 1) in core.fault(index, now)
        core.ready(index + 1, now)
    assert core.fault(2, now + SERVED) == [cmd.Stop(2)]
    assert end(core, 2, now + 3.0) == [cmd.TellRestart(2, 0.0), cmd.Spawn(2, 2)]


def test_one_that_is_replaced_has_another_time_than_at_the_end_of_all() -> None:
    core = Core(
        2,
        policy=POLICY,
        start_timeout=START_TIMEOUT,
        stop_grace=GRACE,
        end_grace=100.0,
        serving=True,
    )
    core.start(0.0)
    for index in range(2):
        core.ready(index, 0.0)
    core.retire(0, "retire()", 5.0)
    core.close(Finish.ALL, 1_000.0, 6.0)
    assert [slot.due for slot in core.slots[:2]] == [5.0 + GRACE, 6.0 + 100.0]


def test_connections_wear() -> None:
    core = serving(1, max_jobs=3)
    limit = core.slots[0].recycle_limits.jobs
    assert core.served(0, int(limit) - 1, 1.0) == []
    assert core.served(0, int(limit), 1.0) == [cmd.Spawn(1, 1)]
    assert core.served(0, int(limit) + 1, 1.0) == []
    assert cmd.Stop(0) in core.ready(1, 2.0)


def test_a_try_that_is_not_needed_any_more_is_followed_by_another() -> None:
    core = Core(
        3,
        policy=RestartPolicy(initial_delay=8.0, max_failed_starts=1),
        start_timeout=START_TIMEOUT,
        serving=True,
    )
    core.start(0.0)
    for index in range(3):
        end(core, index, 0.5)
    assert core.broken == "the start failed"
    assert core.on_timer(8.5) == [cmd.Spawn(0, 2)]
    core.resize(1, 1, 11.0)
    assert end(core, 0, 12.0) == [cmd.LeaveEmpty(0)]
    assert core.next_deadline() == 12.0 + 16.0
    [again] = core.on_timer(28.0)
    assert isinstance(again, cmd.Spawn)


# In any order.


@dataclass
class _Worker:
    generation: int
    ready_at: float | None = None
    told: StopStage = StopStage.NO
    told_at: float = 0.0
    failed: bool = False


class ServingMachine(RuleBasedStateMachine):
    """Let happen what can happen to a cluster, in any order."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.size = 3
        self.core = core_of(self.size)
        self.workers: dict[int, _Worker] = {}
        self.closing = self.finished = self.rolling = False
        self.old: set[tuple[int, int]] = set()
        self.feed(self.core.start(self.now))

    def feed(self, commands: list[cmd.Command]) -> list[cmd.Command]:
        for command in commands:
            match command:
                case cmd.Spawn(slot, generation):
                    assert slot not in self.workers
                    self.workers[slot] = _Worker(generation)
                case cmd.Stop(slot):
                    self.press(slot, StopStage.ASKED)
                case cmd.Terminate(slot):
                    self.press(slot, StopStage.TERMINATED)
                case cmd.Kill(slot):
                    self.press(slot, StopStage.KILLED)
                case cmd.RollEnded(_, trouble):
                    self.rolling = False
                    if not trouble:
                        self.seen["rolled"] += 1
                        there = {(s, w.generation) for s, w in self.workers.items()}
                        assert not (self.old & there)
                case cmd.Finished():
                    assert not self.workers
                    self.finished = True
                case cmd.Assign() | cmd.Unassign() | cmd.FailJobs():
                    raise AssertionError("there are no jobs")
                case _:
                    pass
        return commands

    def press(self, slot: int, how: StopStage) -> None:
        worker = self.workers[slot]
        if how is StopStage.TERMINATED and worker.told is StopStage.ASKED:
            assert self.now >= worker.told_at + GRACE
        if how is StopStage.KILLED:
            late = worker.told is StopStage.TERMINATED
            never_ready = worker.ready_at is None
            assert late or never_ready or self.closing
        worker.told, worker.told_at = how, self.now

    def pick(self, data: st.DataObject, *, ready: bool = True) -> int | None:
        found = [
            slot
            for slot, worker in self.workers.items()
            if worker.told is StopStage.NO and (worker.ready_at is not None) is ready
        ]
        return data.draw(st.sampled_from(sorted(found))) if found else None

    @rule(data=st.data())
    def one_is_ready(self, data: st.DataObject) -> None:
        slot = self.pick(data, ready=False)
        if slot is not None:
            self.workers[slot].ready_at = self.now
            self.feed(self.core.ready(slot, self.now))

    @rule()
    def all_are_ready(self) -> None:
        for slot, worker in list(self.workers.items()):
            if worker.ready_at is None and worker.told is StopStage.NO:
                worker.ready_at = self.now
                self.feed(self.core.ready(slot, self.now))

    @rule(data=st.data(), serves=st.booleans())
    def one_crashes(self, data: st.DataObject, *, serves: bool) -> None:
        if self.workers:
            slot = data.draw(st.sampled_from(sorted(self.workers)))
            self.bury(slot, serves=serves)

    def bury(self, slot: int, *, serves: bool = False) -> None:
        self.now += 0.001  # nothing begins in the moment in which something ends
        worker = self.workers.pop(slot)
        serves = serves and worker.ready_at is not None and not worker.failed
        expected = worker.told is not StopStage.NO and not worker.failed
        if worker.ready_at is not None and not self.closing:
            assert self.core.slots[slot].exit_planned is expected
        commands = self.feed(end(self.core, slot, self.now, started=serves))
        if worker.ready_at is None and (slot, worker.generation) in self.old:
            troubles = [it.reason for it in commands if isinstance(it, cmd.RollEnded)]
            assert not any("start" in trouble for trouble in troubles)

    @rule()
    def who_is_told_ends(self) -> None:
        for slot, worker in list(self.workers.items()):
            if worker.told is not StopStage.NO:
                self.bury(slot)

    @rule(data=st.data())
    def one_fails(self, data: st.DataObject) -> None:
        slot = self.pick(data)
        if slot is None:
            return
        worker, failing = self.workers[slot], self.failing()
        assert worker.ready_at is not None
        alone = all(other.replaces != slot for other in self.core.slots)
        missed = alone and self.core.needs(slot)
        worker.failed = True
        commands = self.feed(self.core.fault(slot, self.now))
        assert cmd.Stop(slot) in commands
        assert not self.core.slots[slot].exit_planned
        came = any(isinstance(command, cmd.Spawn) for command in commands)
        if missed and failing <= self.size:
            waits = any(isinstance(it, cmd.TellRestart) for it in commands)
            assert came or waits
            self.seen["replaced at once"] += came
            self.seen["replaced at once, beside others"] += came and failing > 0
            self.seen["replaced later"] += waits

    def failing(self) -> int:
        return sum(slot.draining and slot.faulty for slot in self.core.slots)

    @rule(data=st.data())
    def all_fail(self, data: st.DataObject) -> None:
        for _ in range(self.size):
            self.one_fails(data)

    @rule(data=st.data(), whim=st.integers(0, 3))
    def they_fail_again_and_again(self, data: st.DataObject, whim: int) -> None:
        for _ in range(2 * BURST * self.size if whim == 0 else 0):
            self.all_are_ready()
            self.who_is_told_ends()
            self.one_fails(data)

    @rule(data=st.data())
    def one_fails_while_it_drains(self, data: st.DataObject) -> None:
        found = [s for s, it in self.workers.items() if it.told is StopStage.ASKED]
        if found:
            slot = data.draw(st.sampled_from(sorted(found)))
            if self.workers[slot].ready_at is not None:
                assert self.feed(self.core.fault(slot, self.now)) == []

    @rule(data=st.data())
    def one_fails_after_a_while_of_calm(self, data: st.DataObject) -> None:
        for _ in range(2):
            self.all_are_ready()
            self.who_is_told_ends()
        self.time_goes_by(SERVED)
        self.one_fails(data)

    @rule(data=st.data())
    def one_retires(self, data: st.DataObject) -> None:
        slot = self.pick(data)
        if slot is not None:
            core, now = self.core, self.now
            self.feed(core.retire(slot, "retire()", now))

    @precondition(lambda self: not self.closing and self.core.broken is None)
    @rule()
    def reload(self) -> None:
        if not self.core.lifecycle.rolling:
            self.rolling = True
            self.old = {
                (slot, worker.generation)
                for slot, worker in self.workers.items()
                if worker.told is StopStage.NO
            }
            self.feed(self.core.roll(self.now))

    @precondition(lambda self: not self.closing)
    @rule(size=st.integers(1, 5))
    def resize(self, size: int) -> None:
        self.size = size
        self.feed(self.core.resize(size, size, self.now))

    @rule(seconds=st.sampled_from([0.3, SERVED, GRACE, 25.0, 3_600.0]))
    def time_goes_by(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(1_000):
            due = self.core.next_deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.feed(self.core.on_timer(self.now))
            for slot, worker in list(self.workers.items()):
                if worker.told is StopStage.KILLED:
                    self.bury(slot)
        else:
            raise AssertionError("it is always time for something")
        self.now = until

    @rule(whim=st.integers(0, 9), seconds=st.sampled_from([0.0, 3.0, 60.0]))
    def close(self, whim: int, seconds: float) -> None:
        if whim == 0:
            self.closing = True
            core = self.core
            self.feed(core.close(Finish.ALL, self.now + seconds, self.now))

    @invariant()
    def there_are_never_too_many(self) -> None:
        # Who is to go since there was a resize may still be there.
        assert len(self.workers) <= 3 * (5 + 1)
        coming = [w for w in self.workers.values() if w.told is StopStage.NO]
        assert len(coming) <= max(self.size + 1, len(self.workers))
        up = [w for w in coming if w.ready_at is not None]
        if len(up) > self.size:
            assert self.rolling or len(self.workers) > self.size

    @invariant()
    def who_serves_is_left_alone(self) -> None:
        for slot, worker in self.workers.items():
            if worker.ready_at is not None and worker.told is StopStage.NO:
                assert self.core.slots[slot].due is None

    def teardown(self) -> None:
        if not self.closing:
            self.get_well()
        self.closing = True
        self.feed(self.core.close(Finish.ALL, self.now + 60.0, self.now))
        for _ in range(50):
            self.all_are_ready()
            self.who_is_told_ends()
            self.time_goes_by(GRACE)
        assert self.finished
        assert not self.workers

    def get_well(self) -> None:
        """With workers that work, there are soon as many as there should be."""
        for _ in range(150):
            self.all_are_ready()
            self.who_is_told_ends()
            self.time_goes_by(START_TIMEOUT / 2)
        up = [w for w in self.workers.values() if w.ready_at is not None]
        assert len(up) == len(self.workers) == self.size
        assert not self.core.lifecycle.rolling
        assert self.core.broken is None


def test_the_model_does_what_it_is_for() -> None:
    wanted = {"rolled", "replaced at once", "replaced later"}
    run_until_seen(ServingMachine, wanted | {"replaced at once, beside others"})
