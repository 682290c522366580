"""Which job begins first where some are more urgent, and that none starves."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.dispatch.queue import OLDEST_EVERY
from tests.core.dispatching import idle_pool, known, one_worker_with_a_place


def test_the_most_urgent_begin_first() -> None:
    dispatcher = Dispatcher()
    for job, priority in enumerate((0, 5, -1, 0, 5, -1)):
        assert dispatcher.submit(job, JobTraits(), priority) is None
    assert dispatcher.waiting == 6
    assert [dispatcher.refill(slot, InFlight()) for slot in range(6)] == [
        [2],
        [5],
        [0],
        [3],
        [1],
        [4],
    ]
    assert dispatcher.waiting == 0


def test_an_idle_worker_takes_a_job_whatever_its_priority() -> None:
    dispatcher, _ = idle_pool(2)
    assert dispatcher.submit(1, JobTraits(), 100) == 1
    assert dispatcher.submit(2, JobTraits(), -100) == 0
    assert dispatcher.waiting == 0


def test_urgent_jobs_go_on_beside_a_long_one_until_that_has_waited_its_time() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    short = known(10)
    assert dispatcher.submit(0, short) == 0
    assert dispatcher.submit(1, JobTraits()) is None
    for job in range(2, OLDEST_EVERY + 1):
        assert dispatcher.submit(job, short, -1) == 0
    assert len(in_flight.jobs) == OLDEST_EVERY
    assert dispatcher.submit(99, short, -1) is None
    for job in list(in_flight.jobs):
        assert dispatcher.refill(0, in_flight) == [], "it must be alone"
        in_flight.complete(job)
    assert dispatcher.refill(0, in_flight) == [1]
    in_flight.complete(1)
    assert dispatcher.refill(0, in_flight) == [99]


def test_nobody_starves_however_many_more_urgent_ones_come() -> None:
    dispatcher, [in_flight] = idle_pool(1)
    traits = JobTraits()
    assert dispatcher.submit(0, traits) == 0
    for job in (1, 2, 3):
        assert dispatcher.submit(job, traits, 1) is None
    begun: list[int] = []
    for job in range(4, 3 * OLDEST_EVERY + 4):
        assert dispatcher.submit(job, traits) is None
        in_flight.complete(begun[-1] if begun else 0)
        begun += dispatcher.refill(0, in_flight)
    turns = [begun.index(job) + 1 for job in (1, 2, 3)]
    assert turns == [OLDEST_EVERY, 2 * OLDEST_EVERY, 3 * OLDEST_EVERY]
    assert [job for job in begun if job > 3] == list(range(4, 3 * OLDEST_EVERY + 1))


def test_after_those_with_priorities_the_usual_ones_fill_the_worker() -> None:
    dispatcher = Dispatcher()
    for job, priority in enumerate((0, 0, -1, 1)):
        dispatcher.submit(job, known(250), priority)
    assert dispatcher.remove(3)
    dispatcher.submit(4, known(300))
    assert dispatcher.refill(0, InFlight()) == [2, 0, 1]
    assert dispatcher.refill(1, InFlight()) == [4]


@pytest.mark.parametrize("old_has_a_key", [True, False])
def test_neither_starves_while_more_urgent_ones_come_to_the_other_line(
    *, old_has_a_key: bool
) -> None:
    dispatcher, in_flight = one_worker_with_a_place()

    def submit(job: int, priority: int, *, keyed: bool) -> None:
        if keyed:
            assert (
                dispatcher.submit_keyed(job, KeyedTraits(JobTraits(), 7), priority)
                is None
            )
        else:
            assert dispatcher.submit(job, JobTraits(), priority) is None

    submit(1, 0, keyed=old_has_a_key)
    begun = [0]
    while begun[-1] != 1 and len(begun) < 2 * OLDEST_EVERY:
        submit(begun[-1] + 2, -1, keyed=not old_has_a_key)
        in_flight.complete(begun[-1])
        begun += dispatcher.refill(0, in_flight)
    assert len(begun) - 1 == OLDEST_EVERY


def test_an_old_job_that_is_less_urgent_is_not_passed_for_ever_by_usual_ones() -> None:
    dispatcher = Dispatcher(oldest_every=3)
    in_flight = InFlight()
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.refill(0, in_flight) == []
    assert dispatcher.submit(0, JobTraits()) == 0
    assert dispatcher.submit(1, JobTraits(), priority=1) is None
    for job in range(2, 7):
        assert dispatcher.submit_keyed(job, KeyedTraits(JobTraits(), 7), 0) is None
    begun = [0]
    while dispatcher.waiting:
        in_flight.complete(begun[-1])
        begun += dispatcher.refill(0, in_flight)
    assert begun == [0, 2, 3, 1, 4, 5, 6]
