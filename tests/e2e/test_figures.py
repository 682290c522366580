"""The figures of a pool: each job counts once, by its function and by how it has ended."""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import os
import signal
import threading
import time
from collections import defaultdict

import pytest

from asyncpool import EventStream, Pool
from asyncpool.enums import JobOutcome
from asyncpool.errors import (
    JobCancelled,
    JobNotPicklableError,
    JobRaisedError,
    JobTimeoutError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from asyncpool.events import Event, JobEnded, JobEvent, JobQueued, JobStarted, TakenOver
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


def counted(function: FunctionStats) -> dict[str, int]:
    return {outcome: count for outcome, count in function.jobs.items() if count}


async def test_a_pool_that_was_not_started_has_no_figures() -> None:
    stats = Pool(3).stats()
    assert (stats.state, stats.workers, stats.submitted) == ("new", 3, 0)
    assert (stats.functions, stats.slots) == ((), ())
    assert stats.loop_lag.count == stats.started.count == 0


async def test_jobs_that_return_and_raise_and_other_calls(pair: Pool) -> None:
    await asyncio.gather(*(pair.submit(jobs.square, n) for n in range(50)))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pair.submit(jobs.divide, 1, 0)
    assert await pair.submit(jobs.divide, 1, 2) == 0.5
    with pytest.raises(JobRaisedError):  # though nobody has cancelled it
        await pair.submit(jobs.throw, JobCancelled())
    assert await pair.map(operator.neg, range(1000), chunksize=100) == [
        -number for number in range(1000)
    ]
    assert [item async for item in pair.stream(range, 5)] == [0, 1, 2, 3, 4]
    await idle(pair)
    await pair.broadcast(jobs.fill_state)
    stats = pair.stats()
    square, divide = of(stats, "square"), of(stats, "divide")
    assert square.function == "tests.helpers.jobs.square"
    assert counted(square) == {"ok": 50}
    assert counted(divide) == {"ok": 1, "raised": 3}
    assert counted(of(stats, "throw")) == {"raised": 1}
    assert counted(of(stats, "range", "stream")) == {"ok": 1}
    assert counted(of(stats, "fill_state", "broadcast")) == {"ok": 2}
    assert (square.run.count, square.wait.count) == (50, 50)
    assert (divide.run.count, divide.wait.count) == (4, 4)
    assert 0 < square.run.total < square.wait.total, "most waited for the others"
    # A batch that takes long comes back in parts.
    mapped = of(stats, "neg", "map")
    assert set(counted(mapped)) == {"ok"}
    assert mapped.jobs[JobOutcome.OK] >= 10
    assert mapped.items == 1000


async def test_run_and_wait_add_up_to_the_time_that_the_caller_saw(pool: Pool) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = pool.submit(jobs.stay, 0.3)
    second = pool.submit(jobs.stay, 0.1)
    between = loop.time() - began  # the first one may run since its submit began
    await asyncio.gather(first, second)
    took = loop.time() - began
    stay = of(pool.stats(), "stay")
    assert stay.run.total >= 0.4
    assert stay.wait.total >= 0.3 - between, "the second has waited for the first"
    assert stay.run.total + stay.wait.total <= 2 * took + 0.01
    assert stay.run.quantile(1) >= 0.25


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
    assert counted(of(stats, "square")) == {"refused": 3}
    assert stats.refused == 3
    assert stats.submitted == sum(
        count
        for function in stats.functions
        for outcome, count in function.jobs.items()
        if function.function != "tests.helpers.jobs.square" or outcome != "refused"
    )


async def test_items_behind_one_that_kills_its_worker_are_counted_too() -> None:
    async with patience(), Pool(1) as pool:
        outcomes = await pool.map(jobs.perhaps_die, range(20), chunksize=20).outcomes()
        stats = await idle(pool)
    assert len(outcomes) == 20
    died = sum(not outcome.ok for outcome in outcomes)
    mapped = of(stats, "perhaps_die", "map")
    assert mapped.jobs[JobOutcome.CRASHED] == died
    assert mapped.items <= 20


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_the_jobs_at_work_and_the_oldest_that_waits(concurrency: int) -> None:
    pool = Pool(1, concurrency=concurrency, name="figures")
    async with patience(), Gate() as gate, pool:
        assert pool.stats().oldest_queued == 0
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        waiting = [pool.submit(jobs.square, n) for n in range(200)]
        while (stats := pool.stats()).oldest_queued < 0.05:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        [slot] = stats.slots
        running, *others = slot.running
        assert (concurrency > 1) is bool(others)
        assert "figures running: 1/1 workers, 0 idle, 1 busy" in repr(pool)
        with pytest.raises(dataclasses.FrozenInstanceError):
            stats.idle = 7  # type: ignore[misc] # that is the point
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
    closed = pool.stats()
    assert (closed.state, closed.idle, closed.busy) == ("closed", 0, 0)
    assert {slot.pid for slot in closed.slots} == {None}


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


# Events of jobs: each is queued, started and ended, in this order, with its times.
async def of_jobs(events: EventStream[Event | JobEvent]) -> dict[int, list[JobEvent]]:
    """Return what was told of each job, up to the end of the pool."""
    told: dict[int, list[JobEvent]] = defaultdict(list)
    async for event in events:
        if isinstance(event, JobQueued | JobStarted | JobEnded):
            told[event.job_id].append(event)
    return told


def kinds(told: list[JobEvent]) -> list[type[JobEvent]]:
    return [type(event) for event in told]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_each_of_many_jobs_has_its_three_events(concurrency: int) -> None:
    pool = Pool(2, concurrency=concurrency)
    events = pool.job_events(buffer=100_000)
    before = time.monotonic()
    async with patience(), pool:
        await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(2000)))
    told = await of_jobs(events)
    after = time.monotonic()
    assert list(told) == list(range(1, 2001))
    for number, (queued, started, ended) in told.items():
        assert isinstance(queued, JobQueued)
        assert isinstance(started, JobStarted)
        assert isinstance(ended, JobEnded)
        assert queued.function == started.function == ended.function
        assert queued.function == "tests.helpers.jobs.square"
        assert (queued.via, queued.attempts, started.attempt) == ("submit", 0, 1)
        assert (ended.outcome, ended.attempts, number) == ("ok", 1, queued.job_id)
        assert started.slot == ended.slot in {0, 1}
        assert before <= queued.at <= ended.at <= after
        assert ended.wait >= 0
        assert 0 <= ended.run <= after - before
        assert queued.at + ended.wait + ended.run <= ended.at + 0.001
    assert events.dropped == 0


async def test_a_long_job_is_started_before_it_ends() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        events = pool.job_events()
        job = pool.submit(jobs.wait_at, gate.path)
        second = pool.submit(jobs.square, 2)
        visitor = await gate.visitor()
        told = [await anext(events) for _ in range(3)]
        assert kinds([e for e in told if isinstance(e, JobStarted)]) == [JobStarted]
        assert {getattr(event, "job_id", 0) for event in told} == {job.id, second.id}
        visitor.release()
        await asyncio.gather(job, second)
        rest = [await anext(events) for _ in range(3)]
    ended = {event.job_id for event in rest if isinstance(event, JobEnded)}
    assert ended == {job.id, second.id}


async def test_how_jobs_end_that_do_not_return() -> None:
    pool = Pool(1)
    events = pool.job_events()
    async with patience(), Gate() as gate, pool:
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
        job = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        queued.cancel()
        job.cancel()
        stats = await idle(pool)
    told = await of_jobs(events)
    outcomes = [list_of[-1] for list_of in told.values()]
    ends = [e.outcome for e in outcomes if isinstance(e, JobEnded)]
    assert ends == [
        JobOutcome.RAISED,
        JobOutcome.CRASHED,
        JobOutcome.TIMEOUT,
        JobOutcome.CANCELLED,
        JobOutcome.CANCELLED,
    ]
    for number in (1, 2, 3, 4):
        assert kinds(told[number]) == [JobQueued, JobStarted, JobEnded], number
    assert kinds(told[5]) == [JobQueued, JobEnded]
    timeout, never = told[3][-1], told[5][-1]
    assert isinstance(timeout, JobEnded)
    assert timeout.run > 0
    assert isinstance(never, JobEnded)
    assert (never.run, never.slot, never.attempts) == (0.0, None, 0)
    # The figures say so, too.
    names = ("divide", "_exit", "stay", "wait_at", "square")
    for name, outcome in zip(names, ends, strict=True):
        assert counted(of(stats, name)) == {outcome: 1}
    assert (stats.crashes, dict(stats.crash_kinds)) == (1, {"crash": 1})
    assert (stats.timeouts, stats.cancelled, stats.refused) == (1, 2, 0)
    assert stats.started.count >= 2


# With two, the other worker gets the job in the very turn in which the first one is gone.
@pytest.mark.parametrize("workers", [1, 2])
async def test_the_attempts_of_a_job_are_told(workers: int) -> None:
    pool = Pool(workers, ready="all")
    events = pool.job_events()
    async with patience(), Gate() as gate, pool:
        view = pool.options(max_attempts=2)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        os.kill((await gate.visitor("attempt 1")).pid, signal.SIGKILL)
        (await gate.visitor("attempt 2")).release()
        await job
        retried = pool.options(max_attempts=3, retry_on=(LookupError,))
        await retried.submit(jobs.fail_before_attempt_3, 1)
        stats = await idle(pool)
    seen = [event async for event in events]
    taken = [event for event in seen if isinstance(event, TakenOver)]
    assert taken == [TakenOver(1, 1)], "the events of the pool are there, too"
    told = [event for event in seen if isinstance(event, JobQueued | JobStarted)]
    attempts = [
        (event.job_id, event.attempts) for event in told if isinstance(event, JobQueued)
    ]
    assert attempts == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    started = [
        (event.job_id, event.attempt) for event in told if isinstance(event, JobStarted)
    ]
    assert started == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    ended = [event for event in seen if isinstance(event, JobEnded)]
    assert [(event.job_id, event.attempts) for event in ended] == [(1, 2), (2, 3)]
    # Each counts once.
    taken_over = of(stats, "wait_in_every_attempt")
    tried_again = of(stats, "fail_before_attempt_3")
    assert counted(taken_over) == counted(tried_again) == {"ok": 1}
    assert (taken_over.takeovers, stats.takeovers) == (1, 1)
    assert (tried_again.retries, stats.retries) == (2, 2)
    assert taken_over.run.count == 1, "the other attempt has no outcome"
    assert tried_again.run.count == 3, "each attempt ran"


async def test_a_listener_is_called_in_submit() -> None:
    heard, of_the_pool = list[Event | JobEvent](), list[Event]()
    async with patience(), Pool(1) as pool:
        pool.add_job_listener(heard.append)
        pool.add_listener(of_the_pool.append)
        job = pool.submit(jobs.square, 2)
        queued = heard[0]
        assert isinstance(queued, JobQueued)
        assert queued.job_id == job.id
        await job
        assert [type(event) for event in heard] == [JobQueued, JobStarted, JobEnded]
        assert of_the_pool == []
        assert pool.remove_listener(heard.append) == 1
        heard.clear()
        await pool.submit(jobs.square, 2)
        assert heard == []


async def test_what_can_be_no_listener() -> None:
    pool = Pool(1)
    for add in (pool.add_listener, pool.add_job_listener):
        with pytest.raises(TypeError, match=f"{add.__name__}"):
            add(3)  # type: ignore[arg-type]
    for buffer in (0, -1):
        with pytest.raises(ValueError, match="buffer must be"):
            pool.job_events(buffer=buffer)
    await pool.close()
