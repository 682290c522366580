"""Who gets which worker: jobs with a key, pinned jobs, and sessions."""

from __future__ import annotations

from tests.core.pool_core import (
    GROW_EVERY,
    Core,
    Finish,
    JobTraits,
    KeyedTraits,
    SessionTraits,
    WorkerLimits,
    choose,
    cmd,
    pool,
    short,
)

# Keys.


def places(core: Core) -> dict[int, int]:
    """Return the slot of each place."""
    return {s.bucket: s.index for s in core.slots if s.bucket is not None}


def key_of(place: int, count: int) -> int:
    """Return a key that belongs to one of so many places."""
    return next(key for key in range(1000) if choose(key, range(count)) == place)


def submit(core: Core, job: int, key: int, priority: int = 0) -> int | None:
    return core.place(job, KeyedTraits(JobTraits(), key), priority)


def test_in_a_backoff_the_next_choice_has_the_keys_and_then_they_come_back() -> None:
    core = pool(2)
    core.ended(0, 1.0, had_begun=False, requeue=(), jitter=0.5)
    assert submit(core, 1, key_of(0, 2)) is None
    # It does not come up: the job need not wait for the next try.
    commands = core.ended(0, 1.0, had_begun=False, requeue=(), jitter=0.5)
    assert commands[-1] == cmd.Assign(1, (1,))
    assert places(core) == {1: 1}
    deadline = core.next_deadline()
    assert deadline is not None
    core.on_timer(deadline)
    assert places(core) == {1: 1}, "it is not there yet"
    core.ready(0, deadline)
    assert places(core) == {0: 0, 1: 1}


def test_a_replacement_has_the_place_when_it_is_ready() -> None:
    core = pool(2)
    core.replace(1, "worn", 1.0)
    assert places(core) == {0: 0, 1: 1}
    core.ready(2, 2.0)
    assert places(core) == {0: 0, 1: 2}
    core.ended(1, 2.0, had_begun=False, requeue=(), jitter=0.0)
    core.replace(0, "worn", 3.0)
    core.ready(1, 3.0)
    assert places(core) == {0: 1, 1: 2}


def test_a_replacement_inherits_from_a_worker_that_crashes_first() -> None:
    core = pool(2)
    core.replace(0, "worn", 1.0)
    core.ended(0, 2.0, had_begun=True, requeue=(), jitter=0.0)
    assert places(core) == {0: 2, 1: 1}


def test_without_a_surge_the_keys_are_with_others_meanwhile() -> None:
    core = pool(2, max_surge=0, max_unavailable=1)
    core.replace(0, "worn", 1.0)
    assert places(core) == {1: 1}
    core.ended(0, 2.0, had_begun=False, requeue=(), jitter=0.0)
    core.ready(0, 3.0)
    assert places(core) == {0: 0, 1: 1}


def test_who_comes_takes_the_lowest_place_that_is_free() -> None:
    core = pool(3)
    core.retire(1, "asked", 1.0, unsent=None)
    assert places(core) == {0: 0, 2: 2}
    core.ready(3, 2.0)
    assert places(core) == {0: 0, 1: 3, 2: 2}
    core.resize(5, 5, 3.0)
    assert places(core) == {0: 0, 1: 3, 2: 2}, "nobody new is there yet"
    core.ready(4, 4.0)
    assert places(core) == {0: 0, 1: 3, 2: 2, 3: 4}


def test_nobody_is_started_for_a_job_that_waits_while_others_are_idle() -> None:
    core = pool(2, 3)
    mine = key_of(0, 2)
    assert submit(core, 1, mine) == 0
    assert submit(core, 2, mine) is None
    core.job_waits(1.0)
    assert core.on_timer(1.0 + GROW_EVERY) == []
    # But for those that wait while nobody is, there may be.
    core.submit(3, JobTraits())
    core.job_waits(2.0)
    assert cmd.Resized(3) in core.on_timer(2.0 + GROW_EVERY)


def test_a_slot_that_nobody_needs_keeps_no_place_for_who_begins_in_it() -> None:
    core = pool(2)
    core.oversized(1, "too large", 1.0)
    core.resize(1, 1, 1.0)
    core.replace(0, "worn", 1.0)
    assert places(core) == {0: 0, 1: 1}
    core.ended(1, 2.0, had_begun=False, requeue=(), jitter=0.0)
    assert core.slots[1].replaces == 0, "it begins where somebody was who is not needed"
    assert places(core) == {0: 0}


# Sessions.


def finish(core: Core, slot: int, job: int, now: float = 9.0) -> object:
    core.outcome(slot, job)
    return core.refill(slot, now)


def test_who_was_to_be_replaced_is_offered_when_the_replacement_has_failed() -> None:
    core = pool(1)
    core.replace(0, "worn", 1.0)
    assert core.request_worker() == [], "it is about to go"
    commands = core.ended(1, 2.0, had_begun=False, requeue=(), jitter=0.0)
    assert isinstance(commands[0], cmd.KeepWorker)
    assert cmd.Offer(0, 1) in commands


def test_whoever_is_held_back_and_leaves_is_waited_for_no_more() -> None:
    core, traits = pool(2, concurrency=2), JobTraits()
    for job in range(4):
        core.submit(job, traits)
    core.submit(5, traits)
    assert core.request_worker() == []
    assert finish(core, 0, core.running(0)[0]) == [], "it is held back"
    core.retire(0, "asked", 1.0, unsent=None)
    assert finish(core, 1, core.running(1)[0]) == [], "and this one instead"


def test_a_worker_that_must_die_of_a_job_is_not_what_somebody_waits_for() -> None:
    core, traits = pool(2, concurrency=2), short()
    for job in range(8):
        core.submit(job, traits)
    assert core.request_worker() == []
    assert finish(core, 0, core.running(0)[0]) == [], "it is held back"
    job = core.running(0)[0]
    core.cancel(job, 9.0, index=0, begun=True)
    assert core.slots[0].job_endings.killing == job, "others are to be given back first"
    assert finish(core, 1, core.running(1)[0]) == [], "and this one instead"
    assert core.submit(9, traits) is None


def test_who_is_held_back_in_vain_gets_jobs_again() -> None:
    core, traits = pool(1), short()
    for job in (1, 2):
        core.submit(job, traits)
    core.request_worker()
    finish(core, 0, 1)
    assert core.submit(3, traits) is None
    assert core.cancel_request(2.0) == [cmd.Assign(0, (3,))]
    assert core.request_worker() == []
    finish(core, 0, 2)
    assert core.submit(4, traits) is None, "held back once more"


def test_a_worker_with_an_exact_limit_stays_until_its_session_is_over() -> None:
    core = pool(1, limits=WorkerLimits(max_jobs=2, jitter=0.0))
    core.request_worker()
    for job in (1, 2, 3):
        assert core.call(job, SessionTraits(1)) == [cmd.Assign(0, (job,))]
        assert finish(core, 0, job) == []
    assert core.submit(4, JobTraits()) is None
    core.end_session(1, 9.0, fresh=False)
    assert core.slots[0].exit_planned, "it ends, and has got no other job"


def test_who_is_held_back_when_the_pool_closes_has_room_for_what_is_tried_again() -> (
    None
):
    core, traits = pool(1, concurrency=2), JobTraits()
    for job in (1, 2):
        core.submit(job, traits)
    core.request_worker()
    assert finish(core, 0, 2) == [], "it is held back"
    assert core.close(Finish.RUNNING, None, 10.0) == [cmd.RefuseSessions()]
    assert core.requeue({2: traits}, 10.0) == [cmd.Assign(0, (2,))]


def test_a_smaller_pool_keeps_whom_a_session_has() -> None:
    core = pool(3)
    for _ in range(2):
        core.request_worker()
    core.resize(1, 1, 1.0)
    own = [slot for slot in core.slots if slot.session is not None]
    assert len(own) == 2
    assert not any(slot.draining for slot in own)
    core.ended(
        next(s.index for s in core.slots if s.draining),
        2.0,
        had_begun=False,
        requeue=(),
        jitter=0.0,
    )
    core.end_session(1, 3.0, fresh=False)
    assert [
        slot.session
        for slot in core.slots
        if not slot.draining and slot.ready_at is not None
    ].count(2) == 1


# Which jobs wait, and where.


def test_a_worker_is_idle_beside_one_that_others_wait_in() -> None:
    core, traits = pool(2, ready=1), short()
    core.submit(1, traits)
    core.submit(2, traits)
    seen = {"nobody is idle": core.unbalanced}
    core.ready(1, 0.0)
    seen["one is"] = core.unbalanced
    core.revoke(2, 0)
    seen["it is asked for"] = core.unbalanced
    core.revoked(0, (), 1.0)
    core.outcome(0, 1)
    seen["nobody waits"] = core.unbalanced
    assert [why for why, so in seen.items() if so] == ["one is"]
