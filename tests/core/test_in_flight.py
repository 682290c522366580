"""What a worker has in hand, against a worker made of three lists."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncpool._core.base.job_traits import (
    BUDGET,
    LEAST,
    LOADING_TRAITS,
    UNKNOWN,
    JobTraits,
    KeyedTraits,
)
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool.errors import ProtocolError

# Their sums are exact, in any order.
COSTS = (7.8125, 8.0, 100.0, 437.5, 1000.0, UNKNOWN)


def known(cost: float) -> JobTraits:
    traits = JobTraits()
    traits.cost = cost
    return traits


def flight_of(*jobs: int, cost: float = 10.0) -> InFlight:
    """Return a flight of *jobs*, which come in the places 1, 2, 3 and so on."""
    in_flight = InFlight()
    for job in jobs:
        in_flight.add(job, known(cost))
    return in_flight


class FlightMachine(RuleBasedStateMachine):
    """Two sides of two channels, which deliver when they like, each in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 1
        self.in_flight = InFlight()
        self.sent: list[int] = []  # every job; its place is its index, from 1
        self.costs: dict[int, float] = {}
        self.traits: dict[int, JobTraits] = {}
        # The worker.
        self.taken = 0
        self.revoked: set[int] = set()
        self.running: list[int] = []
        # What is on its way to the worker, and from there.
        self.questions: list[tuple[int, ...]] = []
        self.outcomes: list[int] = []
        self.answers: list[tuple[int, ...]] = []
        # The pool.
        self.asked: list[tuple[int, ...]] = []
        self.landed: list[int] = []
        self.returned: list[int] = []

    @initialize(width=st.integers(1, 7))
    def begin(self, width: int) -> None:
        self.width, self.in_flight = width, InFlight(width)

    def in_hand(self) -> list[int]:
        gone = {*self.landed, *self.returned}
        return [job for job in self.sent if job not in gone]

    def place(self, job: int) -> int:
        return self.sent.index(job) + 1

    @rule(costs=st.lists(st.sampled_from(COSTS), min_size=1, max_size=5))
    def jobs_are_sent(self, costs: list[float]) -> None:
        for cost in costs:
            job = 1000 + len(self.sent)
            traits = known(cost)
            self.in_flight.add(job, traits)
            traits.note(0)  # what is learned later is not for this job
            self.sent.append(job)
            share = cost if self.width == 1 else max(LEAST, cost / self.width)
            self.costs[job], self.traits[job] = share, traits

    @rule(cost=st.sampled_from(COSTS), ask=st.booleans())
    def a_job_is_not_sent_after_all(self, cost: float, *, ask: bool) -> None:
        """Its place is for the next one, since the worker has never counted it."""
        self.in_flight.add(999_999, known(cost))
        jobs = self.unasked()[:1] if ask else []
        if jobs:
            places = self.in_flight.begin_revoke(jobs)
            self.asked.append(places)
            self.questions.append(places)
        self.in_flight.withdraw(999_999)

    @property
    def may_take(self) -> bool:
        return len(self.running) < self.width and self.taken < len(self.sent)

    @precondition(lambda self: self.may_take)
    @rule()
    def the_worker_takes_its_next_turn(self) -> None:
        self.taken += 1
        if self.taken not in self.revoked:
            self.running.append(self.sent[self.taken - 1])

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 6))
    def the_worker_ends_a_job(self, which: int) -> None:
        self.outcomes.append(self.running.pop(which % len(self.running)))

    def unasked(self) -> list[int]:
        asked = {place for places in self.asked for place in places}
        return [job for job in self.in_hand() if self.place(job) not in asked]

    @precondition(lambda self: self.unasked())
    @rule(data=st.data())
    def the_pool_asks(self, data: st.DataObject) -> None:
        jobs = data.draw(st.lists(st.sampled_from(self.unasked()), unique=True))
        places = self.in_flight.begin_revoke(jobs)
        assert places == tuple(self.place(job) for job in jobs)
        self.asked.append(places)
        self.questions.append(places)

    @precondition(lambda self: self.questions)
    @rule()
    def the_worker_answers(self) -> None:
        won = {place for place in self.questions.pop(0) if place > self.taken}
        self.revoked |= won
        self.answers.append(tuple(won))

    @precondition(lambda self: self.outcomes)
    @rule()
    def an_outcome_lands(self) -> None:
        job = self.outcomes.pop(0)
        self.in_flight.complete(job)
        self.landed.append(job)

    @precondition(lambda self: self.answers)
    @rule()
    def an_answer_arrives(self) -> None:
        won, asked = self.answers.pop(0), self.asked.pop(0)
        back, kept = self.in_flight.end_revoke(won)
        assert list(back) == [self.sent[place - 1] for place in sorted(won)]
        for job, traits in back.items():
            assert traits is self.traits[job]
        self.returned += back
        jobs = [self.sent[place - 1] for place in asked]
        assert kept == [job for job in jobs if job in self.in_hand()]

    @precondition(lambda self: self.in_hand())
    @rule()
    def the_first_job_takes_long(self) -> None:
        running = self.in_hand()[: self.width]
        assert self.in_flight.running == tuple(running)
        self.in_flight.block(running)
        self.costs.update(dict.fromkeys(running, UNKNOWN))

    @rule(place=st.integers(1, 4) | st.integers(-1, 12))
    def an_outcome_that_cannot_be_is_refused(self, place: int) -> None:
        """Only the first are expected, or one behind what may have been given back."""
        job = 999 + place
        expected, unasked, beside = [], self.unasked(), 0
        for other in self.in_hand():
            expected.append(other)
            beside += other in unasked
            if beside == self.width:
                break
        if job in expected:
            return
        with pytest.raises(ProtocolError) as caught:
            self.in_flight.complete(job)
        assert str(caught.value) == (
            f"it sent an outcome of job {job}, whose turn it is not"
        )

    @rule(place=st.integers(1, 4) | st.integers(0, 12))
    def an_answer_that_cannot_be_is_refused(self, place: int) -> None:
        asked = self.asked[0] if self.asked else ()
        if place in asked and self.sent[place - 1] in self.in_hand():
            return
        with pytest.raises(ProtocolError) as caught:
            copy.deepcopy(self.in_flight).end_revoke([place])
        assert (
            str(caught.value)
            == f"it gave back the job with sequence number {place}, which it cannot"
        )

    @invariant()
    def both_sides_agree(self) -> None:
        in_hand = self.in_hand()
        assert list(self.in_flight.jobs) == in_hand
        assert self.in_flight.head == (in_hand[0] if in_hand else None)
        assert self.in_flight.last == (in_hand[-1] if in_hand else None)
        assert self.in_flight.running == tuple(in_hand[: self.width])
        assert self.in_flight.waiting() == in_hand[self.width :]
        assert self.in_flight.free_lanes == max(0, self.width - len(in_hand))
        for job in in_hand:
            assert self.in_flight.runs(job) is (job in self.in_flight.running)
        assert self.in_flight.revoking is bool(self.asked)
        assert [job for job in in_hand if not self.in_flight.is_revoking(job)] == (
            self.unasked()
        )

    @invariant()
    def the_backlog_is_a_sum(self) -> None:
        backlog = sum(self.costs[job] for job in self.in_hand())
        if self.width == 1:
            assert self.in_flight.backlog == backlog
        else:
            assert self.in_flight.backlog == pytest.approx(backlog, abs=1e-3)

    def teardown(self) -> None:
        """Let the worker finish: each job has landed, or was given back, once."""
        while self.questions:
            self.the_worker_answers()
        while self.running or self.taken < len(self.sent):
            if self.may_take:
                self.the_worker_takes_its_next_turn()
            else:
                self.the_worker_ends_a_job(0)
        while self.outcomes:
            self.an_outcome_lands()
        while self.answers:
            self.an_answer_arrives()
        assert sorted(self.landed + self.returned) == self.sent
        assert (self.in_flight.jobs, self.in_flight.backlog) == ({}, 0.0)
        assert not self.in_flight.revoking


TestFlight = FlightMachine.TestCase


def test_a_job_keeps_what_was_known_when_it_was_sent() -> None:
    in_flight, traits = InFlight(), JobTraits()
    in_flight.add(7, traits)
    assert in_flight.jobs == {7: (1, UNKNOWN, traits)}
    traits.note(500)
    in_flight.add(8, traits)
    assert in_flight.jobs == {7: (1, UNKNOWN, traits), 8: (2, 500.0, traits)}
    assert in_flight.backlog == UNKNOWN + 500
    in_flight.complete(7)
    assert in_flight.backlog == 500.0


def test_nothing_of_rounding_is_left_of_a_job_that_was_not_sent() -> None:
    in_flight = InFlight()
    in_flight.add(1, known(1e9))
    in_flight.add(2, known(8.1))
    in_flight.complete(1)
    assert in_flight.backlog != 8.1
    in_flight.withdraw(2)
    assert in_flight.backlog == 0.0


def test_only_a_job_in_hand_is_withdrawn() -> None:
    in_flight = flight_of(7)
    with pytest.raises(KeyError):
        in_flight.withdraw(8)
    in_flight.add(9, known(10))
    assert in_flight.jobs[9][0] == 2, "nothing was changed"


def test_nothing_of_rounding_is_left_when_when_all_is_done() -> None:
    in_flight = InFlight()
    for job, cost in enumerate((1e9, 8.1, 1e6 / 3)):
        in_flight.add(job, known(cost))
    for job in range(3):
        in_flight.complete(job)
    assert in_flight.backlog == 0.0


def test_a_job_that_may_have_been_given_back_can_be_overtaken() -> None:
    in_flight = flight_of(7, 8, 9, 10)
    in_flight.begin_revoke([8])
    in_flight.begin_revoke([9])
    in_flight.complete(7)
    # The worker's two answers are on another channel, and may be slower.
    in_flight.complete(10)
    assert list(in_flight.jobs) == [8, 9]
    assert list(in_flight.end_revoke([2])[0]) == [8]
    assert list(in_flight.end_revoke([3])[0]) == [9]
    assert in_flight.backlog == 0.0


def test_an_answer_tells_apart_what_comes_back_what_goes_on_and_what_is_done() -> None:
    in_flight = flight_of(6, 7, 8, 9, 10)
    traits = {job: entry[2] for job, entry in in_flight.jobs.items()}
    assert in_flight.begin_revoke([10, 7, 8, 9]) == (5, 2, 3, 4)
    in_flight.complete(6)
    in_flight.complete(7)
    back, kept = in_flight.end_revoke([5, 4])
    assert list(back.items()) == [(9, traits[9]), (10, traits[10])]
    assert all(back[job] is traits[job] for job in back)
    assert kept == [8]
    assert not in_flight.revoking
    assert (list(in_flight.jobs), in_flight.backlog) == ([8], 10.0)


def test_who_may_give_a_job_back_gets_no_younger_one() -> None:
    in_flight = flight_of(7, 8, 9)
    in_flight.begin_revoke([8, 9])
    in_flight.complete(7)
    assert not in_flight.wants_more
    in_flight.complete(8)
    assert not in_flight.wants_more
    in_flight.end_revoke([3])
    assert in_flight.wants_more


def test_what_nobody_wants_keeps_its_worker_from_nothing() -> None:
    in_flight = flight_of(7, 8)
    in_flight.begin_revoke([8], wanted=False)
    assert in_flight.wants_more
    in_flight.begin_revoke([7])
    in_flight.end_revoke([2])
    assert not in_flight.wants_more, "that of the others is still to come"


def test_whose_answer_cannot_give_anything_back_gets_more() -> None:
    in_flight = flight_of(7, 8)
    in_flight.begin_revoke([8])
    in_flight.complete(7)
    in_flight.complete(8)
    assert in_flight.wants_more
    assert in_flight.revoking


@pytest.mark.parametrize(
    ("won", "place"),
    [
        ([1], 1),  # not asked for
        ([2, 4], 4),  # asked for, but in the next question
        ([5], 5),  # never sent
        ([0], 0),
        ([3], 3),  # it has sent this one's outcome
        ([2, 3], 3),
        ([9, 1], 1),  # of several, the first
    ],
)
def test_what_cannot_be_given_back(won: Sequence[int], place: int) -> None:
    in_flight = flight_of(6, 7, 8, 9)
    in_flight.complete(6)
    in_flight.begin_revoke([7, 8])
    in_flight.begin_revoke([9])
    in_flight.remove(8)
    with pytest.raises(ProtocolError) as caught:
        in_flight.end_revoke(won)
    assert (
        str(caught.value)
        == f"it gave back the job with sequence number {place}, which it cannot"
    )
    assert list(in_flight.jobs) == [7, 9], "none of them is taken back"


def test_a_stall_is_the_first_ones_and_ends_with_it() -> None:
    in_flight = flight_of(7, 8, 9)
    in_flight.block(in_flight.running)
    assert [cost for _, cost, _ in in_flight.jobs.values()] == [UNKNOWN, 10.0, 10.0]
    assert in_flight.backlog == UNKNOWN + 20
    in_flight.block(in_flight.running)
    assert in_flight.backlog == UNKNOWN + 20, "once is enough"
    traits = in_flight.jobs[7][2]
    assert traits.cost == 10.0, "it is known when it ends how long it took"
    in_flight.complete(7)
    assert in_flight.backlog == 20.0
    assert in_flight.begin_revoke([8]) == (2,)


def wide(width: int, *costs: float) -> InFlight:
    in_flight = InFlight(width)
    for job, cost in enumerate(costs, 1):
        in_flight.add(job, known(cost))
    return in_flight


def test_whoever_has_a_lane_begins_whatever_the_others_cost() -> None:
    in_flight = wide(3, UNKNOWN, UNKNOWN)
    assert (in_flight.free_lanes, in_flight.wants_more) == (1, True)
    assert in_flight.takes(known(UNKNOWN))
    in_flight.add(3, known(UNKNOWN))
    assert (in_flight.free_lanes, in_flight.wants_more) == (0, False)
    assert not in_flight.takes(known(LEAST))


def test_where_all_lanes_are_taken_short_jobs_wait_for_one_within_the_budget() -> None:
    in_flight = wide(4, *[BUDGET] * 4)
    assert in_flight.backlog == BUDGET
    assert not in_flight.takes(known(LEAST))
    in_flight = wide(4, *[BUDGET / 2] * 4)
    assert in_flight.takes(known(2 * BUDGET)), "a quarter of that is one lane's"
    assert not in_flight.takes(known(2 * BUDGET + 8))


def test_a_job_costs_what_a_lane_takes_for_it_but_never_nothing() -> None:
    in_flight = wide(8, LEAST, 80 * LEAST)
    assert [entry[1] for entry in in_flight.jobs.values()] == [LEAST, 10 * LEAST]


def test_nothing_is_sent_behind_what_is_loading() -> None:
    in_flight = wide(3, 10.0)
    in_flight.add(2, LOADING_TRAITS)
    assert (in_flight.closed, in_flight.free_lanes, in_flight.last) == (True, 0, 2)
    assert not in_flight.takes(known(LEAST))
    in_flight.withdraw(2)
    assert (in_flight.closed, in_flight.free_lanes) == (False, 2)
    in_flight.add(3, KeyedTraits(LOADING_TRAITS, 7))
    assert in_flight.closed
    assert in_flight.begin_revoke([3]) == (2,), "the place of the one that was not sent"
