"""How a pool ends: what is finished, what is failed, and how long it may take."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from asyncpool import CloseSummary, Crash, Job, Pool, PoolClosedError
from tests.helpers import faults, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import Launcher, Threads
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, stop, until

pytestmark = BOTH_LOOPS

Finish = Literal["all", "running", "none"]

LONG = 3600.0


async def started(workers: int, **options: Any) -> Pool:
    pool = Pool(workers, **options)
    await pool.start()
    await idle(pool)
    return pool


@pytest.mark.parametrize(
    ("finish", "results", "finished", "failed"),
    [
        ("all", ["go", "go", 0, 1, 4, 9, 16], 7, 0),
        ("running", ["go", "go", *["never sent"] * 5], 2, 5),
        ("none", [*["started"] * 2, *["never sent"] * 5], 0, 7),
    ],
)
async def test_close_finishes_what_it_is_told_to(
    finish: Finish, results: list[object], finished: int, failed: int
) -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate:
        pool = await started(2, on_crash=crashes.append)
        running = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        queued = [pool.submit(jobs.square, n) for n in range(5)]
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        close = await closing(pool, finish=finish)
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        for visitor in visitors:
            visitor.release()
        summary = await close
        outcomes = await asyncio.gather(*running, *queued, return_exceptions=True)
    assert summary == CloseSummary(finished=finished, failed=failed, killed=0)
    assert [_brief(outcome) for outcome in outcomes] == results
    assert crashes == []
    assert pool.stats().state == "closed"


async def test_a_long_queue_is_failed_a_part_at_a_time() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = [pool.submit(jobs.square, n) for n in range(5000)]
        close = await closing(pool, finish="running")
        steps = [sum(job.done() for job in queued)]
        while steps[-1] < len(queued):
            await asyncio.sleep(0)
            steps.append(sum(job.done() for job in queued))
        visitor.release()
        summary = await close
    errors = [job.exception() for job in queued]
    assert [_brief(error) for error in errors] == ["never sent"] * 5000
    assert max(b - a for a, b in itertools.pairwise([0, *steps])) == 500
    assert await running == "go"
    assert summary == CloseSummary(finished=1, failed=5000, killed=0)


async def test_a_cancelled_scope_of_anyio_is_left_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shields: list[object] = []
    shield = asyncio.shield

    def counted(future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        shields.append(future)
        return shield(future)

    with anyio.CancelScope() as scope:
        async with patience(), Pool(1) as pool:
            assert await pool.submit(jobs.square, 3) == 9
            monkeypatch.setattr(asyncio, "shield", counted)
            scope.cancel()
            await asyncio.sleep(0)
    assert scope.cancelled_caught
    assert pool.stats().state == "closed"
    # One for the end of the pool, and a few inside it.
    assert 1 <= len(shields) < 10


def _brief(outcome: object) -> object:
    return outcome.delivery if isinstance(outcome, PoolClosedError) else outcome


async def test_what_has_begun_before_counts_as_started(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with patience(), Gate() as gate:
        initargs = (str(flag), gate.path)
        pool = await started(1, initializer=jobs.wait_if_there, initargs=initargs)
        job = pool.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        fresh = pool.submit(jobs.square, 3)
        visitor = await gate.visitor("attempt 1")
        flag.touch()
        visitor.release("die")
        await gate.visitor("initializer")
        # Both wait for the next worker.
        assert (job.state, fresh.state) == ("queued", "queued")
        await pool.close(finish="none")
        outcomes = await asyncio.gather(job, fresh, return_exceptions=True)
        assert [_brief(outcome) for outcome in outcomes] == ["started", "never sent"]


async def test_what_its_worker_has_counts_as_sent_though_other_jobs_are_not() -> None:
    async with patience():
        pool = await started(1)
        for _ in range(50):  # then the pool takes it for short, and sends many at once
            assert await pool.submit(len, bytes(16384)) == 16384
        await stop(await pool.submit(jobs.pid))
        many = [pool.submit(len, bytes(16384)) for _ in range(500)]
        await asyncio.sleep(0)  # the pool sends as many as the socket takes
        await pool.close(finish="none", timeout=0)
        outcomes = await asyncio.gather(*many, return_exceptions=True)
    told = [_brief(outcome) for outcome in outcomes]
    sent = told.count("sent")
    assert 4 < sent < 120  # a socket takes some 500 KB
    assert told == ["sent"] * sent + ["never sent"] * (500 - sent)


@pytest.mark.parametrize("finish", ["all", "running", "none"])
async def test_when_the_time_is_over_what_is_left_is_killed(finish: Finish) -> None:
    async with patience(), Gate() as gate:
        pool = await started(2)
        held = pool.submit(jobs.hold_the_gil, gate.path, "held")
        stubborn: Job[Any] = pool.submit(jobs.refuse_to_end, gate.path, "stubborn")
        queued = [pool.submit(jobs.square, n) for n in range(5)]
        visitors = [await gate.visitor(word) for word in ("held", "stubborn")]
        summary = await pool.close(timeout=0.1, finish=finish)
        for visitor in visitors:
            await visitor.gone()
        hopeless: list[Job[Any]] = [held, stubborn, *queued]
        for job in hopeless:
            with pytest.raises(PoolClosedError, match=f"job {job.id}") as caught:
                await job
            assert caught.value.delivery == (
                "never sent" if job in queued else "started"
            )
            assert caught.value.job_id == job.id
    # With "none" the job in C has ended by SIGTERM already.
    assert summary.killed == (1 if finish == "none" else 2)
    assert (summary.finished, summary.failed) == (0, 7)


@pytest.mark.parametrize("work", [jobs.hold_the_gil, jobs.refuse_to_end])
async def test_the_log_tells_where_a_worker_was_that_has_not_ended_in_time(
    caplog: pytest.LogCaptureFixture, work: Callable[[str, str], None]
) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(work, gate.path, "late")
        visitor = await gate.visitor("late")
        await pool.close(timeout=1.0)
        with pytest.raises(PoolClosedError):
            await job
    [record] = [it for it in caplog.records if "in time" in it.getMessage()]
    who = f"pool {pool.name}: worker {visitor.pid} in slot 0"
    text = f"{who} had not ended in time, and was killed by SIGKILL"
    assert (record.levelname, record.getMessage()) == ("WARNING", text)
    assert f" in {work.__name__}" in str(record.stack_info)


async def test_the_log_tells_where_a_worker_is_that_does_not_end_behind_its_jobs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        await pool.submit(jobs.wait_at_exit, gate.path)
        await pool.close()
        visitor = await gate.visitor("exit")
        await visitor.gone()
    [record] = [it for it in caplog.records if "in time" in it.getMessage()]
    assert record.getMessage().endswith(
        "had not ended in time, and was killed by SIGTERM"
    )
    assert " in wait_at" in str(record.stack_info)


async def test_two_closes_share_one_result_and_the_stricter_one_counts() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        running = pool.submit(jobs.wait_at, gate.path)
        queued = pool.submit(jobs.square, 3)
        await gate.visitor()
        mild = await closing(pool, timeout=600)
        assert (running.done(), queued.done()) == (False, False)
        strict = asyncio.create_task(pool.close(finish="running", timeout=600))
        with pytest.raises(PoolClosedError):
            await queued
        assert not running.done()
        last = asyncio.create_task(pool.close(finish="none", timeout=600))
        with pytest.raises(PoolClosedError):
            await running
        summaries = [await close for close in (mild, strict, last)]
        assert summaries == [CloseSummary(finished=0, failed=2, killed=0)] * 3
        # A later one, too, and it has nothing to do.
        assert await pool.close() == summaries[0]


async def test_a_milder_close_does_not_loosen_the_first() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(jobs.sleep, gate.path, "")
        await gate.visitor()
        strict = await closing(pool, timeout=0.1)
        mild = asyncio.create_task(pool.close(timeout=600))
        assert await strict == await mild
        with pytest.raises(PoolClosedError):
            await job


async def test_an_earlier_deadline_tightens_the_first() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(jobs.sleep, gate.path, "")
        await gate.visitor()
        mild = await closing(pool, timeout=600)
        assert (await pool.close(timeout=0)).killed == 1
        assert (await mild).killed == 1
        with pytest.raises(PoolClosedError):
            await job


async def test_close_while_the_pool_starts() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2, initializer=jobs.wait_at, initargs=(gate.path,))
        start = asyncio.create_task(pool.start())
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)
        with pytest.raises(PoolClosedError):
            await start
        for visitor in visitors:
            await visitor.gone()


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_close_right_after_the_start_does_not_wait(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    async with patience():
        for _ in range(3):
            pool = Pool(4, launcher=launcher)
            await pool.start()
            # Workers that are on their way get SIGTERM, and it must reach them.
            assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2, initializer=jobs.wait_at, initargs=(gate.path,))
        start = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await visitor.gone()
        assert pool.stats().state == "closed"


async def test_close_from_inside_on_crash() -> None:
    closed: list[CloseSummary] = []

    async def on_crash(_: Crash) -> None:
        closed.append(await pool.close(finish="none"))

    async with patience():
        pool = Pool(2, on_crash=on_crash)
        await pool.start()
        culprit = pool.submit(faults.commit, "exit 3")
        outcomes = await asyncio.gather(culprit, return_exceptions=True)
        assert len(outcomes) == 1
        summary = await pool.close()
    assert summary.killed == 0
    assert pool.stats().state == "closed"


LEFT_WITH = {
    "error": ZeroDivisionError,
    "task": asyncio.CancelledError,
    "asyncio": TimeoutError,
    "anyio": type(None),
}


@pytest.mark.parametrize("how", LEFT_WITH)
async def test_leaving_by_an_error_lets_what_runs_clean_up(how: str) -> None:
    """A cancellation is one: Ctrl-C, a timeout, a task group."""
    kept: list[asyncio.Future[Any]] = []

    async def serve() -> None:
        async with Pool(1, cancel_grace=LONG) as pool:
            kept.extend(pool.submit(jobs.clean_up_at, gate.path) for _ in range(3))
            (await gate.visitor("work")).release()
            if how == "error":
                raise ZeroDivisionError
            working.set()
            # Of a job, as a caller has it; the others are somebody else's.
            await (pool.submit(jobs.square, 3) if how == "task" else kept[0])

    async def serve_in_a_scope() -> None:
        if how == "asyncio":
            async with asyncio.timeout(LONG) as limit:
                limits.append(lambda: limit.reschedule(0.0))
                await serve()
        else:
            with anyio.CancelScope() as scope:
                limits.append(scope.cancel)
                await serve()

    limits: list[Callable[[], object]] = []
    working = asyncio.Event()
    async with patience(), Gate() as gate:
        scoped = how in {"asyncio", "anyio"}
        service = asyncio.create_task(serve_in_a_scope() if scoped else serve())
        if how != "error":
            await working.wait()
            (limits[0] if scoped else service.cancel)()
        cleaning = await gate.visitor("JobCancelled")
        assert not service.done()
        cleaning.release()
        [outcome] = await asyncio.gather(service, return_exceptions=True)
        assert type(outcome) is LEFT_WITH[how]
        mine = 1 if scoped else 0  # which was cancelled with its caller
        outcomes = await asyncio.gather(*kept, return_exceptions=True)
        assert [type(it) for it in outcomes[mine:]] == [PoolClosedError] * (3 - mine)


@pytest.mark.parametrize(
    "options",
    [
        {"cancel_grace": 0.2},  # it swallows what is to end it
        {"cancel_grace": LONG, "on_cancel": "wait"},
        {"cancel_grace": LONG, "on_cancel": "kill"},
    ],
    ids=str,
)
async def test_what_does_not_end_then_is_killed(options: dict[str, Any]) -> None:
    async with patience(), Gate() as gate:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is the point
            async with Pool(1, **options) as pool:
                job = pool.submit(jobs.swallow, gate.path, "")
                visitor = await gate.visitor()
                raise ZeroDivisionError
        await visitor.gone()
        with pytest.raises(PoolClosedError):
            await job


async def test_another_cancellation_does_not_wait_for_who_cleans_up() -> None:
    async def serve() -> None:
        async with Pool(1, cancel_grace=LONG) as pool:
            await pool.submit(jobs.clean_up_at, gate.path)

    async with patience(), Gate() as gate:
        service = asyncio.create_task(serve())
        (await gate.visitor("work")).release()
        service.cancel()
        cleaning = await gate.visitor("JobCancelled")
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service
        await cleaning.gone()


async def test_cancelling_the_exit_kills_what_it_waits_for() -> None:
    async with patience(), Gate() as gate:

        async def serve() -> None:
            async with Pool(1) as pool:
                kept.append(pool.submit(jobs.sleep, gate.path, ""))

        kept: list[asyncio.Future[Any]] = []
        service = asyncio.create_task(serve())
        visitor = await gate.visitor()
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service
        await visitor.gone()
        with pytest.raises(PoolClosedError):
            await kept[0]


@pytest.mark.parametrize("part", [Threads, Launcher])
async def test_a_loop_that_ends_while_a_pool_closes_is_not_held_up(
    part: type[Threads | Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.run() cancels all tasks, the supervisor's too, and waits for each."""
    last_steps = asyncio.Event()
    close: Any = part.close

    async def close_later(closing: Threads | Launcher) -> None:
        last_steps.set()
        try:
            await asyncio.Event().wait()
        finally:
            await close(closing)

    monkeypatch.setattr(part, "close", close_later)

    async def use() -> None:
        async with Pool(1) as pool:
            await pool.submit(jobs.square, 3)

    async with patience():
        before = asyncio.all_tasks()
        user = asyncio.create_task(use())
        await last_steps.wait()
        ours = asyncio.all_tasks() - before
        for task in ours:
            task.cancel()
        await asyncio.wait(ours)
    assert user in ours
    assert user.cancelled()


async def test_a_close_whose_caller_leaves_goes_on() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        close = await closing(pool)
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        assert job.state == "running"
        visitor.release()
        assert await job == "go"
        assert (await pool.close()).finished == 1


async def test_started_in_one_task_and_closed_in_another() -> None:
    async with patience():
        pool = Pool(2)
        await asyncio.create_task(pool.start())
        job = await asyncio.create_task(_submit(pool))
        assert await job == 81
        await asyncio.create_task(pool.close())
        assert pool.stats().state == "closed"


async def _submit(pool: Pool) -> asyncio.Future[int]:
    return pool.submit(jobs.square, 9)


async def test_a_closed_pool_stays_closed() -> None:
    async with patience():
        pool = await started(1)
        await pool.close()
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        with pytest.raises(PoolClosedError):
            pool.options(max_attempts=2).submit(jobs.square, 1)
        with pytest.raises(PoolClosedError):
            await pool.start()
        assert [event async for event in pool.events()] == []


async def test_a_pool_that_closes_is_not_started_again() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(jobs.wait_at, gate.path)
        close = await closing(pool)
        with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
            await pool.start()
        assert not close.done()
        (await gate.visitor()).release()
        assert await job == "go"
        assert (await close).finished == 1


async def test_a_worker_is_replaced_after_close_only_if_a_job_needs_it() -> None:
    async with patience(), Gate() as gate:
        pool = await started(2)
        culprits = [
            pool.submit(faults.commit_at, gate.path, "exit 3") for _ in range(2)
        ]
        queued = pool.submit(jobs.square, 6)
        visitors = [await gate.visitor("exit 3", nth) for nth in (1, 2)]
        close = await closing(pool)
        visitors[0].release()
        assert await queued == 36
        await until(pool, lambda stats: stats.crashes == 1)
        visitors[1].release()
        summary = await close
        await asyncio.gather(*culprits, return_exceptions=True)
    assert (summary.finished, summary.failed) == (1, 2)
    assert pool.stats().spawned == 3
