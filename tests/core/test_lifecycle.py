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
    SlotLifecycle,
    fail_jobs,
)
from asyncpool._core.slots.slots import SlotEvent, StopStage
from asyncpool.enums import SlotState

POLICY = RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=2)


def lives_of(
    workers: int, dispatcher: Dispatcher | None = None, policy: RestartPolicy = POLICY
) -> SlotLifecycle:
    lifecycle = SlotLifecycle(
        workers=workers,
        count=workers,
        most=workers,
        limits=WorkerLimits(),
        policy=policy,
        start_timeout=20.0,
        stop_grace=STOP_GRACE,
        concurrency=1,
        dispatcher=dispatcher or Dispatcher(),
    )
    for slot in lifecycle.slots:
        assert lifecycle.spawn(slot, 0.0) == Spawn(slot.index, 1)
    return lifecycle


def bury(
    lifecycle: SlotLifecycle, index: int, now: float, *, needed: bool = True
) -> list[Command]:
    """Let a worker end unasked that was never ready."""
    slot = lifecycle.slots[index]
    slot.due, slot.is_probe = None, False
    slot.apply(SlotEvent.EXITED)
    return lifecycle.decide_after_death(
        slot, now, needed=needed, blamed=False, jitter=0.0
    )


def test_a_start_that_takes_too_long_is_ended_by_force() -> None:
    lifecycle = lives_of(2)
    assert lifecycle.next_deadline() == 20.0
    assert lifecycle.on_timer(19.9) == []
    assert lifecycle.on_timer(20.0) == [Kill(0), Kill(1)]
    assert lifecycle.kills == 2


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        (StopStage.STOPPED, [Stop(0), Terminate(0), Kill(0), Abandon(0)]),
        (StopStage.TERMINATED, [Terminate(0), Kill(0), Abandon(0)]),
        (StopStage.KILLED, [Kill(0), Abandon(0)]),
    ],
)
def test_a_worker_is_pressed_step_by_step(
    first: StopStage, steps: list[Command]
) -> None:
    lifecycle = lives_of(1)
    taken = lifecycle.stop_worker(lifecycle.slots[0], first, 1.0, planned=True)
    waits = []
    last = 1.0
    while (now := lifecycle.next_deadline()) is not None:
        taken += lifecycle.on_timer(now)
        waits.append(now - last)
        last = now
    assert taken == steps
    assert waits == [STOP_GRACE, TERM_GRACE, KILL_GRACE][first - 1 :]
    assert lifecycle.slots[0].state is SlotState.STOPPING


def test_nobody_is_pressed_twice_in_the_same_way() -> None:
    lifecycle = lives_of(1)
    slot = lifecycle.slots[0]
    assert lifecycle.stop_worker(slot, StopStage.KILLED, 1.0) == [Kill(0)]
    assert lifecycle.stop_worker(slot, StopStage.KILLED, 2.0) == []
    assert lifecycle.stop_worker(slot, StopStage.STOPPED, 2.0) == []
    assert lifecycle.kills == 1
    assert slot.due == 1.0 + KILL_GRACE


def test_a_worker_that_goes_gets_no_more_jobs() -> None:
    dispatcher, profile = Dispatcher(), Profile()
    lifecycle = lives_of(1, dispatcher)
    slot = lifecycle.slots[0]
    dispatcher.refill(0, slot.in_flight)
    assert dispatcher.idle == 1
    lifecycle.stop_worker(slot, StopStage.STOPPED, 1.0, planned=True)
    assert dispatcher.submit(1, profile) is None


FAILED, TWICE = "the start failed", "2 starts failed in a row"


def test_slots_that_cannot_start_are_parked_and_one_tries_for_all() -> None:
    lifecycle = lives_of(2)
    assert bury(lifecycle, 0, 1.0) == [ParkSlot(0, FAILED, 1.0)]
    assert bury(lifecycle, 1, 1.5) == [ParkSlot(1, FAILED, 0.5)]
    assert lifecycle.broken is None
    assert lifecycle.on_timer(2.0) == [Spawn(0, 2)]
    slot = lifecycle.slots[0]
    assert slot.is_probe
    slot.apply(SlotEvent.READY)
    assert lifecycle.on_ready(slot, 2.5) == [Recover(0), Spawn(1, 2)]
    assert not slot.is_probe


def test_a_pool_without_hope_breaks_and_comes_back() -> None:
    dispatcher = Dispatcher()
    lifecycle = lives_of(2, dispatcher)
    for job in (1, 2):
        dispatcher.submit(job, Profile())
    bury(lifecycle, 0, 1.0)
    bury(lifecycle, 1, 1.0)
    assert lifecycle.on_timer(2.0) == [Spawn(0, 2)]
    assert lifecycle.retry_in(2.0) == 0.0, "just now"
    assert bury(lifecycle, 0, 2.0) == [
        ParkSlot(0, TWICE, 2.0),
        GiveUp(TWICE),
        FailJobs((1, 2), "broken"),
    ]
    assert lifecycle.broken == TWICE
    assert dispatcher.waiting == 0
    assert lifecycle.next_deadline() == 4.0
    assert lifecycle.retry_in(3.0) == 1.0
    assert lifecycle.on_timer(4.0) == [Spawn(0, 3)]
    lifecycle.slots[0].apply(SlotEvent.READY)
    assert lifecycle.on_ready(lifecycle.slots[0], 5.0) == [Recover(0), Spawn(1, 2)]
    assert lifecycle.broken is None


def test_a_pool_with_a_worker_is_not_broken_however_often_starts_fail() -> None:
    lifecycle = lives_of(2)
    lifecycle.slots[1].apply(SlotEvent.READY)
    lifecycle.slots[1].due = None
    now = 1.0
    for _ in range(20):
        [parked] = bury(lifecycle, 0, now)
        assert isinstance(parked, ParkSlot)
        due = lifecycle.next_deadline()
        assert due is not None
        now = due
        assert [type(it) for it in lifecycle.on_timer(now)] == [Spawn]
    assert lifecycle.broken is None


def test_a_pool_that_gives_up_tries_no_more() -> None:
    lifecycle = lives_of(2, policy=RestartPolicy.limited(1, 60.0))
    assert bury(lifecycle, 0, 1.0) == [ParkSlot(0, FAILED, 0.0)]
    text = "2 workers died within 60 s, and the policy allows 1"
    assert bury(lifecycle, 1, 1.0) == [ParkSlot(1, text, None), GiveUp(text)]
    assert (lifecycle.broken, lifecycle.gave_up) == (text, True)
    lifecycle.try_sooner(2.0)
    assert lifecycle.next_deadline() is None
    assert lifecycle.retry_in(2.0) is None


def test_a_broken_pool_goes_on_trying_in_a_seat_that_it_does_not_need() -> None:
    lifecycle = lives_of(3)
    bury(lifecycle, 0, 1.0)
    bury(lifecycle, 1, 1.0)
    bury(lifecycle, 2, 1.0)
    lifecycle.on_timer(2.0)
    assert GiveUp(TWICE) in bury(lifecycle, 0, 2.0)
    assert lifecycle.on_timer(4.0) == [Spawn(0, 3)]
    assert bury(lifecycle, 0, 4.0, needed=False) == [LeaveEmpty(0)], "1 and 2 are there"
    lifecycle.slots[2].apply(SlotEvent.CLOSE)
    for number in range(3):
        now = 8.0 + 4 * number
        assert lifecycle.next_deadline() == now
        assert lifecycle.on_timer(now) == [Spawn(1, 2 + number)]
        text = f"{4 + number} starts failed in a row"
        assert bury(lifecycle, 1, now, needed=False) == [ParkSlot(1, text, 4.0)]


def test_when_every_slot_is_retired_nothing_is_due() -> None:
    lifecycle = lives_of(1)
    assert not lifecycle.retire_all()
    slot = lifecycle.slots[0]
    slot.due = None
    slot.apply(SlotEvent.EXITED)
    slot.apply(SlotEvent.RETIRE)
    assert lifecycle.retire_all()
    assert lifecycle.next_deadline() is None


def test_no_command_is_made_for_no_job() -> None:
    assert fail_jobs([], "closed") == []
    assert fail_jobs([1, 2], "closed") == [FailJobs((1, 2), "closed")]
