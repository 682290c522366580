"""Planned exits, one by one; every order of them is in ``test_supervision.py``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Assign,
    Command,
    GiveUp,
    KeepWorker,
    Kill,
    LeaveEmpty,
    ParkSlot,
    Resized,
    Retiring,
    Revoke,
    RollEnded,
    Spawn,
    Stop,
    TellRestart,
    Terminate,
)
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.supervision import Supervision
from asyncpool.enums import SlotState
from tests.core.supervised import POLICY, gone, pool, short, taking


def wear_out(core: Supervision, slot: int, now: float) -> list[Command]:
    return core.replacements.replace(core.slots[slot], "max_memory", now)


def retire(core: Supervision, slot: int, now: float) -> list[Command]:
    return core.replacements.retire(core.slots[slot], "asked", now, unsent=None)


def test_a_worn_worker_goes_when_another_one_is_ready() -> None:
    core = pool(2)
    assert wear_out(core, 0, 1.0) == [Spawn(2, 1)]
    assert wear_out(core, 0, 1.0) == [], "once is enough"
    assert taking(core) == [0, 1]
    assert core.workers.ready(2, 1.1) == [Retiring(0, "max_memory"), Stop(0)]
    assert taking(core) == [1, 2]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0)]
    assert wear_out(core, 1, 2.0) == [Spawn(0, 2)], "the seat is used again"


def test_who_leaves_finishes_its_job_and_gives_back_the_others() -> None:
    core = pool(1)
    for job in (1, 2, 3):
        core.jobs.submit(job, short())
    wear_out(core, 0, 1.0)
    assert core.workers.ready(1, 1.1) == [Retiring(0, "max_memory"), Revoke(0, (2, 3))]
    assert core.jobs.revoked(0, (3,), 1.2)[1:] == [Assign(1, (3,))]
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.3) == [], "the second one has begun"
    core.jobs.outcome(0, 2)
    assert core.jobs.refill(0, 1.4) == [Stop(0)]


def test_who_does_not_leave_in_time_is_killed_and_that_is_a_crash() -> None:
    core = pool(1, limits=WorkerLimits(drain_timeout=5.0))
    core.jobs.submit(1, short())
    wear_out(core, 0, 1.0)
    core.workers.ready(1, 2.0)
    assert core.next_deadline() == 7.0
    reason = "it was to leave, and had not within 5 s"
    assert core.on_timer(7.0) == [Kill(0, reason)]
    assert not core.slots[0].exit_planned
    commands = core.workers.ended(0, 7.1, started=True, requeue=(1,), jitter=0.5)
    assert commands == [Assign(1, (1,)), LeaveEmpty(0)]


def test_without_a_deadline_it_may_take_for_ever() -> None:
    core = pool(1, limits=WorkerLimits(drain_timeout=None))
    core.jobs.submit(1, short())
    wear_out(core, 0, 1.0)
    core.workers.ready(1, 2.0)
    assert core.next_deadline() is None


def test_those_who_are_worn_together_do_not_go_together() -> None:
    core = pool(3)
    assert wear_out(core, 0, 1.0) == [Spawn(3, 1)]
    assert wear_out(core, 1, 1.0) == []
    assert wear_out(core, 2, 1.0) == []
    assert core.workers.ready(3, 1.1) == [Retiring(0, "max_memory"), Stop(0)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0), Spawn(0, 2)]
    assert core.workers.ready(0, 1.3) == [Retiring(1, "max_memory"), Stop(1)]
    assert len(taking(core)) == 3


def test_the_oldest_goes_first_whatever_its_slot() -> None:
    core = pool(2)
    assert wear_out(core, 0, 1.0) == [Spawn(2, 1)]
    core.workers.ready(2, 1.1)
    gone(core, 0, 1.2)
    # The one in slot 1 has been there from the start.
    assert wear_out(core, 1, 2.0) == [Spawn(0, 2)]
    assert wear_out(core, 2, 2.0) == []
    core.workers.ready(0, 2.1)
    assert wear_out(core, 0, 2.1) == [], "it is due again at once"
    assert gone(core, 1, 2.2) == [LeaveEmpty(1), Spawn(1, 2)]
    assert core.slots[1].replaces == 2, "and not the one in slot 0, which is newer"


def test_a_roll_waits_for_a_replacement_that_is_surplus() -> None:
    core = pool(3)
    assert wear_out(core, 0, 1.0) == [Spawn(3, 1)]  # it may have read old code
    assert core.replacements.roll(1.1) == []
    core.replacements.resize(1, 1, 1.2)
    assert [slot.index for slot in core.slots if slot.draining] == [0, 1, 3]
    for slot in (0, 1):
        assert gone(core, slot, 1.3) == [LeaveEmpty(slot)]
    core.workers.kill(2, 1.4)
    assert gone(core, 2, 1.5) == [Spawn(2, 2)], "which is new, but 3 is there"
    assert gone(core, 3, 1.6) == [LeaveEmpty(3), RollEnded(3, "")]


def test_a_roll_counts_no_replacement_that_was_surplus_before() -> None:
    core = pool(3)
    assert wear_out(core, 0, 1.0) == [Spawn(3, 1)]
    core.replacements.resize(1, 1, 1.1)
    assert core.replacements.roll(1.2) == []
    for slot in (0, 1):
        assert gone(core, slot, 1.3) == [LeaveEmpty(slot)]
    assert gone(core, 3, 1.4) == [LeaveEmpty(3), Spawn(0, 2)]
    assert core.workers.ready(0, 1.5) == [Retiring(2, "roll"), Stop(2)]
    assert gone(core, 2, 1.6) == [LeaveEmpty(2), RollEnded(1, "")]


def test_a_roll_ends_if_a_start_fails_whose_old_worker_leaves_already() -> None:
    core = pool(1)
    core.jobs.submit(1, short(1e9))
    assert core.replacements.roll(1.0) == [Spawn(1, 1)]
    core.replacements.retire(core.slots[0], "retire_worker()", 1.1, unsent=None)
    trouble = RollEnded(0, "a replacement did not start")
    assert gone(core, 1, 1.2)[:2] == [KeepWorker(1, None), trouble]


def test_for_one_that_leaves_before_its_replacement_is_ready_no_other_is_started() -> (
    None
):
    core = pool(2, max_surge=2)
    assert core.replacements.replace(core.slots[0], "max_jobs", 1.0) == [Spawn(2, 1)]
    commands = core.replacements.retire(core.slots[0], "max_jobs", 1.1, unsent=None)
    assert commands == [Retiring(0, "max_jobs"), Stop(0)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0)]
    assert core.workers.ready(2, 1.3) == []
    assert core.replacements.budget.settled


def test_with_more_surge_more_of_them_do() -> None:
    core = pool(3, max_surge=2)
    assert wear_out(core, 0, 1.0) == [Spawn(3, 1)]
    assert wear_out(core, 1, 1.0) == [Spawn(4, 1)]
    assert wear_out(core, 2, 1.0) == []


def test_without_surge_a_worker_goes_first() -> None:
    core = pool(2, max_surge=0, max_unavailable=1)
    assert wear_out(core, 0, 1.0) == [Retiring(0, "max_memory"), Stop(0)]
    assert wear_out(core, 1, 1.0) == []
    assert gone(core, 0, 1.1) == [Spawn(0, 2)]
    assert core.workers.ready(0, 1.2) == [Retiring(1, "max_memory"), Stop(1)]


def test_a_worker_is_worn_after_so_many_jobs() -> None:
    core = pool(1, limits=WorkerLimits(max_jobs=2, jitter=0.0))
    for job, commands in ((1, []), (2, [Spawn(1, 1)]), (3, [])):
        assert core.jobs.submit(job, short()) == 0
        core.jobs.outcome(0, job)
        assert core.jobs.refill(0, 1.0) == commands, "it goes on until then"
    assert core.workers.ready(1, 1.1) == [Retiring(0, "max_jobs"), Stop(0)]


def test_a_worker_is_worn_at_its_age() -> None:
    core = pool(1, limits=WorkerLimits(max_age=50.0, jitter=0.0))
    assert core.next_deadline() == 50.0
    assert core.on_timer(50.0) == [Spawn(1, 1)]
    assert core.workers.ready(1, 51.0) == [Retiring(0, "max_age"), Stop(0)]
    gone(core, 0, 51.1)
    assert core.next_deadline() == 101.0


def test_the_old_one_stays_if_the_new_one_does_not_start() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert gone(core, 1, 2.0) == [KeepWorker(1, 0.5)]
    assert taking(core) == [0]
    assert core.next_deadline() == 2.5
    assert core.on_timer(2.5) == [Spawn(1, 2)]
    assert gone(core, 1, 3.0) == [KeepWorker(1, 1.0)], "more and more patiently"
    assert core.on_timer(4.0) == [Spawn(1, 3)]
    assert core.workers.ready(1, 5.0) == [Retiring(0, "max_memory"), Stop(0)]


def test_a_pool_never_breaks_of_replacements_that_do_not_start() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    for _ in range(100):
        gone(core, 1, core.next_deadline() or 1.0)
        now = core.next_deadline()
        assert now is not None
        core.on_timer(now)
    assert core.broken is None
    assert taking(core) == [0]


def test_if_the_old_one_crashes_meanwhile_the_new_one_has_its_place() -> None:
    core = pool(1)
    core.jobs.submit(1, short())
    wear_out(core, 0, 1.0)
    commands = core.workers.ended(0, 1.1, started=True, requeue=(1,), jitter=0.5)
    assert commands == [LeaveEmpty(0)]
    assert core.workers.ready(1, 1.2) == [Assign(1, (1,))]
    assert core.jobs.submit(2, short(1e9)) is None


def test_then_it_is_no_replacement_any_more() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert gone(core, 0, 1.1) == [LeaveEmpty(0)]
    [parked] = gone(core, 1, 1.2)
    assert isinstance(parked, ParkSlot)
    assert (parked.slot, parked.reason) == (1, "the start failed")


def test_who_asks_to_be_retired_gets_no_job_whoever_is_there() -> None:
    core = pool(1)
    for job in (1, 2):
        core.jobs.submit(job, short())
    commands = retire(core, 0, 1.0)
    assert commands == [
        Retiring(0, "asked"),
        Revoke(0, (2,)),
        Revoke(0, (1,)),
        Spawn(1, 1),
    ]
    core.jobs.revoked(0, (2,), 1.1)
    core.jobs.revoked(0, (), 1.1)
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.2) == [Stop(0)]
    assert core.workers.ready(1, 1.3) == [Assign(1, (2,))]
    assert gone(core, 0, 1.4) == [LeaveEmpty(0)]


def test_what_it_got_after_it_asked_comes_back() -> None:
    core = pool(1)
    core.jobs.submit(1, short())
    assert Revoke(0, (1,)) in retire(core, 0, 1.0)
    commands = core.jobs.revoked(0, (1,), 1.1)
    assert commands[-1] == Stop(0)
    assert core.workers.ready(1, 1.2) == [Assign(1, (1,))]


def test_a_roll_replaces_one_after_the_other() -> None:
    core = pool(2)
    assert core.replacements.roll(1.0) == [Spawn(2, 1)]
    assert core.workers.ready(2, 1.1) == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0), Spawn(0, 2)]
    assert core.workers.ready(0, 1.3) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 1, 1.4) == [LeaveEmpty(1), RollEnded(2, "")]
    assert not core.replacements.rolling


def test_a_worker_that_is_being_started_is_rolled_too() -> None:
    """It may have read what is old by now."""
    core = pool(2)
    assert gone(core, 1, 0.5) == [TellRestart(1, 0.0), Spawn(1, 2)]
    assert core.replacements.roll(1.0) == [Spawn(2, 1)]
    assert core.workers.ready(2, 1.1) == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0)]
    assert core.workers.ready(1, 1.3) == [Spawn(0, 2)]
    assert core.workers.ready(0, 1.4) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 1, 1.5) == [LeaveEmpty(1), RollEnded(2, "")]


def test_a_crash_during_a_roll_replaces_a_worker_too() -> None:
    core = pool(2)
    core.replacements.roll(1.0)
    assert gone(core, 1, 1.05) == [TellRestart(1, 0.0), Spawn(1, 2)]
    core.workers.ready(1, 1.1)
    assert core.workers.ready(2, 1.2) == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.3) == [LeaveEmpty(0), RollEnded(2, "")]


@pytest.mark.parametrize(
    ("stop", "commands"),
    [
        (
            lambda core: gone(core, 2, 1.1),
            [KeepWorker(2, None), RollEnded(0, "a replacement did not start")],
        ),
        (
            lambda core: core.close(Finish.ALL, 30.0, 1.1),
            [
                RollEnded(0, "the pool was closed"),
                Stop(0),
                Stop(1),
                Terminate(2),
            ],
        ),
    ],
)
def test_a_roll_that_cannot_go_on_ends(
    stop: Callable[[Supervision], list[Command]], commands: list[Command]
) -> None:
    core = pool(2)
    core.replacements.roll(1.0)
    assert stop(core) == commands
    assert not core.replacements.rolling
    if core.closing.finish is None:
        assert taking(core) == [0, 1]
        assert core.next_deadline() is None, "nothing is tried again"


def test_a_roll_replaces_as_many_at_a_time_as_the_budget_allows() -> None:
    core = pool(4, max_surge=2)
    assert core.replacements.roll(1.0) == [Spawn(4, 1), Spawn(5, 1)]
    assert core.workers.ready(5, 1.1) == [Retiring(1, "roll"), Stop(1)]
    assert core.workers.ready(4, 1.1) == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.2) == [LeaveEmpty(0), Spawn(0, 2)]
    assert gone(core, 1, 1.2) == [LeaveEmpty(1), Spawn(1, 2)]
    assert [core.slots[index].replaces for index in (0, 1)] == [2, 3]
    core.workers.ready(0, 1.3)
    core.workers.ready(1, 1.3)
    assert gone(core, 2, 1.4) == [LeaveEmpty(2)]
    assert gone(core, 3, 1.4) == [LeaveEmpty(3), RollEnded(4, "")]
    assert taking(core) == [0, 1, 4, 5]


def test_several_at_a_time_need_not_be_there_before_if_some_may_be_missing() -> None:
    core = pool(3, max_surge=0, max_unavailable=2)
    assert core.replacements.roll(1.0) == [
        Retiring(0, "roll"),
        Stop(0),
        Retiring(1, "roll"),
        Stop(1),
    ]


@pytest.mark.parametrize("comes", [True, False])
def test_what_a_failed_roll_has_begun_is_ended_and_not_tried_again(
    comes: bool,  # noqa: FBT001
) -> None:
    core = pool(4, max_surge=2)
    core.replacements.roll(1.0)
    trouble = RollEnded(0, "a replacement did not start")
    assert gone(core, 4, 1.1) == [KeepWorker(4, None), trouble]
    assert taking(core) == [0, 1, 2, 3]
    if comes:
        assert core.workers.ready(5, 1.2) == [Retiring(1, "roll"), Stop(1)]
        assert gone(core, 1, 1.3) == [LeaveEmpty(1)]
        assert taking(core) == [0, 2, 3, 5]
    else:
        assert gone(core, 5, 1.2) == [KeepWorker(5, None)]
        assert taking(core) == [0, 1, 2, 3]
    assert core.next_deadline() is None


def test_who_is_ready_only_to_be_rolled_gets_nothing_to_do() -> None:
    core = pool(1, max_surge=0, max_unavailable=1)
    core.jobs.submit(1, JobTraits())
    core.jobs.submit(2, JobTraits())
    core.replacements.roll(1.0)
    assert gone(core, 0, 1.1)[-1] == RollEnded(1, "")
    assert core.replacements.roll(1.2) == []
    assert core.workers.ready(0, 1.3) == [Retiring(0, "roll"), Stop(0)]
    gone(core, 0, 1.4)
    assert core.workers.ready(0, 1.5) == [Assign(0, (2,))]


@pytest.mark.parametrize("rolled_at", [19.0, 20.5])
def test_who_is_old_when_a_roll_fails_is_replaced_later(rolled_at: float) -> None:
    core = pool(1, limits=WorkerLimits(max_age=20.0, jitter=0.0))
    if rolled_at > 20.0:
        assert core.on_timer(20.0) == [Spawn(1, 1)]
        assert core.replacements.roll(rolled_at) == []
        gone(core, 1, 20.6)  # which has begun before the roll
    else:
        assert core.replacements.roll(rolled_at) == [Spawn(1, 1)]
    delay = POLICY.delay(1, jitter=0.0)
    trouble = RollEnded(0, "a replacement did not start")
    assert gone(core, 1, 21.0) == [KeepWorker(1, delay), trouble]
    assert core.next_deadline() == 21.0 + delay
    [again] = core.on_timer(21.0 + delay)
    assert isinstance(again, Spawn)
    assert core.workers.ready(1, 23.0) == [Retiring(0, "max_age"), Stop(0)]


def test_a_pool_that_breaks_is_not_rolled() -> None:
    core = pool(2, policy=RestartPolicy.limited(1, 60.0))
    core.replacements.roll(1.0)
    assert gone(core, 0, 1.1) == [LeaveEmpty(0), Spawn(0, 2)]
    commands = gone(core, 1, 1.2)
    assert isinstance(commands[1], GiveUp)
    assert RollEnded(1, "the pool broke") in commands
    assert not core.replacements.rolling
    assert gone(core, 0, 1.3) == [LeaveEmpty(0)]
    text = "2 workers died within 60 s, and the policy allows 1"
    assert gone(core, 2, 1.3) == [ParkSlot(2, text, None)]
    assert core.slots[2].state is SlotState.PARKED


def parked(workers: int) -> Supervision:
    """Return a pool whose last worker has died at 1.0, and could not be replaced at 1.1."""
    core = pool(workers)
    last = workers - 1
    assert gone(core, last, 1.0)[-1] == Spawn(last, 2)
    [command] = gone(core, last, 1.1)
    assert isinstance(command, ParkSlot)
    return core


def test_a_roll_tries_parked_slots_at_once_and_waits_for_their_workers() -> None:
    core = parked(2)
    assert core.replacements.roll(1.2) == [Spawn(2, 1)]
    assert core.next_deadline() == 1.2
    assert core.on_timer(1.2) == [Spawn(1, 3)]
    assert core.workers.ready(2, 1.3)[-2:] == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.4) == [LeaveEmpty(0)]
    assert core.replacements.rolling
    assert core.workers.ready(1, 1.5)[-1] == RollEnded(1, "", 1)


def test_a_roll_of_a_broken_pool_tries_to_start_it() -> None:
    core = pool(1, policy=RestartPolicy(initial_delay=0.5, max_failed_starts=1))
    gone(core, 0, 1.0)
    assert GiveUp("the start failed") in gone(core, 0, 1.1)
    assert core.replacements.roll(1.2) == []
    assert core.on_timer(1.2) == [Spawn(0, 3)]
    assert core.workers.ready(0, 1.3)[-1] == RollEnded(0, "", 1)
    assert core.broken is None


def test_it_says_that_the_start_has_failed_again() -> None:
    core = parked(1)
    core.replacements.roll(1.2)
    assert core.on_timer(1.2) == [Spawn(0, 3)]
    assert gone(core, 0, 1.3)[-1] == RollEnded(0, "a start failed again", 0)
    assert core.next_deadline() != 1.3, "nothing is hurried any more"
    assert not core.replacements.rolling


def test_a_start_that_is_broken_off_has_failed_again_when_it_is_gone() -> None:
    core = parked(1)
    core.replacements.roll(1.2)
    assert core.on_timer(1.2) == [Spawn(0, 3)]
    assert core.workers.replace_faulty(0, 1.3) == [Kill(0)]
    assert core.on_timer(1.3) == [], "the roll is not over"
    assert gone(core, 0, 1.4)[-1] == RollEnded(0, "a start failed again", 0)


def test_a_start_that_had_begun_before_the_roll_may_fail() -> None:
    core = parked(1)
    now = core.next_deadline()
    assert now is not None
    assert core.on_timer(now) == [Spawn(0, 3)]
    assert core.replacements.roll(now) == []
    gone(core, 0, now + 0.1)
    assert core.replacements.rolling
    assert core.on_timer(now + 0.1) == [Spawn(0, 4)]
    assert core.workers.ready(0, now + 0.2)[-1] == RollEnded(0, "", 1)


# A roll that comes while replacements are being started.


def rolled_in_vain(workers: int) -> Supervision:
    """Return a pool whose roll has failed at 1.1 and left one start that it had begun."""
    core = pool(workers, max_surge=2)
    assert core.replacements.roll(1.0) == [Spawn(workers, 1), Spawn(workers + 1, 1)]
    trouble = RollEnded(0, "a replacement did not start")
    assert gone(core, workers + 1, 1.1)[-1] == trouble
    return core


def test_a_start_that_an_earlier_roll_has_begun_may_fail() -> None:
    """It may have failed of what is mended by now."""
    core = rolled_in_vain(2)
    assert core.replacements.roll(1.2) == [Spawn(3, 2)]
    assert gone(core, 2, 1.3) == [KeepWorker(2, 0.0), Spawn(2, 2)]
    assert core.replacements.rolling
    assert core.workers.ready(2, 1.4) == [Retiring(0, "roll"), Stop(0)]
    assert core.workers.ready(3, 1.4) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 0, 1.5) == [LeaveEmpty(0)]
    assert gone(core, 1, 1.5) == [LeaveEmpty(1), RollEnded(2, "")]


def test_but_not_the_one_that_comes_after_it() -> None:
    core = rolled_in_vain(2)
    core.replacements.roll(1.2)
    gone(core, 2, 1.3)
    trouble = RollEnded(0, "a replacement did not start")
    assert gone(core, 2, 1.4) == [KeepWorker(2, None), trouble]


def test_a_start_that_an_earlier_roll_has_begun_is_rolled_when_it_is_ready() -> None:
    """It may run what is old, and is no worker more than there were."""
    core = rolled_in_vain(2)
    assert core.replacements.roll(1.2) == [Spawn(3, 2)]
    assert core.workers.ready(2, 1.3) == [Retiring(0, "roll"), Stop(0)]
    assert gone(core, 0, 1.4) == [LeaveEmpty(0), Spawn(0, 2)]
    assert core.workers.ready(3, 1.5) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 1, 1.6) == [LeaveEmpty(1)]
    assert core.workers.ready(0, 1.7) == [Retiring(2, "roll"), Stop(2)]
    assert gone(core, 2, 1.8) == [LeaveEmpty(2), RollEnded(2, "")]


def test_such_a_roll_is_over_when_those_are_gone_who_were_there() -> None:
    core = pool(1, max_surge=2)
    assert wear_out(core, 0, 1.0) == [Spawn(1, 1)]
    assert core.replacements.roll(1.1) == []
    assert core.workers.ready(1, 1.2) == [
        Retiring(0, "max_memory"),
        Stop(0),
        Spawn(2, 1),
    ]
    assert core.workers.ready(2, 1.3) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 1, 1.4) == [LeaveEmpty(1)]
    assert gone(core, 0, 1.5) == [LeaveEmpty(0), RollEnded(1, "")]


def test_a_roll_does_not_wait_since_a_replacement_has_failed_before_it() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert gone(core, 1, 2.0) == [KeepWorker(1, 0.5)]
    assert core.replacements.roll(2.1) == [Spawn(1, 2)]
    assert core.workers.ready(1, 2.2) == [Retiring(0, "max_memory"), Stop(0)]
    assert gone(core, 0, 2.3) == [LeaveEmpty(0), RollEnded(1, "")]


def test_nor_since_one_fails_that_had_begun_before_it() -> None:
    core = pool(2, max_surge=2)
    assert wear_out(core, 0, 1.0) == [Spawn(2, 1)]
    assert core.replacements.roll(1.1) == [Spawn(3, 1)]
    assert gone(core, 2, 1.2) == [KeepWorker(2, 0.0), Spawn(2, 2)]


@pytest.mark.parametrize("comes", [True, False])
def test_who_is_there_in_its_own_right_and_began_before_the_roll_is_rolled(
    comes: bool,  # noqa: FBT001
) -> None:
    core = pool(1)
    assert wear_out(core, 0, 1.0) == [Spawn(1, 1)]
    core.replacements.roll(1.1)
    assert gone(core, 0, 1.2) == [LeaveEmpty(0)]
    if comes:
        assert core.workers.ready(1, 1.3) == [Spawn(0, 2)]
        assert core.workers.ready(0, 1.4) == [Retiring(1, "roll"), Stop(1)]
        assert gone(core, 1, 1.5) == [LeaveEmpty(1), RollEnded(1, "")]
    else:
        assert isinstance(gone(core, 1, 1.3)[0], ParkSlot)
        assert core.on_timer(1.3) == [Spawn(1, 2)]
        assert core.workers.ready(1, 1.4)[-1] == RollEnded(0, "", 1)


def test_so_is_who_comes_for_one_that_leaves_already() -> None:
    core = pool(1)
    core.jobs.submit(1, short())
    assert wear_out(core, 0, 1.0) == [Spawn(1, 1)]
    core.replacements.retire(core.slots[0], "asked", 1.1, unsent=None)
    assert core.replacements.roll(1.2) == []
    assert core.replacements.rolling
    assert core.workers.ready(1, 1.3) == []
    core.jobs.outcome(0, 1)
    assert core.jobs.refill(0, 1.4) == [Stop(0)]
    assert gone(core, 0, 1.5) == [LeaveEmpty(0), Spawn(0, 2)]
    assert core.workers.ready(0, 1.6) == [Retiring(1, "roll"), Stop(1)]
    assert gone(core, 1, 1.7) == [LeaveEmpty(1), RollEnded(1, "")]


def test_a_start_that_was_broken_off_before_the_roll_may_fail() -> None:
    core = parked(1)
    now = core.next_deadline()
    assert now is not None
    assert core.on_timer(now) == [Spawn(0, 3)]
    assert core.workers.replace_faulty(0, now) == [Kill(0)]
    core.replacements.roll(now)
    gone(core, 0, now + 0.1)
    assert core.on_timer(now + 0.1) == [Spawn(0, 4)]
    assert core.workers.ready(0, now + 0.2)[-1] == RollEnded(0, "", 1)


def test_too_much_memory_is_a_crash() -> None:
    core = pool(1)
    core.jobs.submit(1, short())
    slot = core.slots[0]
    assert core.workers.oversized(0, "fat", 1.0) == [Kill(0, "fat")]
    assert slot.oversized
    assert not slot.exit_planned
    assert core.workers.oversized(0, "fat", 1.0) == []


# Who is not replaced, and what becomes of those that are.


def test_a_worker_that_is_being_started_or_leaves_is_not_replaced() -> None:
    core = pool(2)
    gone(core, 0, 1.0)
    assert core.slots[0].state is SlotState.STARTING
    assert wear_out(core, 0, 1.1) == []
    assert retire(core, 0, 1.1) == []
    core.jobs.submit(1, short())
    retire(core, 1, 1.2)
    assert core.slots[1].draining
    assert wear_out(core, 1, 1.3) == []
    assert [slot.replace_reason for slot in core.slots[:2]] == [None, None]


def test_the_first_reason_counts() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert core.replacements.replace(core.slots[0], "max_jobs", 1.1) == []
    assert core.workers.ready(1, 1.2) == [Retiring(0, "max_memory"), Stop(0)]


def test_a_worker_that_is_let_go_is_missed_at_once() -> None:
    core = pool(1)
    commands = core.replacements.release(core.slots[0], "session", 1.0)
    assert commands == [Retiring(0, "session"), Stop(0), Spawn(1, 1)]


def test_a_new_size_is_kept_at_once() -> None:
    core = pool(1)
    assert core.replacements.resize(2, 2, 1.0) == [Resized(2), Spawn(1, 1)]
    assert core.replacements.sizing.size == 2


def test_a_replacement_that_comes_ends_the_row_of_those_that_failed() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    gone(core, 1, 2.0)
    assert core.on_timer(2.5) == [Spawn(1, 2)]
    core.workers.ready(1, 3.0)
    gone(core, 0, 3.1)
    wear_out(core, 1, 4.0)
    assert gone(core, 0, 5.0) == [KeepWorker(0, 0.5)]


def test_who_leaves_is_not_due_for_its_age() -> None:
    core = pool(1, limits=WorkerLimits(max_age=50.0, jitter=0.0, drain_timeout=None))
    core.jobs.submit(1, short())
    retire(core, 0, 1.0)
    core.workers.ready(1, 2.0)
    assert core.next_deadline() == 52.0, "the other one's"


def test_a_pool_that_ends_grants_nothing_and_says_so_once() -> None:
    core = pool(2)
    core.jobs.submit(1, short())
    wear_out(core, 0, 1.0)
    assert core.replacements.stop("the pool was closed") == []
    assert core.slots[2].replaces is None
    assert core.slots[0].replace_reason is None
    assert core.workers.ready(2, 1.1) == [], "it stays beside the other one"
    assert wear_out(core, 1, 1.2) == []
    assert core.replacements.stopped
    assert core.replacements.stop("the pool was closed") == []


def test_a_worker_that_leaves_while_the_pool_ends_still_has_its_deadline() -> None:
    core = pool(1, limits=WorkerLimits(drain_timeout=5.0))
    core.jobs.submit(1, short())
    retire(core, 0, 1.0)
    core.replacements.stop("the pool was closed")
    assert core.replacements.next_deadline() == 6.0


# A worker that fails, and finishes what it has.


def fail(core: Supervision, slot: int, delay: float | None) -> list[Command]:
    return core.replacements.fail_after_drain(core.slots[slot], "ill", 1.0, delay)


@pytest.mark.parametrize(
    ("delay", "commands"),
    [
        (0.0, [Retiring(0, "ill"), Stop(0), Spawn(1, 1)]),
        (0.5, [Retiring(0, "ill"), Stop(0), TellRestart(1, 0.5)]),
        (None, [Stop(0)]),
    ],
)
def test_who_fails_has_a_successor_before_it_has_finished(
    delay: float | None, commands: list[Command]
) -> None:
    core = pool(1)
    assert fail(core, 0, delay) == commands
    assert not core.slots[0].exit_planned, "it is a crash"


def test_the_replacement_of_who_fails_is_its_successor() -> None:
    core = pool(1)
    wear_out(core, 0, 0.5)
    assert fail(core, 0, 0.0) == [Retiring(0, "ill"), Stop(0)]
    assert core.slots[1].replaces is None


def test_who_fails_and_is_one_too_many_has_no_successor() -> None:
    core = pool(2)
    core.replacements.sizing.limit(1, 1, 0.9)
    assert fail(core, 0, 0.0) == [Retiring(0, "ill"), Stop(0)]
