"""Tests of asyncpool/_runtime/state/admission.py."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import pytest

from asyncpool import RestartPolicy, events
from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.slots.commands import Spawn
from asyncpool._core.slots.lifecycle import WANTED_AGAIN
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.state.draining import MapHold
from asyncpool.errors import PoolBrokenError, PoolClosedError, PoolFullError
from tests.helpers.inside import affinity_queues_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.runtime.pool_parts import break_starts, parts_of, queue_jobs

pytestmark = BOTH_LOOPS

ANYBODY = JobOptions()
POLICY = RestartPolicy(initial_delay=100.0, max_delay=100.0, max_failed_starts=1)


class Door:
    """The admission to a pool, which has no worker yet and no jobs."""

    def __init__(
        self, limit: int | None = 3, workers: int | tuple[int, int] = 1
    ) -> None:
        parts, self.notebook = parts_of(
            workers=workers, max_queued=limit, restart_policy=POLICY
        )
        self.state, self.core = parts.state, parts.state.core
        self.admission = parts.admission
        self.heard = self.state.hub.listen(10)
        self.now = self.state.loop.time()
        self._queued: list[int] = []

    def queue(self, count: int) -> None:
        """Have so many more jobs wait."""
        self._queued += queue_jobs(self.state, count)

    def relieve(self) -> None:
        """Have all of them leave."""
        while self._queued:
            self.core.jobs.drop(self._queued.pop(), self.now)

    def get_workers(self) -> None:
        """Have all workers come up."""
        for command in self.core.workers.start(self.now):
            assert isinstance(command, Spawn)
            self.core.workers.ready(command.slot, self.now)

    async def events(self) -> list[events.Event]:
        """Return what was heard, and end that."""
        self.state.hub.end()
        return [event async for event in self.heard]


async def test_as_many_may_wait_as_it_says() -> None:
    door = Door(limit=3)
    door.queue(2)
    door.admission.check(ANYBODY)
    assert not door.admission.saturated
    door.queue(1)
    for _ in range(2):
        with pytest.raises(PoolFullError) as info:
            door.admission.check(ANYBODY)
        assert (info.value.waiting, info.value.max_queued) == (3, 3)
        assert door.admission.saturated
    assert await door.events() == [events.QueueFull(3)]  # once


async def test_without_a_limit_any_number_may() -> None:
    door = Door(limit=None)
    door.queue(10_000)
    door.admission.check(ANYBODY)


async def test_for_whom_a_worker_is_idle_does_not_wait() -> None:
    door = Door(limit=1, workers=2)
    door.get_workers()
    slot_of = affinity_queues_of(door.core).slot_of
    keys = {slot_of(key): key for key in range(100)}
    assert keys.keys() == {0, 1}
    for job in range(6):  # the first one runs
        door.core.jobs.submit_keyed(job, KeyedTraits(JobTraits(), keys[0]), 0)
    assert door.core.waiting == 5
    door.admission.check(JobOptions(key=keys[1]))
    with pytest.raises(PoolFullError):
        door.admission.check(JobOptions(key=keys[0]))


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_is_pickled_for_an_idle_worker_does_not_wait_for_long(
    workers: int,
) -> None:
    door = Door(limit=3, workers=workers)
    door.get_workers()
    for job in range(workers + 2):
        door.core.jobs.prepare(job)
    door.admission.check(ANYBODY)
    door.core.jobs.prepare(9)
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)


async def test_a_closing_pool_admits_nobody() -> None:
    door = Door(limit=None)
    door.admission.check_open()
    door.core.close(Finish.ALL, None, door.now)
    checks: list[Callable[[], None]] = [
        door.admission.check_open,
        functools.partial(door.admission.check, ANYBODY),
    ]
    for check in checks:
        with pytest.raises(PoolClosedError):
            check()


async def test_a_pool_that_drains_admits_only_for_those_who_hold_it_open() -> None:
    door, hold, other = Door(limit=None), MapHold("f"), MapHold("f")
    door.core.hold()
    door.core.close(Finish.ALL, None, door.now)
    hold.take(lambda _: None)
    door.admission.check(JobOptions(hold=hold))
    hold.release()
    for late in (hold, other):
        with pytest.raises(PoolClosedError):
            door.admission.check(JobOptions(hold=late))
    hold.take(lambda _: None)
    door.core.close(Finish.RUNNING, None, door.now)
    with pytest.raises(PoolClosedError):
        door.admission.check(JobOptions(hold=hold))


async def test_a_broken_pool_admits_nobody_and_says_why() -> None:
    door = Door(limit=None)
    break_starts(door.state)
    checks: list[Callable[[], None]] = [
        door.admission.check_open,
        functools.partial(door.admission.check, ANYBODY),
    ]
    for number, check in enumerate(checks, 1):
        with pytest.raises(PoolBrokenError) as info:
            check()
        assert info.value.reason == "the start failed"
        assert info.value.retry_after is not None
        # The core is told that somebody wants to come in, and the timer is set to that.
        assert 0 <= info.value.retry_after <= WANTED_AGAIN < POLICY.initial_delay
        assert door.notebook.rearmed == number


async def test_there_is_room_again_when_nobody_waits() -> None:
    door = Door(limit=1)
    await door.admission.room()  # it was never full
    door.queue(1)
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    waiter = asyncio.create_task(door.admission.room())
    await asyncio.sleep(0)
    door.admission.update_saturated()  # one waits still
    seen = [door.admission.saturated]
    door.relieve()
    door.admission.update_saturated()
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
    door = Door(workers=(1, 2))
    sizing = door.core.replacements.sizing
    door.admission.note_queued()
    assert (sizing.watching, door.notebook.rearmed) == (True, 0)
    door.queue(1)
    door.admission.note_queued()
    assert (sizing.watching, door.notebook.rearmed) == (False, 1)


async def test_what_else_happens_does_not_hide_that_there_is_room() -> None:
    door = Door(limit=1)
    door.queue(1)
    waiter = await refused_at(door)
    door.relieve()
    door.admission.update_saturated()
    for number in range(1000):
        door.state.hub.publish(events.TakenOver(number, 1))
    async with patience():
        await waiter


async def test_who_finds_the_queue_full_again_waits_on() -> None:
    door = Door(limit=1)
    door.queue(1)
    waiter = await refused_at(door)
    door.relieve()
    door.admission.update_saturated()
    door.queue(1)
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()
    door.relieve()
    door.admission.update_saturated()
    async with patience():
        await waiter


def a_worker_is_idle(door: Door) -> None:
    door.get_workers()


def the_pool_is_broken(door: Door) -> None:
    break_starts(door.state)


def the_pool_closes(door: Door) -> None:
    door.core.close(Finish.RUNNING, None, door.now)


@pytest.mark.parametrize(
    "relieve", [a_worker_is_idle, the_pool_is_broken, the_pool_closes]
)
async def test_where_nobody_may_wait_room_is_a_worker(
    relieve: Callable[[Door], None],
) -> None:
    """An empty queue says nothing there; but a pool that takes no more jobs does."""
    door = Door(limit=0)
    waiter = await refused_at(door)
    door.admission.update_saturated()
    assert door.admission.saturated
    relieve(door)
    door.admission.update_saturated()
    async with patience():
        await waiter
    assert await door.events() == [events.QueueFull(0), events.QueueEmptied()]


async def test_where_nobody_may_wait_there_is_no_room_while_it_drains() -> None:
    door = Door(limit=0)
    waiter = await refused_at(door)
    door.core.hold()
    door.core.close(Finish.ALL, None, door.now)
    door.admission.update_saturated()
    assert door.admission.saturated
    door.core.release(door.now)
    door.admission.update_saturated()
    async with patience():
        await waiter


async def test_nobody_waits_for_room_in_a_pool_that_ends() -> None:
    door = Door(limit=0)
    with pytest.raises(PoolFullError):
        door.admission.check(ANYBODY)
    waiter = asyncio.create_task(door.admission.room())
    await asyncio.sleep(0)
    door.admission.wake_all()
    async with patience():
        await waiter
