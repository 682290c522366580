"""Who gets which job, and gives it back; every order of events is in ``test_supervision.py``."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import STREAM_TRAITS, JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Assign,
    DropPinnedJobs,
    FailJobs,
    Kill,
    Revoke,
    Spawn,
    Stop,
    Terminate,
    Unassign,
)
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision


def closing_core(workers: int) -> Supervision:
    core = Supervision(
        workers=(workers, workers), policy=RestartPolicy(), start_timeout=20.0
    )
    core.workers.start(0.0)
    for index in range(workers):
        core.workers.ready(index, 1.0)
    return core


def test_a_closing_pool_lets_go_of_whom_the_job_that_arrives_does_not_need() -> None:
    core = closing_core(2)
    core.jobs.prepare(1)
    assert core.close(Finish.ALL, 30.0, 2.0) == []
    # The other worker would be idle for as long as the job takes.
    assert core.jobs.submit_prepared(1, STREAM_TRAITS, 2.0) == [
        Assign(1, (1,)),
        Stop(0),
    ]


def test_a_closing_pool_needs_nobody_after_the_last_jobs_of_one_that_leaves() -> None:
    core, short = closing_core(2), JobTraits()
    short.note(10)
    for job in range(1, 5):
        core.jobs.submit(job, short)
    hands = [[*slot.in_flight.jobs] for slot in core.slots[:2]]
    core.replacements.retire(core.slots[0], "asked", 2.0, unsent=None)
    assert core.close(Finish.ALL, 30.0, 2.0) == []
    for job in hands[1]:
        core.jobs.outcome(1, job)
    assert core.jobs.refill(1, 3.0) == [], (
        "the other one may give back what waits there"
    )
    for job in hands[0]:
        core.jobs.outcome(0, job)
    ended = core.jobs.refill(0, 4.0)
    assert ended == [Stop(0), Stop(1), Terminate(2)], "nobody is needed any more"


def test_a_retry_in_a_closing_pool_finds_a_worker() -> None:
    core, traits = closing_core(1), JobTraits()
    core.jobs.submit(1, traits)
    core.jobs.outcome(0, 1)
    assert core.close(Finish.ALL, 30.0, 2.0) == []
    assert core.jobs.refill(0, 2.0) == [Stop(0)]
    core.closing.begin_unpacking(1)
    commands = core.workers.ended(0, 3.0, started=False, requeue=(), jitter=0.0)
    # Its outcome is an error to retry after.
    commands += core.jobs.requeue({1: traits}, 4.0)
    commands += core.jobs.outcome_unpacked(1, 4.0)
    deadline = core.next_deadline()
    assert deadline is not None
    assert commands or deadline < 30.0, "nobody is there for it until the time is over"


def test_errands_are_run_one_by_one_before_all_other_jobs() -> None:
    core = closing_core(1)
    assert core.jobs.submit(1, JobTraits()) == 0
    assert core.jobs.submit(2, JobTraits(), -9) is None
    assert [core.jobs.submit_pinned(0, job) for job in (3, 4)] == [[], []]
    begun = [1]
    for _ in range(3):
        core.jobs.outcome(0, begun[-1])
        [assign] = core.jobs.refill(0, 2.0)
        assert isinstance(assign, Assign)
        begun += assign.jobs
    assert begun == [1, 3, 4, 2]


def test_nothing_is_sent_behind_an_errand_nor_before_it() -> None:
    core, short = closing_core(1), JobTraits()
    short.note(10)
    assert core.jobs.submit(1, short) == 0
    assert core.jobs.submit_pinned(0, 2) == []
    assert core.jobs.submit(3, short) is None
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 2.0) == [Assign(0, (2,))]
    assert core.jobs.submit(4, short) is None
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 2.0) == [Assign(0, (3, 4))]


def test_an_errand_of_a_worker_that_leaves_is_dropped_at_once() -> None:
    core = closing_core(2)
    for job in (1, 2):
        core.jobs.submit(job, JobTraits())
    core.jobs.submit_pinned(0, 3)
    core.replacements.replace(core.slots[0], "worn", 2.0)
    assert DropPinnedJobs((3,)) in core.workers.ready(2, 3.0)
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 4.0) == [Stop(0)]


def test_an_errand_that_a_worker_gives_back_is_nobody_elses() -> None:
    core = closing_core(2)
    assert core.jobs.submit_pinned(0, 1) == [Assign(0, (1,))]
    commands = core.replacements.retire(core.slots[0], "asked", 2.0, unsent=None)
    assert Revoke(0, (1,)) in commands
    commands = core.jobs.revoked(0, [1], 3.0)
    assert commands == [Unassign((1,)), DropPinnedJobs((1,)), Stop(0)]
    assert core.dispatcher.waiting == 0


def test_an_errand_that_lost_its_worker_is_dropped_before_the_next_one_comes() -> None:
    core = closing_core(2)
    assert core.jobs.submit_pinned(0, 1) == [Assign(0, (1,))]
    core.jobs.submit_pinned(0, 2)
    commands = core.workers.ended(0, 2.0, started=False, requeue=[1], jitter=0.0)
    assert commands[:2] == [DropPinnedJobs((2,)), DropPinnedJobs((1,))]
    assert Spawn(0, 2) in commands
    assert core.workers.ready(0, 3.0) == []


def test_an_errand_waits_for_a_worker_to_be_ready() -> None:
    core = Supervision(workers=(1, 1), policy=RestartPolicy(), start_timeout=20.0)
    core.workers.start(0.0)
    assert core.jobs.submit_pinned(0, 1) == []
    core.jobs.submit(2, JobTraits())
    assert core.workers.ready(0, 1.0) == [Assign(0, (1,))]


def test_a_pool_that_drains_runs_its_errands() -> None:
    core = closing_core(2)
    core.jobs.submit(1, JobTraits())
    core.jobs.submit_pinned(1, 2)
    assert core.close(Finish.ALL, None, 2.0) == []
    core.jobs.outcome(1, 1)
    assert core.jobs.refill(1, 3.0) == [Assign(1, (2,)), Stop(0)]
    core.jobs.outcome(1, 2)
    assert core.jobs.refill(1, 4.0) == [Stop(1)]


@pytest.mark.parametrize("finish", [Finish.RUNNING, Finish.NONE])
def test_errands_that_have_not_begun_end_with_the_pool(finish: Finish) -> None:
    core = closing_core(1)
    core.jobs.submit(1, JobTraits())
    core.jobs.submit_pinned(0, 2)
    assert core.close(finish, None, 2.0)[0] == FailJobs((2,), "closed")


def test_errands_end_when_the_time_is_over() -> None:
    core = closing_core(1)
    core.jobs.submit(1, JobTraits())
    core.jobs.submit_pinned(0, 2)
    assert core.close(Finish.ALL, 3.0, 2.0) == []
    assert core.on_timer(3.0) == [FailJobs((1, 2), "closed"), Kill(0)]


def test_errands_do_not_wear_a_worker() -> None:
    limits = WorkerLimits(max_jobs=1)
    core = Supervision(
        workers=(1, 1), policy=RestartPolicy(), start_timeout=20.0, limits=limits
    )
    core.workers.start(0.0)
    core.workers.ready(0, 0.0)
    core.jobs.submit_pinned(0, 1)
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.0) == []
    core.jobs.submit(2, JobTraits())
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 2.0) == [Spawn(1, 1)]
