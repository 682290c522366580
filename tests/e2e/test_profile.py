"""A profile tells where the time of jobs goes, function by function."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import asyncpool
from asyncpool import Job, Pool
from asyncpool.errors import (
    NoWorkerError,
    PoolClosedError,
    ProfileInProgressError,
    WorkerCrashedError,
)
from asyncpool.profile import Profile, StackSamples
from tests.helpers import jobs, profiled
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import next_of

pytestmark = ONE_LOOP

# What these say at a gate.
ARRIVE: dict[Callable[..., Any], str] = {
    profiled.wait_for_word: "async",
    profiled.compute_in_steps: "steps",
}
HERE = "tests.helpers.profiled."


def calls_of(stack: StackSamples) -> list[str]:
    """Return the names of the calls, those of the helpers without module and line."""
    return [re.sub(r":\d+$", "", each).removeprefix(HERE) for each in stack.frames]


def stacks_of(profile: Profile, function: str) -> list[StackSamples]:
    """Return the stacks of the jobs of one function."""
    return [stack for stack in profile.stacks if stack.function == function]


def assert_mostly(profile: Profile, function: str, *calls: str) -> None:
    """Check that the jobs of *function* were nearly always in these calls."""
    stacks = stacks_of(profile, function)
    there = sum(s.samples for s in stacks if calls_of(s)[: len(calls)] == [*calls])
    assert there > 0.8 * sum(s.samples for s in stacks) > 0, stacks


@asynccontextmanager
async def running(pool: Pool, *functions: Callable[..., Any]) -> AsyncIterator[Gate]:
    """Have jobs run, which all arrive at a gate, until the context is left."""
    begun: list[Job[Any]] = []
    async with Gate() as gate:
        try:
            for function in functions:
                job = pool.options(on_cancel="kill").submit(function, gate.path)
                begun.append(job)
                await gate.visitor(ARRIVE.get(function, ""))
                assert not job.done()
            yield gate
        finally:
            for job in begun:
                job.cancel()


async def test_where_a_plain_function_computes() -> None:
    async with patience(), Pool(2, name="shop") as pool, running(pool, profiled.outer):
        profile = await pool.profile(0.5)
    assert (profile.pool, profile.rate, profile.seconds > 0.49) == (
        "pool shop",
        100,
        True,
    )
    assert_mostly(profile, f"{HERE}outer", "outer", "inner")
    assert {stack.function for stack in profile.stacks} == {f"{HERE}outer"}
    busy, free = sorted(profile.workers, key=lambda worker: -worker.samples)
    assert (busy.complete, free.complete) == (True, True)
    assert (busy.samples, busy.idle) == (profile.samples, 0)
    assert (free.samples, free.idle) == (0, profile.idle)
    # By the clock: also late samples count.
    assert 30 <= profile.samples <= 70
    assert 30 <= profile.idle <= 70
    line = profiled.inner.__code__.co_firstlineno
    assert f"{HERE}inner:{line}" in profile.stacks[0].frames
    assert profile.top(1)[0].name == f"{HERE}inner:{line}"
    assert profile.collapsed().startswith(f"{HERE}outer;{HERE}outer:")


async def test_a_function_in_c_has_no_calls(pool: Pool) -> None:
    job = pool.submit(time.sleep, 3600)
    while not (await pool.profile(0.05)).samples:
        pass  # it has begun
    profile = await pool.profile(0.3)
    job.cancel()
    assert {(s.function, s.frames) for s in profile.stacks} == {("time.sleep", ())}
    assert [frame.name for frame in profile.top()] == ["time.sleep"]


async def test_coroutines_that_share_a_worker_are_told_apart() -> None:
    async with (
        patience(),
        Pool(1, concurrency=4) as pool,
        running(pool, profiled.wait_for_word) as gate,
    ):
        steps = pool.submit(profiled.compute_in_steps, gate.path)
        visitor = await gate.visitor("steps")
        # It computes in a task of its own.
        profile = await pool.profile(0.5)
        assert_mostly(profile, f"{HERE}compute_in_steps", "take_steps", "step")
        visitor.release()
        await steps
        waits = await pool.profile(0.3)
        assert_mostly(waits, f"{HERE}wait_for_word", "wait_for_word", "wait_inside")
        # From within the loop.
        async with running(pool, profiled.outer):
            plain = await pool.profile(0.3)
            assert_mostly(plain, f"{HERE}outer", "outer", "inner")


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_items_of_a_map_and_of_a_stream(concurrency: int) -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=concurrency) as pool:
        view = pool.options(on_cancel="kill")
        results = view.map(profiled.compute_item, [gate.path])
        first = asyncio.ensure_future(anext(aiter(results)))
        await gate.visitor()
        profile = await pool.profile(0.3)
        assert_mostly(profile, f"{HERE}compute_item", "compute_item", "inner")
        first.cancel()
        await asyncio.wait([first])
        await results.aclose()

        stream = view.stream(profiled.yield_after, gate.path)
        assert await anext(stream) == 1
        await gate.visitor(nth=2)
        profile = await pool.profile(0.3)
        assert_mostly(profile, f"{HERE}yield_after", "yield_after", "outer", "inner")
        await stream.aclose()


async def test_threads_of_jobs_belong_to_no_job() -> None:
    async with patience(), Pool(1) as pool, running(pool, profiled.compute_in_thread):
        profile = await pool.profile(0.5)
        alone = await pool.profile(0.2, function="compute_in_thread")
    assert_mostly(profile, "(no job)", "compute_until")
    assert_mostly(profile, f"{HERE}compute_in_thread", "compute_in_thread")
    assert {stack.function for stack in profile.stacks} == {
        "(no job)",
        f"{HERE}compute_in_thread",
    }, "the thread that waits is left out"
    assert {stack.function for stack in alone.stacks} == {f"{HERE}compute_in_thread"}


async def test_a_call_that_holds_the_gil_counts_for_its_caller() -> None:
    async with (
        patience(2),
        Pool(1) as pool,
        running(pool, profiled.hold_the_gil_in_turns),
    ):
        profile = await pool.profile(1)
    [worker] = profile.workers
    assert_mostly(
        profile, f"{HERE}hold_the_gil_in_turns", "hold_the_gil_in_turns", "keep_the_gil"
    )
    assert 0 < profile.missed < profile.samples
    assert worker.missed == profile.missed
    assert 60 <= profile.samples <= 140, (
        "late samples count for all that they stand for"
    )


async def test_a_worker_whose_gil_is_never_free_is_told_of() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.options(on_cancel="kill").submit(
            jobs.hold_the_gil, gate.path, "held"
        )
        await gate.visitor("held")
        profile = await pool.profile(0.1)
        [worker] = profile.workers
        assert (worker.complete, worker.samples, profile.samples) == (False, 0, 0)
        job.cancel()


async def test_only_one_function_or_slot() -> None:
    async with (
        patience(),
        Pool(3, ready="all") as pool,
        running(pool, profiled.outer, profiled.wait_for_word),
    ):
        by_itself = await pool.profile(0.3, function=profiled.outer)
        by_name = await pool.profile(0.3, function=f"{HERE}wait_for_word")
        by_nothing = await pool.profile(0.1, function="nothing")
        slots = {slot.job_id: slot.slot for slot in pool.stats().slots}
        first = await pool.profile(0.2, slot=slots[1])
        free = await pool.profile(0.1, slot=slots[None])
        with pytest.raises(NoWorkerError) as caught:
            await pool.profile(0.1, slot=7)
    assert {stack.function for stack in by_itself.stacks} == {f"{HERE}outer"}
    # A coroutine shows where it waits.
    waits = f"{HERE}wait_for_word"
    assert_mostly(by_name, waits, "wait_for_word", "wait_inside")
    found = {(stack.function, stack.frames[-1]) for stack in by_name.stacks}
    assert found == {(waits, "(awaiting)")}
    assert (by_itself.function, by_nothing.function) == (f"{HERE}outer", "nothing")
    assert by_nothing.stacks == ()
    for profile in (by_itself, by_name, by_nothing):
        assert sum(worker.skipped for worker in profile.workers) > 0
    assert [worker.slot for worker in first.workers] == [first.slot] == [slots[1]]
    assert {stack.function for stack in first.stacks} == {f"{HERE}outer"}
    assert (free.samples, [it.slot for it in free.workers]) == (0, [slots[None]])
    assert caught.value.there == (0, 1, 2)


async def test_one_profile_at_a_time(pool: Pool) -> None:
    first = asyncio.create_task(pool.profile(0.3))
    await asyncio.sleep(0)
    text = (
        f"a profile of pool {pool.name} is being taken already: wait until it is over"
    )
    with pytest.raises(ProfileInProgressError, match=f"^{text}$"):
        await pool.profile(0.1)
    assert (await first).idle > 0
    assert (await pool.profile(0.1)).idle > 0


async def test_a_worker_has_a_sampler_only_while_a_profile_is_taken() -> None:
    async with patience(), Pool(1) as pool:
        before = await pool.submit(profiled.count_threads)
        # Beside a job that computes, an import takes the control thread seconds.
        assert await pool.submit(profiled.is_imported)
        interval = await pool.submit(sys.getswitchinterval)
        taking = asyncio.create_task(pool.profile(3600))
        while await pool.submit(profiled.count_threads) == before:
            pass
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        while await pool.submit(profiled.count_threads) > before:
            pass
        while await pool.submit(sys.getswitchinterval) != interval:
            pass
        assert (await pool.profile(0.1)).idle > 0
        while await pool.submit(profiled.count_threads) > before:
            pass


async def test_a_worker_that_ends_costs_its_samples_and_the_next_one_joins_in() -> None:
    async with patience(2), Gate() as gate, Pool(1) as pool:
        job: Job[Any] = pool.options(max_attempts=2, on_cancel="kill").submit(
            profiled.outer, gate.path
        )
        first = await gate.visitor()
        events = pool.events()
        taking = asyncio.create_task(pool.profile(1.0))
        await asyncio.sleep(0)
        os.kill(first.pid, signal.SIGKILL)
        await next_of(events, asyncpool.events.Crashed)
        second = await gate.visitor(nth=2)
        profile = await taking
        assert not job.done()
        old, new = profile.workers
        assert (old.pid, old.generation, old.complete) == (first.pid, 1, False)
        assert (new.pid, new.generation, new.complete) == (second.pid, 2, True)
        assert new.samples > 0
        assert_mostly(profile, f"{HERE}outer", "outer", "inner")
        assert f"the last samples are missing of {old.pid} in slot 0" in profile.html()
        job.cancel()


async def test_a_pool_that_is_closed_ends_its_profile() -> None:
    async with patience(), Pool(1) as pool:
        taking = asyncio.create_task(pool.profile(3600))
        await asyncio.sleep(0)
        await pool.close()
        profile = await taking
        assert (profile.stacks, len(profile.workers)) == ((), 1)
        with pytest.raises(PoolClosedError):
            await pool.profile(1)


@pytest.mark.parametrize("payload", [b"{}", b"x" * (1 << 18)])
async def test_a_worker_that_sends_no_samples_of_a_sampler_is_not_trusted(
    payload: bytes,
) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(profiled.send_samples, gate.path, payload)
        visitor = await gate.visitor()
        taking = asyncio.create_task(pool.profile(0.5))
        await asyncio.sleep(0)
        visitor.release()
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        [crash] = caught.value.crashes
        assert (crash.kind, crash.detail) == (
            "protocol",
            "killed since samples of stacks cannot be read",
        )
        assert [worker.complete for worker in (await taking).workers] == [False, True]


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("seconds", 0, ValueError, "must be > 0 seconds, not 0"),
        ("seconds", 3601, ValueError, "must be at most 3600, not 3601"),
        ("seconds", float("nan"), ValueError, "must be > 0 seconds, not nan"),
        ("seconds", "1", TypeError, "must be a number of seconds, not '1'"),
        ("rate", 0.5, ValueError, "must be from 1 to 1000, not 0.5"),
        ("rate", 1001, ValueError, "must be from 1 to 1000, not 1001"),
        ("rate", None, TypeError, "must be a number, not None"),
        ("slot", -1, ValueError, "must be at least 0, not -1"),
        ("slot", "0", TypeError, "must be an int, not '0'"),
        ("function", "", ValueError, "must not be empty"),
        ("function", 7, TypeError, "must be a function or its name, not 7"),
    ],
)
async def test_arguments_that_make_no_sense(
    pool: Pool, name: str, value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"^{name} {re.escape(text)}$"):
        await pool.profile(**{"seconds": 1, name: value})
