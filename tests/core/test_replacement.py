"""Planned exits, rolls and sizes, story by story; every order of them is in ``test_supervision.py``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core import pool_core
from tests.core.pool_core import (
    BURST,
    Core,
    Finish,
    KeyedTraits,
    RestartPolicy,
    SlotState,
    WorkerLimits,
    cmd,
    gone,
    short,
    taking,
)

POLICY = RestartPolicy(initial_delay=0.5)


def pool(workers: int, most: int | None = None, **options: Any) -> Core:
    """Return a pool whose workers are ready at 0.0."""
    options.setdefault("limits", WorkerLimits(jitter=0.0))
    usual: dict[str, Any] = {"policy": POLICY, "idle_timeout": 60.0, **options}
    return pool_core.pool(workers, most, **usual)


def wear_out(core: Core, slot: int, now: float) -> list[cmd.Command]:
    return core.replace(slot, "max_memory", now)


def test_a_worn_worker_goes_when_another_one_is_ready() -> None:
    core = pool(2)
    assert wear_out(core, 0, 1.0) == [cmd.Spawn(2, 1)]
    assert wear_out(core, 0, 1.0) == [], "once is enough"
    assert taking(core) == [0, 1]
    assert core.ready(2, 1.1) == [cmd.Draining(0, "max_memory"), cmd.Stop(0)]
    assert taking(core) == [1, 2]
    assert gone(core, 0, 1.2) == [cmd.LeaveEmpty(0)]
    assert wear_out(core, 1, 2.0) == [cmd.Spawn(0, 2)], "the seat is used again"


def test_who_does_not_leave_in_time_is_killed_and_that_is_a_crash() -> None:
    core = pool(1, limits=WorkerLimits(drain_timeout=5.0))
    core.submit(1, short())
    wear_out(core, 0, 1.0)
    core.ready(1, 2.0)
    assert core.next_deadline() == 7.0
    reason = "it had not finished within drain_timeout (5 s)"
    assert core.on_timer(7.0) == [cmd.Kill(0, reason)]
    assert not core.slots[0].exit_planned
    commands = core.ended(0, 7.1, had_begun=True, requeue=(1,), jitter=0.5)
    assert commands == [cmd.Assign(1, (1,)), cmd.LeaveEmpty(0)]


def test_the_oldest_goes_first_whatever_its_slot() -> None:
    core = pool(2)
    assert wear_out(core, 0, 1.0) == [cmd.Spawn(2, 1)]
    core.ready(2, 1.1)
    gone(core, 0, 1.2)
    # The one in slot 1 has been there from the start.
    assert wear_out(core, 1, 2.0) == [cmd.Spawn(0, 2)]
    assert wear_out(core, 2, 2.0) == []
    core.ready(0, 2.1)
    assert wear_out(core, 0, 2.1) == [], "it is due again at once"
    assert gone(core, 1, 2.2) == [cmd.LeaveEmpty(1), cmd.Spawn(1, 2)]
    assert core.slots[1].replaces == 2, "and not the one in slot 0, which is newer"


def test_a_roll_waits_for_a_replacement_that_is_surplus() -> None:
    core = pool(3)
    assert wear_out(core, 0, 1.0) == [cmd.Spawn(3, 1)]  # it may have read old code
    assert core.roll(1.1) == []
    core.resize(1, 1, 1.2)
    assert [slot.index for slot in core.slots if slot.draining] == [0, 1, 3]
    for slot in (0, 1):
        assert gone(core, slot, 1.3) == [cmd.LeaveEmpty(slot)]
    core.kill(2, 1.4)
    assert gone(core, 2, 1.5) == [cmd.Spawn(2, 2)], "which is new, but 3 is there"
    assert gone(core, 3, 1.6) == [cmd.LeaveEmpty(3), cmd.RollEnded(3, "")]


def test_the_old_one_stays_if_the_new_one_does_not_start() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert gone(core, 1, 2.0) == [cmd.KeepWorker(1, 0.5)]
    assert taking(core) == [0]
    assert core.next_deadline() == 2.5
    assert core.on_timer(2.5) == [cmd.Spawn(1, 2)]
    assert gone(core, 1, 3.0) == [cmd.KeepWorker(1, 1.0)], "more and more patiently"
    assert core.on_timer(4.0) == [cmd.Spawn(1, 3)]
    assert core.ready(1, 5.0) == [cmd.Draining(0, "max_memory"), cmd.Stop(0)]


@pytest.mark.parametrize("comes", [True, False])
def test_what_a_failed_roll_has_begun_is_ended_and_not_tried_again(
    comes: bool,  # noqa: FBT001
) -> None:
    core = pool(4, max_surge=2)
    core.roll(1.0)
    trouble = cmd.RollEnded(0, "a replacement did not start")
    assert gone(core, 4, 1.1) == [cmd.KeepWorker(4, None), trouble]
    assert taking(core) == [0, 1, 2, 3]
    if comes:
        assert core.ready(5, 1.2) == [cmd.Draining(1, "roll"), cmd.Stop(1)]
        assert gone(core, 1, 1.3) == [cmd.LeaveEmpty(1)]
        assert taking(core) == [0, 2, 3, 5]
    else:
        assert gone(core, 5, 1.2) == [cmd.KeepWorker(5, None)]
        assert taking(core) == [0, 1, 2, 3]
    assert core.next_deadline() is None


@pytest.mark.parametrize("rolled_at", [19.0, 20.5])
def test_who_is_old_when_a_roll_fails_is_replaced_later(rolled_at: float) -> None:
    core = pool(1, limits=WorkerLimits(max_age=20.0, jitter=0.0))
    if rolled_at > 20.0:
        assert core.on_timer(20.0) == [cmd.Spawn(1, 1)]
        assert core.roll(rolled_at) == []
        gone(core, 1, 20.6)  # which has begun before the roll
    else:
        assert core.roll(rolled_at) == [cmd.Spawn(1, 1)]
    delay = POLICY.delay(1, jitter=0.0)
    trouble = cmd.RollEnded(0, "a replacement did not start")
    assert gone(core, 1, 21.0) == [cmd.KeepWorker(1, delay), trouble]
    assert core.next_deadline() == 21.0 + delay
    [again] = core.on_timer(21.0 + delay)
    assert isinstance(again, cmd.Spawn)
    assert core.ready(1, 23.0) == [cmd.Draining(0, "max_age"), cmd.Stop(0)]


def parked(workers: int) -> Core:
    """Return a pool whose last worker has died at 1.0, and could not be replaced at 1.1."""
    core = pool(workers)
    last = workers - 1
    assert gone(core, last, 1.0)[-1] == cmd.Spawn(last, 2)
    [command] = gone(core, last, 1.1)
    assert isinstance(command, cmd.ParkSlot)
    return core


def test_a_roll_tries_parked_slots_at_once_and_waits_for_their_workers() -> None:
    core = parked(2)
    assert core.roll(1.2) == [cmd.Spawn(2, 1)]
    assert core.next_deadline() == 1.2
    assert core.on_timer(1.2) == [cmd.Spawn(1, 3)]
    assert core.ready(2, 1.3)[-2:] == [cmd.Draining(0, "roll"), cmd.Stop(0)]
    assert gone(core, 0, 1.4) == [cmd.LeaveEmpty(0)]
    assert core.lifecycle.rolling
    assert core.ready(1, 1.5)[-1] == cmd.RollEnded(1, "", 1)


def test_a_start_that_is_broken_off_has_failed_again_when_it_is_gone() -> None:
    core = parked(1)
    core.roll(1.2)
    assert core.on_timer(1.2) == [cmd.Spawn(0, 3)]
    assert core.fault(0, 1.3) == [cmd.Kill(0)]
    assert core.on_timer(1.3) == [], "the roll is not over"
    assert gone(core, 0, 1.4)[-1] == cmd.RollEnded(0, "a start failed again", 0)


def test_a_start_that_had_begun_before_the_roll_may_fail() -> None:
    core = parked(1)
    now = core.next_deadline()
    assert now is not None
    assert core.on_timer(now) == [cmd.Spawn(0, 3)]
    assert core.roll(now) == []
    gone(core, 0, now + 0.1)
    assert core.lifecycle.rolling
    assert core.on_timer(now + 0.1) == [cmd.Spawn(0, 4)]
    assert core.ready(0, now + 0.2)[-1] == cmd.RollEnded(0, "", 1)


def test_the_first_reason_counts() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    assert core.replace(0, "max_jobs", 1.1) == []
    assert core.ready(1, 1.2) == [cmd.Draining(0, "max_memory"), cmd.Stop(0)]


def test_a_replacement_that_comes_ends_the_row_of_those_that_failed() -> None:
    core = pool(1)
    wear_out(core, 0, 1.0)
    gone(core, 1, 2.0)
    assert core.on_timer(2.5) == [cmd.Spawn(1, 2)]
    core.ready(1, 3.0)
    gone(core, 0, 3.1)
    wear_out(core, 1, 4.0)
    assert gone(core, 0, 5.0) == [cmd.KeepWorker(0, 0.5)]


# How many workers there are.


def test_when_it_shrinks_the_idle_go_first_and_all_at_once() -> None:
    core = pool(4)
    for job in (1, 2):
        core.submit(job, short(1e9))  # in slots 3 and 2
    commands = core.resize(1, 1, 1.0)
    stopped = [
        cmd.Draining(0, "resize"),
        cmd.Stop(0),
        cmd.Draining(1, "resize"),
        cmd.Stop(1),
    ]
    assert commands == [cmd.Resized(1), *stopped, cmd.Draining(2, "resize")]
    assert taking(core) == [3]
    assert gone(core, 0, 1.1) == [cmd.LeaveEmpty(0)]
    assert gone(core, 1, 1.2) == [cmd.LeaveEmpty(1)]
    core.outcome(2, 2)
    assert core.refill(2, 1.3) == [cmd.Stop(2)]
    settled = [core.lifecycle.settled]
    assert gone(core, 2, 1.4) == [cmd.LeaveEmpty(2)]
    assert [*settled, core.lifecycle.settled] == [False, True]


def test_with_one_that_is_to_be_replaced_its_replacement_goes() -> None:
    core = pool(2)
    core.submit(1, short(1e9))  # in slot 1
    core.replace(0, "max_age", 1.0)
    assert core.slots[2].replaces == 0
    commands = core.resize(1, 1, 1.1)
    first = [cmd.Draining(0, "resize"), cmd.Stop(0)]
    assert commands == [
        cmd.Resized(1),
        *first,
        cmd.Draining(2, "resize"),
        cmd.Terminate(2),
    ]
    assert gone(core, 0, 1.2) == [cmd.LeaveEmpty(0)]
    assert gone(core, 2, 1.3) == [cmd.LeaveEmpty(2)]
    assert taking(core) == [1]


def test_who_was_to_go_and_stays_is_not_one_more() -> None:
    core = pool(3)
    sessions = [core.request_worker()[0] for _ in range(3)]
    core.resize(1, 1, 1.0)
    core.resize(3, 3, 1.1)
    assert core.lifecycle.settled
    for offer in sessions:
        assert isinstance(offer, cmd.Offer)
        core.end_session(offer.session, 1.2, fresh=False)
    core.retire(0, "retire()", 1.3, unsent=None)
    assert core.lifecycle.restarts == 1


def test_what_cannot_start_goes_before_an_idle_worker_when_the_pool_shrinks() -> None:
    core = pool(1, 3)
    core.resize(3, 3, 0.0)
    for slot in (1, 2):
        core.ready(slot, 0.0)
    core.resize(1, 3, 0.0)
    for _ in range(2):  # its own death, and that of the next one, which is never ready
        gone(core, 0, 59.9)
    assert core.slots[0].state is SlotState.PARKED
    assert core.on_timer(60.0)[:2] == [cmd.Resized(2), cmd.LeaveEmpty(0)]
    assert taking(core) == [1, 2]
    assert core.on_timer(60.0)[0] == cmd.Resized(1)
    assert len(taking(core)) == 1, "one of them was idle for as long"


# Starts that fail.


def test_a_caller_of_a_broken_pool_brings_the_next_try_forward() -> None:
    policy = RestartPolicy(initial_delay=16.0, max_failed_starts=1)
    core = Core(2, policy=policy)

    def fail(slot: int, now: float) -> list[cmd.Command]:
        return core.ended(slot, now, had_begun=False, requeue=(), jitter=0.0)

    core.start(0.0)
    text = "the start failed"
    assert fail(0, 1.0) == [cmd.ParkSlot(0, text, 16.0)]
    assert core.broken is None, "the other one may come up"
    assert fail(1, 1.0) == [cmd.ParkSlot(1, text, 16.0), cmd.GiveUp(text)]
    assert core.next_deadline() == 17.0
    core.try_sooner(1.5)
    assert core.next_deadline() == 2.0, "a second after the last try"
    assert core.retry_in(1.5) == 0.5
    assert core.on_timer(2.0) == [cmd.Spawn(0, 2)]
    core.try_sooner(2.1)
    assert core.next_deadline() == 22.0, "somebody tries: until start_timeout"
    again = "2 starts failed in a row"
    assert fail(0, 9.0) == [cmd.ParkSlot(0, again, 30.0)]
    core.try_sooner(9.5)
    core.try_sooner(50.0)
    assert core.next_deadline() == 10.0
    assert core.on_timer(50.0) == [cmd.Spawn(0, 3)]
    assert core.ready(0, 50.1) == [cmd.Recover(0), cmd.Spawn(1, 2)]
    assert core.broken is None
    core.try_sooner(50.2)
    assert core.next_deadline() == 70.1


# What the model does not look at.


def test_starts_of_more_workers_are_no_restarts() -> None:
    core = pool(1)
    core.resize(3, 3, 1.0)
    assert core.lifecycle.restarts == 0
    gone(core, 0, 1.1)
    assert core.lifecycle.restarts == 1
    core.close(Finish.ALL, None, 2.0)
    assert core.lifecycle.kills == 0


def test_deaths_of_idle_workers_that_are_too_many_wait_as_long_as_starts_take() -> None:
    core = pool(1)
    for _ in range(BURST):
        gone(core, 0, 1.0)
        core.ready(0, 1.0)
    assert gone(core, 0, 1.0) == [cmd.TellRestart(0, 0.1)]


def test_who_has_lost_a_thread_after_a_job_is_replaced_at_once_however_often() -> None:
    core, now = pool(1), 1.0
    for generation in range(2, 3 * BURST):
        core.submit(generation, short())
        core.outcome(0, generation)
        core.refill(0, now)
        assert core.fault(0, now) == [cmd.Kill(0)]
        commands = core.ended(0, now, had_begun=False, requeue=(), jitter=0.0)
        assert commands == [cmd.TellRestart(0, 0.0), cmd.Spawn(0, generation)]
        core.ready(0, now)


def test_a_closing_pool_keeps_the_job_that_its_worker_leaves_unsent() -> None:
    core, keyed = pool(2, ready=1), KeyedTraits(short(1e9), 0)
    assert [core.place(job, keyed, 0) for job in (1, 2)] == [0, None]
    core.close(Finish.ALL, None, 1.0)
    assert core.ready(1, 1.1) == []
    commands = core.retire(0, "asked", 1.2, unsent=1)
    assert commands[1:] == [cmd.Spawn(2, 1), cmd.Assign(1, (2,))]
    commands = core.withdraw(0, 1, 1.2, requeue=True)
    assert commands == [cmd.Unassign((1,)), cmd.Stop(0)], "the new worker is needed"
    assert core.ready(2, 1.3) == [cmd.Assign(2, (1,))]
