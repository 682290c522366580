"""Tests of asyncpool/_core/dispatch.py, against a model made of two lists."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._core.dispatch import Dispatcher


class DispatchMachine(RuleBasedStateMachine):
    """Drive a dispatcher the way a supervisor would, keeping its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher()
        self.queue: list[int] = []
        self.idle: list[int] = []
        self.away: dict[int, int] = {}  # slot -> job
        self.jobs = 0
        self.slots = 0

    def begins(self, slot: int | None, job: int) -> None:
        """Check who was given *job*: the one that became idle last."""
        if self.idle:
            assert slot == self.idle.pop()
            self.away[slot] = job
        else:
            assert slot is None

    def becomes_free(self, slot: int) -> None:
        job = self.dispatcher.worker_free(slot)
        if self.queue:
            assert job == self.queue.pop(0), "jobs begin in their order"
            self.away[slot] = job
        else:
            assert job is None
            self.idle.append(slot)

    @rule()
    def submit(self) -> None:
        self.jobs += 1
        slot = self.dispatcher.submit(self.jobs)
        if not self.idle:
            self.queue.append(self.jobs)
        self.begins(slot, self.jobs)

    @rule()
    def a_worker_is_ready(self) -> None:
        self.slots += 1
        self.becomes_free(self.slots)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.away)))
        del self.away[slot]
        self.becomes_free(slot)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def a_worker_dies_at_work(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.away)))
        job = self.away.pop(slot)
        self.dispatcher.worker_gone(slot)
        taken = self.dispatcher.give_back(job)
        if not self.idle:
            self.queue.insert(0, job)
        self.begins(taken, job)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def an_idle_worker_dies(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.idle))
        self.idle.remove(slot)
        self.dispatcher.worker_gone(slot)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def a_queued_job_is_cancelled(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.queue))
        self.queue.remove(job)
        assert self.dispatcher.discard(job) is True
        assert self.dispatcher.discard(job) is False

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def a_running_job_is_not_in_the_queue(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.away.values())))
        assert self.dispatcher.discard(job) is False

    @precondition(lambda self: len(self.queue) > 2)
    @rule()
    def the_queue_is_emptied(self) -> None:
        assert self.dispatcher.empty() == self.queue
        self.queue.clear()
        assert self.dispatcher.empty() == []

    @invariant()
    def the_figures_agree(self) -> None:
        assert self.dispatcher.waiting == len(self.queue)
        assert self.dispatcher.idle == len(self.idle)

    @invariant()
    def nobody_waits_while_somebody_is_idle(self) -> None:
        assert not (self.dispatcher.waiting and self.dispatcher.idle)


TestDispatcher = DispatchMachine.TestCase


def test_jobs_begin_in_the_order_in_which_they_came() -> None:
    dispatcher = Dispatcher()
    for job in (1, 2, 3):
        assert dispatcher.submit(job) is None
    assert [dispatcher.worker_free(0) for _ in range(4)] == [1, 2, 3, None]


def test_the_worker_that_stopped_last_is_the_next_to_work() -> None:
    dispatcher = Dispatcher()
    for slot in (0, 1, 2):
        dispatcher.worker_free(slot)
    assert [dispatcher.submit(job) for job in (1, 2, 3, 4)] == [2, 1, 0, None]


def test_a_job_that_lost_its_worker_is_the_next_to_begin() -> None:
    dispatcher = Dispatcher()
    for job in (1, 2, 3):
        dispatcher.submit(job)
    assert dispatcher.worker_free(0) == 1
    assert dispatcher.give_back(1) is None
    assert [dispatcher.worker_free(slot) for slot in (1, 2, 3)] == [1, 2, 3]


def test_a_worker_that_left_is_given_nothing() -> None:
    dispatcher = Dispatcher()
    dispatcher.worker_free(0)
    dispatcher.worker_gone(0)
    dispatcher.worker_gone(0)
    assert dispatcher.submit(1) is None
