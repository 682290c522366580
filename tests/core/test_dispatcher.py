"""Which job begins where, and when; test_dispatcher_model.py has the rules together."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.job_traits import DEEPEST, STREAM_TRAITS, UNKNOWN, JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from tests.core.dispatching import idle_pool, known


def test_jobs_begin_in_the_order_in_which_they_came() -> None:
    dispatcher = Dispatcher()
    for job in (1, 2, 3):
        assert dispatcher.submit(job, JobTraits()) is None
    assert [dispatcher.refill(slot, InFlight()) for slot in range(4)] == [
        [1],
        [2],
        [3],
        [],
    ]


def test_the_worker_that_stopped_last_is_the_next_to_work() -> None:
    dispatcher, _ = idle_pool(3)
    slots = [dispatcher.submit(job, JobTraits()) for job in (1, 2, 3, 4)]
    assert slots == [2, 1, 0, None]


@pytest.mark.parametrize("cost", [UNKNOWN, 1000.0, 10.0])
def test_an_idle_worker_is_the_first_choice(cost: float) -> None:
    dispatcher, _ = idle_pool(2)
    dispatcher.submit(1, known(10))
    assert dispatcher.submit(2, known(cost)) == 0
    assert dispatcher.idle == 0


@given(st.integers(1, 8), st.integers(0, 60), st.sampled_from([7.8125, 8.0, 10.0]))
def test_a_burst_of_short_jobs_spreads_over_all_workers(
    workers: int, jobs: int, cost: float
) -> None:
    dispatcher, flights = idle_pool(workers)
    traits = known(cost)
    for job in range(jobs):
        assert dispatcher.submit(job, traits) is not None
    sizes = [len(in_flight.jobs) for in_flight in flights]
    assert sum(sizes) == jobs
    assert max(sizes) - min(sizes) <= 1


def test_of_the_shortest_jobs_a_worker_holds_as_many_as_the_limit() -> None:
    dispatcher, flights = idle_pool(2)
    traits = JobTraits()
    traits.note(0)
    slots = [dispatcher.submit(job, traits) for job in range(2 * DEEPEST + 1)]
    assert slots[-1] is None
    assert None not in slots[:-1]
    assert [len(in_flight.jobs) for in_flight in flights] == [DEEPEST, DEEPEST]


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (10.0, 990.0, True),
        (10.0, 990.0625, False),
        (999.9375, 10.0, False),
        (1000.0, 7.8125, False),
        (UNKNOWN, 10.0, False),
        (10.0, UNKNOWN, False),
        (UNKNOWN, UNKNOWN, False),
    ],
)
def test_two_jobs_are_together_up_to_the_budget(
    first: float, second: float, *, together: bool
) -> None:
    dispatcher, flights = idle_pool(1)
    assert dispatcher.submit(1, known(first)) == 0
    assert dispatcher.submit(2, known(second)) == (0 if together else None)
    # And the same for jobs that have waited.
    dispatcher = Dispatcher()
    for job, cost in ((1, first), (2, second)):
        dispatcher.submit(job, known(cost))
    assert dispatcher.refill(0, InFlight()) == ([1, 2] if together else [1])
    assert len(flights[0].jobs) == 1 + together


def test_a_job_goes_where_there_is_enough_room_for_it() -> None:
    dispatcher, _ = idle_pool(3)
    for job, cost in enumerate((900.0, 500.0, 100.0)):
        assert dispatcher.submit(job, known(cost)) == 2 - job
    assert dispatcher.submit(3, known(950)) is None
    assert dispatcher.remove(3)
    assert dispatcher.submit(4, known(600)) == 0
    assert dispatcher.submit(5, known(200)) == 1
    # What was passed over is still the next for what fits there.
    assert dispatcher.submit(6, known(50)) == 2
    assert [dispatcher.submit(job, known(50)) for job in (7, 8, 9)] == [0, 1, 2]


def test_a_short_job_does_not_overtake_a_long_one_that_waits() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    assert dispatcher.submit(1, known(10)) == 0
    assert dispatcher.submit(2, JobTraits()) is None
    assert dispatcher.submit(3, known(10)) is None
    assert dispatcher.refill(0, in_flight) == []
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == [2]
    in_flight.complete(2)
    assert dispatcher.refill(0, in_flight) == [3]


def test_a_worker_with_room_is_found_again_after_its_outcomes() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    for job in (1, 2):
        assert dispatcher.submit(job, known(500)) == 0
    assert dispatcher.submit(3, known(500)) is None
    assert dispatcher.remove(3)
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.submit(4, known(500)) == 0
    assert list(in_flight.jobs) == [2, 4]


def test_a_worker_that_is_full_after_a_refill_is_in_nobodys_way() -> None:
    dispatcher, [first, second] = idle_pool(2)
    assert [dispatcher.submit(job, known(10)) for job in (1, 2)] == [1, 0]
    assert dispatcher.submit(3, JobTraits()) is None
    second.complete(1)
    assert dispatcher.refill(1, second) == [3]
    assert [dispatcher.submit(job, known(10)) for job in (4, 5, 6)] == [0, 0, 0]
    assert list(first.jobs) == [2, 4, 5, 6]


def test_a_worker_that_was_idle_meanwhile_is_the_last_in_turn() -> None:
    dispatcher, [_, second] = idle_pool(2)
    assert [dispatcher.submit(job, known(10)) for job in (1, 2)] == [1, 0]
    second.complete(1)
    assert dispatcher.refill(1, second) == []
    assert [dispatcher.submit(job, known(10)) for job in (3, 4, 5)] == [1, 0, 1]


def test_a_worker_is_refilled_up_to_its_budget() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    jobs = range(11)
    traits = known(100)
    assert [dispatcher.submit(job, traits) for job in jobs] == [0] * 10 + [None]
    for job in range(11, 30):
        assert dispatcher.submit(job, traits) is None
    for job in range(5):
        in_flight.complete(job)
    assert dispatcher.refill(0, in_flight) == [10, 11, 12, 13, 14]
    assert dispatcher.refill(0, in_flight) == []


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_worker_that_left_is_given_nothing(jobs: int) -> None:
    dispatcher, [in_flight] = idle_pool(1)
    for job in range(jobs):
        assert dispatcher.submit(job, known(10)) == 0
    dispatcher.exclude(0)
    dispatcher.exclude(0)
    assert dispatcher.idle == 0
    assert dispatcher.submit(5, known(10)) is None
    assert dispatcher.requeue({6: known(10)}) == []
    assert len(in_flight.jobs) == jobs


def test_a_worker_that_comes_back_is_given_jobs_again() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.submit(1, known(10))
    dispatcher.exclude(0)
    dispatcher.submit(2, known(10))
    assert dispatcher.refill(0, in_flight) == [2]
    assert dispatcher.submit(3, known(10)) == 0


def test_what_is_announced_waits_in_nobodys_way() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    for job in (1, 2):
        dispatcher.prepare(job)
    assert (dispatcher.waiting, dispatcher.idle) == (2, 1)
    assert dispatcher.submit(3, known(10)) == 0
    assert dispatcher.submit(4, known(10)) == 0
    assert dispatcher.submit(5, JobTraits()) is None
    assert dispatcher.waiting == 3
    for job in (3, 4):
        in_flight.complete(job)
    assert dispatcher.refill(0, in_flight) == [5]
    in_flight.complete(5)
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.requeue({3: known(10)}) == [(0, 3)]
    assert dispatcher.waiting == 2


def test_what_was_announced_is_queued_behind_those_that_came_meanwhile() -> None:
    dispatcher = Dispatcher()
    dispatcher.prepare(1)
    dispatcher.submit(2, known(10))
    assert dispatcher.remove(1) is True
    assert dispatcher.waiting == 1
    assert dispatcher.submit(1, known(10)) is None
    assert dispatcher.waiting == 2
    assert dispatcher.refill(0, InFlight()) == [2, 1]


def test_what_was_announced_is_forgotten_with_the_rest() -> None:
    dispatcher = Dispatcher()
    for job in (1, 3, 5):
        dispatcher.prepare(job)
    for job in (2, 4):
        dispatcher.submit(job, JobTraits())
    assert dispatcher.remove(3) is True
    assert dispatcher.remove(3) is False
    assert dispatcher.take_all() == [2, 4, 1, 5]
    assert (dispatcher.waiting, dispatcher.take_all()) == (0, [])
    assert [dispatcher.remove(job) for job in (1, 2, 5)] == [False] * 3


@pytest.mark.parametrize("cost", [7.8125, 1000.0, UNKNOWN])
def test_who_is_to_be_alone_has_an_idle_worker_and_nobody_behind(cost: float) -> None:
    dispatcher, [in_flight] = idle_pool(1)
    assert dispatcher.submit(1, known(cost)) == 0
    assert dispatcher.submit(2, STREAM_TRAITS) is None, "nobody travels ahead of it"
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == [2]
    assert dispatcher.submit(3, known(cost)) is None, "nor behind it"
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.requeue({4: known(cost)}) == []
    assert list(in_flight.jobs) == [2]
    in_flight.withdraw(2)
    assert dispatcher.refill(0, in_flight)[0] == 4


def test_what_is_forgotten_is_never_given_to_anybody() -> None:
    dispatcher = Dispatcher()
    for job in range(6):
        dispatcher.submit(job, known(10))
    assert dispatcher.remove(2) is True
    assert dispatcher.remove(2) is False
    assert dispatcher.remove(99) is False
    assert dispatcher.take_all() == [0, 1, 3, 4, 5]
    assert (dispatcher.waiting, dispatcher.take_all()) == (0, [])
    assert dispatcher.refill(0, InFlight()) == []
    assert dispatcher.idle == 1


def test_a_worker_with_a_free_lane_that_left_is_given_nothing() -> None:
    dispatcher, in_flight = Dispatcher(), InFlight(2)
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.submit(1, known(10)) == 0
    dispatcher.exclude(0)
    assert dispatcher.free == 0
    assert dispatcher.submit(2, known(10)) is None


def test_a_worker_with_two_lanes_takes_two_long_jobs_and_no_third() -> None:
    dispatcher, in_flight = Dispatcher(), InFlight(2)
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.free == 2
    assert dispatcher.submit(1, JobTraits()) == 0
    assert dispatcher.free == 1
    assert dispatcher.submit(2, JobTraits()) == 0
    assert dispatcher.free == 0
    assert dispatcher.submit(3, JobTraits()) is None
    for job in (1, 2):
        in_flight.complete(job)
    assert dispatcher.refill(0, in_flight) == [3]
    assert dispatcher.free == 1
    in_flight.complete(3)
    assert dispatcher.refill(0, in_flight) == []
    assert (dispatcher.idle, dispatcher.free) == (1, 2)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_that_has_had_its_jobs_is_given_nothing(concurrency: int) -> None:
    dispatcher, in_flight = Dispatcher(), InFlight(concurrency)
    in_flight.most = 1
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.submit(1, known(10)) == 0
    assert dispatcher.submit(2, known(10)) is None
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == []
    assert (dispatcher.idle, dispatcher.free) == (0, 0)
    assert dispatcher.submit(3, known(10)) is None


def test_the_worker_that_is_next_is_the_first_of_the_idle_ones() -> None:
    dispatcher, _ = idle_pool(3)
    assert dispatcher.idle_slots() == [2, 1, 0]
    assert dispatcher.submit(1, JobTraits()) == 2
    assert dispatcher.idle_slots() == [1, 0]
