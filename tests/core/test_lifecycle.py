"""Tests of asyncpool/_core/slots/lifecycle.py; stories of whole pools are in other files."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.policies.restart import (
    BURST,
    GiveUpRestarting,
    RestartPolicy,
    RestartWorker,
)
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
    TellRestart,
    Terminate,
)
from asyncpool._core.slots.lifecycle import (
    KILL_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    WANTED_AGAIN,
    SlotLifecycle,
    fail_jobs,
)
from asyncpool._core.slots.slots import SlotEvent, StopStage
from asyncpool.enums import SlotState

POLICY = RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=2)


def slots_of(
    workers: int,
    count: int = 0,
    *,
    dispatcher: Dispatcher | None = None,
    policy: RestartPolicy = POLICY,
    limits: WorkerLimits | None = None,
) -> SlotLifecycle:
    return SlotLifecycle(
        workers=workers,
        count=count,
        most=workers,
        limits=limits or WorkerLimits(),
        policy=policy,
        start_timeout=20.0,
        stop_grace=STOP_GRACE,
        concurrency=1,
        dispatcher=dispatcher or Dispatcher(),
    )


def lives_of(
    workers: int,
    dispatcher: Dispatcher | None = None,
    policy: RestartPolicy = POLICY,
    limits: WorkerLimits | None = None,
) -> SlotLifecycle:
    lifecycle = slots_of(workers, dispatcher=dispatcher, policy=policy, limits=limits)
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


def ready(lifecycle: SlotLifecycle, index: int, now: float) -> list[Command]:
    slot = lifecycle.slots[index]
    slot.apply(SlotEvent.READY)
    slot.ready_at, slot.due = now, None
    return [*lifecycle.on_ready(slot, now), *lifecycle.spawn_parked(now)]


def die(
    lifecycle: SlotLifecycle,
    index: int,
    now: float,
    *,
    needed: bool = True,
    blamed: bool = False,
) -> list[Command]:
    """Let a worker end unasked that was ready."""
    slot = lifecycle.slots[index]
    slot.apply(SlotEvent.EXITED)
    return lifecycle.decide_after_death(
        slot, now, needed=needed, blamed=blamed, jitter=0.0
    )


# The slots, and starts.


def test_the_first_slots_get_workers_and_the_others_are_not_needed_yet() -> None:
    lifecycle = slots_of(2, 3)
    vacant, unused = SlotState.VACANT, SlotState.UNUSED
    assert [slot.state for slot in lifecycle.slots] == [vacant, vacant, unused]
    assert lifecycle.unused_slot() is lifecycle.slots[2]
    lifecycle.spawn(lifecycle.slots[2], 0.0)
    made = lifecycle.unused_slot()
    assert [*lifecycle.slots[3:]] == [made]
    assert (made.index, made.state) == (3, unused)


def test_starts_of_more_workers_are_no_restarts() -> None:
    lifecycle = slots_of(2)
    first, second = lifecycle.slots
    lifecycle.spawn(first, 0.0, new=True)
    assert lifecycle.restarts == 0
    lifecycle.spawn(second, 0.0)
    assert lifecycle.restarts == 1


def test_a_worker_knows_which_one_it_replaces() -> None:
    lifecycle = slots_of(1, 2)
    first, second = lifecycle.slots
    lifecycle.spawn(second, 0.0, replaces=first.index)
    assert second.replaces == 0
    assert second.rank == first.rank == 0


@pytest.mark.parametrize("exact", [False, True])
def test_each_worker_has_limits_of_its_own(*, exact: bool) -> None:
    limits = WorkerLimits(max_jobs=100, exact=exact)
    slot = lives_of(1, limits=limits).slots[0]
    assert slot.recycle_limits == limits.recycle_limits(0, 1)
    assert (slot.in_flight.most == slot.recycle_limits.jobs) is exact


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
    assert lifecycle.slots[0].exit_planned


def test_nobody_is_pressed_twice_in_the_same_way() -> None:
    lifecycle = lives_of(1)
    slot = lifecycle.slots[0]
    assert lifecycle.stop_worker(slot, StopStage.KILLED, 1.0) == [Kill(0)]
    assert lifecycle.stop_worker(slot, StopStage.KILLED, 2.0) == []
    assert lifecycle.stop_worker(slot, StopStage.STOPPED, 2.0) == []
    assert lifecycle.kills == 1
    assert slot.due == 1.0 + KILL_GRACE


def test_an_end_that_was_planned_stays_planned() -> None:
    lifecycle = lives_of(1)
    slot = lifecycle.slots[0]
    planned = []
    for how in (StopStage.STOPPED, StopStage.TERMINATED, StopStage.KILLED):
        lifecycle.stop_worker(slot, how, 1.0, planned=how is StopStage.TERMINATED)
        planned.append(slot.exit_planned)
    assert planned == [False, True, True]


@pytest.mark.parametrize("hung", [False, True])
def test_an_end_that_is_due_is_planned_unless_the_worker_hangs(*, hung: bool) -> None:
    lifecycle = lives_of(1)
    ready(lifecycle, 0, 0.5)
    slot = lifecycle.slots[0]
    slot.due, slot.hung = 3.0, hung
    assert lifecycle.on_timer(3.0) == [Kill(0)]
    assert slot.exit_planned is not hung


def test_a_worker_that_goes_gets_no_more_jobs() -> None:
    dispatcher, traits = Dispatcher(), JobTraits()
    lifecycle = lives_of(1, dispatcher)
    slot = lifecycle.slots[0]
    dispatcher.refill(0, slot.in_flight)
    assert dispatcher.idle == 1
    lifecycle.stop_worker(slot, StopStage.STOPPED, 1.0, planned=True)
    assert dispatcher.submit(1, traits) is None


FAILED, TWICE = "the start failed", "2 starts failed in a row"


def test_slots_that_cannot_start_are_parked_and_one_tries_for_all() -> None:
    lifecycle = lives_of(2)
    assert bury(lifecycle, 0, 1.0) == [ParkSlot(0, FAILED, 1.0)]
    assert bury(lifecycle, 1, 1.5) == [ParkSlot(1, FAILED, 0.5)]
    assert lifecycle.broken is None
    assert lifecycle.on_timer(2.0) == [Spawn(0, 2)]
    slot = lifecycle.slots[0]
    assert slot.is_probe
    assert ready(lifecycle, 0, 2.5) == [Recover(0), Spawn(1, 2)]
    assert not slot.is_probe


def test_a_pool_without_hope_breaks_and_comes_back() -> None:
    dispatcher = Dispatcher()
    lifecycle = lives_of(2, dispatcher)
    for job in (1, 2):
        dispatcher.submit(job, JobTraits())
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
    assert ready(lifecycle, 0, 5.0) == [Recover(0), Spawn(1, 2)]
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


def test_a_pool_that_has_slots_left_is_not_retired() -> None:
    lifecycle = lives_of(2)
    bury(lifecycle, 0, 1.0)
    lifecycle.slots[0].apply(SlotEvent.RETIRE)
    assert lifecycle.retire_all() is False
    assert lifecycle.retry_in(1.5) == 0.5, "it still tries"


def test_what_was_to_be_tried_is_not_when_every_slot_is_retired() -> None:
    lifecycle = lives_of(1)
    bury(lifecycle, 0, 1.0)
    lifecycle.slots[0].apply(SlotEvent.RETIRE)
    assert lifecycle.next_deadline() == 2.0
    assert lifecycle.retire_all()
    assert lifecycle.next_deadline() is None


def test_a_pool_may_stop_trying() -> None:
    lifecycle = lives_of(1)
    bury(lifecycle, 0, 1.0)
    lifecycle.stop_trying()
    assert lifecycle.next_deadline() is None


def test_nothing_is_tried_when_no_slot_is_parked_any_more() -> None:
    lifecycle = lives_of(1)
    bury(lifecycle, 0, 1.0)
    lifecycle.leave_empty(lifecycle.slots[0])
    assert lifecycle.on_timer(2.0) == []


# Somebody wants the next start sooner.


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (9.5, 9.0 + WANTED_AGAIN),
        (9.0 + WANTED_AGAIN + 0.5, 9.0 + WANTED_AGAIN + 0.5),
        (40.0, 25.0),
    ],
)
def test_a_caller_gets_the_next_start_a_moment_after_the_last_one(
    now: float, due: float
) -> None:
    lifecycle = lives_of(1, policy=RestartPolicy(initial_delay=16.0))
    bury(lifecycle, 0, 9.0)
    assert lifecycle.next_deadline() == 25.0
    lifecycle.try_sooner(now)
    assert lifecycle.next_deadline() == due


def test_a_probe_is_a_start_that_was_tried() -> None:
    lifecycle = lives_of(1, policy=RestartPolicy(initial_delay=16.0))
    bury(lifecycle, 0, 1.0)
    lifecycle.try_now(3.0)
    assert lifecycle.on_timer(3.0) == [Spawn(0, 2)]
    bury(lifecycle, 0, 4.0)
    lifecycle.try_sooner(4.0)
    assert lifecycle.next_deadline() == 4.0 + WANTED_AGAIN


def test_when_no_start_fails_nobody_can_hurry_one() -> None:
    lifecycle = lives_of(1)
    ready(lifecycle, 0, 0.5)
    lifecycle.try_now(1.0)
    lifecycle.try_sooner(1.0)
    assert lifecycle.next_deadline() is None


# What follows a death.


def test_a_worker_is_replaced_at_once_and_later_when_too_many_die() -> None:
    lifecycle = lives_of(1)
    for generation in range(2, 2 + BURST):
        ready(lifecycle, 0, 1.0)
        assert die(lifecycle, 0, 1.0) == [TellRestart(0, 0.0), Spawn(0, generation)]
    ready(lifecycle, 0, 1.0)
    assert lifecycle.restarts == 1 + BURST
    # A start took no time, so the delay is the shortest one.
    assert die(lifecycle, 0, 1.0) == [TellRestart(0, 0.1)]
    assert lifecycle.next_deadline() == 1.1
    assert lifecycle.slots[0].state is SlotState.VACANT
    assert lifecycle.on_timer(1.1) == [Spawn(0, 2 + BURST)]


def test_the_delay_is_as_long_as_starts_take() -> None:
    lifecycle = lives_of(1)
    ready(lifecycle, 0, 0.02)
    for _ in range(BURST):
        die(lifecycle, 0, 1.0)
        ready(lifecycle, 0, 1.02)
    [told] = die(lifecycle, 0, 1.02)
    assert isinstance(told, TellRestart)
    assert told.delay == pytest.approx(0.2 - 0.02)
    due = lifecycle.next_deadline()
    assert due is not None
    lifecycle.on_timer(due)
    ready(lifecycle, 0, due + 0.02)
    blamed = die(lifecycle, 0, due + 0.02, blamed=True)
    assert blamed == [TellRestart(0, 0.0), Spawn(0, 3 + BURST)], "of a job"


def test_a_slot_that_is_not_needed_is_left_empty_and_loses_its_place() -> None:
    lifecycle = lives_of(2)
    ready(lifecycle, 0, 0.5)
    slot = lifecycle.slots[0]
    slot.bucket, slot.due = 3, 9.0
    assert die(lifecycle, 0, 1.0, needed=False) == [LeaveEmpty(0)]
    assert slot.state is SlotState.UNUSED
    assert [slot.bucket, slot.due] == [None, None]


def broken_of_deaths() -> SlotLifecycle:
    """Return a pool of four that gives up at the second death, at 2.0."""
    lifecycle = lives_of(4, policy=RestartPolicy.limited(1, 60.0))
    for index in (0, 1, 2):
        ready(lifecycle, index, 0.5)
    die(lifecycle, 0, 1.0)
    lifecycle.slots[0].apply(SlotEvent.EXITED)
    lifecycle.slots[0].due = 9.0
    return lifecycle


def test_a_pool_that_breaks_ends_the_workers_that_are_left() -> None:
    lifecycle = broken_of_deaths()
    text = "2 workers died within 60 s, and the policy allows 1"
    assert die(lifecycle, 1, 2.0) == [
        ParkSlot(1, text, None),
        GiveUp(text),
        ParkSlot(0, text, None),
        Stop(2),
        Stop(3),
    ]
    assert lifecycle.slots[0].due is None
    assert [slot.exit_planned for slot in lifecycle.slots[2:]] == [True, True]
    assert die(lifecycle, 2, 2.5) == [ParkSlot(2, text, None)], "and none is replaced"


def test_a_death_in_a_broken_pool_is_not_followed_by_a_start() -> None:
    lifecycle = lives_of(2)
    ready(lifecycle, 0, 0.5)
    lifecycle.broken = "broken"
    assert die(lifecycle, 0, 1.0) == [ParkSlot(0, "broken", 0.0)]


@pytest.mark.parametrize(
    ("deaths", "decision"),
    [(0, RestartWorker(0.0)), (BURST, RestartWorker(0.1))],
)
def test_what_follows_a_death_can_be_decided_before_it(
    deaths: int, decision: RestartWorker
) -> None:
    lifecycle = lives_of(1)
    for _ in range(deaths):
        ready(lifecycle, 0, 1.0)
        die(lifecycle, 0, 1.0)
    ready(lifecycle, 0, 1.0)
    assert lifecycle.decide_early(lifecycle.slots[0], 1.0) == decision
    # The end itself costs nothing more.
    [told, *_] = die(lifecycle, 0, 1.0)
    assert told == TellRestart(0, decision.delay)


def test_what_was_decided_is_forgotten_when_the_slot_has_another_worker() -> None:
    lifecycle = lives_of(1, policy=RestartPolicy.limited(1, 60.0))
    ready(lifecycle, 0, 0.5)
    slot = lifecycle.slots[0]
    lifecycle.decide_early(slot, 1.0)
    slot.apply(SlotEvent.EXITED)
    lifecycle.spawn(slot, 1.0)
    ready(lifecycle, 0, 1.5)
    assert isinstance(lifecycle.decide_early(slot, 2.0), GiveUpRestarting)
    slot.apply(SlotEvent.EXITED)
    lifecycle.spawn(slot, 2.0)
    ready(lifecycle, 0, 2.5)
    assert die(lifecycle, 0, 99.0)[0] == TellRestart(0, 0.0)


@pytest.mark.parametrize(
    ("delay", "command", "due", "state"),
    [
        (0.0, Spawn(1, 1), 23.0, SlotState.STARTING),
        (0.5, TellRestart(1, 0.5), 3.5, SlotState.VACANT),
    ],
)
def test_a_successor_starts_in_a_slot_that_was_not_needed(
    delay: float, command: Command, due: float, state: SlotState
) -> None:
    lifecycle = slots_of(1, 2)
    successor = lifecycle.slots[1]
    assert lifecycle.start_successor(successor, delay, 3.0) == command
    assert (successor.due, successor.state) == (due, state)


def test_a_pool_is_not_deserted_while_a_start_is_due() -> None:
    lifecycle = lives_of(2)
    lifecycle.slots[1].apply(SlotEvent.EXITED)  # and another start is due
    lifecycle.slots[1].due = 50.0
    for now in (1.0, 2.0, 4.0):
        lifecycle.on_timer(now)
        bury(lifecycle, 0, now)
    assert lifecycle.broken is None
    lifecycle.slots[1].due = None
    lifecycle.on_timer(8.0)
    assert GiveUp("4 starts failed in a row") in bury(lifecycle, 0, 8.0)


def test_another_probe_is_planned_when_the_present_one_is_broken_off() -> None:
    lifecycle = lives_of(3)
    bury(lifecycle, 0, 1.0)
    [_] = lifecycle.on_timer(2.0)
    assert lifecycle.slots[0].is_probe
    bury(lifecycle, 1, 2.5)
    assert lifecycle.retry_in(2.5) == 0.0, "the probe is the next try"
    lifecycle.stop_worker(lifecycle.slots[0], StopStage.KILLED, 2.6, planned=True)
    bury(lifecycle, 2, 3.0)
    retry_in = lifecycle.retry_in(3.0)
    assert retry_in is not None
    assert retry_in > 0.0


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
