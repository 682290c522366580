"""Tests of asyncpool/_core/placement/balance.py."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import LEAST, UNKNOWN, JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.supervision.supervision import Supervision


def core_of(workers: int, ready: int, concurrency: int = 1) -> Supervision:
    """Return a pool of which so many workers are ready."""
    core = Supervision(
        workers=(workers, workers),
        policy=RestartPolicy(),
        start_timeout=20.0,
        concurrency=concurrency,
    )
    core.workers.start(0.0)
    for index in range(ready):
        core.workers.ready(index, 0.0)
    return core


def traits_of(cost: float) -> JobTraits:
    traits = JobTraits()
    traits.cost = traits.least = cost
    return traits


@pytest.mark.parametrize(
    ("width", "waiting"), [(1, [0, 0, 1, 2, 3]), (2, [0, 0, 0, 1, 2])]
)
def test_those_wait_that_have_not_begun_wherever_they_are(
    width: int, waiting: list[int]
) -> None:
    core = core_of(1, 1, width)
    found, pipelining = [], []
    for job in range(5):
        found.append(core.balance.waiting)
        pipelining.append(core.balance.pipelining)
        core.jobs.submit(job, traits_of(UNKNOWN if job > 3 else 4000.0))
    assert found == waiting
    assert pipelining == [count > 0 for count in waiting]
    assert core.balance.waiting == waiting[-1] + 1  # the last one is in the queue
    assert core.dispatcher.waiting == 1


def test_a_worker_is_idle_beside_one_that_others_wait_in() -> None:
    core, traits = core_of(2, 1), traits_of(10.0)
    core.jobs.submit(1, traits)
    core.jobs.submit(2, traits)
    seen = {"nobody is idle": core.balance.unbalanced}
    core.workers.ready(1, 0.0)
    seen["one is"] = core.balance.unbalanced
    core.termination.revoke(2, 0)
    seen["it is asked for"] = core.balance.unbalanced
    core.jobs.revoked(0, (), 1.0)
    core.jobs.outcome(0, 1)
    seen["nobody waits"] = core.balance.unbalanced
    assert [why for why, so in seen.items() if so] == ["one is"]


@pytest.mark.parametrize(
    ("workers", "cost", "waiting", "what"),
    [
        (1, 2000.0, 8, "rest"),
        (1, 2000.0, 7, "work"),  # as many as it has in hand, or a little later is late
        (2, 2000.0, 16, "rest"),
        (2, 2000.0, 15, "work"),
        (1, 5200.0, 10, "rest"),
        (1, 5400.0, 10, "work"),  # one of two may be over soon
        (1, 18000.0, 10, "work"),  # and so may the only one
        (1, UNKNOWN, 10, "work"),
        (1, 2.1 * LEAST, 1000, "rest"),
        (1, LEAST, 1000, "work"),  # they may take much less than they count for
    ],
)
def test_a_worker_rests_that_has_enough_to_do_when_many_wait(
    workers: int, cost: float, waiting: int, what: str
) -> None:
    core, traits = core_of(workers, workers), traits_of(cost)
    job = 0
    while core.dispatcher.waiting < waiting:
        core.jobs.submit(job, traits)
        job += 1
    assert {core.balance.may_rest(index) for index in range(workers)} == {
        what == "rest"
    }
