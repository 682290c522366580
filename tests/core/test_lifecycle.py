"""Tests of asyncpool/_core/slots/lifecycle.py; stories of whole pools are in other files."""

from __future__ import annotations

import pytest

from asyncpool._core.base.run_times import Profile
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Abandon,
    Command,
    FailJobs,
    GiveUp,
    Kill,
    LeaveEmpty,
    ParkSlot,
    Recover,
    Spawn,
    Stop,
    Terminate,
)
from asyncpool._core.slots.lifecycle import (
    KILL_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    Lives,
    fail_jobs,
)
from asyncpool._core.slots.slots import Ending, SlotEvent, SlotState

POLICY = RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=2)


def lives_of(
    workers: int, dispatcher: Dispatcher | None = None, policy: RestartPolicy = POLICY
) -> Lives:
    lives = Lives(
        workers=workers,
        seats=workers,
        limits=WorkerLimits(),
        policy=policy,
        start_timeout=20.0,
        stop_grace=STOP_GRACE,
        width=1,
        dispatcher=dispatcher or Dispatcher(),
    )
    for slot in lives.slots:
        assert lives.spawn(slot, 0.0) == Spawn(slot.index, 1)
    return lives


def bury(lives: Lives, index: int, now: float, *, needed: bool = True) -> list[Command]:
    """Let a worker end unasked that was never ready."""
    slot = lives.slots[index]
    slot.due, slot.probing = None, False
    slot.apply(SlotEvent.EXITED)
    return lives.judge(slot, now, needed=needed, blamed=False, roll=0.0)


def test_a_start_that_takes_too_long_is_ended_by_force() -> None:
    lives = lives_of(2)
    assert lives.next_deadline() == 20.0
    assert lives.on_timer(19.9) == []
    assert lives.on_timer(20.0) == [Kill(0), Kill(1)]
    assert lives.kills == 2


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        (Ending.STOPPED, [Stop(0), Terminate(0), Kill(0), Abandon(0)]),
        (Ending.TERMINATED, [Terminate(0), Kill(0), Abandon(0)]),
        (Ending.KILLED, [Kill(0), Abandon(0)]),
    ],
)
def test_a_worker_is_pressed_step_by_step(first: Ending, steps: list[Command]) -> None:
    lives = lives_of(1)
    taken = lives.end(lives.slots[0], first, 1.0, planned=True)
    waits = []
    last = 1.0
    while (now := lives.next_deadline()) is not None:
        taken += lives.on_timer(now)
        waits.append(now - last)
        last = now
    assert taken == steps
    assert waits == [STOP_GRACE, TERM_GRACE, KILL_GRACE][first - 1 :]
    assert lives.slots[0].state is SlotState.STOPPING


def test_nobody_is_pressed_twice_in_the_same_way() -> None:
    lives = lives_of(1)
    slot = lives.slots[0]
    assert lives.end(slot, Ending.KILLED, 1.0) == [Kill(0)]
    assert lives.end(slot, Ending.KILLED, 2.0) == []
    assert lives.end(slot, Ending.STOPPED, 2.0) == []
    assert lives.kills == 1
    assert slot.due == 1.0 + KILL_GRACE


def test_a_worker_that_goes_gets_no_more_jobs() -> None:
    dispatcher, profile = Dispatcher(), Profile()
    lives = lives_of(1, dispatcher)
    slot = lives.slots[0]
    dispatcher.refill(0, slot.flight)
    assert dispatcher.idle == 1
    lives.end(slot, Ending.STOPPED, 1.0, planned=True)
    assert dispatcher.submit(1, profile) is None


FAILED, TWICE = "the start failed", "2 starts failed in a row"


def test_slots_that_cannot_start_are_parked_and_one_tries_for_all() -> None:
    lives = lives_of(2)
    assert bury(lives, 0, 1.0) == [ParkSlot(0, FAILED, 1.0)]
    assert bury(lives, 1, 1.5) == [ParkSlot(1, FAILED, 0.5)]
    assert lives.broken is None
    assert lives.on_timer(2.0) == [Spawn(0, 2)]
    slot = lives.slots[0]
    assert slot.probing
    slot.apply(SlotEvent.READY)
    assert lives.came_up(slot, 2.5) == [Recover(0), Spawn(1, 2)]
    assert not slot.probing


def test_a_pool_without_hope_breaks_and_comes_back() -> None:
    dispatcher = Dispatcher()
    lives = lives_of(2, dispatcher)
    for job in (1, 2):
        dispatcher.submit(job, Profile())
    bury(lives, 0, 1.0)
    bury(lives, 1, 1.0)
    assert lives.on_timer(2.0) == [Spawn(0, 2)]
    assert lives.retry_in(2.0) == 0.0, "just now"
    assert bury(lives, 0, 2.0) == [
        ParkSlot(0, TWICE, 2.0),
        GiveUp(TWICE),
        FailJobs((1, 2), "broken"),
    ]
    assert lives.broken == TWICE
    assert dispatcher.waiting == 0
    assert lives.next_deadline() == 4.0
    assert lives.retry_in(3.0) == 1.0
    assert lives.on_timer(4.0) == [Spawn(0, 3)]
    lives.slots[0].apply(SlotEvent.READY)
    assert lives.came_up(lives.slots[0], 5.0) == [Recover(0), Spawn(1, 2)]
    assert lives.broken is None


def test_a_pool_with_a_worker_is_not_broken_however_often_starts_fail() -> None:
    lives = lives_of(2)
    lives.slots[1].apply(SlotEvent.READY)
    lives.slots[1].due = None
    now = 1.0
    for _ in range(20):
        [parked] = bury(lives, 0, now)
        assert isinstance(parked, ParkSlot)
        due = lives.next_deadline()
        assert due is not None
        now = due
        assert [type(it) for it in lives.on_timer(now)] == [Spawn]
    assert lives.broken is None


def test_a_pool_that_gives_up_tries_no_more() -> None:
    lives = lives_of(2, policy=RestartPolicy.limited(1, 60.0))
    assert bury(lives, 0, 1.0) == [ParkSlot(0, FAILED, 0.0)]
    text = "2 workers died within 60 s, and the policy allows 1"
    assert bury(lives, 1, 1.0) == [ParkSlot(1, text, None), GiveUp(text)]
    assert (lives.broken, lives.gave_up) == (text, True)
    lives.wanted(2.0)
    assert lives.next_deadline() is None
    assert lives.retry_in(2.0) is None


def test_a_broken_pool_goes_on_trying_in_a_seat_that_it_does_not_need() -> None:
    lives = lives_of(3)
    bury(lives, 0, 1.0)
    bury(lives, 1, 1.0)
    bury(lives, 2, 1.0)
    lives.on_timer(2.0)
    assert GiveUp(TWICE) in bury(lives, 0, 2.0)
    assert lives.on_timer(4.0) == [Spawn(0, 3)]
    assert bury(lives, 0, 4.0, needed=False) == [LeaveEmpty(0)], "1 and 2 are there"
    lives.slots[2].apply(SlotEvent.SPARE)
    for number in range(3):
        now = 8.0 + 4 * number
        assert lives.next_deadline() == now
        assert lives.on_timer(now) == [Spawn(1, 2 + number)]
        text = f"{4 + number} starts failed in a row"
        assert bury(lives, 1, now, needed=False) == [ParkSlot(1, text, 4.0)]


def test_when_every_slot_is_retired_nothing_is_due() -> None:
    lives = lives_of(1)
    assert not lives.retire_all()
    slot = lives.slots[0]
    slot.due = None
    slot.apply(SlotEvent.EXITED)
    slot.apply(SlotEvent.RETIRE)
    assert lives.retire_all()
    assert lives.next_deadline() is None


def test_no_command_is_made_for_no_job() -> None:
    assert fail_jobs([], "closed") == []
    assert fail_jobs([1, 2], "closed") == [FailJobs((1, 2), "closed")]
