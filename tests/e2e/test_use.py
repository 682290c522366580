"""How a pool is used, and what it says to use in the wrong place."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from asyncpool import CloseSummary, Job, Pool, PoolClosedError
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import attempt_policy_of
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves

pytestmark = ONE_LOOP


async def test_what_is_no_function_is_refused(pool: Pool) -> None:
    with pytest.raises(TypeError, match=r"submit\(\) takes a callable first, not 3"):
        pool.submit(3)  # type: ignore[call-overload]
    assert await pool.submit(jobs.square, 3) == 9


async def test_a_command_is_a_job_as_others_are() -> None:
    run = subprocess.run
    async with patience(), Gate() as gate, Pool(1, on_cancel="kill") as pool:
        done = await pool.submit(run, ["echo", "hi"], capture_output=True, check=True)
        assert done.stdout == b"hi\n"
        with pytest.raises(subprocess.CalledProcessError):
            await pool.submit(run, ["false"], check=True)
        # A shell that starts another process, which would outlive it.
        python = (
            f"import sys; sys.path[:0] = {sys.path!r}; from tests.helpers import jobs"
        )
        code = f"{python}; jobs.wait_at({gate.path!r}, 'started')"
        shell = ["sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", code]
        job = pool.submit(run, shell)
        visitor = await gate.visitor("started")
        job.cancel()
        await visitor.gone()
        await assert_serves(pool)


async def test_options_make_a_view_and_change_nothing(pool: Pool) -> None:
    view = pool.options(max_attempts=3)
    narrow = view.options(retry_on=("hung",))
    policies = [
        attempt_policy_of(each.submit(jobs.square, 2)) for each in (pool, view, narrow)
    ]
    assert await pool.submit(jobs.square, 3) == 9
    assert [(policy.max_attempts, policy.retry_on) for policy in policies] == [
        (1, ("crash", "hung")),
        (3, ("crash", "hung")),
        (3, ("hung",)),
    ]


async def test_a_close_that_names_nothing_known_closes_nothing() -> None:
    wrong: list[Any] = ["later", "", None]
    async with patience(), Pool(1) as pool:
        for finish in wrong:
            text = f"finish must be one of all, running, none, not {finish!r}"
            with pytest.raises(ValueError, match=f"^{text}$"):
                await pool.close(finish=finish)
        with pytest.raises(ValueError, match=r"^timeout must be >= 0 seconds, not -1$"):
            await pool.close(timeout=-1)
        assert await pool.submit(jobs.square, 3) == 9


async def test_a_pool_that_never_started_closes_for_good() -> None:
    pool = Pool(1)
    with pytest.raises(PoolClosedError, match="was not started: use 'async with pool'"):
        pool.submit(jobs.square, 2)
    assert await pool.close() == CloseSummary(finished=0, failed=0, killed=0)
    with pytest.raises(PoolClosedError):
        await pool.start()
    with pytest.raises(PoolClosedError, match=r"^the pool is closed$"):
        pool.submit(jobs.square, 2)


async def test_a_job_from_another_thread_goes_through_the_loop(pool: Pool) -> None:
    loop = asyncio.get_running_loop()

    async def call() -> int:
        return await pool.submit(jobs.square, 4)

    def there() -> int:
        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    assert await asyncio.to_thread(there) == 16


async def test_a_job_tells_where_it_is() -> None:
    async with patience(), Pool(1) as pool:
        job: Job[int] = pool.submit(jobs.square, 3)
        behind = pool.submit(jobs.square, 4)
        assert (job.id, job.state, job.attempt) == (1, "running", 1)
        assert job.worker_pid == pool.stats().slots[0].pid
        assert (behind.id, behind.state, behind.attempt) == (2, "queued", 0)
        assert behind.worker_pid is None
        assert [await job, await behind] == [9, 16]
        assert (job.state, job.attempt, job.worker_pid) == ("done", 1, None)
