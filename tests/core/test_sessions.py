"""Tests of asyncpool/_core/placement/sessions.py; every order of events is in ``test_supervision.py``."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits, SessionTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Assign,
    EndSession,
    KeepWorker,
    Offer,
    RefuseSessions,
    Unassign,
)
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision


def pool(
    workers: int, *, limits: WorkerLimits | None = None, concurrency: int = 1
) -> Supervision:
    """Return a pool whose workers are ready at 0.0."""
    core = Supervision(
        workers=(workers, workers),
        policy=RestartPolicy(initial_delay=0.5),
        start_timeout=20.0,
        limits=limits or WorkerLimits(jitter=0.0),
        concurrency=concurrency,
    )
    core.workers.start(0.0)
    for index in range(workers):
        core.workers.ready(index, 0.0)
    return core


def finish(core: Supervision, slot: int, job: int, now: float = 9.0) -> object:
    core.jobs.outcome(slot, job)
    return core.jobs.refill(slot, now)


def test_who_was_to_be_replaced_is_offered_when_the_replacement_has_failed() -> None:
    core = pool(1)
    core.replacements.replace(core.slots[0], "worn", 1.0)
    assert core.sessions.want_worker() == [], "it is about to go"
    commands = core.workers.ended(1, 2.0, started=False, requeue=(), jitter=0.0)
    assert isinstance(commands[0], KeepWorker)
    assert Offer(0, 1) in commands


def test_whoever_is_held_back_and_leaves_is_waited_for_no_more() -> None:
    core, traits = pool(2, concurrency=2), JobTraits()
    for job in range(4):
        core.jobs.submit(job, traits)
    core.jobs.submit(5, traits)
    assert core.sessions.want_worker() == []
    assert finish(core, 0, core.jobs.running(0)[0]) == [], "it is held back"
    core.replacements.retire(core.slots[0], "asked", 1.0, unsent=None)
    assert finish(core, 1, core.jobs.running(1)[0]) == [], "and this one instead"


def test_a_worker_that_must_die_of_a_job_is_not_what_somebody_waits_for() -> None:
    core, short = pool(2, concurrency=2), JobTraits()
    short.note(10)
    for job in range(8):
        core.jobs.submit(job, short)
    assert core.sessions.want_worker() == []
    assert finish(core, 0, core.jobs.running(0)[0]) == [], "it is held back"
    job = core.jobs.running(0)[0]
    core.jobs.cancel(job, 9.0, index=0, begun=True)
    assert core.slots[0].job_endings.killing == job, "others are to be given back first"
    assert finish(core, 1, core.jobs.running(1)[0]) == [], "and this one instead"
    assert core.jobs.submit(9, short) is None


def test_who_is_held_back_in_vain_gets_jobs_again() -> None:
    core, short = pool(1), JobTraits()
    short.note(10)
    for job in (1, 2):
        core.jobs.submit(job, short)
    core.sessions.want_worker()
    finish(core, 0, 1)
    assert core.jobs.submit(3, short) is None
    assert core.sessions.leave_queue(2.0) == [Assign(0, (3,))]
    assert core.sessions.want_worker() == []
    finish(core, 0, 2)
    assert core.jobs.submit(4, short) is None, "held back once more"


def test_what_comes_too_late_for_its_session_ends_with_it() -> None:
    core = pool(1)
    core.sessions.want_worker()
    core.sessions.call(1, SessionTraits(1))
    core.sessions.call(2, SessionTraits(1))
    commands = core.workers.ended(0, 1.0, started=True, requeue=(), jitter=0.0)
    assert EndSession(1, (2,)) in commands
    assert core.sessions.call(3, SessionTraits(1)) == [EndSession(1, (3,))]
    assert core.sessions.end(1, 2.0, fresh=True) == []


def test_a_call_that_is_withdrawn_is_the_first_again_of_its_session() -> None:
    core = pool(1)
    core.sessions.want_worker()
    for job in (1, 2):
        core.sessions.call(job, SessionTraits(1))
    core.jobs.submit_pinned(0, 3)
    assert core.jobs.withdraw(0, 1, 1.0) == [Unassign((1,)), Assign(0, (3,))]
    assert finish(core, 0, 3) == [Assign(0, (2,))]


def test_a_worker_with_an_exact_limit_stays_until_its_session_is_over() -> None:
    core = pool(1, limits=WorkerLimits(max_jobs=2, exact=True, jitter=0.0))
    core.sessions.want_worker()
    for job in (1, 2, 3):
        assert core.sessions.call(job, SessionTraits(1)) == [Assign(0, (job,))]
        assert finish(core, 0, job) == []
    assert core.jobs.submit(4, JobTraits()) is None
    core.sessions.end(1, 9.0, fresh=False)
    assert core.slots[0].exit_planned, "it ends, and has got no other job"


@pytest.mark.parametrize("how", [Finish.RUNNING, Finish.NONE])
def test_a_pool_that_finishes_no_more_turns_away_who_waits(how: Finish) -> None:
    core = pool(1)
    core.jobs.submit(1, JobTraits())
    core.sessions.want_worker()
    assert RefuseSessions() in core.close(how, None, 1.0)
    assert core.dispatcher.wanted == 0


def test_who_is_held_back_when_the_pool_closes_has_room_for_what_is_tried_again() -> (
    None
):
    core, traits = pool(1, concurrency=2), JobTraits()
    for job in (1, 2):
        core.jobs.submit(job, traits)
    core.sessions.want_worker()
    assert finish(core, 0, 2) == [], "it is held back"
    assert core.close(Finish.RUNNING, None, 10.0) == [RefuseSessions()]
    assert core.jobs.requeue({2: traits}, 10.0) == [Assign(0, (2,))]


def test_a_smaller_pool_keeps_whom_a_session_has() -> None:
    core = pool(3)
    for _ in range(2):
        core.sessions.want_worker()
    core.replacements.resize(1, 1, 1.0)
    own = [slot for slot in core.slots if slot.session is not None]
    assert len(own) == 2
    assert not any(slot.draining for slot in own)
    core.workers.ended(
        next(s.index for s in core.slots if s.draining),
        2.0,
        started=False,
        requeue=(),
        jitter=0.0,
    )
    core.sessions.end(1, 3.0, fresh=False)
    assert [
        slot.session
        for slot in core.slots
        if not slot.draining and slot.ready_at is not None
    ].count(2) == 1
