"""How a pool ends: what is finished, what is failed, and how long it may take."""

from __future__ import annotations

import asyncio
import gc
import itertools
import select
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from asyncpool import CloseSummary, Crash, Job, Pool, RollResult, WorkerLimits
from asyncpool.errors import PoolClosedError
from asyncpool.events import Exited
from tests.helpers import beats, faults, jobs, streams
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    Finish,
    Launcher,
    Threads,
    core_of,
    in_another_process,
    jobs_channel_of,
    supervisor_of,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import closing, collect, started, stop, until

pytestmark = BOTH_LOOPS

Finishing = Literal["all", "running", "none"]

LONG = 3600.0


@pytest.mark.parametrize(
    ("finish", "results", "finished", "failed"),
    [
        ("all", ["go", "go", 0, 1, 4, 9, 16], 7, 0),
        ("running", ["go", "go", *["never sent"] * 5], 2, 5),
        ("none", [*["started"] * 2, *["never sent"] * 5], 0, 7),
    ],
)
async def test_close_finishes_what_it_is_told_to(
    finish: Finishing, results: list[object], finished: int, failed: int
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
    stats = pool.stats()
    assert stats.state == "closed"
    ends: Counter[str] = sum((Counter(it.jobs) for it in stats.functions), Counter())
    assert (ends["ok"], ends["aborted"]) == (finished, failed)


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
async def test_when_the_time_is_over_what_is_left_is_killed(finish: Finishing) -> None:
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
    # With "none" the job in C ends by SIGTERM, on a busy machine perhaps too late.
    assert summary.killed in ({1, 2} if finish == "none" else {2})
    assert (summary.finished, summary.failed) == (0, 7)


@pytest.mark.logs("killed-late")
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


@pytest.mark.parametrize("limits", [(0.1, 600), (600, 0)])
async def test_the_earlier_of_two_deadlines_counts(limits: tuple[float, float]) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        job = pool.submit(jobs.sleep, gate.path, "")
        await gate.visitor()
        first = await closing(pool, timeout=limits[0])
        second = asyncio.create_task(pool.close(timeout=limits[1]))
        assert (await first).killed == (await second).killed == 1
        with pytest.raises(PoolClosedError):
            await job


@pytest.mark.parametrize("cancelled", [False, True])
async def test_close_while_the_pool_starts(*, cancelled: bool) -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2, initializer=jobs.wait_at, initargs=(gate.path,))
        start = asyncio.create_task(pool.start())
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        if cancelled:
            start.cancel()
        else:
            assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)
        with pytest.raises(asyncio.CancelledError if cancelled else PoolClosedError):
            await start
        for visitor in visitors:
            await visitor.gone()
        assert pool.stats().state == "closed"
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        with pytest.raises(PoolClosedError):
            pool.options(max_attempts=2).submit(jobs.square, 1)
        with pytest.raises(PoolClosedError):
            await pool.start()
        assert [event async for event in pool.events()] == []


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_close_right_after_the_start_does_not_wait(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    async with patience():
        for _ in range(3):
            pool = await started(4, launcher=launcher)
            # Workers that are on their way get SIGTERM, and it must reach them.
            assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)


@pytest.mark.parametrize("sends", ["outcome", "heartbeat", "item"])
async def test_what_a_worker_sends_while_its_pool_closes_is_no_offence(
    sends: str,
) -> None:
    async with patience():
        pool = await started(1)
        events = pool.events()
        if sends == "item":
            stream = pool.stream(streams.numbers, 100)
            job: Any = asyncio.create_task(collect(stream, []))
            await asyncio.sleep(0)
        else:
            call = jobs.pid if sends == "outcome" else beats.beat_and_raise
            job = asyncio.ensure_future(pool.submit(call))
        # Whatever comes, the loop does not read it before the close.
        channel = jobs_channel_of(pool)._socket.fileno()
        assert select.select([channel], [], [], PATIENCE)[0]
        assert (await pool.close(finish="none")).failed == 1
        with pytest.raises(PoolClosedError):
            await job
        [exited] = [event async for event in events if isinstance(event, Exited)]
    assert (exited.reason, exited.detail) == ("close", "")


async def test_close_from_inside_on_crash() -> None:
    closed: list[CloseSummary] = []

    async def on_crash(_: Crash) -> None:
        closed.append(await pool.close(finish="none"))

    async with patience():
        pool = await started(2, on_crash=on_crash)
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


@pytest.mark.parametrize("at", ["clean-up", "exit"])
async def test_another_cancellation_does_not_wait_for_who_cleans_up(at: str) -> None:
    """Nor does one of the exit, which waits for a job."""
    kept: list[Job[Any]] = []

    async def serve() -> None:
        async with Pool(1, cancel_grace=LONG) as pool:
            kept.append(pool.submit(jobs.clean_up_at, gate.path))
            if at == "clean-up":
                await kept[0]

    async with patience(), Gate() as gate:
        service = asyncio.create_task(serve())
        visitor = await gate.visitor("work")
        if at == "clean-up":
            visitor.release()
            service.cancel()
            visitor = await gate.visitor("JobCancelled")
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service
        await visitor.gone()
        with pytest.raises((PoolClosedError, asyncio.CancelledError)):
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
        pool = Pool(1)
        await asyncio.create_task(
            pool.start()
        )  # by another task than those that close it
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        close = await closing(pool)
        with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
            await pool.start()
        assert not close.done()
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        assert job.state == "running"
        visitor.release()
        assert await job == "go"
        assert (await pool.close()).finished == 1


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


# Pools that nobody has any more, and that nobody has closed.
TEXT = (
    "^pool {} was dropped without being closed; it finishes its jobs and ends: "
    r"use 'async with' or 'await pool\.close\(\)'$"
)


def collect_in_a_thread() -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


async def test_its_jobs_are_finished_and_nothing_is_left() -> None:
    async with patience(), Gate() as gate:
        pool = await started(2, name="lost")
        supervisor = supervisor_of(pool)
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(3)]
        visitor = await gate.visitor()
        with pytest.warns(ResourceWarning, match=TEXT.format("lost")):
            del pool
        while not supervisor.closing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        visitor.release()
        for nth in (2, 3):
            (await gate.visitor(nth=nth)).release()
        assert await asyncio.gather(*work) == ["go"] * 3
        await supervisor.status.ended
        assert supervisor.summary() == CloseSummary(finished=3, failed=0, killed=0)


@pytest.mark.logs("pool-dropped")
async def test_a_cell_that_is_run_again_leaves_one_pool() -> None:
    async with patience():
        pool = await started(1, name="cell")
        for _ in range(2):
            before = supervisor_of(pool)
            with pytest.warns(ResourceWarning, match=TEXT.format("cell")):
                pool = await started(1, name="cell")
            await before.status.ended
        await pool.close()


async def test_the_collector_may_find_it_in_any_thread() -> None:
    async with patience():
        pool = await started(1, name="lost")
        supervisor = supervisor_of(pool)
        pool.knot = pool  # type: ignore[attr-defined]
        del pool
        with pytest.warns(ResourceWarning, match=TEXT.format("lost")):
            collect_in_a_thread()
        await supervisor.status.ended


@pytest.mark.parametrize("what", ["job", "map", "stream", "view"])
async def test_whatever_submits_to_it_keeps_it(what: str) -> None:
    async with patience():
        pool = await started(1)
        supervisor = supervisor_of(pool)
        if what == "map":
            results = pool.map(jobs.square, range(3))
            del pool
            assert [n async for n in results] == [0, 1, 4]
            keeper: object = results
        elif what == "stream":
            stream = pool.stream(range, 3)
            del pool
            assert [n async for n in stream] == [0, 1, 2]
            keeper = stream
        elif what == "view":
            view = pool.options(priority=1)
            del pool
            assert await view.submit(jobs.square, 3) == 9
            keeper = view
        else:
            job: Job[int] = pool.submit(jobs.square, 3)
            with pytest.warns(ResourceWarning, match="was dropped"):
                del pool  # a job does not, and is done all the same
            assert await job == 9
            keeper = None
        assert supervisor.closing == (keeper is None)
        supervisor.close(Finish.ALL, None)
        await supervisor.status.ended


async def test_who_was_closed_or_never_started_is_no_matter() -> None:
    async with patience():
        pool = await started(1)
        await pool.close()
        del pool
        unused = Pool(1)
        del unused
        with pytest.raises(TypeError):
            Pool("x")  # type: ignore[arg-type]


async def test_a_copy_in_a_fork_is_no_matter() -> None:
    async with patience():
        pool = await started(1)
        supervisor = supervisor_of(pool)
        in_another_process(pool)
        del pool
        assert not supervisor.closing
        supervisor.close(Finish.ALL, None)
        await supervisor.status.ended


# A pool that finishes all its jobs works on meanwhile as an open one does.
async def leaving(pool: Pool) -> asyncio.Task[None]:
    """Return a task that has begun to leave the context of *pool*."""
    task = asyncio.create_task(pool.__aexit__(None, None, None))
    await asyncio.sleep(0)
    assert pool.stats().state == "closing"
    return task


@pytest.mark.parametrize("leaves", [True, False])
async def test_there_is_no_limit_unless_one_is_given(*, leaves: bool) -> None:
    async with patience(), Gate() as gate:
        # That of the context is not for close().
        pool = await Pool(1, close_timeout=None if leaves else 0.1).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(2)]
        visitor = await gate.visitor()
        close: asyncio.Task[Any] = await (leaving if leaves else closing)(pool)
        core = core_of(pool)
        assert (core.closing.due, core.next_deadline()) == (None, None)
        visitor.release()
        (await gate.visitor(nth=2)).release()
        await close
        assert [job.result() for job in work] == ["go", "go"]


async def test_a_context_may_have_a_limit() -> None:
    async with patience(), Gate() as gate:
        async with Pool(1, close_timeout=0.1) as pool:
            job = pool.submit(jobs.sleep, gate.path, "")
            visitor = await gate.visitor()
        await visitor.gone()
        with pytest.raises(PoolClosedError):
            await job


async def test_it_replaces_workers_and_grows() -> None:
    limits = WorkerLimits(max_jobs=1, jitter=0.0)
    async with patience(), Gate() as gate:
        pool = await Pool((1, 3), worker_limits=limits).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(7)]
        close = await closing(pool)
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2, 3)]
        assert len({visitor.pid for visitor in visitors}) == 3
        for visitor in visitors:
            visitor.release()
        for nth in range(4, 8):
            visitors.append(await gate.visitor(nth=nth))
            visitors[-1].release()
        assert len({visitor.pid for visitor in visitors}) == 7
        assert await asyncio.gather(*work) == ["go"] * 7
        assert (await close).finished == 7
    assert pool.stats().crashes == 0


async def test_a_roll_and_a_resize_go_on() -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(4)]
        first = await gate.visitor()
        roll = asyncio.create_task(pool.roll())
        resize = asyncio.create_task(pool.resize(2))
        close = await closing(pool)
        visitors = [first, *[await gate.visitor(nth=nth) for nth in (2, 3)]]
        assert visitors[0].pid not in {visitor.pid for visitor in visitors[1:]}
        first.release()
        assert await roll == RollResult(replaced=1, reason="", crash=None)
        await resize
        visitors[1].release()
        visitors[2].release()
        (await gate.visitor(nth=4)).release()
        assert await asyncio.gather(*work) == ["go"] * 4
        assert (await close).finished == 4


async def test_it_starts_for_the_jobs_that_came_before_the_close() -> None:
    async with patience():
        pool = Pool(1)
        start = asyncio.create_task(pool.start())
        outcomes: list[Any] = []

        async def use() -> None:
            job = pool.submit(jobs.square, 3)
            await pool.close()
            outcomes.append(await job)

        # Both run before the supervisor does for the first time.
        user = asyncio.create_task(use())
        await asyncio.gather(start, user, return_exceptions=True)
        assert outcomes == [9]


async def numbers(gate: str, count: int) -> AsyncIterator[str]:
    """Yield a gate so many times, each when it is asked for."""
    for _ in range(count):
        yield gate


@pytest.mark.parametrize("inputs", [numbers, lambda gate, n: [gate] * n])
async def test_a_map_draws_all_of_its_items(inputs: Callable[[str, int], Any]) -> None:
    async with patience(), Gate() as gate:
        pool = await Pool(1).__aenter__()
        results: list[str] = []
        gates = pool.map(jobs.wait_at, inputs(gate.path, 5), buffersize=1)
        reader = asyncio.create_task(collect(gates, results))
        visitor = await gate.visitor()
        close = await closing(pool)
        with pytest.raises(PoolClosedError):
            await pool.map(jobs.square, [1])
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        visitor.release()
        for nth in range(2, 6):
            (await gate.visitor(nth=nth)).release()
        await reader
        assert results == ["go"] * 5
        assert await close == CloseSummary(finished=5, failed=0, killed=0)


async def test_many_short_items_are_finished() -> None:
    async with patience():
        pool = await Pool(2).__aenter__()
        found: list[int] = []
        results = pool.map(jobs.square, range(20_000))
        reader = asyncio.create_task(collect(results, found))
        while not found:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        summary = await pool.close()
        await reader
        assert found == [n * n for n in range(20_000)]
        assert (summary.failed, pool.stats().failed) == (0, 0)


@pytest.mark.parametrize("kind", ["map", "stream"])
async def test_what_nobody_has_any_more_lets_go(kind: str) -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        if kind == "map":
            items: Any = pool.map(abs, itertools.count(), buffersize=1)
        else:
            items = pool.options(prefetch=1).stream(itertools.count)
        assert await anext(items) == 0
        close = await closing(pool)
        assert await anext(items) == 1  # it is held open
        assert not close.done()
        del items
        await close


async def test_a_map_whose_results_nobody_takes_needs_the_pool_until_they_are_there() -> (
    None
):
    async with patience():
        pool = await Pool(1).__aenter__()
        results = pool.map(jobs.square, range(5), buffersize=10)
        assert await anext(results) == 0
        await pool.close()
        assert [result async for result in results] == [1, 4, 9, 16]


async def test_the_time_of_a_close_ends_a_map_that_holds_it_up() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        results = pool.map(jobs.square, itertools.count(), buffersize=1)
        assert await anext(results) == 0
        await pool.close(timeout=0.1)
        with pytest.raises(PoolClosedError):
            await collect(results, [])


async def test_a_stream_is_finished() -> None:
    async with patience():
        pool = await Pool(1).__aenter__()
        stream = pool.options(prefetch=1).stream(range, 50)
        assert await anext(stream) == 0
        close = await closing(pool)
        late = pool.stream(range, 3)
        with pytest.raises(PoolClosedError):
            await anext(late)
        assert [item async for item in stream] == [*range(1, 50)]
        assert await close == CloseSummary(finished=1, failed=0, killed=0)
