"""Who begins first when several wait, and a pool that is full."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, Pool, RestartPolicy
from asyncpool.errors import (
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
)
from asyncpool.events import QueueEmptied, QueueFull, Ready
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import pickled
from tests.helpers.large import crowd
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, next_of

pytestmark = ONE_LOOP


async def test_jobs_begin_in_the_order_of_the_calls(pool: Pool) -> None:
    order: list[int] = []
    queued = [pool.submit(jobs.square, n) for n in range(100)]
    for job in queued:
        job.add_done_callback(lambda job: order.append(math.isqrt(job.result())))
    await asyncio.gather(*queued)
    assert order == list(range(100))


async def test_a_full_pool_refuses_at_once_and_says_when_it_is_empty_again() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=2) as pool:
        events = pool.events()
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = [pool.submit(jobs.square, n) for n in range(2)]
        for _ in range(2):
            with pytest.raises(PoolFullError) as caught:
                pool.submit(jobs.square, 9)
            assert (caught.value.waiting, caught.value.max_queued) == (2, 2)
        queued.pop().cancel()
        queued.append(pool.submit(jobs.square, 3))  # there is room again
        visitor.release()
        assert await asyncio.gather(running, *queued) == ["go", 0, 9]
        assert await pool.submit(jobs.square, 3) == 9
        stats = pool.stats()
    seen = [event async for event in events]
    told = [event for event in seen if isinstance(event, QueueFull | QueueEmptied)]
    assert told == [QueueFull(2), QueueEmptied()]
    # What was refused was never accepted.
    assert (stats.submitted, stats.completed, stats.cancelled) == (5, 4, 1)


Queued = tuple[Job[str], Job[str]]


async def cancel(_: Pool, running: Job[str], queued: Queued) -> None:
    for job in queued:
        job.cancel()
    running.cancel()


async def crash(pool: Pool, _: Job[str], queued: Queued) -> None:
    for job in queued:
        job.cancel()
    [slot] = pool.stats().slots
    assert slot.pid is not None
    os.kill(slot.pid, signal.SIGKILL)


async def time_out(pool: Pool, running: Job[str], queued: Queued) -> None:
    first, second = queued
    first.cancel()
    late = pool.options(queue_timeout=0.001).submit(jobs.square, 1)
    second.cancel()  # now that it is not the last
    with pytest.raises(JobTimeoutError):
        await late
    running.cancel()


async def grow(pool: Pool, _: Job[str], _queued: Queued) -> None:
    await pool.resize(3)


@pytest.mark.parametrize("empty", [cancel, crash, time_out, grow])
async def test_a_map_that_was_refused_goes_on_without_an_outcome(
    empty: Callable[[Pool, Job[str], Queued], Awaitable[None]],
) -> None:
    """However the queue becomes empty."""
    async with patience(), Gate() as gate, Pool(1, max_queued=2) as pool:
        events, view = pool.events(), pool.options(on_cancel="kill")
        running = view.submit(jobs.wait_at, gate.path)
        visitors = [await gate.visitor()]
        first, second = (view.submit(jobs.wait_at, gate.path, "next") for _ in range(2))
        refused = asyncio.ensure_future(pool.map(jobs.square, range(5)))
        assert await next_of(events, QueueFull) == QueueFull(2)
        await empty(pool, running, (first, second))
        await next_of(events, QueueEmptied)
        if empty is grow:
            visitors += [await gate.visitor("next", nth) for nth in (1, 2)]
        for visitor in visitors:
            visitor.release()
        assert await refused == [0, 1, 4, 9, 16]
        await asyncio.wait([running, first, second])
        for job in running, first, second:
            _ = job.cancelled() or job.exception()


async def test_a_map_that_was_refused_hears_that_the_pool_closes() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=1) as pool:
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued, events = pool.submit(jobs.square, 1), pool.events()
        refused = asyncio.ensure_future(pool.map(jobs.square, range(5)))
        await next_of(events, QueueFull)
        closed = await closing(pool, finish="running")
        for it in queued, refused:
            with pytest.raises(PoolClosedError):
                await it
        visitor.release()
        assert await running == "go"
        await closed


async def test_a_map_that_was_refused_hears_that_the_pool_is_broken(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    async with (
        patience(),
        Gate() as gate,
        Pool(
            1,
            max_queued=1,
            initializer=jobs.fail_if_there,
            initargs=(str(flag),),
            restart_policy=RestartPolicy(max_failed_starts=1),
        ) as pool,
    ):
        running = pool.options(on_cancel="kill").submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued, events = pool.submit(jobs.square, 1), pool.events()
        refused = asyncio.ensure_future(pool.map(jobs.square, range(5)))
        await next_of(events, QueueFull)
        flag.touch()
        running.cancel()
        for it in queued, refused:
            with pytest.raises(PoolBrokenError):
                await it


async def test_if_nothing_may_wait_there_is_room_when_a_worker_is_ready() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=0) as pool:
        events = pool.events()
        running = pool.options(on_cancel="kill").submit(jobs.wait_at, gate.path)
        refused = asyncio.ensure_future(pool.map(jobs.square, range(5)))
        await next_of(events, QueueFull)
        with pytest.raises(PoolFullError):
            pool.submit(jobs.square, 1)
        await gate.visitor()
        running.cancel()
        seen = [await anext(events)]
        while QueueEmptied() not in seen:
            seen.append(await anext(events))
        assert isinstance(seen[-2], Ready), "not before"
        assert await refused == [0, 1, 4, 9, 16]


async def test_a_job_that_is_taken_over_may_exceed_the_bound() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=1) as pool:
        twice = pool.options(max_attempts=2)
        job = twice.submit(jobs.wait_in_every_attempt, gate.path)
        visitor = await gate.visitor("attempt 1")
        queued = pool.submit(jobs.square, 5)
        visitor.release("die")
        (await gate.visitor("attempt 2")).release()
        assert await job == "go"
        assert await queued == 25


async def test_jobs_may_be_submitted_from_callbacks(pool: Pool) -> None:
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def again(job: asyncio.Future[int]) -> None:
        if job.result() > 10**6:
            last.set_result(job.result())
        else:
            pool.submit(jobs.square, job.result()).add_done_callback(again)

    pool.submit(jobs.square, 2).add_done_callback(again)
    assert await last == 2**32


async def test_a_large_job_does_not_hold_up_the_others(pair: Pool) -> None:
    """It goes out in parts, and in between the others have their turns."""
    await idle(pair)
    large = pair.submit(len, bytes(64_000_000))
    done_before = 0
    while not large.done():
        await pair.submit(jobs.square, 3)
        done_before += not large.done()
    assert await large == 64_000_000
    assert done_before > 1


async def order_of(jobs_: dict[str, Job[Any]]) -> list[str]:
    """Return the names in the order in which their jobs are done."""
    done: list[str] = []
    for name, job in jobs_.items():
        job.add_done_callback(
            functools.partial(lambda name, _: done.append(name), name)
        )
    await asyncio.gather(*jobs_.values())
    await asyncio.sleep(0)
    return done


async def test_lower_first_and_first_come_first_served_among_equals(
    pool: Pool, gate: Gate
) -> None:
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    given = [("a", 0), ("b", 5), ("c", -5), ("d", 0), ("e", -5), ("f", 5)]
    waiting: dict[str, Job[Any]] = {
        name: pool.options(priority=priority).submit(jobs.square, 1)
        for name, priority in given
    }
    visitor.release()
    assert "".join(await order_of(waiting)) == "ceadbf"
    await held


async def test_what_takes_a_while_to_pickle_has_its_priority_too(
    pool: Pool, gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "signed"
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    light = pool.submit(jobs.sign, str(path), 1)
    urgent = pool.options(priority=-1)
    heavy = urgent.submit(jobs.sign, str(path), 2, crowd(1 << 20))
    while not pickled(heavy):  # noqa: ASYNC110 - it is pickled in a thread
        await asyncio.sleep(0)
    visitor.release()
    await asyncio.gather(held, light, heavy)
    assert path.read_text().split() == ["2", "1"]
