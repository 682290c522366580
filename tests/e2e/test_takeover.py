"""Jobs that survive their worker: attempts, their order, and what is retried."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import asyncpool
from asyncpool import (
    Crash,
    JobRaisedError,
    Pool,
    PoolBrokenError,
    RestartPolicy,
    WorkerCrashedError,
)
from asyncpool.enums import Delivery
from asyncpool.events import Event, JobEvent, JobQueued, TakenOver
from tests.helpers import faults, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import MAX_FREE_RETURNS, CrashKindText, die_before_jobs
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, by_events, crash_of, idle

pytestmark = ONE_LOOP


async def test_a_job_is_started_once_unless_more_is_asked_for() -> None:
    async with patience(), Pool(1) as pool:
        exit_3 = faults.by_name("exit 3")
        job = pool.submit(faults.commit, exit_3.name)
        await crash_of(job, exit_3)
        assert job.attempt == 1
        assert pool.stats().takeovers == 0


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_job_whose_workers_die_before_they_begin_it_is_given_up(
    attempts: int,
) -> None:
    crashes: list[Crash] = []
    pool = Pool(1, initializer=die_before_jobs, on_crash=crashes.append)
    queued: list[int] = []

    def note(event: Event | JobEvent) -> None:
        if isinstance(event, JobQueued):
            queued.append(event.attempts)

    async with patience(), pool:
        pool.add_job_listener(note)
        job = pool.options(max_attempts=attempts).submit(jobs.square, 3)
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        assert caught.value.delivery is Delivery.SENT
        # Three times for nothing, and then each costs an attempt.
        assert len(caught.value.crashes) == MAX_FREE_RETURNS + attempts
        assert job.attempt == attempts
        assert pool.stats().takeovers == MAX_FREE_RETURNS + attempts - 1
    assert len(crashes) == MAX_FREE_RETURNS + attempts
    # Once at first and once for each death, with the attempts that it has lost by then.
    assert queued == [0] * (MAX_FREE_RETURNS + 1) + [*range(1, attempts + 1)]


async def test_the_next_worker_takes_a_job_over() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(2, on_crash=crashes.append) as pool:
        events = pool.events()
        job = pool.options(max_attempts=3).submit(jobs.wait_in_every_attempt, gate.path)
        assert (job.attempt, job.state) == (1, "running")
        pids = []
        for attempt, answer in ((1, "die"), (2, "die"), (3, "done")):
            visitor = await gate.visitor(f"attempt {attempt}")
            assert (job.attempt, job.worker_pid) == (attempt, visitor.pid)
            pids.append(visitor.pid)
            visitor.release(answer)
        assert await job == "done"
        assert (job.attempt, job.state, job.worker_pid) == (3, "done", None)
        await assert_serves(pool)
        stats = pool.stats()
    assert [(crash.attempt, crash.job_id) for crash in crashes] == [
        (1, job.id),
        (2, job.id),
    ]
    assert len(set(pids)) == 3
    assert (stats.takeovers, stats.crashes, stats.failed) == (2, 2, 0)
    assert [event async for event in by_events(events, TakenOver)] == [
        TakenOver(job.id, 1),
        TakenOver(job.id, 2),
    ]


async def test_beyond_the_bound_the_caller_gets_every_crash() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        kill = faults.by_name("SIGKILL")
        job = pool.options(max_attempts=3).submit(faults.commit, kill.name)
        await crash_of(job, kill, attempts=3)
        await assert_serves(pool)
    error = job.exception()
    assert isinstance(error, WorkerCrashedError)
    assert list(error.crashes) == crashes
    assert [crash.attempt for crash in crashes] == [1, 2, 3]
    assert len({crash.pid for crash in crashes}) == 3


async def test_a_job_that_is_taken_over_goes_first() -> None:
    order: list[str] = []
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        queued = [pool.submit(jobs.square, n) for n in range(3)]
        job.add_done_callback(lambda _: order.append("taken over"))
        for other in queued:
            other.add_done_callback(lambda _: order.append("queued"))
        (await gate.visitor("attempt 1")).release("die")
        (await gate.visitor("attempt 2")).release()
        await queued[-1]
    assert order == ["taken over", "queued", "queued", "queued"]


@pytest.mark.parametrize(
    ("fault", "retry_on", "attempts"),
    [
        ("SIGKILL", ("crash",), 2),
        ("SIGKILL", ("protocol",), 1),
        ("SIGKILL", (), 1),
        ("exit 0", ("hung", "crash"), 2),
        ("garbage", ("crash",), 1),
        ("garbage", ("protocol",), 2),
    ],
)
async def test_only_the_kinds_that_are_named_are_retried(
    fault: str, retry_on: tuple[CrashKindText, ...], attempts: int
) -> None:
    async with patience(), Pool(1) as pool:
        view = pool.options(max_attempts=2).options(retry_on=retry_on)
        job = view.submit(faults.commit, fault)
        await crash_of(job, faults.by_name(fault), attempts=attempts)


async def test_exceptions_of_the_job_are_retried_if_they_are_named(pair: Pool) -> None:
    thrice = pair.options(max_attempts=3, retry_on=[LookupError])
    assert await thrice.submit(fail_until, 3, KeyError("x")) == 3
    with pytest.raises(KeyError) as caught:
        await thrice.submit(fail_until, 4, KeyError("x"))
    assert caught.value.args == ("x",)
    other = thrice.submit(fail_until, 2, ValueError("y"))
    with pytest.raises(ValueError, match="y"):
        await other
    assert other.attempt == 1
    last = pair.options(max_attempts=2, retry_on=[SystemExit])
    assert await last.submit(fail_until, 2, SystemExit(1)) == 2
    with pytest.raises(JobRaisedError):
        await last.submit(fail_until, 3, SystemExit(1))
    assert pair.stats().crashes == 0


def fail_until(attempt: int, error: BaseException) -> int:
    if asyncpool.current_job().attempt < attempt:
        raise error
    return asyncpool.current_job().attempt


async def test_a_job_knows_itself(pool: Pool) -> None:
    first, second = pool.submit(jobs.attempt), pool.submit(jobs.attempt)
    assert await first == (first.id, 1)
    assert await second == (second.id, 1)
    assert first.id != second.id
    with pytest.raises(RuntimeError, match="outside a job"):
        asyncpool.current_job()


async def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, initializer=jobs.wait_at, initargs=(gate.path, "start"))
        start = asyncio.create_task(pool.start())
        (await gate.visitor("start")).release()
        await start
        twice = pool.options(max_attempts=2)
        job = twice.submit(jobs.wait_in_every_attempt, gate.path)
        (await gate.visitor("attempt 1")).release("die")
        second = await gate.visitor("start", nth=2)
        assert (job.state, job.worker_pid, job.attempt) == ("queued", None, 1)
        assert job.cancel()
        second.release()
        assert await pool.submit(jobs.square, 5) == 25
        await pool.close()
        stats = pool.stats()
        assert gate.visits("attempt 2") == 0
    assert (stats.cancelled, stats.crashes, stats.spawned) == (1, 1, 2)


async def test_a_job_that_no_worker_began_loses_no_attempt() -> None:
    quick = RestartPolicy(initial_delay=0.01, max_delay=0.02)
    async with patience(), Pool(1, restart_policy=quick) as pool:
        events = pool.events()
        for _ in range(3):
            pid = (await idle(pool)).slots[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            job = pool.submit(jobs.attempt)
            os.kill(pid, signal.SIGKILL)
            # With one attempt and no more, it still runs.
            assert await job == (job.id, 1)
            assert job.attempt == 1
    lost = [event.attempt async for event in by_events(events, TakenOver)]
    assert lost == [0, 0, 0]


async def test_nobody_takes_over_from_the_last_worker_of_a_broken_pool() -> None:
    once = RestartPolicy.limited(1, period=60)
    async with patience(), Pool(1, restart_policy=once) as pool:
        events = pool.events()
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        pid = await pool.submit(jobs.pid)
        os.kill(pid, signal.SIGSTOP)
        job = pool.submit(jobs.attempt)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PoolBrokenError) as caught:
            await job
        stats = pool.stats()
    assert caught.value.crashes[-1].pid == pid
    assert (stats.takeovers, stats.failed) == (0, 2)
    assert not [event async for event in by_events(events, TakenOver)]
