"""Which jobs wait, and where."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import UNKNOWN, JobTraits
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
    traits.cost = cost
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
        found.append(core.waiting)
        pipelining.append(core.pipelining)
        core.jobs.submit(job, traits_of(UNKNOWN if job > 3 else 4000.0))
    assert found == waiting
    assert pipelining == [count > 0 for count in waiting]
    assert core.waiting == waiting[-1] + 1  # the last one is in the queue
    assert core.dispatcher.waiting == 1


def test_a_worker_is_idle_beside_one_that_others_wait_in() -> None:
    core, traits = core_of(2, 1), traits_of(10.0)
    core.jobs.submit(1, traits)
    core.jobs.submit(2, traits)
    seen = {"nobody is idle": core.unbalanced}
    core.workers.ready(1, 0.0)
    seen["one is"] = core.unbalanced
    core.termination.revoke(2, 0)
    seen["it is asked for"] = core.unbalanced
    core.jobs.revoked(0, (), 1.0)
    core.jobs.outcome(0, 1)
    seen["nobody waits"] = core.unbalanced
    assert [why for why, so in seen.items() if so] == ["one is"]
