"""Who is next in the queue, against a model made of lists."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.queue import OLDEST_EVERY, JobQueue, QueuedJob
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


@pytest.mark.parametrize("patience", [2, 3, OLDEST_EVERY])
@pytest.mark.parametrize(("old", "new"), [(0, -1), (5, 0), (5, 4), (-1, -2)])
@pytest.mark.parametrize("older", [0, 1, 4])
def test_a_job_waits_for_others_as_long_as_it_must_and_no_longer(
    patience: int, old: int, new: int, older: int
) -> None:
    queue = queue_of(*((job, old) for job in range(older + 1)), patience=patience)
    numbers = itertools.count(older + 1)
    left: list[int] = []
    while older not in left:
        queue.add(next(numbers), PROFILE, new)
        left += leave(queue, 1)
    # Just as often as promised: once in so many times.
    turns = [turn for turn, job in enumerate(left, 1) if job <= older]
    assert turns == [patience * (m + 1) for m in range(older + 1)]
    urgent = [job for job in left if job > older]
    assert urgent == list(range(older + 1, len(left)))


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


def test_somebody_elses_patience_does_not_count() -> None:
    queue = queue_of((1, 0), (2, 0), patience=3)
    for job in (3, 4):
        queue.note_turn(job)
    assert queue.remove(1)
    assert queue.would_be_first(-1), "the next one has not waited for anybody"
    queue.note_turn(5)
    assert queue.would_be_first(-1)
    queue.note_turn(6)
    assert not queue.would_be_first(-1)


def test_an_older_one_that_comes_late_and_goes_does_not_reset_the_count() -> None:
    queue = queue_of((2, 0), patience=3)
    queue.note_turn(3)
    queue.add(1, PROFILE, -1)
    assert leave(queue, 1) == [1]
    queue.note_turn(4)
    assert not queue.would_be_first(-1)


def test_the_promise_of_the_docs() -> None:
    assert OLDEST_EVERY == 64


@pytest.mark.parametrize(
    ("jobs", "passed", "returned", "precedence"),
    [
        ([(5, 0), (4, 0)], 0, [], (2, 0, 5)),
        ([(5, 0), (6, 3)], 0, [], (2, 0, 5)),
        ([(5, 0), (6, -3), (7, -3)], 0, [], (2, -3, 6)),
        ([(6, 3), (5, 3), (7, 9)], 0, [], (2, 3, 6)),
        ([(5, 0), (6, -3)], 1, [], (2, -3, 6)),
        ([(5, 0), (6, -3)], 2, [], (1, 0, 5)),
        ([(5, 0), (6, -3)], 2, [9, 8], (0, 0, 9)),
        ([], 0, [9], (0, 0, 9)),
    ],
)
def test_the_rank_of_a_queue_is_that_of_its_head(
    jobs: list[tuple[int, int]],
    passed: int,
    returned: list[int],
    precedence: tuple[int, int, int],
) -> None:
    queue = queue_of(*jobs, patience=3)
    for job in range(100, 100 + passed):
        queue.note_turn(job)
    queue.requeue(dict.fromkeys(returned, PROFILE))
    assert queue.precedence() == precedence
    assert queue.head()[0] == precedence[-1]


def test_jobs_of_another_queue_pass_those_that_are_older_than_they_are() -> None:
    queue = queue_of((5, 0), patience=3)
    for job in (1, 2, 6):
        queue.note_turn_elsewhere(job)
    assert queue.would_be_first(-1), "only 6 has passed it"
    queue.note_turn_elsewhere(7)
    assert not queue.would_be_first(-1)


def test_a_queue_tells_how_often_its_oldest_was_passed_and_another_goes_on_there() -> (
    None
):
    here, there = JobQueue(4), JobQueue(4)
    for job in (0, 1, 2, 3):
        here.add(job, JobTraits(), 1)
    for job in (5, 6):
        here.note_turn(job)
    assert [entry.times_passed for entry in here.entries()] == [2, 0, 0, 0]
    there.add(0, JobTraits(), 1)
    there.restore(here.entry(0))
    assert there.would_be_first(0)
    there.note_turn(7)
    assert not there.would_be_first(0), "three have passed it"


def test_every_job_is_told_with_its_profile_and_its_priority() -> None:
    queue = JobQueue()
    traits = [JobTraits() for _ in range(4)]
    for job, priority in enumerate((3, 0, -3)):
        queue.add(job, traits[job], priority)
    queue.requeue({3: traits[3]})
    entries = [
        QueuedJob(job, traits[job], priority, 0)
        for job, priority in ((3, None), (1, 0), (0, 3), (2, -3))
    ]
    assert [*queue.entries()] == entries
    assert [queue.entry(entry.job) for entry in entries] == entries


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
