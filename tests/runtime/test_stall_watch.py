"""Tests of asyncpool/_runtime/traffic/stall_watch.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool._core.slots.commands import Command
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.traffic.job_timers import JobTimers
from asyncpool._runtime.traffic.stall_watch import EVERY, REST, SOON, StallWatch


class Timers:
    """A loop's timers, which fire when they are told to."""

    def __init__(self) -> None:
        self.set: list[float] = []
        self._callback: Callable[[], None] | None = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert self._callback is None, "there are two timers"
        self.set.append(delay)
        self._callback = callback
        return SimpleNamespace(cancel=self.cancel)

    def time(self) -> float:
        return 0.0

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        assert callback is not None
        callback()


class Crowd:
    """Workers of which some always have enough to do, and their rounds."""

    def __init__(self, workers: int, busy: int) -> None:
        self.timers = Timers()
        self.woken: list[int] = []
        self.attended: list[int] = []
        self.handles = {slot: self._handle(slot) for slot in range(workers)}
        self.balance = SimpleNamespace(
            may_rest=lambda slot: slot < busy,
            pipelining=False,
            unbalanced=False,
        )
        core = SimpleNamespace(
            balance=self.balance,
            termination=SimpleNamespace(check_for_stalls=list),
            jobs=SimpleNamespace(running=lambda _: ()),
        )
        state = SimpleNamespace(
            loop=self.timers,
            handles=self.handles,
            core=core,
            registry=SimpleNamespace(jobs={}),
            deciding=False,
            performer=SimpleNamespace(perform=list[Command]().extend),
        )
        times = SimpleNamespace(begin=list[Job[Any]]().append)
        self.rounds = StallWatch(cast("PoolState", state), cast("JobTimers", times))

    def _handle(self, slot: int) -> Any:
        def hear() -> None:
            self.woken.append(slot)
            self.rounds.leave_alone(self.handles[slot])  # its outcomes have been read

        def attend() -> None:
            self.attended.append(slot)

        return SimpleNamespace(
            slot=slot, pause_reading=lambda: None, resume_reading=attend, read_now=hear
        )

    def rest(self) -> None:
        for handle in self.handles.values():
            self.rounds.leave_alone(handle)


@pytest.mark.parametrize(
    ("workers", "busy", "next_one"), [(1, 1, REST), (3, 3, REST), (3, 2, EVERY)]
)
def test_the_next_round_is_later_if_all_workers_have_enough_to_do(
    workers: int, busy: int, next_one: float
) -> None:
    assert EVERY < REST
    crowd = Crowd(workers, busy)
    crowd.rest()
    for _ in range(3):
        crowd.timers.fire()
    assert crowd.woken == 3 * list(range(busy))
    assert crowd.timers.set[1:] == 3 * [next_one]


def test_the_next_round_is_soon_if_a_worker_becomes_idle_beside_others() -> None:
    crowd = Crowd(2, 0)
    crowd.rounds.look_soon()
    assert not crowd.rounds.active, "there is no reason for any"
    crowd.rounds.go()
    crowd.rounds.look_soon()
    assert crowd.timers.set == [EVERY]
    crowd.balance.unbalanced = crowd.balance.pipelining = True
    crowd.rounds.look_soon()
    crowd.rounds.look_soon()
    crowd.timers.fire()
    assert crowd.timers.set == [EVERY, SOON, SOON]
    crowd.balance.unbalanced = False
    crowd.timers.fire()
    assert crowd.timers.set[3:] == [EVERY]


def test_one_that_is_heard_and_has_little_left_is_left_alone_no_more() -> None:
    crowd = Crowd(2, 2)
    crowd.rest()
    crowd.balance.may_rest = {1}.__contains__
    crowd.handles[0].read_now()
    crowd.handles[1].read_now()
    assert crowd.attended == [0]
    crowd.timers.fire()
    assert crowd.attended == [0, 1], "and once"


def test_there_are_no_rounds_without_a_reason() -> None:
    crowd = Crowd(2, 2)
    crowd.rest()
    crowd.balance.may_rest = set().__contains__
    crowd.timers.fire()
    assert not crowd.rounds.active
    crowd.rounds.go()
    assert crowd.timers.set == [EVERY, EVERY]
    crowd.timers.fire()
    assert crowd.woken == [0, 1]
