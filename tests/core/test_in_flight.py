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
    LEAST,
    UNKNOWN,
    JobTraits,
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


def test_nothing_of_rounding_is_left_of_a_job_that_was_not_sent() -> None:
    in_flight = InFlight()
    in_flight.add(1, known(1e9))
    in_flight.add(2, known(8.1))
    in_flight.complete(1)
    assert in_flight.backlog != 8.1
    in_flight.withdraw(2)
    assert in_flight.backlog == 0.0


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
