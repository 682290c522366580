"""Tests of asyncpool/_runtime/state/admission.py."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool import events
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.base.event_hub import EventHub
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.draining import Hold
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolBrokenError, PoolClosedError, PoolFullError
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

ANYBODY = JobOptions()


class Door:
    """The admission to a pool of which all that matters is said."""

    def __init__(self, limit: int | None = 3) -> None:
        self.idle_for: set[int | None] = set()
        self.dispatcher = SimpleNamespace(
            has_idle_worker_for=self.idle_for.__contains__, free=0, preparing=0
        )
        self.balance = SimpleNamespace(waiting=0)
        self.core = SimpleNamespace(
            closing=SimpleNamespace(finish=None, draining=False),
            broken=None,
            dispatcher=self.dispatcher,
            balance=self.balance,
        )
        self.hub: EventHub[events.Event] = EventHub()
        self.heard = self.hub.listen(10)
        state = SimpleNamespace(
            loop=SimpleNamespace(time=lambda: 100.0),
            core=self.core,
            config=SimpleNamespace(max_queued=limit),
            hub=self.hub,
            crashes=deque[Any](),
            deciding=False,
            performer=SimpleNamespace(rearm=lambda: self.rearmed.append(0.0)),
        )
        self.rearmed: list[float] = []
        self.core.workers = SimpleNamespace(
            try_sooner=self.rearmed.append, retry_in=lambda now: now - 93.0
        )
        self.admission = Admission(cast("PoolState", state))

    async def events(self) -> list[events.Event]:
        """Return what was heard, and end that."""
        self.hub.end()
        return [event async for event in self.heard]


async def test_as_many_may_wait_as_it_says() -> None:
    door = Door(limit=3)
    door.balance.waiting = 2
    door.admission.check(ANYBODY)
    assert not door.admission.saturated
    door.balance.waiting = 3
    for _ in range(2):
        with pytest.raises(PoolFullError) as info:
            door.admission.check(ANYBODY)
        assert (info.value.waiting, info.value.max_queued) == (3, 3)
        assert door.admission.saturated
    assert await door.events() == [events.QueueFull(3)]  # once


async def test_without_a_limit_any_number_may() -> None:
    door = Door(limit=None)
    door.balance.waiting = 10**6
    door.admission.check(ANYBODY)


async def test_for_whom_a_worker_is_idle_does_not_wait() -> None:
    door = Door(limit=1)
    door.balance.waiting = 5
    door.idle_for.add(4)
    door.admission.check(JobOptions(key=4))
    with pytest.raises(PoolFullError):
        door.admission.check(JobOptions(key=5))


@pytest.mark.parametrize(("free", "preparing"), [(1, 2), (2, 1)])
async def test_what_is_pickled_for_an_idle_worker_does_not_wait_for_long(
    free: int, preparing: int
) -> None:
    door = Door(limit=3)
    door.dispatcher.free, door.dispatcher.preparing = free, preparing
    door.balance.waiting = 3
    door.admission.check(ANYBODY)
    door.balance.waiting = 4
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)


async def test_a_closing_pool_admits_nobody() -> None:
    door = Door(limit=None)
    door.admission.check_open()
    door.core.closing.finish = Finish.ALL
    checks: list[Callable[[], None]] = [
        door.admission.check_open,
        functools.partial(door.admission.check, ANYBODY),
    ]
    for check in checks:
        with pytest.raises(PoolClosedError):
            check()


async def test_a_pool_that_drains_admits_only_for_those_who_hold_it_open() -> None:
    door, hold, other = Door(limit=None), Hold("f"), Hold("f")
    door.core.closing.finish = Finish.ALL
    door.core.closing.draining = True
    hold.take(lambda _: None)
    door.admission.check(JobOptions(hold=hold))
    hold.release()
    for late in (hold, other):
        with pytest.raises(PoolClosedError):
            door.admission.check(JobOptions(hold=late))
    hold.take(lambda _: None)
    door.core.closing.draining = False
    with pytest.raises(PoolClosedError):
        door.admission.check(JobOptions(hold=hold))


async def test_a_broken_pool_admits_nobody_and_says_why() -> None:
    door = Door(limit=None)
    door.core.broken = "enough is enough"
    checks: list[Callable[[], None]] = [
        door.admission.check_open,
        functools.partial(door.admission.check, ANYBODY),
    ]
    for check in checks:
        with pytest.raises(PoolBrokenError) as info:
            check()
        assert (info.value.reason, info.value.retry_after) == ("enough is enough", 7.0)
    assert door.rearmed == [100.0, 0.0] * 2, "it is told that somebody wants to come in"


async def test_there_is_room_again_when_nobody_waits() -> None:
    door = Door(limit=1)
    await door.admission.room()  # it was never full
    door.balance.waiting = 1
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    waiter = asyncio.create_task(door.admission.room())
    await asyncio.sleep(0)
    door.admission.relax()  # one waits still
    seen = [door.admission.saturated]
    door.balance.waiting = 0
    door.admission.relax()
    await waiter
    assert [*seen, door.admission.saturated] == [True, False]
    assert await door.events() == [events.QueueFull(1), events.QueueEmptied()]


async def refused_at(door: Door) -> asyncio.Task[None]:
    """Return who waits at a full *door*."""
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    waiter = asyncio.create_task(door.admission.room())
    await asyncio.sleep(0)
    return waiter


async def test_that_a_job_waits_is_told_while_there_may_be_more_workers() -> None:
    door, told = Door(), list[float]()
    door.core.replacements = SimpleNamespace(
        sizing=SimpleNamespace(crowded=told.append)
    )
    door.dispatcher.unserved = 0
    door.admission.crowded()
    assert (told, door.rearmed) == ([], [])
    door.dispatcher.unserved = 1
    door.admission.crowded()
    assert (told, door.rearmed) == ([100.0], [0.0])


async def test_what_else_happens_does_not_hide_that_there_is_room() -> None:
    door = Door(limit=1)
    door.balance.waiting = 1
    waiter = await refused_at(door)
    door.balance.waiting = 0
    door.admission.relax()
    for number in range(1000):
        door.hub.publish(events.TakenOver(number, 1))
    async with patience():
        await waiter


async def test_who_finds_the_queue_full_again_waits_on() -> None:
    door = Door(limit=1)
    door.balance.waiting = 1
    waiter = await refused_at(door)
    door.balance.waiting = 0
    door.admission.relax()
    door.balance.waiting = 1
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()
    door.balance.waiting = 0
    door.admission.relax()
    async with patience():
        await waiter


def a_worker_is_idle(door: Door) -> None:
    door.idle_for.add(None)


def the_pool_is_broken(door: Door) -> None:
    door.core.broken = "enough is enough"


def the_pool_closes(door: Door) -> None:
    door.core.closing.finish = Finish.RUNNING


@pytest.mark.parametrize(
    "relieve", [a_worker_is_idle, the_pool_is_broken, the_pool_closes]
)
async def test_where_nobody_may_wait_room_is_a_worker(
    relieve: Callable[[Door], None],
) -> None:
    """An empty queue says nothing there; but a pool that takes no more jobs does."""
    door = Door(limit=0)
    waiter = await refused_at(door)
    door.admission.relax()
    door.core.closing.finish, door.core.closing.draining = Finish.ALL, True
    door.admission.relax()
    assert door.admission.saturated
    door.core.closing.finish, door.core.closing.draining = None, False
    relieve(door)
    door.admission.relax()
    async with patience():
        await waiter
    assert await door.events() == [events.QueueFull(0), events.QueueEmptied()]


async def test_nobody_waits_for_room_in_a_pool_that_ends() -> None:
    door = Door(limit=0)
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    waiter = asyncio.create_task(door.admission.room())
    await asyncio.sleep(0)
    door.admission.end()
    async with patience():
        await waiter
