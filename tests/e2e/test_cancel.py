"""Cancelling a job: free in the queue, and an end to it when it runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.events import Exited
from tests.helpers import faults, jobs, streams
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    by_events,
    case,
    closing,
    idle,
    next_of,
    started,
    stop,
)

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


LONG, SHORT = {"cancel_grace": 3600.0}, {"cancel_grace": 0.05}
KILL: Any = {"on_cancel": "kill", "cancel_grace": 3600.0}
# What runs, how it is to end, and whether its worker lives on.
WORKS: list[tuple[Callable[[str, str], Any], Any, bool]] = [
    (jobs.sleep, LONG, True),
    (jobs.compute, LONG, True),
    (jobs.compute, KILL, False),
    (jobs.hold_the_gil, SHORT, False),
    (jobs.hold_the_gil, KILL, False),
    (jobs.backtrack, KILL, False),
    (jobs.swallow, SHORT, False),
    (jobs.refuse_to_end, KILL, False),
]


async def test_a_job_that_does_not_end_when_asked_costs_its_worker() -> None:
    crashes: list[Crash] = []
    pool = Pool(1, on_crash=crashes.append)
    async with patience(2), Gate() as gate, pool:
        events = pool.events()
        restarts = 0
        for nth, (work, options, survives) in enumerate(WORKS, 1):
            with case(work, options):
                job = pool.options(**options).submit(work, gate.path, "")
                next_one = pool.submit(jobs.pid)
                visitor = await gate.visitor(nth=nth)
                assert job.cancel()
                assert job.state == "cancelled"
                with pytest.raises(asyncio.CancelledError):
                    await job
                await visitor.gone()
                # A replacement comes at once, and it is a planned exit, not a crash.
                assert (await next_one == visitor.pid) is survives
                await assert_serves(pool)
                if not survives:
                    restarts += 1
                    assert await next_of(events, Exited) == Exited(
                        0,
                        restarts,
                        visitor.pid,
                        signal="SIGKILL",
                        detail=f"killed since job {job.id} did not end",
                        reason=f"cancellation of job {job.id}",
                    )
                stats = pool.stats()
                assert (stats.cancelled, stats.restarts) == (nth, restarts)
    assert (crashes, pool.stats().crashes) == ([], 0)


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


async def test_the_job_after_a_cancelled_one_gets_no_signal_of_its() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        for _ in range(3):
            victim = pool.submit(jobs.wait_at, gate.path)
            await gate.visitor()
            after = pool.submit(jobs.nap, 60_000)
            victim.cancel()
            assert await after == 0


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


async def test_a_job_may_be_left_to_run_and_the_way_to_end_is_its_own() -> None:
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
        asleep = pool.options(on_cancel="kill").submit(jobs.sleep, gate.path, "")
        visitor = await gate.visitor(nth=2)
        asleep.cancel()
        await visitor.gone()
        await assert_serves(pool)
        assert pool.stats().restarts == 1


async def test_a_cancellation_may_meet_the_outcome_and_never_hits_the_next_job() -> (
    None
):
    """However close to its end a job is cancelled."""
    async with patience(), Pool(1, cancel_grace=3600, ready="all") as pool:
        done = 0
        for turn in range(300):
            job = pool.submit(jobs.square, turn)
            after = [pool.submit(jobs.square, number) for number in range(3)]
            for _ in range(turn % 30):
                await asyncio.sleep(0)
            cancelled = job.cancel()
            assert await asyncio.gather(*after) == [0, 1, 4]
            assert job.cancelled() is cancelled
            done += not cancelled
            assert cancelled or await job == turn * turn
        stats = pool.stats()
    assert done + stats.cancelled == 300
    assert stats.completed + stats.cancelled == stats.submitted == 1200
    assert stats.spawned == 1


@pytest.mark.parametrize(
    ("module", "function", "args"),
    [
        ("tests.helpers.faults", faults.sleep_for_ever, ()),
        ("asyncio.unix_events", streams.numbers, (3,)),  # for the function's module
        ("asyncio.unix_events", jobs.greet, ("nobody",)),  # to run a coroutine
    ],
    ids=["its own", "for its own", "asyncio"],
)
async def test_one_that_is_cancelled_while_its_module_is_imported_ends_behind_that(
    module: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Else its worker would fail every job that needs what it has half imported."""
    async with patience(), Gate() as gate:
        stop = (gate.path, module)
        async with Pool(1, initializer=jobs.stop_at_import, initargs=stop) as pool:
            worker = await pool.submit(jobs.pid)
            job = pool.options(cancel_grace=3600).submit(function, *args)
            (await gate.visitor("importing")).release()
            job.cancel()
            assert await pool.submit(streams.double, 4) == 8
            assert await pool.submit(jobs.pid) == worker


async def test_cancelling_is_not_rationed() -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel="kill") as pool:
        for nth in range(1, 21):
            job = pool.submit(jobs.sleep, gate.path, "")
            await gate.visitor(nth=nth)
            job.cancel()
        await assert_serves(pool)
        assert pool.stats().restarts == 20


async def test_cancelling_the_task_that_awaits_a_job_cancels_the_job(
    pool: Pool, gate: Gate
) -> None:
    async def wait() -> None:
        await job

    job = pool.submit(jobs.sleep, gate.path, "")
    task = asyncio.create_task(wait())
    visitor = await gate.visitor()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.cancelled()
    await visitor.gone()
    late: Job[Any] = pool.submit(jobs.compute, gate.path, "late")
    visitor = await gate.visitor("late")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await late
    assert late.cancelled()
    await visitor.gone()
    shielded = pool.submit(jobs.wait_at, gate.path, "shielded")
    visitor = await gate.visitor("shielded")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.shield(shielded)
    visitor.release()
    assert await shielded == "go"


async def test_cancelling_a_gather_of_a_thousand_jobs() -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
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


@pytest.mark.parametrize("last", [False, True])
async def test_cancelling_jobs_while_the_pool_closes(*, last: bool) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1, on_cancel="kill")
        running = pool.submit(jobs.sleep, gate.path, "")
        dropped = pool.submit(jobs.square, 1)
        queued = pool.submit(jobs.square, 2)
        await gate.visitor()
        close = await closing(pool)
        assert dropped.cancel()
        assert not last or queued.cancel()
        assert running.cancel()
        # If a job still waits, the killed worker is replaced.
        assert last or await queued == 4
        summary = await close
    assert (summary.finished, summary.failed) == (int(not last), 0)
    assert pool.stats().spawned == (1 if last else 2)


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


# A worker cannot say that it has begun a job which lets no thread run.
# Two threads of the worker race.  Either wins about every second time.
_TRIES, _KILLS = 200, 5


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("hang", [faults.hold_the_gil, faults.stop])
async def test_it_is_killed_though_it_does_not_answer(
    hang: Callable[[], None], concurrency: int
) -> None:
    exits: dict[int, str] = {}
    async with patience(), Pool(1, on_cancel="kill", concurrency=concurrency) as pool:
        events = pool.events()
        for _ in range(_TRIES):
            # The function is known, and short: the job hangs a few microseconds after it has
            # begun, and the next job waits behind it in the worker.
            await pool.submit(faults.repeat, hang, 0)
            pid = await pool.submit(jobs.pid)
            await stop(pid)
            job = pool.submit(faults.repeat, hang, 1)
            await asyncio.sleep(0)  # the pool sends it
            assert job.cancel()  # the pool cannot know whether the worker has begun it
            os.kill(pid, signal.SIGCONT)
            if await pool.submit(jobs.pid) != pid:  # else the worker has given it back
                exits[pid] = f"cancellation of job {job.id}"
            if len(exits) == _KILLS:
                break
    assert len(exits) == _KILLS
    seen = [event async for event in events if isinstance(event, Exited)]
    assert {it.pid: it.reason for it in seen if it.signal == "SIGKILL"} == exits


async def test_it_is_killed_though_its_worker_owes_another_answer() -> None:
    async with patience(), Pool(1, on_cancel="kill") as pool:
        for _ in range(
            50
        ):  # then the pool takes it for short, and has others wait behind it
            await pool.submit(faults.repeat, faults.stop, 0)
            await pool.submit(jobs.pid)
        pid = await pool.submit(jobs.pid)
        job = pool.submit(faults.repeat, faults.stop, 1)
        behind, last = pool.submit(jobs.pid), pool.submit(jobs.pid)
        while psutil.Process(pid).status() != "stopped":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        assert behind.cancel()
        assert job.cancel()
        assert await last != pid
