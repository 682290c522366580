"""The two tables of the core: the states of a slot, and the stages of a job that is to end."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest

from asyncpool._core.functions import JobTraits
from asyncpool._core.options import KILL
from asyncpool._core.slots import (
    EndingEvent,
    EndingStage,
    IllegalTransitionError,
    JobEnding,
    JobEndings,
    Slot,
    SlotEvent,
    StopStage,
)
from asyncpool.enums import SlotState

# Copied from the drawings, not from the tables: each says the other is right.
SLOT_ARROWS = """
    VACANT   SPAWN   STARTING
    VACANT   PARK    PARKED
    VACANT   RELEASE   UNUSED
    VACANT   REMOVE  REMOVED
    STARTING READY   IDLE
    STARTING STOP    STOPPING
    STARTING EXITED  VACANT
    IDLE     STOP    STOPPING
    IDLE     EXITED  VACANT
    BUSY     STOP    STOPPING
    BUSY     EXITED  VACANT
    STOPPING EXITED  VACANT
    PARKED   SPAWN   STARTING
    PARKED   RELEASE   UNUSED
    PARKED   REMOVE  REMOVED
    UNUSED   SPAWN   STARTING
    UNUSED   REOPEN  VACANT
    UNUSED   REMOVE  REMOVED
"""
ENDING_ARROWS = """
    NONE         REVOKE    REVOKING
    NONE         KEEP      NONE
    NONE         INTERRUPT INTERRUPTING
    NONE         DUMP      DUMPING
    NONE         KILL      KILLING
    NONE         CLOSE     NONE
    REVOKING     REVOKE    REVOKING
    REVOKING     KEEP      NONE
    REVOKING     INTERRUPT INTERRUPTING
    REVOKING     DUMP      DUMPING
    REVOKING     KILL      KILLING
    REVOKING     CLOSE     NONE
    INTERRUPTING REVOKE    INTERRUPTING
    INTERRUPTING KEEP      INTERRUPTING
    INTERRUPTING DUMP      DUMPING
    INTERRUPTING KILL      KILLING
    INTERRUPTING CLOSE     NONE
    DUMPING      REVOKE    DUMPING
    DUMPING      KEEP      DUMPING
    DUMPING      DUMP      DUMPING
    DUMPING      KILL      KILLING
    DUMPING      CLOSE     NONE
    KILLING      REVOKE    KILLING
    KILLING      KEEP      KILLING
    KILLING      INTERRUPT INTERRUPTING
    KILLING      DUMP      DUMPING
    KILLING      CLOSE     NONE
"""
MACHINES: list[tuple[Any, Any, str]] = [
    (SlotState, SlotEvent, SLOT_ARROWS),
    (EndingStage, EndingEvent, ENDING_ARROWS),
]


@pytest.mark.parametrize(("states", "events", "arrows"), MACHINES)
def test_every_pair_is_an_arrow_of_the_drawing_or_an_error(
    states: Any, events: Any, arrows: str
) -> None:
    rows = [line.split() for line in arrows.split("\n") if line.strip()]
    drawn = {(states[state], events[event]): states[to] for state, event, to in rows}
    assert len(drawn) == len(rows)
    for state, event in itertools.product(states, events):
        made: Any = Slot(3, state)
        apply, where = made.apply, "state"
        if states is EndingStage:
            made, where = JobEnding(state, None, mode=KILL), "at stage"
            apply = functools.partial(JobEndings({1: made}).apply, 1)
        before = dataclasses.replace(made)
        if (state, event) in drawn:
            apply(event)
            now = made.state if states is SlotState else made.stage
            assert now is drawn[state, event]
            continue
        with pytest.raises(IllegalTransitionError) as caught:
            apply(event)
        assert where in str(caught.value)
        assert str(caught.value).startswith(event.name)
        assert str(caught.value).endswith(state.name)
        assert made == before, "nothing has changed"


def test_a_new_generation_inherits_nothing_from_the_last_one() -> None:
    slot = Slot(
        3,
        state=SlotState.STARTING,
        generation=4,
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
        stacks_requested=True,
        exit_reason="roll",
        stop_stage=StopStage.KILLED,
    )
    in_flight, endings = slot.in_flight, slot.job_endings
    in_flight.add(17, JobTraits())
    slot.renew()
    fresh = Slot(3, SlotState.STARTING, generation=5)
    fresh.in_flight = slot.in_flight
    assert slot == fresh
    assert (slot.in_flight.jobs, slot.in_flight.revoking) == ({}, False)
    # Who still looks at the last one finds it as it was.
    assert slot.in_flight is not in_flight
    assert (list(in_flight.jobs), endings) == ([17], {17: JobEnding(mode=KILL)})
