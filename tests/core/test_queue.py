"""Who is next in the queue, against a model made of lists."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.queue import OLDEST_EVERY, JobQueue
from tests.core.list_queue import PRIORITIES, ListQueue

PROFILE = JobTraits()
priorities = st.sampled_from([*PRIORITIES, -(10**12), 10**12])


class QueueMachine(RuleBasedStateMachine):
    """Do to a queue whatever can be done, and the same to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = 0
        self.traits: dict[int, JobTraits] = {}
        self.left: list[int] = []
        self.late: list[int] = []
        self.start_over(3)

    @rule(patience=st.sampled_from([2, 3, 5]))
    def start_over(self, patience: int) -> None:
        self.queue = JobQueue(patience)
        self.model = ListQueue(patience)

    def come(self, job: int, priority: int) -> None:
        self.traits[job] = JobTraits()
        self.queue.add(job, self.traits[job], priority)
        self.model.add(job, priority)

    @rule(priority=priorities, count=st.integers(1, 4))
    def add(self, priority: int, count: int) -> None:
        for _ in range(count):
            self.jobs += 1
            self.come(self.jobs, priority)

    @rule()
    def a_job_takes_a_while_to_come(self) -> None:
        self.jobs += 1
        self.late.append(self.jobs)

    @precondition(lambda self: self.late)
    @rule(priority=priorities)
    def it_comes(self, priority: int) -> None:
        self.come(self.late.pop(), priority)

    @rule(priority=priorities)
    def a_job_goes_at_once(self, priority: int) -> None:
        self.jobs += 1
        leads = self.queue.would_be_first(priority)
        assert leads == self.model.would_be_first(priority)
        if leads:
            self.queue.note_turn(self.jobs)
            self.model.pass_by(self.jobs)

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 6))
    def leave(self, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            job, traits = self.queue.head()
            assert traits is self.traits[job]
            assert job == self.model.pop()
            self.queue.pop(job)
            self.left.append(job)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.model)))
        self.model.remove(job)
        assert self.queue.remove(job) is True
        assert self.queue.remove(job) is False

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        jobs = data.draw(st.permutations(self.left[-3:]))
        del self.left[-3:]
        self.queue.requeue({job: self.traits[job] for job in jobs})
        self.model.give_back(jobs)

    @precondition(lambda self: len(self.model) > 5)
    @rule(whim=st.integers(0, 2))
    def clear(self, whim: int) -> None:
        if whim == 0:
            assert self.queue.take_all() == list(self.model)
            self.model.clear()
            assert self.queue.take_all() == []

    @invariant()
    def the_figures_agree(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.others == len(self.queue) - len(self.queue.usual)

    @invariant()
    def the_head_is_the_same(self) -> None:
        if self.model:
            job, traits = self.queue.head()
            assert job == self.model.head
            assert traits is self.traits[job]

    @invariant()
    def the_usual_line_is_in_its_order(self) -> None:
        usual = [job for job in self.model.came if not self.model.priorities[job]]
        assert list(self.queue.usual) == usual

    @invariant()
    def nothing_is_kept_in_vain(self) -> None:
        assert all(self.queue._lines.values())
        assert set(self.queue._lines) <= set(self.queue._priorities)


TestQueue = QueueMachine.TestCase


def queue_of(*jobs: tuple[int, int], patience: int = OLDEST_EVERY) -> JobQueue:
    queue = JobQueue(patience)
    for job, priority in jobs:
        queue.add(job, PROFILE, priority)
    return queue


def leave(queue: JobQueue, count: int | None = None) -> list[int]:
    jobs = []
    for _ in range(len(queue) if count is None else count):
        jobs.append(queue.head()[0])
        queue.pop(jobs[-1])
    return jobs


@given(
    patience=st.integers(2, 6),
    story=st.lists(st.one_of(st.integers(-3, 3), st.none()), max_size=200),
)
def test_nothing_starves(patience: int, story: list[int | None]) -> None:
    """An integer is a job of that priority, which comes; else one leaves."""
    queue, left = JobQueue(patience), 0
    at_the_latest: dict[int, int] = {}
    for job, priority in enumerate(story):
        if priority is not None:
            queue.add(job, PROFILE, priority)
            at_the_latest[job] = left + patience * len(queue)
        elif queue:
            [gone] = leave(queue, 1)
            left += 1
            assert left <= at_the_latest.pop(gone)
        assert all(left < turn for turn in at_the_latest.values())


def test_the_promise_of_the_docs() -> None:
    assert OLDEST_EVERY == 64


@pytest.mark.parametrize("spread", [1, 5, 10**9])
def test_priorities_that_nobody_has_any_more_are_forgotten(spread: int) -> None:
    # Those that do wait are in no order that a heap might have by chance.
    kept = [10**12 + job * 7 % 20 for job in range(20)]
    queue = queue_of((99, -1), *enumerate(kept))
    most = 0
    for job in range(100, 2_000):
        queue.add(job, PROFILE, 1 + job % spread)
        assert queue.remove(job)
        most = max(most, len(queue._priorities))
    assert most < 2 * 22 + 20
    assert leave(queue) == [99, *sorted(range(20), key=kept.__getitem__)]
    assert not queue._lines
