"""Tests of asyncpool/_core/placement/sessions.py; what else becomes of pinned jobs is told of whole pools."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import PINNED, JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.sessions import PinnedJobs
from asyncpool._core.slots.commands import Assign, DropPinnedJobs
from asyncpool._core.slots.slots import Slot, SlotEvent
from asyncpool.enums import SlotState


class Crew:
    """Workers that are all idle, and their pinned jobs."""

    def __init__(self, workers: int) -> None:
        self.slots = [Slot(index, SlotState.IDLE) for index in range(workers)]
        self.dispatcher = Dispatcher()
        for slot in self.slots:
            self.dispatcher.refill(slot.index, slot.in_flight)
        self.errands = PinnedJobs(self.slots, self.dispatcher)

    def busy(self) -> Slot:
        """Return one that has job 1 in hand."""
        index = self.dispatcher.submit(1, JobTraits())
        assert index is not None
        slot = self.slots[index]
        slot.apply(SlotEvent.ASSIGN)
        return slot


def test_an_idle_worker_begins_at_once_and_gets_nothing_else() -> None:
    crew = Crew(1)
    [slot] = crew.slots
    before = slot.recycle_limits.jobs
    assert crew.errands.add(slot, 7) == [Assign(0, (7,))]
    assert (slot.state, slot.in_flight.jobs[7][2]) == (SlotState.BUSY, PINNED)
    assert crew.dispatcher.submit(8, JobTraits()) is None
    assert slot.recycle_limits.jobs == before + 1  # it has not worn it


def test_a_busy_worker_begins_when_it_has_nothing_in_hand_and_in_their_order() -> None:
    crew = Crew(1)
    slot = crew.busy()
    assert crew.errands.add(slot, 7) == []
    assert crew.errands.add(slot, 8) == []
    assert crew.errands.begin(slot) == []
    for landed, begun in [(1, 7), (7, 8)]:
        slot.in_flight.complete(landed)
        assert crew.errands.begin(slot) == [Assign(0, (begun,))]


@pytest.mark.parametrize("state", [SlotState.STARTING, SlotState.IDLE])
def test_a_worker_that_cannot_begin_keeps_it(state: SlotState) -> None:
    crew = Crew(1)
    [slot] = crew.slots
    slot.state = state
    crew.dispatcher.exclude(0)
    slot.hung = state is SlotState.IDLE
    assert crew.errands.add(slot, 7) == []
    assert list(slot.pinned) == [7]


def test_one_that_is_discarded_was_somebodys() -> None:
    crew = Crew(2)
    slot = crew.busy()
    crew.errands.add(slot, 7)
    assert crew.errands.discard(8) is None
    assert crew.errands.discard(7) is slot
    assert crew.errands.discard(7) is None
    assert not slot.pinned


def test_who_goes_drops_its_own_and_says_so_if_there_are_any() -> None:
    crew = Crew(2)
    for slot in crew.slots:
        slot.state = SlotState.STARTING
        crew.errands.add(slot, 7 + slot.index)
    assert crew.errands.drop(crew.slots[0]) == [DropPinnedJobs((7,))]
    assert crew.errands.drop(crew.slots[0]) == []
    assert crew.errands.take_all() == {8: crew.slots[1]}
    assert crew.errands.take_all() == {}
