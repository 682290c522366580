"""Points in time, against a dictionary that is searched each time."""

from __future__ import annotations

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncpool._core.base.deadlines import Deadlines

TIMES = st.integers(0, 50).map(float)
JOBS = st.integers(0, 9)


class DeadlinesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.model: dict[int, float] = {}

    @rule(job=JOBS, when=TIMES)
    def set(self, job: int, when: float) -> None:
        self.deadlines.set(job, when)
        self.model[job] = when

    @rule(job=JOBS)
    def discard(self, job: int) -> None:
        self.deadlines.discard(job)
        self.model.pop(job, None)

    @rule(now=TIMES)
    def pop(self, now: float) -> None:
        due = self.deadlines.pop(now)
        assert sorted(due) == sorted(
            job for job, when in self.model.items() if when <= now
        )
        times = [self.model.pop(job) for job in due]
        assert times == sorted(times)

    @invariant()
    def both_agree(self) -> None:
        assert len(self.deadlines) == len(self.model)
        assert self.deadlines.next() == min(self.model.values(), default=None)
        for job in range(10):
            for by in (0.0, 25.0, 50.0):
                found = self.deadlines.is_set(job, by)
                assert found is (self.model.get(job, 51.0) <= by)


TestDeadlines = DeadlinesMachine.TestCase


def test_the_same_time_is_over_for_all_at_once_in_any_order() -> None:
    deadlines = Deadlines()
    for job in range(5):
        deadlines.set(job, 1.0)
    assert deadlines.pop(0.999) == []
    assert deadlines.pop(1.0) == [0, 1, 2, 3, 4]
    assert deadlines.next() is None


@given(st.lists(st.tuples(JOBS, TIMES), max_size=3))
def test_what_was_forgotten_takes_up_no_room(entries: list[tuple[int, float]]) -> None:
    deadlines = Deadlines()
    for job, when in entries:
        deadlines.set(job, when)
    for number in range(10_000):
        deadlines.set(100 + number, 1e6 + number)
        deadlines.discard(100 + number)
    assert len(deadlines._heap) < 100
    assert len(deadlines) == len({job for job, _ in entries})
