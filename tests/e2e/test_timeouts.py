"""The times of a job: each limit, at each stage, and what its caller learns."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool
from asyncpool._wire.buffers import HEAVY
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.events import Crashed, Exited, TakenOver
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    begin_of,
    handle_of,
    has_worker,
    hold_up_until_due,
    limits_of,
    registry_of,
    ring,
    run_out,
    supervisor_of,
)
from tests.helpers.large import Stop, crowd, filler
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, case, idle, next_of, stop, timeout_of

pytestmark = ONE_LOOP

SHORT = 0.2  # in which a job need not have begun; where it must have, see run_out()
LONG = 3600.0


def ready_pool(workers: int = 1, **options: Any) -> Pool:
    """Return a pool whose workers have imported the jobs."""
    return Pool(workers, preload=[jobs.__name__], **options)


WORKS = jobs.sleep, jobs.compute, jobs.hold_the_gil, jobs.backtrack, jobs.swallow


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill", "wait"])
async def test_a_job_that_runs_too_long_ends_and_says_where_it_was(
    on_cancel: Any,
) -> None:
    crashes: list[Crash] = []
    async with patience(2), ready_pool(on_crash=crashes.append) as pool:
        for work in WORKS:
            with case(work):
                await _runs_too_long(pool, work, on_cancel)
        stats = pool.stats()
    assert crashes == []
    assert (stats.crashes, stats.failed + stats.completed) == (0, stats.submitted)


async def _runs_too_long(
    pool: Pool, work: Callable[[str, str], Any], on_cancel: Any
) -> None:
    async with Gate() as gate:
        view = pool.options(timeout=LONG, cancel_grace=1.0, on_cancel=on_cancel)
        job = view.submit(work, gate.path, "")
        visitor = await gate.visitor()
        run_out(pool, job)
        error = await timeout_of(job)
        await visitor.gone()
        await assert_serves(pool)
    assert (error.job_id, error.attempt) == (job.id, 1)
    assert (error.limit, error.seconds) == ("timeout", LONG)
    assert f"in {work.__name__}" in error.stack
    first, *_ = error.stack.splitlines()
    assert first.endswith("(most recent call first):")
    assert "_worker" not in error.stack
    assert f"in {work.__name__}" in str(error)


async def test_a_program_that_is_held_up_still_hears_where_its_job_was() -> None:
    async with patience(), Gate() as gate, ready_pool() as pool:
        job = pool.options(timeout=LONG, on_cancel="kill").submit(
            jobs.backtrack, gate.path, ""
        )
        await gate.visitor()
        run_out(pool, job)
        await hold_up_until_due(pool)
        error = await timeout_of(job)
        assert "in backtrack" in error.stack


async def test_a_job_that_ends_when_asked_costs_no_worker(
    pool: Pool, gate: Gate
) -> None:
    job = pool.options(timeout=LONG, cancel_grace=LONG).submit(
        jobs.clean_up_at, gate.path
    )
    visitor = await gate.visitor("work")
    run_out(pool, job)
    cleaning = await gate.visitor("JobCancelled")
    assert not job.done(), "its caller hears of it when it has ended"
    cleaning.release()
    error = await timeout_of(job)
    assert "in clean_up_at" in error.stack
    assert await pool.submit(jobs.pid) == visitor.pid


async def test_each_stack_is_of_its_own_job(pool: Pool, gate: Gate) -> None:
    view = pool.options(timeout=LONG, cancel_grace=LONG)
    both = (jobs.sleep, "compute"), (jobs.compute, "sleep")
    for number, (work, other) in enumerate(both * 10):
        job: Job[Any] = view.submit(work, gate.path, str(number))
        await gate.visitor(str(number))
        run_out(pool, job)
        error = await timeout_of(job)
        assert f"in {work.__name__}" in error.stack
        assert f"in {other}" not in error.stack


async def test_a_stopped_worker_is_killed_and_leaves_no_stack() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=SHORT) as pool:
        job = pool.options(timeout=LONG).submit(jobs.sleep, gate.path, "")
        visitor = await gate.visitor()
        await stop(visitor.pid)
        run_out(pool, job)
        error = await timeout_of(job)
        assert error.stack == ""
        await assert_serves(pool)


async def test_a_job_that_a_stopped_worker_was_sent_is_not_lost() -> None:
    async with patience(), Pool(1, cancel_grace=0.1) as pool:
        await stop(await pool.submit(jobs.pid))
        job = pool.options(timeout=SHORT).submit(jobs.square, 3)
        error = await timeout_of(job)
        assert (error.limit, error.job_id, error.stack) == ("timeout", job.id, "")
        await assert_serves(pool)
        stats = pool.stats()
    assert (stats.failed, stats.queued, stats.crashes) == (1, 0, 0)


async def test_the_exit_of_its_worker_names_the_job_that_was_too_slow() -> None:
    """A timeout is no crash to retry after."""
    async with patience(), Gate() as gate, Pool(1) as pool:
        events, exits = pool.events(), pool.events()
        view = pool.options(timeout=SHORT, on_cancel="kill", max_attempts=3)
        job = view.submit(jobs.wait_at, gate.path)
        assert (await timeout_of(job)).attempt == 1
        exited = await next_of(exits, Exited)
        assert exited.detail == f"killed since job {job.id} did not end"
        assert exited.reason == f"timeout of job {job.id}"
        await assert_serves(pool)
    assert not [e async for e in events if isinstance(e, Crashed | TakenOver)]


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_nor_are_those_that_another_one_keeps_from_beginning(
    on_cancel: Any,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        Pool(1, concurrency=4, cancel_grace=0.1) as pool,
    ):
        blocking = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        view = pool.options(timeout=0.2, on_cancel=on_cancel)
        late = [view.submit(jobs.greet, "nobody") for _ in range(2)]
        for job in late:
            error = await timeout_of(job)
            assert (error.limit, error.job_id) == ("timeout", job.id)
        # To end them took its worker, and it was running there.
        with pytest.raises(WorkerCrashedError, match=f"job {late[0].id}, which it ran"):
            await blocking
        await assert_serves(pool)
        stats = pool.stats()
    assert (stats.failed, stats.queued) == (3, 0)


async def test_what_was_in_time_is_not_touched() -> None:
    async with patience(), Pool(2, timeout=LONG, queue_timeout=LONG) as pool:
        now = asyncio.get_running_loop().time()
        view = pool.options(deadline=now + LONG)
        results = await asyncio.gather(
            *(pool.submit(jobs.square, n) for n in range(100)),
            *(view.submit(jobs.square, n) for n in range(100)),
        )
        assert results == [n * n for n in range(100)] * 2
        book = registry_of(pool)
        assert (len(book.deadlines), book.timed) == (0, 0)


async def test_the_time_in_the_queue_is_not_the_time_running(
    pool: Pool, gate: Gate
) -> None:
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    waiting = pool.options(timeout=5 * SHORT).submit(jobs.square, 3)
    impatient = pool.options(queue_timeout=6 * SHORT).submit(jobs.square, 4)
    error = await timeout_of(impatient)
    assert (error.limit, error.seconds) == ("queue_timeout", 6 * SHORT)
    assert (error.job_id, error.attempt, error.stack) == (impatient.id, 0, "")
    assert not waiting.done()
    assert pool.stats().queued == 1
    visitor.release()
    assert await waiting == 9
    assert await held == "go"


@pytest.mark.parametrize("loss", ["killed", "retired", "retired at once"])
async def test_the_time_in_the_queue_goes_on_when_a_worker_leaves_before_it_has_begun(
    loss: str, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    async with patience(), Gate() as gate, Gate() as start:
        starting: dict[str, Any] = {
            "initializer": jobs.wait_if_there,
            "initargs": (str(flag), start.path),
        }
        async with ready_pool(max_surge=0, max_unavailable=1, **starting) as pool:
            pid = await pool.submit(jobs.pid)
            if loss == "killed":
                flag.touch()
                os.kill(pid, signal.SIGKILL)
                job = pool.options(queue_timeout=SHORT).submit(jobs.square, 3)
            else:
                # Both functions are known to be short, so that one job waits behind the other.
                await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(9)))
                await pool.submit(jobs.retire_at)
                pid = await pool.submit(jobs.pid)
                flag.touch()
                there = gate.path if loss == "retired" else ""
                first = pool.submit(jobs.retire_at, there)
                job = pool.options(queue_timeout=SHORT).submit(jobs.square, 3)
                if there:
                    (await gate.visitor()).release()
                assert await first == pid
            successor = await start.visitor("initializer")
            error = await timeout_of(job)
            assert (error.limit, error.seconds) == ("queue_timeout", SHORT)
            assert (error.attempt, error.stack) == (0, "")
            successor.release()
            await assert_serves(pool)


@pytest.mark.parametrize("deadline", [None, LONG])
async def test_a_result_that_takes_long_to_load_has_all_the_time_but_for_a_deadline(
    pool: Pool, deadline: float | None
) -> None:
    if deadline is not None:
        deadline += asyncio.get_running_loop().time()
    view = pool.options(timeout=60.0, queue_timeout=60.0, deadline=deadline)
    with Stop("unpickled") as stop:
        job = view.submit(crowd, 1_000_000)
        await stop.reached()
        assert registry_of(pool).deadlines.next() == deadline
        stop.release()
        assert await job == crowd(1_000_000)


async def test_a_job_behind_another_one_in_a_worker_is_still_waiting(
    pool: Pool, gate: Gate
) -> None:
    for _ in range(50):
        await pool.submit(jobs.perhaps_wait)
    first = pool.submit(jobs.perhaps_wait, gate.path)
    behind = pool.options(queue_timeout=SHORT).submit(jobs.perhaps_wait)
    last = pool.submit(jobs.perhaps_wait)
    error = await timeout_of(behind)
    assert error.limit == "queue_timeout"
    visitor = await gate.visitor()
    visitor.release()
    assert await first == await last == visitor.pid


@pytest.mark.parametrize("stage", ["past", "queued", "running"])
async def test_a_deadline_holds_at_every_stage(stage: str) -> None:
    async with patience(), Gate() as gate, ready_pool(cancel_grace=LONG) as pool:
        await idle(pool)
        now = asyncio.get_running_loop().time()
        held: Job[Any] | None = None
        if stage == "queued":
            held = pool.submit(jobs.sleep, gate.path, "")
            await gate.visitor()
        at = now + {"past": -1.0, "queued": SHORT, "running": LONG}[stage]
        view = pool.options(deadline=at, max_attempts=5, retry_on=[JobTimeoutError])
        job: Job[Any] = view.submit(jobs.sleep, gate.path, "late")
        if stage == "running":
            await gate.visitor("late")
            run_out(pool, job)
        error = await timeout_of(job)
        assert (error.limit, error.seconds) == ("deadline", limits_of(job).deadline)
        assert error.attempt == (stage == "running")
        assert ("in sleep" in error.stack) is (stage == "running")
        if held is not None:
            held.cancel()
        await assert_serves(pool)
        assert gate.visits("late") == (stage == "running")


@pytest.mark.parametrize("others", [{}, {"queue_timeout": LONG, "timeout": LONG}])
async def test_a_timer_that_fires_a_tick_early_keeps_to_the_deadline(
    pool: Pool, gate: Gate, others: dict[str, Any]
) -> None:
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    deadline = asyncio.get_running_loop().time() + LONG
    late = pool.options(deadline=deadline, **others).submit(jobs.pid)
    ring(pool, deadline - SHORT)
    assert not late.done()
    ring(pool, deadline)
    error = await timeout_of(late)
    assert (error.limit, error.seconds) == ("deadline", deadline)
    visitor.release()
    assert await held == "go"


@pytest.mark.parametrize("limit", ["timeout", "heartbeat_timeout"])
async def test_who_is_heard_to_have_ended_is_not_judged(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        limits: dict[str, Any] = {limit: LONG}
        view = pool.options(**limits)
        both: list[Job[Any]] = [view.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitor = await gate.visitor()

        def hear_both_end() -> None:
            large = pickle.dumps(filler(2 * HEAVY))  # a thread loads it
            supervisor_of(pool).traffic.on_outcomes(
                handle_of(pool),
                [
                    Frame(FrameKind.VALUE, job.id, 1, 0, large)
                    for job in both
                    if has_worker(job)
                ],
            )

        with monkeypatch.context() as patched:
            patched.setattr(handle_of(pool).job_channel, "read", hear_both_end)
            ring(pool, max(map(begin_of, both)) + LONG)
        assert await asyncio.gather(*both) == [filler(2 * HEAVY)] * 2
        os.kill(visitor.pid, signal.SIGKILL)  # it knows nothing of its outcomes
        await assert_serves(pool)


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_a_timeout_may_be_tried_again(on_cancel: Any) -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel=on_cancel) as pool:
        view = pool.options(
            timeout=LONG, max_attempts=3, retry_on=[JobTimeoutError], cancel_grace=LONG
        )
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        for attempt in (1, 2):
            await gate.visitor(f"attempt {attempt}")
            run_out(pool, job)
        (await gate.visitor("attempt 3")).release()
        assert await job == "go"
        assert job.attempt == 3


async def test_a_timeout_that_begins_before_the_queue_timeout_ends_still_counts() -> (
    None
):
    """Then one look is for both."""
    async with patience(), Gate() as gate, Pool(1) as pool:
        view = pool.options(queue_timeout=LONG, timeout=SHORT, on_cancel="kill")
        error = await timeout_of(view.submit(jobs.sleep, gate.path, ""))
        assert (error.limit, error.attempt) == ("timeout", 1)
        job = pool.options(queue_timeout=LONG).submit(jobs.wait_at, gate.path, "long")
        visitor = await gate.visitor("long")
        await timeout_of(pool.options(queue_timeout=SHORT).submit(jobs.pid))
        ring(pool, asyncio.get_running_loop().time() + LONG)
        visitor.release()
        assert await job == "go", "it has begun in time"


async def test_the_pools_own_times_are_the_default() -> None:
    async with patience(), Gate() as gate, Pool(2, timeout=SHORT) as pool:
        free = pool.options(timeout=None).submit(jobs.wait_at, gate.path, "free")
        visitor = await gate.visitor("free")
        assert (await timeout_of(pool.submit(jobs.sleep, gate.path, ""))).attempt == 1
        visitor.release()
        assert await free == "go"


async def test_a_cancelled_job_whose_time_is_over_is_cancelled(
    pool: Pool, gate: Gate
) -> None:
    job = pool.options(timeout=LONG, cancel_grace=LONG).submit(
        jobs.clean_up_at, gate.path
    )
    await gate.visitor("work")
    run_out(pool, job)
    cleaning = await gate.visitor("JobCancelled")
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    cleaning.release()
    await assert_serves(pool)


async def test_a_close_waits_for_a_job_no_longer_than_its_timeout() -> None:
    async with patience(), Gate() as gate:
        async with ready_pool() as pool:
            job = pool.options(timeout=LONG).submit(jobs.sleep, gate.path, "")
            await gate.visitor()
            asyncio.get_running_loop().call_soon(run_out, pool, job)
        assert (await timeout_of(job)).limit == "timeout"
