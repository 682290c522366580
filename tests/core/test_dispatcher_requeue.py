"""Where jobs begin again that have lost their worker."""

from __future__ import annotations

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from tests.core.dispatching import idle_pool, known


def test_who_finds_room_when_jobs_come_back_has_passed_those_who_wait() -> None:
    dispatcher, traits = Dispatcher(oldest_every=2), JobTraits()
    dispatcher.refill(0, InFlight())
    dispatcher.submit(1, known(10))
    dispatcher.submit(2, JobTraits())
    dispatcher.submit(3, traits, -1)
    traits.note(10)
    assert dispatcher.requeue({9: known(10)}) == [(0, 9), (0, 3)]
    assert dispatcher.submit(4, known(10), -1) is None
    assert dispatcher.refill(1, InFlight()) == [2]


def test_jobs_that_lost_their_worker_are_before_more_urgent_ones() -> None:
    dispatcher, _ = idle_pool(1)
    traits = JobTraits()
    assert dispatcher.submit(1, traits, 5) == 0
    assert dispatcher.submit(2, traits, -5) is None
    dispatcher.exclude(0)
    assert dispatcher.requeue({1: traits}) == []
    assert dispatcher.submit(3, traits, -9) is None
    assert dispatcher.waiting == 3
    assert [dispatcher.refill(slot, InFlight()) for slot in (1, 2, 3)] == [
        [1],
        [3],
        [2],
    ]


def test_jobs_that_lost_their_worker_are_the_next_to_begin() -> None:
    dispatcher, _ = idle_pool(1)
    for job in (1, 2, 3, 4):
        dispatcher.submit(job, known(400))
    assert dispatcher.waiting == 2
    dispatcher.exclude(0)
    assert dispatcher.requeue({1: known(400), 2: known(400)}) == []
    assert dispatcher.refill(1, InFlight()) == [1, 2]
    assert dispatcher.refill(2, InFlight()) == [3, 4]


def test_jobs_that_come_back_need_not_wait_behind_the_queue() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.submit(1, known(100))
    dispatcher.submit(2, JobTraits())
    assert dispatcher.requeue({4: known(100), 3: known(100)}) == [(0, 4), (0, 3)]
    assert list(in_flight.jobs) == [1, 4, 3]
    assert dispatcher.waiting == 1


def test_jobs_that_come_back_are_for_idle_workers_first_and_keep_their_order() -> None:
    dispatcher, flights = idle_pool(2)
    back = {7: known(600), 5: known(400), 6: known(300), 4: known(100), 3: JobTraits()}
    assert dispatcher.requeue(back) == [(1, 7), (0, 5), (1, 6), (0, 4)]
    assert [list(in_flight.jobs) for in_flight in flights] == [[5, 4], [7, 6]]
    assert dispatcher.take_all() == [3]


def test_what_waited_behind_jobs_that_come_back_is_not_forgotten() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.submit(1, known(900))
    dispatcher.submit(2, known(500))
    dispatcher.submit(3, known(500))
    in_flight.complete(1)
    dispatcher.refill(0, in_flight)
    dispatcher.submit(4, JobTraits())
    assert dispatcher.requeue({}) == []
    assert dispatcher.requeue({9: JobTraits()}) == []
    assert dispatcher.take_all() == [9, 4]


def test_room_that_is_found_when_jobs_come_back_is_for_those_behind_them_too() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    traits = JobTraits()
    dispatcher.submit(1, known(10))
    dispatcher.submit(2, traits)
    dispatcher.submit(3, known(10))
    traits.note(10)
    assert dispatcher.requeue({9: known(10)}) == [(0, 9), (0, 2), (0, 3)]
    assert list(in_flight.jobs) == [1, 9, 2, 3]
