"""Tests of asyncpool/_core/supervision/replacement.py; why somebody leaves is told elsewhere."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.sessions import PinnedJobs
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Command,
    DropPinnedJobs,
    Kill,
    Retiring,
    Revoke,
    Stop,
    Terminate,
)
from asyncpool._core.slots.lifecycle import STOP_GRACE, SlotLifecycle
from asyncpool._core.slots.slots import Slot, SlotEvent
from asyncpool._core.supervision.replacement import DrainingWorkers
from asyncpool.enums import SlotState


class Crew:
    """One worker, which is starting."""

    def __init__(self, drain_timeout: float | None = 10.0) -> None:
        self.short = JobTraits()
        self.short.cost = 1.0
        self.dispatcher = Dispatcher()
        self.lifecycle = SlotLifecycle(
            workers=1,
            count=1,
            most=1,
            limits=WorkerLimits(),
            policy=RestartPolicy(),
            start_timeout=20.0,
            stop_grace=STOP_GRACE,
            concurrency=1,
            dispatcher=self.dispatcher,
        )
        self.errands = PinnedJobs(self.lifecycle.slots, self.dispatcher)
        self.leaving = DrainingWorkers(
            self.lifecycle, self.dispatcher, self.errands, drain_timeout
        )
        self.lifecycle.spawn(self.slot, 0.0)

    @property
    def slot(self) -> Slot:
        [slot] = self.lifecycle.slots
        return slot

    def ready(self, *jobs: int) -> None:
        """Have it up, with these jobs in hand."""
        self.slot.apply(SlotEvent.READY)
        self.slot.due = None
        self.dispatcher.refill(0, self.slot.in_flight)
        if jobs:
            self.slot.apply(SlotEvent.ASSIGN)
        for job in jobs:
            assert self.dispatcher.submit(job, self.short) == 0

    def leave(self) -> list[Command]:
        return self.leaving.begin(self.slot, "worn", 1.0)


def test_who_is_idle_is_stopped() -> None:
    crew = Crew()
    crew.ready()
    assert not crew.leaving.any
    assert crew.leave() == [Retiring(0, "worn"), Stop(0)]
    assert (crew.slot.exit_planned, crew.leaving.any) == (True, True)
    assert crew.leave() == []  # it does already


def test_the_end_of_who_fails_is_no_planned_one() -> None:
    crew = Crew()
    crew.ready()
    crew.leaving.begin(crew.slot, "failed", 1.0, planned=False)
    assert not crew.slot.exit_planned


def test_who_is_not_up_yet_is_terminated() -> None:
    crew = Crew()
    assert crew.leave() == [Retiring(0, "worn"), Terminate(0)]


def test_nobody_leaves_who_is_not_there() -> None:
    crew = Crew()
    crew.slot.state = SlotState.UNUSED
    assert crew.leave() == []
    assert not crew.leaving.any


def test_who_is_busy_gives_back_what_has_not_begun_and_gets_no_more() -> None:
    crew = Crew()
    crew.ready(1, 2, 3)
    assert crew.leave() == [Retiring(0, "worn"), Revoke(0, (2, 3))]
    assert crew.leave() == []
    assert crew.leaving.ask_back(crew.slot, [1, 2]) == [Revoke(0, (1,))]
    assert crew.leaving.ask_back(crew.slot, [1, 2]) == []
    assert crew.dispatcher.submit(5, crew.short) is None
    assert crew.slot.state is SlotState.BUSY


def test_what_it_was_to_do_for_itself_is_dropped() -> None:
    crew = Crew()
    crew.ready(1)
    crew.errands.add(crew.slot, 4)
    assert crew.leave() == [Retiring(0, "worn"), DropPinnedJobs((4,))]


@pytest.mark.parametrize("time", [10.0, None])
def test_it_has_so_long_to_finish(time: float | None) -> None:
    crew = Crew(time)
    crew.ready(1)
    crew.leave()
    due = crew.leaving.next_deadline()
    assert due == (None if time is None else 1.0 + time)
    assert crew.leaving.on_timer(10.9) == []
    killed = Kill(0, "it was to leave, and had not within 10 s")
    assert crew.leaving.on_timer(11.0) == ([] if time is None else [killed])
    assert crew.leaving.next_deadline() is None


def test_one_of_several_is_enough_to_have_somebody_leave() -> None:
    crew = Crew()
    crew.lifecycle.ensure_slots(2)
    first, second = crew.lifecycle.slots
    assert not crew.leaving.any
    second.draining = True
    assert (first.draining, crew.leaving.any) == (False, True)
