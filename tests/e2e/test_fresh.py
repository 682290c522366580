"""A worker for each job: nothing of one job is left for the next one."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Pool, WorkerCrashedError, WorkerLimits
from tests.helpers import jobs, streams
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle


@BOTH_LOOPS
async def test_each_job_has_a_worker_that_has_run_nothing() -> None:
    async with patience(), Pool(2, initializer=jobs.fill_state, fresh=True) as pool:
        assert [await pool.submit(jobs.count_state) for _ in range(3)] == [1, 1, 1]
        pids = await asyncio.gather(*(pool.submit(jobs.pid) for _ in range(20)))
        assert len(set(pids)) == 20
        pids = [pid async for pid in pool.map(jobs.pid_for, range(20))]
        assert len(set(pids)) == 20
        # One that fails, one that dies and a stream leave nothing either.
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        assert [n async for n in pool.stream(streams.numbers, 3)] == [0, 1, 2]
        assert await pool.submit(jobs.count_state) == 1
        stats = await idle(pool)
        assert stats.crashes == 1


@pytest.mark.asyncio
async def test_the_calls_of_a_session_share_a_worker_that_no_job_has_had() -> None:
    async with patience(), Pool(1, initializer=jobs.fill_state, fresh=True) as pool:
        async with pool.worker(fresh=False) as worker:
            assert [await worker.submit(jobs.count_state) for _ in "ab"] == [1, 2]
        assert await pool.submit(jobs.count_state) == 1


@pytest.mark.asyncio
async def test_in_a_pool_that_keeps_its_workers_jobs_find_what_others_left() -> None:
    async with patience(), Pool(1, initializer=jobs.fill_state) as pool:
        assert [await pool.submit(jobs.count_state) for _ in "ab"] == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is shared")
@pytest.mark.logs("memory-shared")
@pytest.mark.asyncio
async def test_memory_that_a_preload_has_all_workers_share_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ap_table.py").write_text("import mmap\nTABLE = mmap.mmap(-1, 8192)\n")
    monkeypatch.syspath_prepend(tmp_path)
    quiet: list[dict[str, Any]] = [
        {"preload": ["ap_table"], "fresh": False},
        {"preload": ["ap_table"], "launcher": "spawn"},
        {"preload": ["ctypes", "multiprocessing.sharedctypes"]},
    ]
    for options in ({"preload": ["ap_table"]}, *quiet):
        async with patience(), Pool(1, **{"fresh": True, **options}) as pool:
            assert await pool.submit(jobs.square, 3) == 9
    [told] = [
        it for it in caplog.records if vars(it).get("message_id") == "memory-shared"
    ]
    assert vars(told)["memory"] == "8192 bytes of /dev/zero (deleted) (module ap_table)"


@pytest.mark.asyncio
async def test_items_cannot_share_a_worker() -> None:
    async with patience(), Pool(1, fresh=True) as pool:
        text = "chunksize is 2, and in a pool with fresh=True each item has a worker of its own"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            _ = [item async for item in pool.map(abs, [1, 2], chunksize=2)]
        assert [item async for item in pool.map(abs, [1, -2], chunksize=1)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"fresh": 1}, TypeError, "fresh must be True or False, not 1"),
        (
            {"fresh": True, "concurrency": 2},
            ValueError,
            "fresh gives each job a worker of its own, and concurrency is 2",
        ),
        (
            {"fresh": True, "worker_limits": WorkerLimits(max_jobs=3)},
            ValueError,
            "fresh gives each job a worker of its own, and max_jobs of worker_limits is 3",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        Pool(1, **options)
    # That is what it means anyway.
    Pool(1, fresh=True, worker_limits=WorkerLimits(max_jobs=1))
