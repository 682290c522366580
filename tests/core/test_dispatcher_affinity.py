"""Where jobs begin that have a key, and so a worker of their own."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.dispatch.queue import OLDEST_EVERY
from tests.core.dispatching import idle_pool, known, one_worker_with_a_place


def test_an_idle_worker_that_is_served_jobs_of_its_own_is_busy() -> None:
    dispatcher, [_] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    keyed = KeyedTraits(JobTraits(), 7)
    assert dispatcher.requeue({1: keyed, 2: keyed}) == [(0, 1)]
    assert dispatcher.idle == 0
    assert dispatcher.submit(3, known(10)) is None


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_with_room_takes_nobody_past_a_job_of_its_own(
    concurrency: int,
) -> None:
    dispatcher, in_flight = Dispatcher(), InFlight(concurrency)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.submit(0, known(10)) == 0
    keyed = KeyedTraits(JobTraits(), 7)
    back: dict[int, JobTraits] = dict.fromkeys(range(1, concurrency + 1), keyed)
    # All but one of those that came back begin in a free lane.
    assert len(dispatcher.requeue(back)) == concurrency - 1
    assert dispatcher.submit(9, known(10)) is None
    in_flight.complete(0)
    assert dispatcher.refill(0, in_flight) == [concurrency]


def test_who_has_waited_longer_is_not_passed_by_who_is_taken_before() -> None:
    dispatcher, in_flight = one_worker_with_a_place()
    for job in range(1, 2 * OLDEST_EVERY):
        assert dispatcher.submit(job, JobTraits()) is None
    assert dispatcher.submit_keyed(500, KeyedTraits(JobTraits(), 7), 0) is None
    begun = [0]
    while begun[-1] != 500 and len(begun) < 3 * OLDEST_EVERY:
        in_flight.complete(begun[-1])
        begun += dispatcher.refill(0, in_flight)
    assert begun == [*range(2 * OLDEST_EVERY), 500]


def test_short_jobs_do_not_pass_a_long_one_that_waits_for_their_worker() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit_keyed(1, KeyedTraits(known(10), 7), 0) == 0
    assert dispatcher.submit_keyed(2, KeyedTraits(JobTraits(), 7), 0) is None
    assert dispatcher.submit(3, known(10)) is None
    assert dispatcher.submit_keyed(4, KeyedTraits(known(10), 8), 0) is None
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == [2]
    in_flight.complete(2)
    assert dispatcher.refill(0, in_flight) == [3, 4]


def test_what_is_learned_of_a_function_counts_for_jobs_with_a_key_that_wait() -> None:
    dispatcher, in_flight = one_worker_with_a_place()
    traits = JobTraits()
    for job in (1, 2, 3):
        assert dispatcher.submit_keyed(job, KeyedTraits(traits, job), 0) is None
    traits.note(10)
    in_flight.complete(0)
    assert dispatcher.refill(0, in_flight) == [1, 2, 3]
    assert dispatcher.submit_keyed(4, KeyedTraits(traits, 4), 0) == 0


def test_a_job_with_a_key_does_not_pass_those_without_one() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit(1, known(10)) == 0
    assert dispatcher.submit(2, JobTraits()) is None
    assert dispatcher.submit_keyed(3, KeyedTraits(known(10), 7), 0) is None
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == [2]
    in_flight.complete(2)
    assert dispatcher.refill(0, in_flight) == [3]
    # But a more urgent one may go ahead, as any other.
    assert dispatcher.submit(4, JobTraits()) is None
    assert dispatcher.submit_keyed(5, KeyedTraits(known(10), 7), -1) == 0


def test_a_job_with_a_key_leaves_room_for_those_without_one() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit_keyed(1, KeyedTraits(known(10), 7), 0) == 0
    assert dispatcher.submit(2, known(10)) == 0
    assert list(in_flight.jobs) == [1, 2]


def test_a_job_with_a_key_that_goes_ahead_has_passed_those_that_wait() -> None:
    dispatcher, in_flight = Dispatcher(oldest_every=3), InFlight()
    dispatcher.refill(0, in_flight)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit(1, known(10)) == 0
    assert dispatcher.submit(2, JobTraits()) is None
    key = KeyedTraits(known(10), 7)
    assert [dispatcher.submit_keyed(job, key, -1) for job in (3, 4, 5)] == [0, 0, None]


def test_a_job_with_a_key_is_passed_no_more_often_if_its_key_moves_at_each_turn() -> (
    None
):
    dispatcher, key = Dispatcher(oldest_every=4), 7
    assert dispatcher.submit_keyed(0, KeyedTraits(JobTraits(), key), 1) is None
    begun: list[int] = []
    for turn in range(8):
        # As where each worker runs one job.
        assert dispatcher.submit(turn + 1, JobTraits()) is None
        dispatcher.assign_buckets({turn: turn})
        begun += dispatcher.refill(turn, InFlight())
        dispatcher.exclude(turn)
        dispatcher.assign_buckets({})
    assert begun == [1, 2, 3, 0, 4, 5, 6, 7]


def test_jobs_with_keys_that_come_back_go_to_their_worker_and_others_to_any() -> None:
    dispatcher, _ = idle_pool(2)
    dispatcher.assign_buckets({0: 0})
    keyed = {job: KeyedTraits(JobTraits(), 7) for job in (1, 3)}
    placed = dispatcher.requeue({1: keyed[1], 2: JobTraits(), 3: keyed[3]})
    assert placed == [(0, 1), (1, 2)]
    assert dispatcher.waiting == 1


def test_a_job_with_a_key_that_comes_back_waits_if_nobody_has_its_bucket() -> None:
    dispatcher, _ = idle_pool(1)
    assert dispatcher.requeue({1: KeyedTraits(JobTraits(), 7)}) == []
    assert (dispatcher.waiting, dispatcher.idle) == (1, 1)
    assert dispatcher.assign_buckets({0: 0}) == [(0, 1)]
    assert dispatcher.assign_buckets({0: 0}) == []


def test_who_waits_for_its_own_worker_is_not_served_by_another() -> None:
    dispatcher, _ = idle_pool(2)
    assert dispatcher.unserved == 0
    dispatcher.assign_buckets({0: 0})
    for job in (1, 2):
        dispatcher.submit_keyed(job, KeyedTraits(JobTraits(), 7), 0)
    dispatcher.wanted = 5
    assert (dispatcher.waiting, dispatcher.unserved) == (1, 5), "worker 1 is idle"
    assert dispatcher.submit(3, JobTraits()) == 1
    assert dispatcher.unserved == 6, "a new worker might be theirs"


def test_whether_a_worker_is_there_for_a_job_that_comes() -> None:
    dispatcher, _ = idle_pool(2)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.can_begin_now(None)
    assert dispatcher.can_begin_now(7)
    dispatcher.prepare(1)
    assert dispatcher.preparing == 1
    assert dispatcher.can_begin_now(None)
    dispatcher.submit_keyed(2, KeyedTraits(JobTraits(), 7), 0)
    assert not dispatcher.can_begin_now(None), "the other one is for job 1"
    assert not dispatcher.can_begin_now(7)
