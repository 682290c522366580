"""Tests of asyncpool/_core/slots/slots.py."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.policies.job_options import KILL
from asyncpool._core.slots.job_ending import (
    IllegalTransitionError,
    JobEnding,
    JobEndings,
)
from asyncpool._core.slots.slots import (
    TRANSITIONS,
    Slot,
    SlotEvent,
    StopStage,
    next_state,
)
from asyncpool.enums import SlotState

PAIRS = list(itertools.product(SlotState, SlotEvent))

# Copied from the drawing, not from the table: each says the other is right.
ARROWS = """
    VACANT   SPAWN   STARTING
    VACANT   PARK    PARKED
    VACANT   CLOSE   UNUSED
    VACANT   RETIRE  RETIRED
    STARTING READY   IDLE
    STARTING STOP    STOPPING
    STARTING EXITED  VACANT
    IDLE     ASSIGN  BUSY
    IDLE     STOP    STOPPING
    IDLE     EXITED  VACANT
    BUSY     RELEASE IDLE
    BUSY     STOP    STOPPING
    BUSY     EXITED  VACANT
    STOPPING EXITED  VACANT
    PARKED   SPAWN   STARTING
    PARKED   CLOSE   UNUSED
    PARKED   RETIRE  RETIRED
    UNUSED   SPAWN   STARTING
    UNUSED   REOPEN  VACANT
    UNUSED   RETIRE  RETIRED
"""


@pytest.mark.parametrize(
    ("state", "event"), PAIRS, ids=[f"{s.name}-{e.name}" for s, e in PAIRS]
)
def test_every_pair_is_an_arrow_or_an_error(state: SlotState, event: SlotEvent) -> None:
    slot = Slot(3, state=state, generation=2, seen=(17,), due=4.5)
    slot.in_flight.add(17, JobTraits())
    before = dataclasses.replace(slot)
    if event in TRANSITIONS[state]:
        slot.apply(event)
        assert slot.state is next_state(state, event) is TRANSITIONS[state][event]
        slot.state = state
    else:
        with pytest.raises(IllegalTransitionError) as caught:
            slot.apply(event)
        assert str(caught.value) == f"{event.name} in state {state.name}"
    assert slot == before, "nothing else has changed"
    assert list(slot.in_flight.jobs) == [17]


def test_the_arrows_are_those_of_the_drawing() -> None:
    drawn = {tuple(line.split()) for line in ARROWS.split("\n") if line.strip()}
    assert drawn == {
        (state.name, event.name, target.name)
        for state, arrows in TRANSITIONS.items()
        for event, target in arrows.items()
    }
    assert list(TRANSITIONS) == list(SlotState)


def test_every_state_can_be_reached_and_all_but_one_can_be_left() -> None:
    reached = {SlotState.VACANT}
    for _ in SlotState:
        reached |= {s for state in reached for s in TRANSITIONS[state].values()}
    assert reached == set(SlotState)
    assert [s for s in SlotState if not TRANSITIONS[s]] == [SlotState.RETIRED]


def test_a_process_may_die_in_every_state_that_has_one() -> None:
    without = {SlotState.VACANT, SlotState.PARKED, SlotState.UNUSED, SlotState.RETIRED}
    for state in SlotState:
        exits = SlotEvent.EXITED in TRANSITIONS[state]
        assert exits is (state not in without)
        assert (SlotEvent.SPAWN in TRANSITIONS[state]) is (
            state in without - {SlotState.RETIRED}
        )


def test_the_steps_of_an_ending_only_get_harder() -> None:
    assert sorted(StopStage) == [
        StopStage.NO,
        StopStage.STOPPED,
        StopStage.TERMINATED,
        StopStage.KILLED,
    ]


def test_a_new_generation_inherits_nothing_from_the_last_one() -> None:
    slot = Slot(
        3,
        state=SlotState.STARTING,
        generation=4,
        outcomes=5,
        seen=(17,),
        job_endings=JobEndings({17: JobEnding(mode=KILL)}),
        hung=True,
        ready_at=1.0,
        due=2.0,
        exit_planned=True,
        faulty=True,
        replace_reason="max_age",
        replaces=1,
        drain_deadline=3.0,
        draining=True,
        oversized=True,
        is_overdue=True,
        stop_stage=StopStage.KILLED,
    )
    in_flight, endings = slot.in_flight, slot.job_endings
    in_flight.add(17, JobTraits())
    slot.renew()
    fresh = Slot(3, state=SlotState.STARTING, generation=5, in_flight=slot.in_flight)
    assert slot == fresh
    assert (slot.in_flight.jobs, slot.in_flight.revoking) == ({}, False)
    # Who still looks at the last one finds it as it was.
    assert slot.in_flight is not in_flight
    assert slot.job_endings is not endings
    assert (list(in_flight.jobs), endings) == ([17], {17: JobEnding(mode=KILL)})


def test_the_first_job_makes_its_worker_busy_and_others_change_nothing() -> None:
    slot = Slot(0, state=SlotState.IDLE)
    slot.assign()
    assert slot.state is SlotState.BUSY
    slot.assign()
    assert slot.state is SlotState.BUSY


def test_a_probe_is_one_from_before_its_start() -> None:
    slot = Slot(3, is_probe=True)
    slot.renew()
    assert slot.is_probe


def test_a_new_slot_has_nothing_in_hand() -> None:
    slot = Slot(0)
    assert (slot.state, slot.generation) == (SlotState.VACANT, 0)
    assert (slot.in_flight.jobs, slot.outcomes, slot.job_endings) == ({}, 0, {})
    assert slot.concurrency == 1
    assert (slot.ready_at, slot.due, slot.seen) == (None, None, ())
    assert (slot.exit_planned, slot.faulty, slot.hung, slot.is_probe) == (False,) * 4
    assert slot.stop_stage is StopStage.NO


def test_no_two_slots_have_anything_in_common() -> None:
    first, second = Slot(0), Slot(1)
    first.in_flight.add(17, JobTraits())
    first.job_endings.of(17).mode = KILL
    assert (second.in_flight.jobs, second.job_endings) == ({}, {})
