"""What jobs find out about themselves, and what they find around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal

import pytest

from asyncpool import Pool
from asyncpool.errors import JobNotPicklableError, WorkerCrashedError
from tests.helpers import jobs, tracing
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience

pytestmark = ONE_LOOP


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
    _, left = await pool.options(deadline=deadline).submit(jobs.limits)
    assert left is not None
    assert 500 - 20 < left <= 500.01  # the clock of a loop may be coarser
    # Jobs of many kinds find their own.
    now = asyncio.get_running_loop().time()
    ends = [None, now + 1000, None, now + 1000, now + 2000, now + 2000] * 50
    views = [pool.options(deadline=end) for end in ends]
    found = await asyncio.gather(*(view.submit(jobs.limits) for view in views))
    assert [end for end, _ in found] == ends
    assert await pool.submit(jobs.limits) == (None, None)


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


@contextmanager
def request_is(value: Any) -> Iterator[None]:
    token = tracing.request.set(value)
    yield
    tracing.request.reset(token)


async def test_what_a_job_sets_is_not_for_the_next_one() -> None:
    async with patience(), Pool(1, propagate=[tracing.request]) as pool:
        with request_is(["home"]):
            for _ in range(3):
                found = await pool.submit(tracing.found_and_changed, "there")
                assert found == (["home"], "nobody")
        with request_is(lambda: 7):
            called, _ = await pool.submit(tracing.found)
        assert called() == 7
        with request_is("mine"):
            large = pool.submit(jobs.call, tracing.after, bytes(1 << 20))
        assert await large == ("mine", "nobody")
        # One that cannot be pickled, or unpickled, fails its job alone.
        with request_is(threading.Lock()):
            job = pool.submit(tracing.found)
        with pytest.raises(JobNotPicklableError) as caught:
            await job
        error = caught.value
        assert (error.direction, error.job_id) == ("arguments", job.id)
        assert error.name == "tests.helpers.tracing:request"
        with request_is(tracing.Explosive()):
            job = pool.submit(tracing.found)
        with pytest.raises(LookupError, match="there"):
            await job
        assert await pool.submit(tracing.found) == ("unset", "nobody")
        assert (pool.stats().crashes, pool.stats().spawned) == (0, 1)


async def test_a_takeover_keeps_the_variables() -> None:
    pool = Pool(1, propagate=[tracing.request])
    async with patience(), Gate() as gate, pool:
        with request_is("mine"):
            job = pool.options(max_attempts=2).submit(
                tracing.found_in_every_attempt, gate.path
            )
        (await gate.visitor("attempt 1")).release("die")
        visitor = await gate.visitor("attempt 2")
        other = pool.submit(tracing.found)
        visitor.release("live")
        assert await job == ("mine", "nobody")
        assert await other == ("unset", "nobody")


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
