"""Heartbeats: none that counts is lost, the next attempt resumes, readers follow."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Job, JobNotPicklableError, Pool, WorkerCrashedError
from tests.helpers import beats, jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves

pytestmark = BOTH_LOOPS

LONG = 3600.0


async def all_of(job: Job[Any]) -> list[Any]:
    return [details async for details in job.progress()]


# Nothing is lost.


async def test_a_job_resumes_where_its_last_attempt_was_killed() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        view = pool.options(max_attempts=3, retry_on=["crash", LookupError])
        job = view.submit(beats.resume_at, gate.path)
        for number in range(5):
            (await gate.visitor(f"beat {number}")).release()
        victim = await gate.visitor("beat 5")
        os.kill(victim.pid, signal.SIGKILL)
        (await gate.visitor("beat 6")).release()
        (await gate.visitor("beat 7")).release("fail")
        assert await job == (7, 3)


async def test_the_very_last_beat_is_there_after_an_exception() -> None:
    async with patience(), Pool(1) as pool:
        view = pool.options(max_attempts=3, retry_on=[LookupError])
        job = view.submit(beats.beat_and_raise)
        seen = await all_of(job)
        with pytest.raises(LookupError):
            await job
    attempt, before, number = seen[-1]
    assert (attempt, number) == (3, 999)
    assert before == (2, (1, None, 999), 999)


async def test_the_very_last_beat_is_there_after_a_crash() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(beats.count_at, gate.path)
        reader = asyncio.create_task(all_of(job))
        for number in range(3):
            (await gate.visitor(f"beat {number}")).release()
        (await gate.visitor("beat 3")).release("kill")
        assert (await reader)[-1] == 3
        with pytest.raises(WorkerCrashedError):
            await job


@pytest.mark.parametrize("size", [0, 100_000, 10_000_000])
async def test_the_last_beat_is_there_with_any_result(size: int) -> None:
    async with patience(), Pool(1) as pool:
        job = pool.submit(beats.count, 100, size)
        assert (await all_of(job))[-1] == 99
        assert await job == bytes(size)
        await assert_serves(pool)


# Readers.


async def test_each_reader_has_the_newest_and_ends_with_the_job() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.options(max_attempts=2).submit(beats.resume_at, gate.path)
        one, slow, late = job.progress(), job.progress(), job.progress()
        for number in range(4):
            visitor = await gate.visitor(f"beat {number}")
            assert await anext(one) == number
            late = job.progress()
            assert await anext(late) == number
            visitor.release()
        assert await anext(slow) in {3, 4}
        (await gate.visitor("beat 4")).release("kill")
        (await gate.visitor("beat 5")).release("kill")
        rest = [[d async for d in reader] for reader in (one, late)]
        assert all(seen[-1] == 5 for seen in rest), rest
        with pytest.raises(WorkerCrashedError):
            await job
        with pytest.raises(StopAsyncIteration):
            await anext(one)
        assert await all_of(job) == [5], "also when the job is done"


async def test_a_reader_of_a_job_that_never_beats_just_ends() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        reader = asyncio.create_task(all_of(job))
        visitor = await gate.visitor()
        assert not reader.done()
        visitor.release()
        assert await reader == []


@pytest.mark.parametrize("stage", ["queued", "running"])
async def test_a_reader_of_a_cancelled_job_ends_with_it(stage: str) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        if stage == "queued":
            pool.submit(jobs.wait_at, gate.path, "held")
            await gate.visitor("held")
        job = pool.options(cancel_grace=LONG).submit(beats.clean_up_beating, gate.path)
        if stage == "running":
            await gate.visitor("work")
        reader = asyncio.create_task(all_of(job))
        await asyncio.sleep(0)
        job.cancel()
        assert await reader == []
        # If it runs, it beats on, for nobody.
        word = "cleaning up" if stage == "running" else "held"
        (await gate.visitor(word)).release()
        await assert_serves(pool)
        assert pool.stats().spawned == 1


async def test_who_stops_reading_loses_nothing() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(beats.count_at, gate.path)
        reader = job.progress()
        first = await gate.visitor("beat 0")
        assert await anext(reader) == 0
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.release()
        await gate.visitor("beat 1")
        assert await anext(reader) == 1
        job.cancel()


async def test_details_that_cannot_be_read_here_do_not_end_the_reading() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(beats.beat_trapped, gate.path)
        reader = job.progress()
        with pytest.raises(JobNotPicklableError) as caught:
            await anext(reader)
        assert (caught.value.direction, caught.value.name) == ("details", "")
        assert str(caught.value) == (
            "the details of a heartbeat cannot be unpickled here: LookupError: not here"
        )
        (await gate.visitor()).release()
        assert await anext(reader) == "plain"
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
        await job


# What else.


async def test_a_beating_job_that_hears_no_signal_can_be_cancelled() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=LONG) as pool:
        job = pool.submit(beats.beat_deaf, gate.path)
        visitor = await gate.visitor("deaf")
        job.cancel()
        await visitor.gone()
        assert await pool.submit(jobs.pid) == visitor.pid
        assert pool.stats().spawned == 1


@pytest.mark.parametrize(
    ("work", "detail"),
    [
        (lambda: beats.send_beat(job=999), "attempt 1 of job 999, which it has not"),
        (lambda: beats.send_beat(attempt=2), "attempt 2 of job 1, which it has not"),
        (beats.send_garbage, "a heartbeat cannot be read"),
        (beats.send_a_large_beat, "a heartbeat cannot be read"),
        (beats.beat_on_control, "it sent BEAT on its control channel"),
    ],
    ids=["another job", "another attempt", "garbage", "large", "control"],
)
async def test_what_is_no_beat_of_the_workers_costs_it_its_life(
    work: Callable[[], None], detail: str
) -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(WorkerCrashedError, match=detail) as caught:
            await pool.submit(work)
        assert caught.value.kind == "protocol"
        await assert_serves(pool)


@pytest.mark.parametrize("what", ["garbage", "ones", "of nobody", "of another attempt"])
async def test_what_is_no_beat_on_the_page_is_nothing(what: str) -> None:
    async with patience(), Pool(1) as pool:
        job = pool.submit(beats.write_on_page, what)
        assert await all_of(job) == []
        assert await job == "rung"
        assert await all_of(pool.submit(beats.beat_value, 5)) == [5]
        assert pool.stats().spawned == 1


async def test_a_worker_that_rings_without_end_harms_nobody() -> None:
    async with patience(), Pool(2) as pool:
        job = pool.submit(beats.ring_for_nothing, 100_000)
        await assert_serves(pool)
        assert await job == "rung"
        assert pool.stats().crashes == 0


async def test_nothing_is_left_of_it_when_the_pool_is_closed() -> None:
    async with patience():
        async with Pool(1) as pool:
            job = pool.submit(beats.count, 10)
            await job
        supervisor = pool._supervisor
        assert supervisor is not None
        assert supervisor._heartbeats._timers == {}
