"""Tests of asyncpool/_core/placement/affinity_slots.py: a few stories; the rest is in test_supervision."""

from __future__ import annotations

from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.dispatch.rendezvous import choose
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.slots.capacity import GROW_EVERY
from asyncpool._core.slots.commands import Assign, Recover, Resized
from asyncpool._core.supervision.supervision import Supervision


def pool_of(
    least: int, most: int | None = None, *, max_surge: int = 1, max_unavailable: int = 0
) -> Supervision:
    core = Supervision(
        workers=(least, most or least),
        policy=RestartPolicy(),
        start_timeout=20.0,
        max_surge=max_surge,
        max_unavailable=max_unavailable,
    )
    core.workers.start(0.0)
    for slot in range(least):
        core.workers.ready(slot, 0.0)
    return core


def places(core: Supervision) -> dict[int, int]:
    """Return the slot of each place."""
    return {s.bucket: s.index for s in core.slots if s.bucket is not None}


def key_of(place: int, count: int) -> int:
    """Return a key that belongs to one of so many places."""
    return next(key for key in range(1000) if choose(key, range(count)) == place)


def submit(core: Supervision, job: int, key: int, priority: int = 0) -> int | None:
    return core.jobs.submit_keyed(job, KeyedTraits(JobTraits(), key), priority)


def test_those_with_which_a_pool_begins_have_their_places_from_the_start() -> None:
    core = Supervision(workers=(3, 3), policy=RestartPolicy(), start_timeout=20.0)
    core.workers.start(0.0)
    assert places(core) == {0: 0, 1: 1, 2: 2}
    assert submit(core, 1, key_of(2, 3)) is None
    assert core.workers.ready(0, 1.0) == []
    assert core.workers.ready(2, 1.0) == [Assign(2, (1,))]


def test_after_a_crash_the_place_is_kept_while_the_next_one_starts() -> None:
    core = pool_of(2)
    assert submit(core, 1, key_of(0, 2)) == 0
    core.workers.ended(0, 1.0, started=True, requeue=(), jitter=0.0)
    assert places(core) == {0: 0, 1: 1}
    assert submit(core, 2, key_of(0, 2)) is None
    assert core.workers.ready(0, 1.1) == [Assign(0, (2,))]


def test_in_a_backoff_the_next_choice_has_the_keys_and_then_they_come_back() -> None:
    core = pool_of(2)
    core.workers.ended(0, 1.0, started=False, requeue=(), jitter=0.5)
    assert submit(core, 1, key_of(0, 2)) is None
    # It does not come up: the job need not wait for the next try.
    commands = core.workers.ended(0, 1.0, started=False, requeue=(), jitter=0.5)
    assert commands[-1] == Assign(1, (1,))
    assert places(core) == {1: 1}
    deadline = core.next_deadline()
    assert deadline is not None
    core.on_timer(deadline)
    assert places(core) == {1: 1}, "it is not there yet"
    core.workers.ready(0, deadline)
    assert places(core) == {0: 0, 1: 1}


def test_jobs_wait_for_the_first_that_is_there_if_nobody_is() -> None:
    core = pool_of(1)
    core.workers.ended(0, 1.0, started=False, requeue=(), jitter=0.5)
    core.workers.ended(
        0, 1.0, started=False, requeue=(), jitter=0.5
    )  # this start has failed
    assert places(core) == {}
    assert submit(core, 1, 7) is None
    assert core.dispatcher.waiting == 1
    deadline = core.next_deadline()
    assert deadline is not None
    core.on_timer(deadline)
    assert core.workers.ready(0, deadline) == [Recover(0), Assign(0, (1,))]


def test_a_replacement_has_the_place_when_it_is_ready() -> None:
    core = pool_of(2)
    core.replacements.replace(core.slots[1], "worn", 1.0)
    assert places(core) == {0: 0, 1: 1}
    core.workers.ready(2, 2.0)
    assert places(core) == {0: 0, 1: 2}
    core.workers.ended(1, 2.0, started=False, requeue=(), jitter=0.0)
    core.replacements.replace(core.slots[0], "worn", 3.0)
    core.workers.ready(1, 3.0)
    assert places(core) == {0: 1, 1: 2}


def test_a_replacement_inherits_from_a_worker_that_crashes_first() -> None:
    core = pool_of(2)
    core.replacements.replace(core.slots[0], "worn", 1.0)
    core.workers.ended(0, 2.0, started=True, requeue=(), jitter=0.0)
    assert places(core) == {0: 2, 1: 1}


def test_without_a_surge_the_keys_are_with_others_meanwhile() -> None:
    core = pool_of(2, max_surge=0, max_unavailable=1)
    core.replacements.replace(core.slots[0], "worn", 1.0)
    assert places(core) == {1: 1}
    core.workers.ended(0, 2.0, started=False, requeue=(), jitter=0.0)
    core.workers.ready(0, 3.0)
    assert places(core) == {0: 0, 1: 1}


def test_who_comes_takes_the_lowest_place_that_is_free() -> None:
    core = pool_of(3)
    core.replacements.retire(core.slots[1], "asked", 1.0, unsent=None)
    assert places(core) == {0: 0, 2: 2}
    core.workers.ready(3, 2.0)
    assert places(core) == {0: 0, 1: 3, 2: 2}
    core.replacements.resize(5, 5, 3.0)
    assert places(core) == {0: 0, 1: 3, 2: 2}, "nobody new is there yet"
    core.workers.ready(4, 4.0)
    assert places(core) == {0: 0, 1: 3, 2: 2, 3: 4}


def test_jobs_move_with_their_keys_and_keep_their_age_and_priority() -> None:
    core = pool_of(1)
    core.jobs.submit(0, JobTraits())
    mine, other = key_of(1, 2), key_of(0, 2)
    for job, (key, priority) in enumerate(
        [(mine, 0), (other, 0), (mine, -1), (mine, 0), (other, 0)], 1
    ):
        assert submit(core, job, key, priority) is None
    core.jobs.requeue({9: KeyedTraits(JobTraits(), mine)}, 0.0)
    core.replacements.resize(2, 2, 1.0)
    begun: list[int] = []
    commands = core.workers.ready(1, 2.0)
    while commands:
        [assign] = commands
        assert isinstance(assign, Assign)
        begun += assign.jobs
        core.jobs.outcome(1, *assign.jobs)
        commands = core.jobs.refill(1, 3.0)
    assert begun == [9, 3, 1, 4]
    core.jobs.outcome(0, 0)
    assert core.jobs.refill(0, 3.0) == [Assign(0, (2,))]


def test_nobody_is_started_for_a_job_that_waits_while_others_are_idle() -> None:
    core = pool_of(2, 3)
    mine = key_of(0, 2)
    assert submit(core, 1, mine) == 0
    assert submit(core, 2, mine) is None
    core.replacements.sizing.job_waits(1.0)
    assert core.on_timer(1.0 + GROW_EVERY) == []
    # But for those that wait while nobody is, there may be.
    core.jobs.submit(3, JobTraits())
    core.replacements.sizing.job_waits(2.0)
    assert Resized(3) in core.on_timer(2.0 + GROW_EVERY)


def test_a_slot_that_nobody_needs_keeps_no_place_for_who_begins_in_it() -> None:
    core = pool_of(2)
    core.workers.oversized(1, "too large", 1.0)
    core.replacements.resize(1, 1, 1.0)
    core.replacements.replace(core.slots[0], "worn", 1.0)
    assert places(core) == {0: 0, 1: 1}
    core.workers.ended(1, 2.0, started=False, requeue=(), jitter=0.0)
    assert core.slots[1].replaces == 0, "it begins where somebody was who is not needed"
    assert places(core) == {0: 0}
