"""Heartbeats: none that counts is lost, the next attempt resumes, readers follow."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.errors import (
    JobNotPicklableError,
    JobTimeoutError,
    WorkerCrashedError,
    WorkerHungError,
)
from tests.helpers import beats, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import heartbeats_awaited
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, case

pytestmark = ONE_LOOP

SHORT = 0.2
SILENCE = 0.5  # in which a job gets to where it hangs, on a busy machine, too
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


async def test_the_very_last_beat_is_there_after_an_exception(pool: Pool) -> None:
    view = pool.options(max_attempts=3, retry_on=[LookupError])
    job: Job[Any] = view.submit(beats.beat_and_raise)
    seen = await all_of(job)
    with pytest.raises(LookupError):
        await job
    attempt, before, number = seen[-1]
    assert (attempt, number) == (3, 999)
    assert before == (2, (1, None, 999), 999)


async def test_the_very_last_beat_is_there_after_a_crash() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job: Job[Any] = pool.submit(beats.count_at, gate.path)
        reader = asyncio.create_task(all_of(job))
        for number in range(3):
            (await gate.visitor(f"beat {number}")).release()
        (await gate.visitor("beat 3")).release("kill")
        assert (await reader)[-1] == 3
        with pytest.raises(WorkerCrashedError):
            await job


@pytest.mark.parametrize("size", [0, 100_000, 10_000_000])
async def test_the_last_beat_is_there_with_any_result(pool: Pool, size: int) -> None:
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


@pytest.mark.parametrize("stage", ["queued", "running", "done"])
async def test_a_reader_of_a_job_that_never_beats_ends_with_it(stage: str) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        if stage == "queued":
            pool.submit(jobs.wait_at, gate.path, "held")
            await gate.visitor("held")
        work: Any = jobs.wait_at if stage == "done" else beats.clean_up_beating
        job: Job[Any] = pool.options(cancel_grace=LONG).submit(work, gate.path)
        if stage == "running":
            await gate.visitor("work")
        reader = asyncio.create_task(all_of(job))
        await asyncio.sleep(0)
        assert not reader.done()
        # If it is cancelled while it runs, it beats on, for nobody.
        word = {"queued": "held", "running": "cleaning up", "done": ""}[stage]
        if stage == "done":
            (await gate.visitor(word)).release()
        else:
            job.cancel()
        assert await reader == []
        (await gate.visitor(word)).release()
        await assert_serves(pool)
        assert pool.stats().spawned == 1


async def test_who_stops_reading_loses_nothing(pool: Pool, gate: Gate) -> None:
    job: Job[Any] = pool.submit(beats.count_at, gate.path)
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


async def test_details_that_cannot_be_read_here_do_not_end_the_reading(
    pool: Pool, gate: Gate
) -> None:
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


# Silence.


HANGS: list[Callable[[str, str], Any]] = [
    jobs.sleep,
    jobs.compute,
    jobs.hold_the_gil,
    beats.deadlock,
    jobs.swallow,
]


async def test_a_job_that_hangs_is_found_and_taken_over() -> None:
    crashes: list[Crash] = []
    pool = Pool(2, on_crash=crashes.append, preload=[beats.__name__])
    async with patience(2), pool:
        for number, work in enumerate(HANGS, 1):
            async with Gate() as gate:
                with case(work):
                    view = pool.options(heartbeat_timeout=SILENCE, max_attempts=2)
                    job = view.submit(beats.hang_once, gate.path, work)
                    visitor = await gate.visitor()
                    assert await job == "resumed from last"
                    await visitor.gone()
                    await assert_serves(pool)
                    crash = crashes[-1]
                    told = f"no heartbeat for {SILENCE:g} s"
                    assert (crash.kind, crash.detail) == ("hung", told)
                    assert (crash.signal, crash.attempt) == ("SIGKILL", 1)
                    assert crash.job_id == job.id
                    assert f"in {work.__name__}" in crash.stack
                    assert "_worker" not in crash.stack
                    stats = pool.stats()
                    assert (stats.crashes, stats.takeovers) == (number, number)
        async with Gate() as gate:
            # For good, it says where.
            lost = pool.options(heartbeat_timeout=SILENCE).submit(
                jobs.sleep, gate.path, ""
            )
            with pytest.raises(WorkerHungError) as caught:
                await lost
    error = caught.value
    assert (error.kind, error.delivery, error.job_id) == ("hung", "started", lost.id)
    assert "in sleep" in error.stack
    assert error.stack == error.crashes[-1].stack
    assert "was killed by SIGKILL (hung): no heartbeat for 0.5 s" in str(error)
    assert "in sleep" in str(error)


async def test_a_stopped_worker_is_silent_and_leaves_no_stack() -> None:
    pool = Pool(1, heartbeat_timeout=1.0, preload=[beats.__name__])
    async with patience(), Gate() as gate, pool:
        job: Job[Any] = pool.submit(beats.beat_deaf, gate.path)
        os.kill((await gate.visitor("deaf")).pid, signal.SIGSTOP)
        with pytest.raises(WorkerHungError) as caught:
            await job
        assert caught.value.stack == ""
        detail = caught.value.crashes[-1].detail
        assert detail == "no heartbeat for 1 s; the process is stopped"
        await assert_serves(pool)


@pytest.mark.parametrize("work", [beats.beat_deaf, beats.beat_in_thread])
async def test_a_job_that_beats_is_never_silent(work: Callable[[str], Any]) -> None:
    pool = Pool(2, preload=[beats.__name__])  # an import is no heartbeat
    async with patience(), Gate() as gate, pool:
        job = pool.options(heartbeat_timeout=0.4).submit(work, gate.path)
        visitor = await gate.visitor("deaf" if work is beats.beat_deaf else "")
        for _ in range(3):  # so much time passes
            silent = pool.options(heartbeat_timeout=0.4).submit(
                jobs.sleep, gate.path, "silent"
            )
            with pytest.raises(WorkerHungError):
                await silent
        assert (job.state, job.worker_pid) == ("running", visitor.pid)
        job.cancel()


async def test_waiting_is_no_silence() -> None:
    async with patience(), Gate() as gate, Pool(2, heartbeat_timeout=SHORT) as pool:
        free = pool.options(heartbeat_timeout=None)
        held = [free.submit(jobs.wait_at, gate.path, str(n)) for n in range(2)]
        visitors = [await gate.visitor(str(n)) for n in range(2)]
        waiting = pool.submit(jobs.square, 3)
        late = pool.options(queue_timeout=4 * SHORT).submit(jobs.square, 4)
        with pytest.raises(JobTimeoutError):
            await late  # so much time has passed
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*held, waiting) == ["go", "go", 9]
        assert pool.stats().crashes == 0


async def test_the_earlier_of_two_limits_counts() -> None:
    errors = {"timeout": JobTimeoutError, "heartbeat_timeout": WorkerHungError}
    async with patience(), Gate() as gate, Pool(1) as pool:
        for first, error in errors.items():
            limits: Any = {"timeout": LONG, "heartbeat_timeout": LONG, first: SHORT}
            job = pool.options(**limits).submit(jobs.sleep, gate.path, "")
            with pytest.raises(error):
                await job


async def test_a_timeout_holds_for_who_beats_too() -> None:
    pool = Pool(1, cancel_grace=LONG, preload=[beats.__name__])
    async with patience(), Gate() as gate, pool:
        view = pool.options(timeout=2 * SILENCE, heartbeat_timeout=SILENCE)
        with pytest.raises(JobTimeoutError) as caught:
            await view.submit(beats.beat_deaf, gate.path)
        assert "in beat_deaf" in caught.value.stack
        assert pool.stats().spawned == 1


async def test_a_service_that_does_not_listen_condemns_nobody() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        job = pool.options(heartbeat_timeout=1.0).submit(jobs.wait_at, gate.path, "it")
        visitor = await gate.visitor("it")
        # The worker may have been stopped for as long as this process was.
        until = time.monotonic() + 1.6
        while time.monotonic() < until:
            pass
        view = pool.options(heartbeat_timeout=SHORT)
        with pytest.raises(WorkerHungError):
            await view.submit(jobs.sleep, gate.path, "")  # so much time has passed
        visitor.release()
        assert await job == "go"
        assert pool.stats().crashes == 1


async def test_beats_from_the_future_do_not_buy_time() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        view = pool.options(heartbeat_timeout=SHORT)
        for at in (math.nan, math.inf, 1e300):
            with pytest.raises(WorkerHungError):
                await view.submit(beats.claim_and_sleep, gate.path, at)
            await assert_serves(pool)


# What else.


async def test_a_beating_job_that_hears_no_signal_can_be_cancelled() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=LONG) as pool:
        job: Job[Any] = pool.submit(beats.beat_deaf, gate.path)
        visitor = await gate.visitor("deaf")
        job.cancel()
        await visitor.gone()
        assert await pool.submit(jobs.pid) == visitor.pid
        assert pool.stats().spawned == 1


@pytest.mark.parametrize(
    ("work", "detail"),
    [
        (
            lambda: beats.send_beat(job=999),
            "attempt 1 of job 999, which it does not have",
        ),
        (
            lambda: beats.send_beat(attempt=2),
            "attempt 2 of job 1, which it does not have",
        ),
        (beats.send_garbage, "a heartbeat cannot be read"),
        (beats.send_a_large_beat, "a heartbeat cannot be read"),
        (beats.beat_on_control, "it sent LAST_HEARTBEAT on its control channel"),
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


async def test_what_is_no_beat_on_the_page_is_nothing(pool: Pool) -> None:
    for what in ("garbage", "ones", "of nobody", "of another attempt"):
        job = pool.submit(beats.write_on_page, what)
        assert await all_of(job) == []
        assert await job == "rung"
        assert await all_of(pool.submit(beats.beat_value, 5)) == [5]


async def test_a_worker_that_rings_without_end_harms_nobody(pair: Pool) -> None:
    job = pair.submit(beats.ring_for_nothing, 100_000)
    await assert_serves(pair)
    assert await job == "rung"
    assert pair.stats().crashes == 0


async def test_nothing_is_left_of_it_when_the_pool_is_closed() -> None:
    async with patience():
        async with Pool(1) as pool:
            job = pool.submit(beats.count, 10)
            await job
        assert heartbeats_awaited(pool) == 0
