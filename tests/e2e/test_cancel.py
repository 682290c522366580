"""Cancelling a job: free in the queue, and an end to it when it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.events import Exited
from tests.helpers import faults, jobs, streams
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, by_events, case, closing, idle, next_of

pytestmark = ONE_LOOP


async def test_a_queued_job_leaves_the_queue_at_no_cost() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        running = pool.submit(jobs.wait_at, gate.path, "first")
        queued = pool.submit(jobs.wait_at, gate.path, "second")
        last = pool.submit(jobs.pid)
        visitor = await gate.visitor("first")
        assert queued.state == "queued"
        assert queued.cancel()
        assert "cancelled" in repr(queued)
        assert pool.stats().queued == 1
        visitor.release()
        assert await running == "go"
        assert await last == visitor.pid
        assert gate.visits("second") == 0
        assert not queued.cancel()
        stats = pool.stats()
    assert (stats.cancelled, stats.completed, stats.spawned) == (1, 2, 1)


async def test_a_running_job_is_stopped_whatever_it_does() -> None:
    works = (
        jobs.sleep,
        jobs.compute,
        jobs.hold_the_gil,
        jobs.backtrack,
        jobs.refuse_to_end,
    )
    crashes: list[Crash] = []
    pool = Pool(1, on_crash=crashes.append, on_cancel="kill")
    async with patience(2), pool:
        events = pool.events()
        for number, work in enumerate(works, 1):
            async with Gate() as gate:
                with case(work):
                    job = pool.submit(work, gate.path, "")
                    next_one = pool.submit(jobs.pid)
                    visitor = await gate.visitor()
                    assert job.cancel()
                    assert job.state == "cancelled"
                    with pytest.raises(asyncio.CancelledError):
                        await job
                    await visitor.gone()
                    # The replacement comes at once, and it is a planned exit, not a crash.
                    assert await next_one != visitor.pid
                    await assert_serves(pool)
                    assert await next_of(events, Exited) == Exited(
                        0,
                        number,
                        visitor.pid,
                        signal="SIGKILL",
                        detail=f"killed since job {job.id} did not end",
                        reason=f"cancellation of job {job.id}",
                    )
        stats = pool.stats()
    assert crashes == []
    counts = stats.cancelled, stats.crashes, stats.restarts
    assert counts == (len(works), 0, len(works))


async def test_a_job_that_does_not_end_when_asked_costs_its_worker() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=0.05) as pool:
        for number, work in enumerate((jobs.hold_the_gil, jobs.swallow), 1):
            job = pool.submit(work, gate.path, "")
            next_one = pool.submit(jobs.pid)
            visitor = await gate.visitor(nth=number)
            job.cancel()
            await visitor.gone()
            assert await next_one != visitor.pid
            stats = pool.stats()
            counts = stats.cancelled, stats.crashes, stats.restarts
            assert counts == (number, 0, number)


async def test_a_job_that_ends_when_asked_costs_nothing() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=3600) as pool:
        for number, work in enumerate((jobs.sleep, jobs.compute), 1):
            job = pool.submit(work, gate.path, "")
            next_one = pool.submit(jobs.pid)
            visitor = await gate.visitor(nth=number)
            job.cancel()
            await visitor.gone()
            assert await next_one == visitor.pid
            stats = pool.stats()
            counts = stats.cancelled, stats.completed, stats.spawned
            assert counts == (number, number, 1)


async def test_a_cancelled_job_cleans_up_before_the_next_one_begins() -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=3600) as pool:
        job = pool.submit(jobs.clean_up_at, gate.path)
        next_one = pool.submit(jobs.pid)
        visitor = await gate.visitor("work")
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        cleaning = await gate.visitor("JobCancelled")
        assert cleaning.pid == visitor.pid
        # Whatever it is doing, it is the last thing that this worker does for it.
        assert pool.stats().busy == 1
        assert not next_one.done()
        cleaning.release()
        assert await next_one == visitor.pid


async def test_what_waits_behind_a_cancelled_job_goes_to_another_worker() -> None:
    async with patience(), Gate() as gate, Pool(2, cancel_grace=3600) as pool:
        await idle(pool)
        other = pool.submit(jobs.wait_at, gate.path, "other")
        held = await gate.visitor("other")
        job = pool.submit(jobs.clean_up_at, gate.path)
        queued = pool.submit(jobs.pid)
        await gate.visitor("work")
        job.cancel()
        cleaning = await gate.visitor("JobCancelled")
        held.release()
        assert await other == "go"
        assert await queued == held.pid
        cleaning.release()
        await assert_serves(pool)


async def test_a_job_may_be_left_to_run() -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel="wait") as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        next_one = pool.submit(jobs.pid)
        visitor = await gate.visitor()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert pool.stats().busy == 1
        assert not next_one.done()
        visitor.release()
        assert await next_one == visitor.pid
        assert pool.stats().spawned == 1


async def test_the_way_to_end_is_the_jobs_own() -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel="wait") as pool:
        job = pool.options(on_cancel="kill").submit(jobs.sleep, gate.path, "")
        visitor = await gate.visitor()
        job.cancel()
        await visitor.gone()
        await assert_serves(pool)
        assert pool.stats().restarts == 1


async def test_an_interrupt_never_hits_the_next_job() -> None:
    """However close to its end a job is cancelled."""
    async with patience(), Pool(1, cancel_grace=3600) as pool:
        await idle(pool)
        done = 0
        for turn in range(300):
            job = pool.submit(jobs.square, turn)
            after = [pool.submit(jobs.square, number) for number in range(3)]
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            job.cancel()
            assert await asyncio.gather(*after) == [0, 1, 4]
            done += not job.cancelled()
        stats = pool.stats()
    assert done + stats.cancelled == 300
    assert stats.spawned == 1


async def test_one_that_is_cancelled_while_its_module_is_imported_spoils_nothing() -> (
    None
):
    """Else its worker would fail every job that needs what it has half imported."""
    async with patience(), Gate() as gate:
        stop = (gate.path, "asyncio.unix_events")
        async with Pool(1, initializer=jobs.stop_at_import, initargs=stop) as pool:
            worker = await pool.submit(jobs.pid)
            job = pool.options(cancel_grace=3600).submit(streams.numbers, 3)
            (await gate.visitor("importing")).release()
            job.cancel()
            assert await pool.submit(streams.double, 4) == 8
            assert await pool.submit(jobs.pid) == worker


async def test_one_that_is_cancelled_while_its_module_is_imported_ends_behind_that() -> (
    None
):
    async with patience(), Gate() as gate:
        stop = (gate.path, "tests.helpers.faults")
        async with Pool(1, initializer=jobs.stop_at_import, initargs=stop) as pool:
            worker = await pool.submit(jobs.pid)
            job: Job[Any] = pool.options(cancel_grace=3600).submit(
                faults.sleep_for_ever
            )
            (await gate.visitor("importing")).release()
            job.cancel()
            assert await pool.submit(jobs.pid) == worker


async def test_cancelling_is_not_rationed() -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel="kill") as pool:
        for nth in range(1, 21):
            job = pool.submit(jobs.sleep, gate.path, "")
            await gate.visitor(nth=nth)
            job.cancel()
        await assert_serves(pool)
        assert pool.stats().restarts == 20


async def test_killing_a_job_ends_what_it_has_started() -> None:
    async with patience(), Gate() as gate, Pool(2, on_cancel="kill") as pool:
        job = pool.submit(
            jobs.start_program_and_wait, gate.path, "program", new_session=True
        )
        program = await gate.visitor("program")
        job.cancel()
        await program.gone()
        await assert_serves(pool)


async def test_cancelling_the_task_that_awaits_a_job_cancels_the_job(
    pool: Pool,
    gate: Gate,
) -> None:
    job = pool.submit(jobs.sleep, gate.path, "")

    async def wait() -> None:
        await job

    task = asyncio.create_task(wait())
    visitor = await gate.visitor()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.cancelled()
    await visitor.gone()
    await assert_serves(pool)


async def test_a_timeout_around_a_job_stops_it(pool: Pool, gate: Gate) -> None:
    job: Job[Any] = pool.submit(jobs.compute, gate.path, "")
    visitor = await gate.visitor()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await job
    assert job.cancelled()
    await visitor.gone()
    await assert_serves(pool)


async def test_a_shielded_job_goes_on(pool: Pool, gate: Gate) -> None:
    job = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.shield(job)
    visitor.release()
    assert await job == "go"


async def test_cancelling_a_gather_of_a_thousand_jobs() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        await idle(pool)
        every: list[Job[Any]] = [
            *(pool.submit(jobs.sleep, gate.path, "") for _ in range(2)),
            *(pool.submit(jobs.square, n) for n in range(1000)),
        ]
        everything = asyncio.gather(*every)
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        everything.cancel()
        with pytest.raises(asyncio.CancelledError):
            await everything
        assert all(job.cancelled() for job in every)
        assert pool.stats().queued == 0
        for visitor in visitors:
            await visitor.gone()
        await assert_serves(pool)
        stats = pool.stats()
    assert (stats.cancelled, stats.completed, stats.crashes) == (1002, 20, 0)


async def test_a_cancellation_may_meet_the_outcome_at_any_moment() -> None:
    """It is the one or the other, and the pool is none the worse for it."""
    async with patience(), Pool(2) as pool:
        await idle(pool)
        for turns in range(30):
            job = pool.submit(jobs.square, turns)
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled = job.cancel()
            [outcome] = await asyncio.gather(job, return_exceptions=True)
            if cancelled:
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                assert outcome == turns * turns
        await assert_serves(pool)
        stats = pool.stats()
    assert stats.completed + stats.cancelled == stats.submitted == 50
    assert stats.crashes == 0


async def test_cancelling_jobs_while_the_pool_closes() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, on_cancel="kill")
        await pool.start()
        running = pool.submit(jobs.sleep, gate.path, "")
        dropped = pool.submit(jobs.square, 1)
        queued = pool.submit(jobs.square, 2)
        await gate.visitor()
        close = await closing(pool)
        assert dropped.cancel()
        assert running.cancel()
        # A job still waits, so the killed worker is replaced.
        assert await queued == 4
        summary = await close
    assert (summary.finished, summary.failed) == (1, 0)
    assert pool.stats().spawned == 2


async def test_cancelling_the_last_job_lets_the_pool_close() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        running = pool.submit(jobs.sleep, gate.path, "")
        queued = pool.submit(jobs.square, 2)
        await gate.visitor()
        close = await closing(pool)
        assert queued.cancel()
        assert running.cancel()
        await close
    assert pool.stats().spawned == 1


async def test_a_jobs_callback_may_cancel_another_job() -> None:
    async with patience(), Gate() as gate, Pool(2, on_cancel="kill") as pool:
        events = pool.events()
        await idle(pool)
        slow = pool.submit(jobs.sleep, gate.path, "")
        visitor = await gate.visitor()
        quick = pool.submit(jobs.square, 2)
        quick.add_done_callback(lambda _: slow.cancel())
        assert await quick == 4
        await visitor.gone()
        await assert_serves(pool)
    assert len([event async for event in by_events(events, Exited)]) == 3
