"""A worker cannot say that it has begun a cancelled job, since that job lets no thread run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from asyncpool import Pool
from asyncpool.events import Exited
from tests.helpers import faults, jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import stop

pytestmark = BOTH_LOOPS

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
