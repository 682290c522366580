"""The events of jobs: each is queued, started and ended, in this order, with its times."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict

import pytest

from asyncpool import EventStream, JobTimeoutError, Pool, WorkerCrashedError
from asyncpool.enums import JobOutcome
from asyncpool.events import (
    Event,
    JobEnded,
    JobEvent,
    JobQueued,
    JobStarted,
    TakenOver,
)
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle

pytestmark = BOTH_LOOPS


async def of_jobs(
    events: EventStream[Event | JobEvent],
) -> dict[int, list[JobEvent]]:
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
        await idle(pool)
    told = await of_jobs(events)
    outcomes = [list_of[-1] for list_of in told.values()]
    assert [e.outcome for e in outcomes if isinstance(e, JobEnded)] == [
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


async def test_a_listener_is_called_in_submit() -> None:
    heard: list[Event | JobEvent] = []
    async with patience(), Pool(1) as pool:
        pool.add_job_listener(heard.append)
        job = pool.submit(jobs.square, 2)
        queued = heard[0]
        assert isinstance(queued, JobQueued)
        assert queued.job_id == job.id
        await job
        assert [type(event) for event in heard] == [JobQueued, JobStarted, JobEnded]
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
