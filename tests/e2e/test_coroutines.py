"""Async functions: they run in an event loop of the worker's."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, Pool
from asyncpool.errors import JobRaisedError, JobTimeoutError, PoolBrokenError
from tests.helpers import jobs, streams
from tests.helpers.gate import Gate
from tests.helpers.inside import run_out
from tests.helpers.loops import EACH_LOOP
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves

pytestmark = ONE_LOOP

KINDS = pytest.mark.parametrize("kind", EACH_LOOP)
LANES = pytest.mark.parametrize("concurrency", [1, 3])


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_what_they_return_is_awaited(launcher: Any) -> None:
    async def closure(number: int) -> int:
        await asyncio.sleep(0)
        return number + offset

    offset = 5
    async with patience(), Pool(1, launcher=launcher) as pool:
        assert await pool.submit(streams.double, 21) == 42
        assert await pool.submit(closure, 2) == 7
        assert await pool.submit(jobs.square, 3) == 9


async def test_a_loop_that_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        ValueError, match=r"pip install 'asyncpool-supervised\[uvloop\]'"
    ):
        Pool(1, worker_loop="uvloop")
    with pytest.raises(ValueError, match="loop must be one of asyncio, uvloop"):
        Pool(1, worker_loop="trio")  # type: ignore[arg-type]


@LANES
@KINDS
async def test_what_an_async_initializer_opens_serves_all_jobs(
    kind: Any, concurrency: int
) -> None:
    setup = {"worker_loop": kind, "initializer": streams.open_session}
    async with patience(), Pool(1, concurrency=concurrency, **setup) as pool:
        found = [pool.submit(streams.session_is_of_this_loop) for _ in range(6)]
        assert await asyncio.gather(*found) == [True] * 6


async def test_an_async_initializer_that_fails_is_a_failed_start() -> None:
    with pytest.raises(PoolBrokenError, match="initializer failed: OSError: no"):
        async with (
            patience(),
            Pool(1, initializer=streams.fail_in_depth, initargs=(OSError("no"),)),
        ):
            pass


ENDS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]


@LANES
@KINDS
async def test_all_run_in_one_loop_and_end_alone(kind: Any, concurrency: int) -> None:
    pool = Pool(1, worker_loop=kind, concurrency=concurrency)
    async with patience(), Gate() as gate, pool:
        worker = await pool.submit(jobs.pid)
        found = [await pool.submit(streams.loop_kind) for _ in range(3)]
        assert {name for name, _ in found} == {kind}
        assert len({number for _, number in found}) == 1
        knows = pool.submit(streams.job_in_task)
        assert await knows == (knows.id, 1)
        with pytest.raises(KeyError) as caught:
            await pool.submit(streams.fail_in_depth, KeyError("deep"))
        remote = str(caught.value.__cause__)
        assert "in fail_in_depth" in remote
        assert "in _fail" in remote
        for name in ("_worker", "asyncio", "uvloop"):
            assert name not in remote
        for error in ENDS:
            with pytest.raises(JobRaisedError) as raised:
                await pool.submit(streams.fail_in_depth, error)
            assert type(raised.value.exception) is type(error)
        job = pool.submit(streams.wait_for_ever, gate.path)
        await gate.visitor("waiting")
        job.cancel()
        await gate.visitor("left")
        with pytest.raises(JobTimeoutError) as late:
            await pool.options(timeout=2.0).submit(streams.wait_for_ever, gate.path)
        stack = late.value.stack or ""
        assert "Coroutine of the job" in stack
        assert stack.index("in _event") < stack.index("in wait_for_ever")
        assert "_worker" not in stack
        await gate.visitor("left", nth=2)
        assert await pool.submit(streams.double, 4) == 8
        assert await pool.submit(jobs.pid) == worker
        view = pool.options(timeout=3600.0, cancel_grace=0.1)
        blocks: Job[Any] = view.submit(streams.block_for_ever, gate.path)
        await gate.visitor("blocking")
        run_out(pool, blocks)
        with pytest.raises(JobTimeoutError) as blocked:
            await blocks
        assert "in block_for_ever" in (blocked.value.stack or "")
        assert await pool.submit(jobs.pid) != worker


async def test_one_that_is_cancelled_before_its_first_step_never_begins(
    pool: Pool, gate: Gate
) -> None:
    for _ in range(20):
        job = pool.submit(streams.wait_for_ever, gate.path)
        await asyncio.sleep(0)
        job.cancel()
        assert await pool.submit(streams.double, 4) == 8
    assert pool.stats().crashes == 0


@pytest.mark.logs("job-blocked-loop")
async def test_one_that_holds_up_its_loop_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Pool(1) as pool:
        with caplog.at_level(logging.WARNING):
            job = pool.submit(streams.block_once, 0.15)
            assert await job == "done"
            assert await pool.submit(streams.block_once, 0.0) == "done"
        await assert_serves(pool)
    [record] = [one for one in caplog.records if one.name == "asyncpool.job"]
    text = record.getMessage()
    assert text.startswith(f"job {job.id} ran for ")
    assert "blocked, or the worker had to wait for a CPU: submit code that" in text
    assert "in block_once, before line" in text
    assert streams.__file__ in text
    assert vars(record)["job_id"] == job.id


async def test_beats_go_on_and_a_wish_to_end_is_heard(pool: Pool, gate: Gate) -> None:
    job = pool.options(heartbeat_timeout=5).submit(
        streams.beat_until_cancelled, gate.path
    )
    await gate.visitor("beating")
    seen = []
    async for details in job.progress():
        seen.append(details)
        if len(seen) == 3:
            break
    assert seen == sorted(set(seen))
    job.cancel()
    await assert_serves(pool)
    assert pool.stats().crashes == 0


async def test_what_it_leaves_behind_ends_with_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "ended"
    async with patience():
        async with Pool(1) as pool:
            assert await pool.submit(streams.outlive, os.fspath(path)) == "returned"
            assert await pool.submit(streams.double, 1) == 2
            assert not path.exists()
        assert path.read_text() == "1\n"


async def test_maps_await_each_item(pair: Pool) -> None:
    assert await pair.starmap(streams.double, [(1,), (2,)]) == [2, 4]
    for chunk in (1, 7, None):
        found = await pair.map(streams.double, range(200), chunksize=chunk)
        assert found == [n * 2 for n in range(200)]
        outcomes = await pair.map(
            streams.perhaps_fail, range(30), chunksize=chunk
        ).outcomes()
        assert [one.index for one in outcomes if not one.ok] == [7, 17, 27]
        assert [one.result() for one in outcomes if one.ok] == [
            n for n in range(30) if n % 10 != 7
        ]


async def test_who_leaves_an_async_map_ends_the_items_that_travel_together(
    pool: Pool, gate: Gate
) -> None:
    items = [(gate.path, n) for n in range(5, 9)]
    found = pool.map(streams.perhaps_wait_for_ever, items, chunksize=4)
    task = asyncio.ensure_future(anext(found))
    await gate.visitor("waiting")
    task.cancel()
    await gate.visitor("left")
    await assert_serves(pool)
    again = [(gate.path, n) for n in range(16, 19)]
    found = pool.map(streams.perhaps_wait_for_ever, again, chunksize=3)
    assert await found == [16, 17, 18]
    await gate.visitor("passed 18")
    assert not any(gate.visits(f"passed {n}") for n in range(5, 9))


async def test_items_of_an_async_map_have_a_timeout_each(
    pool: Pool, gate: Gate
) -> None:
    view = pool.options(timeout=1.0)
    outcomes = await view.map(
        streams.perhaps_wait_for_ever, [(gate.path, n) for n in range(12)], chunksize=4
    ).outcomes()
    assert [one.index for one in outcomes if not one.ok] == [5]
    assert isinstance(outcomes[5].error, JobTimeoutError)
    assert [one.result() for one in outcomes if one.ok] == [
        n for n in range(12) if n != 5
    ]
