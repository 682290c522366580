"""``Pool(around=…)``: a hook around each job."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from asyncpool import Job, Pool, RestartPolicy
from asyncpool.errors import (
    HookError,
    JobRaisedError,
    JobTimeoutError,
    PoolBrokenError,
    RemoteTraceback,
)
from tests.helpers import around, jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, case, kill_worker

pytestmark = BOTH_LOOPS

KINDS = pytest.mark.parametrize(
    ("kind", "concurrency"), [("asyncio", 1), ("asyncio", 8), ("uvloop", 8)]
)
LANES = pytest.mark.parametrize("concurrency", [1, 8])
FUNCTIONS: list[Any] = [around.told, around.told_later]
STAGES = ["call", "enter", "exit"]
FAILING = "tests.helpers.around:Failing"


def pool_with(hook: Any, kind: Any = "asyncio", concurrency: int = 1) -> Pool:
    return Pool(
        1,
        around=hook,
        worker_loop=kind,
        concurrency=concurrency,
        restart_policy=RestartPolicy(max_failed_starts=1),
    )


def around_of(end: str, *job: Any) -> list[Any]:
    """Return what the hook notes of a job that ends like that."""
    return [("enter", *job), ("exit", *job, end)]


# Around what.


@KINDS
async def test_it_is_entered_around_each_job(kind: Any, concurrency: int) -> None:
    pool = pool_with(around.noting, kind, concurrency)
    async with patience(), Gate() as gate, pool:
        assert await pool.submit(around.told) == (1, 1, "told")
        assert await pool.submit(around.told_later) == (2, 1, "told_later")
        for function in (around.fail, around.fail_later):
            with pytest.raises(KeyError, match="job"):
                await pool.submit(function)
        with pytest.raises(JobRaisedError, match="SystemExit"):
            await pool.submit(jobs.leave)
        twice = pool.options(max_attempts=2, retry_on=[KeyError])
        with pytest.raises(KeyError):
            await twice.submit(around.fail)
        assert await pool.submit(around.seen) == [
            *around_of("returned", 1, 1, "told"),
            *around_of("returned", 2, 1, "told_later"),
            *around_of("KeyError", 3, 1, "fail"),
            *around_of("KeyError", 4, 1, "fail_later"),
            *around_of("SystemExit", 5, 1, "leave"),
            *around_of("KeyError", 6, 1, "fail"),
            *around_of("KeyError", 6, 2, "fail"),
        ]
        sources: list[Any] = [around.each, around.each_later]
        for number, source in ((8, sources[0]), (10, sources[1])):
            me = (number, 1, source.__name__)
            assert [item async for item in pool.stream(source, 3)] == [me] * 3
            assert await pool.submit(around.seen) == around_of("returned", *me)
        waits: list[Any] = [jobs.wait_at, around.wait_at_later]
        for nth, function in enumerate(waits, 1):
            job = pool.submit(function, gate.path)
            visitor = await gate.visitor(nth=nth)
            job.cancel()
            await visitor.gone()
            assert await pool.submit(around.seen) == around_of(
                "JobCancelled", job.id, 1, function.__name__
            )
        for mapped in (around.fail_odd, around.fail_odd_later):
            await assert_around_items(pool, mapped)


async def assert_around_items(pool: Pool, function: Any) -> None:
    """Check that the hook is around each item, and that its frames are not shown."""
    items = pool.map(function, range(4), chunksize=4).outcomes()
    errors = [one.error async for one in items]
    assert [*map(repr, errors)] == ["None", "KeyError(1)", "None", "KeyError(3)"]
    assert errors[1] is not None
    remote = errors[1].__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "asyncpool/_worker" not in remote.text
    assert "in fail_odd" in remote.text
    notes = await pool.submit(around.seen)
    assert {note[3] for note in notes} == {function.__name__}
    ends = sorted(note[4] for note in notes if note[0] == "exit")
    assert ends == ["KeyError", "KeyError", "returned", "returned"]
    assert len(notes) == 8


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
async def test_neighbours_do_not_see_what_it_sets(kind: Any) -> None:
    async with patience(), pool_with(around.noting, kind, 8) as pool:
        found = [pool.submit(around.told_later) for _ in range(40)]
        assert await asyncio.gather(*found) == [
            (number, 1, "told_later") for number in range(1, 41)
        ]


@LANES
async def test_it_is_around_calls_of_sessions_and_broadcasts(concurrency: int) -> None:
    async with patience(), pool_with(around.noting, "asyncio", concurrency) as pool:
        async with pool.worker() as worker:
            assert await worker.submit(around.told) == (1, 1, "told")
            notes = await worker.submit(around.seen)
            assert notes == around_of("returned", 1, 1, "told")
        await pool.broadcast(around.told)
        notes = await pool.submit(around.seen)
        assert [note[3:] for note in notes] == [("told",), ("told", "returned")]
        await kill_worker(pool)
        # The new worker has run the broadcast too.
        assert await pool.submit(around.seen) == around_of("returned", 0, 1, "told")


# The name of the function.


@pytest.mark.parametrize("hook", [None, around.nothing])
@LANES
async def test_a_job_knows_the_name_of_its_function(
    hook: Any, concurrency: int
) -> None:
    name = "tests.helpers.around.name"
    async with patience(), pool_with(hook, "asyncio", concurrency) as pool:
        for _ in range(2):  # the second time the worker knows the function
            assert await pool.submit(around.name) == name
        assert (await pool.submit(lambda: around.name() + "")).endswith("<lambda>")
        assert (
            await pool.map(around.named, range(2), chunksize=2)
            == ["tests.helpers.around.named"] * 2
        )


# What it must not do.


@LANES
async def test_it_suppresses_no_exception(concurrency: int) -> None:
    async with patience(), pool_with(around.Silent, "asyncio", concurrency) as pool:
        for function in (around.fail, around.fail_later):
            with pytest.raises(KeyError, match="job"):
                await pool.submit(function)
            with pytest.raises(KeyError, match="job"):
                await pool.map(function, range(2))
        assert await pool.submit(jobs.square, 3) == 9


@KINDS
async def test_its_error_costs_the_job_and_not_the_worker(
    kind: Any, concurrency: int
) -> None:
    errors = ValueError("no"), SystemExit(3), BaseException("x")
    async with patience(), pool_with(FAILING, kind, concurrency) as pool:
        pid = await pool.submit(jobs.pid)
        for function, error, stage in itertools.product(FUNCTIONS, errors, STAGES):
            with case(function, error, stage):
                await pool.submit(around.give, **{stage: error})
                job = pool.submit(function)
                with pytest.raises(HookError) as caught:
                    await job
                assert_told(caught.value, job, function, error, stage)
                assert await pool.submit(jobs.pid) == pid
        # One item of a map.
        for function in (around.same, around.same_later):
            for stage in ("enter", "exit"):
                await pool.submit(around.give, **{stage: ValueError("no")})
                items = pool.map(function, range(3), chunksize=3).outcomes()
                found = [one.error async for one in items]
                assert isinstance(found[0], HookError)
                assert (found[0].stage, found[1:]) == (stage, [None, None])
        # A job that has failed keeps its own.
        text = f"The hook {FAILING} failed too: ValueError: no"
        for function in (around.fail, around.fail_later):
            await pool.submit(around.give, exit=ValueError("no"))
            with pytest.raises(KeyError) as failed:
                await pool.submit(function)
            assert failed.value.__notes__ == [text]
            assert await pool.submit(around.told) == around.NOBODY
        await pool.submit(around.give, enter=ValueError("no"))
        again = pool.options(max_attempts=2, retry_on=[HookError])
        job = again.submit(jobs.square, 3)
        assert (await job, job.attempt) == (9, 2)
        assert pool.stats().crashes == 0


def assert_told(
    found: HookError, job: Job[Any], function: Any, error: BaseException, stage: str
) -> None:
    name = f"tests.helpers.around.{function.__name__}"
    when = f"before job {job.id} ({name}) had begun"
    if stage == "exit":
        when = f"after job {job.id} ({name}) had returned"
    assert str(found) == f"the hook {FAILING} failed {when}: {error!r}"
    assert found.hook == FAILING
    assert found.stage == ("exit" if stage == "exit" else "enter")
    assert (found.job_id, found.attempt, found.function) == (job.id, 1, name)
    assert found.__cause__ is found.exception
    assert repr(found.exception) == repr(error)
    remote = found.exception.__cause__
    assert isinstance(remote, RemoteTraceback)
    assert "in _obey" in remote.text


async def test_what_it_returns_must_be_a_context_manager() -> None:
    async with patience(), pool_with(around.asynchronous) as pool:
        with pytest.raises(
            HookError, match=r"asynchronous failed .* which is no context manager"
        ) as caught:
            await pool.submit(jobs.square, 3)
        assert isinstance(caught.value.exception, TypeError)
    async with patience(), pool_with(around.sleepless) as pool:
        with pytest.raises(HookError, match="generator didn't yield"):
            await pool.submit(jobs.square, 3)


# When the job is to end.


@LANES
async def test_a_hook_that_hangs_ends_with_the_time_of_its_job(
    concurrency: int,
) -> None:
    async with patience(), pool_with(FAILING, "asyncio", concurrency) as pool:
        for function, stage in itertools.product(FUNCTIONS, STAGES):
            with case(function, stage):
                await _hang_and_end(pool, function, stage, concurrency)


async def _hang_and_end(
    pool: Pool, function: Any, stage: str, concurrency: int
) -> None:
    async with Gate() as gate:
        pid = await pool.submit(jobs.pid)
        await pool.submit(around.give, **{stage: gate.path})
        limited = pool.options(timeout=0.2, cancel_grace=0.2)
        with pytest.raises(JobTimeoutError, match="ran longer than its timeout"):
            await limited.submit(function)
        assert gate.visits(stage) == 1
        assert await pool.submit(jobs.square, 3) == 9
        # With lanes, an async function's end is a step of the loop, which nothing interrupts.
        killed = concurrency > 1 and stage == "exit" and function is around.told_later
        assert (await pool.submit(jobs.pid) != pid) is killed


@LANES
async def test_a_cancelled_job_leaves_its_worker_in_order(concurrency: int) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_with(FAILING, "asyncio", concurrency) as pool,
    ):
        for stage in ("enter", "exit"):
            await pool.submit(around.give, **{stage: gate.path})
            job = pool.submit(around.told)
            visitor = await gate.visitor(stage)
            job.cancel()
            await visitor.gone()
            assert await pool.submit(around.seen) == [("cancelled", stage)]
            assert pool.stats().crashes == 0
            await assert_serves(pool)


@LANES
async def test_it_does_not_exit_in_a_copy_of_the_worker(concurrency: int) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_with(FAILING, "asyncio", concurrency) as pool,
    ):
        for nth, function in ((1, around.fork), (2, around.fork_later)):
            await pool.submit(around.give, exit=gate.path)
            job = pool.submit(function)
            visitor = await gate.visitor("exit", nth)
            visitor.release()
            assert visitor.pid == await pool.submit(jobs.pid)
            assert await job
            assert gate.visits("exit") == nth


# What cannot be a hook.


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (
            "no_such_module:hook",
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "tests.helpers.around:no.such",
            "AttributeError: module 'tests.helpers.around'",
        ),
        ("tests.helpers.around:NO_FUNCTION", "TypeError: .* is no function: 3"),
    ],
)
async def test_a_start_fails_that_does_not_find_it(hook: str, text: str) -> None:
    async with patience():
        with pytest.raises(
            PoolBrokenError, match=f"import of the hook {hook} failed: {text}"
        ):
            await pool_with(hook).start()
