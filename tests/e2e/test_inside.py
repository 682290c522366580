"""What jobs find out about themselves, and what they find around them."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from asyncpool import Pool, WorkerCrashedError
from tests.helpers import jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

# The clock of a loop may be coarser than that of jobs.
_TICK = 0.01


async def test_a_job_knows_until_when_it_may_run() -> None:
    async with patience(), Pool(1) as pool:
        assert await pool.submit(jobs.limits) == (None, None)
        before = monotonic()
        end, left = await pool.options(timeout=1000).submit(jobs.limits)
        assert end is not None
        assert left is not None
        assert before + 1000 <= end <= monotonic() + 1000
        assert left <= 1000
        deadline = asyncio.get_running_loop().time() + 500
        view = pool.options(timeout=1000, deadline=deadline)
        assert (await view.submit(jobs.limits))[0] == deadline
        assert await pool.submit(jobs.limits) == (None, None)


async def test_the_clock_of_a_deadline_is_the_one_of_jobs() -> None:
    async with patience(), Pool(1) as pool:
        deadline = asyncio.get_running_loop().time() + 500
        _, left = await pool.options(deadline=deadline).submit(jobs.limits)
        assert left is not None
        assert 500 - 20 < left <= 500 + _TICK


async def test_jobs_of_many_kinds_find_their_own_limits() -> None:
    async with patience(), Pool(1) as pool:
        now = asyncio.get_running_loop().time()
        ends = [None, now + 1000, None, now + 1000, now + 2000, now + 2000] * 50
        found = await asyncio.gather(
            *(pool.options(deadline=end).submit(jobs.limits) for end in ends)
        )
        assert [end for end, _ in found] == ends


async def test_a_new_worker_begins_with_the_plain_context() -> None:
    async with patience(), Pool(1) as pool:
        view = pool.options(timeout=1000)
        end, _ = await view.submit(jobs.limits)
        assert end is not None
        with pytest.raises(WorkerCrashedError):
            await view.submit(jobs.perhaps_die, 1, how="kill")
        assert await pool.submit(jobs.limits) == (None, None)
        end, _ = await view.submit(jobs.limits)
        assert end is not None
