"""The figures of a pool: each job counts once, by its function and by how it has ended."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import threading

import pytest

from asyncpool import (
    JobCancelled,
    JobNotPicklableError,
    JobRaisedError,
    JobTimeoutError,
    Pool,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from asyncpool.enums import JobOutcome
from asyncpool.stats import FunctionStats, PoolStats
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import change_jobs_while_read
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import idle, until

pytestmark = ONE_LOOP


def of(stats: PoolStats, name: str, via: str = "submit") -> FunctionStats:
    [found] = [
        function
        for function in stats.functions
        if (function.function.rpartition(".")[2], function.via) == (name, via)
    ]
    return found


def ended(function: FunctionStats) -> dict[str, int]:
    return {outcome: count for outcome, count in function.jobs.items() if count}


async def test_a_pool_that_was_not_started_has_no_figures() -> None:
    stats = Pool(3).stats()
    assert (stats.state, stats.workers, stats.submitted) == ("new", 3, 0)
    assert (stats.functions, stats.slots) == ((), ())
    assert stats.loop_lag.count == stats.started.count == 0


async def test_jobs_that_return_and_raise(pair: Pool) -> None:
    await asyncio.gather(*(pair.submit(jobs.square, n) for n in range(50)))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pair.submit(jobs.divide, 1, 0)
    assert await pair.submit(jobs.divide, 1, 2) == 0.5
    stats = pair.stats()
    square, divide = of(stats, "square"), of(stats, "divide")
    assert square.function == "tests.helpers.jobs.square"
    assert ended(square) == {"ok": 50}
    assert ended(divide) == {"ok": 1, "raised": 3}
    assert (square.run.count, square.wait.count) == (50, 50)
    assert (divide.run.count, divide.wait.count) == (4, 4)
    assert 0 < square.run.total < square.wait.total, "most waited for the others"


async def test_run_and_wait_add_up_to_the_time_that_the_caller_saw(pool: Pool) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = pool.submit(jobs.stay, 0.3)
    between = loop.time() - began
    second = pool.submit(jobs.stay, 0.1)
    await asyncio.gather(first, second)
    took = loop.time() - began
    stay = of(pool.stats(), "stay")
    assert stay.run.total >= 0.4
    assert stay.wait.total >= 0.3 - between, "the second has waited for the first"
    assert stay.run.total + stay.wait.total <= 2 * took + 0.01
    assert stay.run.quantile(1) >= 0.25


async def test_a_crash_a_timeout_and_a_cancellation() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
        job = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        stats = await idle(pool)
    assert ended(of(stats, "_exit")) == {"crashed": 1}
    assert ended(of(stats, "stay")) == {"timeout": 1}
    assert ended(of(stats, "wait_at")) == {"cancelled": 1}
    assert (stats.crashes, dict(stats.crash_kinds)) == (1, {"crash": 1})
    assert (stats.timeouts, stats.cancelled, stats.refused) == (1, 1, 0)
    assert stats.started.count >= 2


async def test_a_job_that_is_tried_again_counts_once() -> None:
    async with patience(), Pool(1) as pool:
        patient = pool.options(max_attempts=3, retry_on=(LookupError,))
        assert await patient.submit(jobs.fail_before_attempt_3, 1) == (1, 3)
        stats = pool.stats()
    [function] = [
        one for one in stats.functions if one.function.endswith("fail_before_attempt_3")
    ]
    assert ended(function) == {"ok": 1}
    assert (function.retries, stats.retries) == (2, 2)
    assert function.run.count == 3, "each attempt ran"


async def test_a_job_that_is_taken_over_counts_once() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        view = pool.options(max_attempts=2)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        os.kill((await gate.visitor("attempt 1")).pid, signal.SIGKILL)
        (await gate.visitor("attempt 2")).release()
        await job
        stats = await idle(pool)
    function = of(stats, "wait_in_every_attempt")
    assert ended(function) == {"ok": 1}
    assert (function.takeovers, stats.takeovers) == (1, 1)
    assert function.run.count == 1, "the other attempt has no outcome"


async def test_what_is_refused() -> None:
    pool = Pool(1, max_queued=0)
    async with patience(), Gate() as gate, pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        for _ in range(2):
            with pytest.raises(PoolFullError):
                pool.submit(jobs.square, 2)
        visitor.release()
        await job
        with pytest.raises(JobNotPicklableError):
            await pool.submit(jobs.take, threading.Lock())
    with pytest.raises(PoolClosedError):
        pool.submit(jobs.square, 3)
    stats = pool.stats()
    assert ended(of(stats, "square")) == {"refused": 3}
    assert stats.refused == 3
    assert stats.submitted == sum(
        count
        for function in stats.functions
        for outcome, count in function.jobs.items()
        if function.function != "tests.helpers.jobs.square" or outcome != "refused"
    )


async def test_a_map_counts_batches_and_items(pair: Pool) -> None:
    assert await pair.map(operator.neg, range(1000), chunksize=100) == [
        -number for number in range(1000)
    ]
    mapped = of(pair.stats(), "neg", "map")
    # A batch that takes long comes back in parts.
    assert set(ended(mapped)) == {"ok"}
    assert mapped.jobs[JobOutcome.OK] >= 10
    assert mapped.items == 1000


async def test_items_behind_one_that_kills_its_worker_are_counted_too() -> None:
    async with patience(), Pool(1) as pool:
        outcomes = await pool.map(jobs.perhaps_die, range(20), chunksize=20).outcomes()
        stats = await idle(pool)
    assert len(outcomes) == 20
    died = sum(not outcome.ok for outcome in outcomes)
    mapped = of(stats, "perhaps_die", "map")
    assert mapped.jobs[JobOutcome.CRASHED] == died
    assert mapped.items <= 20


async def test_the_jobs_at_work_and_the_oldest_that_waits() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        assert pool.stats().oldest_queued == 0
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        waiting = [pool.submit(jobs.square, n) for n in range(200)]
        while (stats := pool.stats()).oldest_queued < 0.05:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        [slot] = stats.slots
        [running] = slot.running
        assert (running.job_id, running.attempt) == (job.id, 1)
        assert running.function == "tests.helpers.jobs.wait_at"
        assert running.seconds >= 0.05
        assert slot.state == "busy"
        assert slot.uptime > slot.seconds >= 0.05
        assert slot.memory > 1 << 20
        assert stats.queued > 0
        assert stats.oldest_queued <= running.seconds
        visitor.release()
        await asyncio.gather(job, *waiting)
        assert await pool.submit(sum, range(3_000_000)) > 0
        [slot] = (await until(pool, lambda stats: stats.idle == 1)).slots
        assert (slot.running, slot.jobs) == ((), 202)
        assert slot.cpu > 0


async def test_the_jobs_of_one_worker_that_runs_several() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=4) as pool:
        visits = [pool.submit(jobs.greet, "nobody")]
        await asyncio.gather(*visits)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        [slot] = pool.stats().slots
        assert [one.job_id for one in slot.running] == [job.id]
        assert 0 <= slot.running[0].seconds <= slot.uptime
        visitor.release()
        await job


async def test_figures_survive_the_workers() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(jobs.stay, 0.05)
        await pool.submit(sum, range(3_000_000))
        before = pool.stats()
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        after = await idle(pool)
    assert of(after, "stay") == of(before, "stay")
    [old], [new] = before.slots, after.slots
    assert (new.generation, new.jobs) == (old.generation + 1, 0)
    assert new.uptime < old.uptime + 0.05 or new.uptime < 5
    assert after.exited_cpu >= old.cpu > 0
    assert (before.exited_cpu, after.spawned) == (0.0, 2)


async def test_what_a_close_cuts_off_is_aborted() -> None:
    pool = Pool(1)
    async with patience(), Gate() as gate:
        await pool.start()
        running = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        await pool.close(finish="none")
        for job in (running, queued):
            with pytest.raises(PoolClosedError):
                await job
    stats = pool.stats()
    assert ended(of(stats, "wait_at")) == ended(of(stats, "square")) == {"aborted": 1}


async def test_a_broadcast_counts_in_each_worker(pair: Pool) -> None:
    await idle(pair)
    await pair.broadcast(jobs.fill_state)
    found = of(pair.stats(), "fill_state", "broadcast")
    assert ended(found) == {"ok": 2}


async def test_a_stream_is_one_job(pool: Pool) -> None:
    assert [item async for item in pool.stream(range, 5)] == [0, 1, 2, 3, 4]
    found = of(pool.stats(), "range", "stream")
    assert ended(found) == {"ok": 1}


async def test_a_job_that_nobody_has_cancelled_raises_that_by_itself(
    pool: Pool,
) -> None:
    with pytest.raises(JobRaisedError):
        await pool.submit(jobs.throw, JobCancelled())
    assert ended(of(pool.stats(), "throw")) == {"raised": 1}


async def test_figures_are_read_again_if_the_jobs_change_meanwhile(
    pool: Pool, gate: Gate
) -> None:
    first = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    second = pool.submit(jobs.square, 2)
    changed = change_jobs_while_read(pool)
    assert pool.stats().queued == 1
    assert changed()
    visitor.release()
    assert (await first, await second) == ("go", 4)


async def test_another_thread_reads_the_figures_of_a_busy_pool() -> None:
    over = threading.Event()

    def read(pool: Pool) -> list[int]:
        found = [pool.stats().completed]
        while not over.is_set():
            found.append(pool.stats().completed)
        return [*found, pool.stats().completed]

    async with patience(), Pool(2) as pool:
        reading = asyncio.create_task(asyncio.to_thread(read, pool))
        for _ in range(10):
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(200)))
        over.set()
        found = await reading
    assert found == sorted(found)
    assert found[-1] == 2000
