"""What jobs find out about themselves, and what they find around them."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import Any, Literal

import pytest

from asyncpool import JobNotPicklableError, Pool, WorkerCrashedError
from tests.helpers import jobs, tracing
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience

pytestmark = ONE_LOOP

# The clock of a loop may be coarser than that of jobs.
_TICK = 0.01


async def test_a_job_knows_until_when_it_may_run(pool: Pool) -> None:
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


async def test_the_clock_of_a_deadline_is_the_one_of_jobs(pool: Pool) -> None:
    deadline = asyncio.get_running_loop().time() + 500
    _, left = await pool.options(deadline=deadline).submit(jobs.limits)
    assert left is not None
    assert 500 - 20 < left <= 500 + _TICK


async def test_jobs_of_many_kinds_find_their_own_limits(pool: Pool) -> None:
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


async def test_variables_are_as_the_submitter_had_them() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:

        async def ask(number: int) -> tuple[Any, Any]:
            tracing.request.set({"number": number})
            tracing.tenant.set("stays at home")
            return await pool.submit(tracing.found)

        assert await pool.submit(tracing.found) == ("unset", "nobody")
        found = await asyncio.gather(*(asyncio.create_task(ask(n)) for n in range(200)))
        assert found == [({"number": n}, "nobody") for n in range(200)]
        assert await pool.submit(tracing.found) == ("unset", "nobody")


async def test_what_a_job_sets_is_not_for_the_next_one() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        token = tracing.request.set(["home"])
        try:
            for _ in range(3):
                found = await pool.submit(tracing.found_and_changed, "there")
                assert found == (["home"], "nobody")
        finally:
            tracing.request.reset(token)
        assert await pool.submit(tracing.found) == ("unset", "nobody")


async def test_a_takeover_keeps_the_variables() -> None:
    pool = Pool(1, propagate=[tracing.request])
    async with patience(), Gate() as gate, pool:
        token = tracing.request.set("mine")
        job = pool.options(max_attempts=2).submit(
            tracing.found_in_every_attempt, gate.path
        )
        tracing.request.reset(token)
        (await gate.visitor("attempt 1")).release("die")
        visitor = await gate.visitor("attempt 2")
        other = pool.submit(tracing.found)
        visitor.release("live")
        assert await job == ("mine", "nobody")
        assert await other == ("unset", "nobody")


async def test_a_variable_that_cannot_be_pickled_fails_its_job_alone() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        token = tracing.request.set(threading.Lock())
        job = pool.submit(tracing.found)
        tracing.request.reset(token)
        with pytest.raises(JobNotPicklableError) as caught:
            await job
        error = caught.value
        assert (error.direction, error.name, error.job_id) == (
            "arguments",
            "tests.helpers.tracing:request",
            job.id,
        )
        assert await pool.submit(tracing.found) == ("unset", "nobody")


async def test_a_variable_that_cannot_be_unpickled_fails_its_job_alone() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        token = tracing.request.set(tracing.Explosive())
        job = pool.submit(tracing.found)
        tracing.request.reset(token)
        with pytest.raises(LookupError, match="there"):
            await job
        assert await pool.submit(tracing.found) == ("unset", "nobody")
        assert (pool.stats().crashes, pool.stats().spawned) == (0, 1)


async def test_a_lambda_is_a_value_too() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        token = tracing.request.set(lambda: 7)
        found, _ = await pool.submit(tracing.found)
        tracing.request.reset(token)
        assert found() == 7


async def test_large_arguments_find_the_variables_too() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        token = tracing.request.set("mine")
        job = pool.submit(jobs.call, tracing.after, bytes(1 << 20))
        tracing.request.reset(token)
        assert await job == ("mine", "nobody")
        assert await pool.submit(tracing.found) == ("unset", "nobody")


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_each_worker_has_a_state_of_its_own(
    launcher: Literal["forkserver", "spawn"],
) -> None:
    pool = Pool(1, initializer=jobs.fill_state, launcher=launcher)
    async with patience(), pool:
        assert [await pool.submit(jobs.count_state) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(WorkerCrashedError):
            await pool.submit(jobs.perhaps_die, 1, how="kill")
        assert await pool.submit(jobs.count_state) == 1
