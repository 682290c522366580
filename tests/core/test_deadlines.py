"""Points in time, silence, and rates: what is due when, in virtual time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncpool._core.deadlines import (
    LATE,
    Deadlines,
    PingLedger,
    RateLimit,
    RecentCount,
)
from asyncpool._wire.profile import sampling_times
from asyncpool.errors import ProtocolError

# Deadlines, against a dictionary that is searched each time.


TIMES = st.integers(0, 50).map(float)
JOBS = st.integers(0, 9)


class DeadlinesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[int] = Deadlines()
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


@given(st.lists(st.tuples(JOBS, TIMES), max_size=3))
def test_what_was_forgotten_takes_up_no_room(entries: list[tuple[int, float]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for job, when in entries:
        deadlines.set(job, when)
    for number in range(10_000):
        deadlines.set(100 + number, 1e6 + number)
        deadlines.discard(100 + number)
    assert len(deadlines._heap) < 100
    assert len(deadlines) == len({job for job, _ in entries})


# Who is silent: found if it is, and never accused if it is not.


TIMEOUT = 8.0
TICK = TIMEOUT / 4
UP = {"one", "two"}


def ledger() -> PingLedger[str]:
    """Return a ledger at the time 0."""
    return PingLedger(TIMEOUT, 0.0)


def test_what_nobody_has_asked_for_is_an_offence() -> None:
    pings = ledger()
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            pings.answered("one")
        assert str(caught.value) == "it answered a ping that nobody has sent"
        pings.tick(UP, pings.due)
        pings.answered("one")


def test_whatever_else_it_says_gives_it_the_whole_time_again() -> None:
    pings = ledger()
    for number in range(1, 5):
        pings.tick(["one"], number * TICK)
    pings.heard("one", 2 * TICK)
    pings.heard("one", TICK)
    pings.heard("nobody", TICK)
    assert pings.tick(["one"], 5 * TICK) == ([], [])
    assert pings.tick(["one"], 6 * TICK) == (["one"], [])


def test_who_is_not_up_is_forgotten() -> None:
    pings = ledger()
    pings.tick(UP, TICK)
    assert pings.tick(["two"], 2 * TICK) == ([], [])
    assert pings.tick(UP, 3 * TICK) == ([], ["one"])
    late = [pings.tick(UP, number * TICK)[0] for number in range(4, 8)]
    assert late == [[], ["two"], [], ["one"]]


@pytest.mark.parametrize(("late", "silent"), [(LATE, True), (2 * LATE, False)])
def test_a_gap_counts_for_nobody(late: float, silent: bool) -> None:  # noqa: FBT001
    pings = ledger()
    for lateness in (0.0, 0.0, late, 0.0):
        pings.tick(["one"], pings.due + lateness)
    # The ping is as old as the timeout, and older by that with the lateness.
    assert bool(pings.suspects(pings.due - 0.1)) is silent
    assert pings.tick(["one"], pings.due + 1024.0) == (["one"], [])


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 100.0),  # how late the tick is
            st.booleans(),  # whether the worker answers before the next one
        ),
        max_size=60,
    )
)
def test_silence_is_found_and_nothing_else(story: list[tuple[float, bool]]) -> None:
    pings, now = ledger(), 0.0
    unanswered = 0.0  # for how long, gaps not counted
    asked = False
    for late, answers in story:
        before, now = now, pings.due + late
        gap = late if late > LATE else 0.0
        if asked:
            unanswered += now - before - gap
        silent, pinged = pings.tick(["one"], now)
        if unanswered > TIMEOUT + 1e-6:
            assert silent == ["one"]
        if unanswered < TIMEOUT - 1e-6:
            assert silent == []
        if silent:
            asked, unanswered = False, 0.0
            continue
        assert pinged == ([] if asked else ["one"])
        asked = True
        if answers:
            pings.answered("one")
            asked, unanswered = False, 0.0


# A count that fades.


def test_what_happened_fades() -> None:
    recent = RecentCount(0.1)
    for _ in range(100):
        recent.add()
    assert [recent.at(10.0 + at / 10) for at in range(6)] == [100, 36, 13, 4, 1, 0]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), max_size=50))
def test_it_has_what_is_new_and_no_more_than_there_was(
    turns: list[tuple[float, int]],
) -> None:
    recent, now, all_of_them = RecentCount(0.1), 0.0, 0
    for seconds, count in turns:
        now, all_of_them = now + seconds, all_of_them + count
        for _ in range(count):
            recent.add()
        assert count <= recent.at(now) <= all_of_them


# A bucket of tokens: what passes, and what is counted.


rates = st.floats(1, 1e5)
pauses = st.lists(st.floats(0, 5), max_size=200)


def test_a_second_fills_it() -> None:
    limit = RateLimit(10)
    passed = [sum(limit.take(at) for _ in range(50)) for at in (0.0, 0.55, 9.0)]
    assert passed == [10, 5, 10]
    assert limit.refused == 125
    assert limit.next_at == pytest.approx(9.1)


def test_without_a_rate_all_pass() -> None:
    limit = RateLimit(None)
    assert all(limit.take(1.0) for _ in range(10_000))
    assert limit.refused == 0


def test_what_is_spent_is_missing_later() -> None:
    limit = RateLimit(10)
    limit.spend(0.0, 25.0)
    assert [limit.take(at / 10) for at in (0, 10, 15, 17, 30)] == [
        False,
        False,
        False,
        True,
        True,
    ]


@given(rates, pauses, st.integers(1, 5), st.sampled_from([1.0, 0.1, 60.0]))
def test_never_more_than_a_bucket_and_what_came_into_it(
    rate: float, pauses: list[float], each: int, span: float
) -> None:
    limit, now, times = RateLimit(rate, span), 0.0, list[float]()
    for pause in pauses:
        now += pause
        times += [now] * sum(limit.take(now) for _ in range(each))
    for first, begin in enumerate(times):
        for last in range(first, len(times), 7):
            most = max(1, rate * span) + (times[last] - begin) * rate
            assert last - first + 1 <= most + 1 + 1e-6


@given(rates, pauses)
def test_who_waits_long_enough_passes(rate: float, pauses: list[float]) -> None:
    limit, now = RateLimit(rate), 0.0
    for pause in pauses:
        now += max(pause, 1 / rate)
        assert limit.take(now + 1e-9)


# When a sampler looks at the stacks.


RATES = st.floats(1, 1000)
STARTS = st.floats(0, 1e6)


@given(RATES, st.floats(0.01, 3), STARTS)
def test_looks_are_as_many_as_they_should_be(
    rate: float, seconds: float, now: float
) -> None:
    times = [now, *sampling_times(rate, seconds, now)]
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert all(0.5 / rate - 1e-6 <= wait <= 1.5 / rate + 1e-6 for wait in waits)
    assert max(times) < now + seconds
    assert seconds * rate / 1.5 - 2 <= len(waits) <= seconds * rate * 2 + 2


def test_the_distances_differ() -> None:
    times = [0.0, *sampling_times(100, 1, 0.0)]
    waits = {int((b - a) * 1000) for a, b in itertools.pairwise(times)}
    assert waits == set(range(5, 15))
