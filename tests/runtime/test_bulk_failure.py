"""Tests of asyncpool/_runtime/pool/supervisor.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from asyncpool import Crash, RestartPolicy
from asyncpool._core.policies.job_options import JobLimits, JobOptions
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.pool.supervisor import BulkFailure
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import CrashKind, NextStep
from asyncpool.errors import JobTimeoutError, PoolBrokenError, PoolClosedError
from tests.helpers.functions import known_function
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.owner import Owner
from tests.helpers.patience import patience
from tests.runtime.pool_parts import break_starts, parts_of, succeed

pytestmark = BOTH_LOOPS


CRASH = Crash(
    slot=0,
    generation=1,
    pid=4242,
    exit_code=3,
    signal=None,
    kind=CrashKind.CRASH,
    uptime=1.0,
    job_id=None,
    attempt=0,
    detail="",
    stderr_tail=(),
    next_step=NextStep.CLOSE,
)
POLICY = RestartPolicy(initial_delay=100.0, max_delay=100.0, max_failed_starts=1)


class Worker:
    """Of a worker, what it was sent, and that it has begun the second job."""

    def __init__(self) -> None:
        self.page, self.outbox = self, self
        self.taken = 0

    def begun(self, number: int, _: int) -> bool:
        return number == 2


class Ending:
    """The jobs of a pool that ends."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        parts, _ = parts_of(workers=1, restart_policy=POLICY)
        self.state, self.registry = parts.state, parts.state.registry
        self.state.handles[0] = cast("WorkerHandle", Worker())
        self.failing = BulkFailure(self.state, tasks)

    def jobs(self, count: int) -> list[Job[Any]]:
        """Return jobs that are open, and wait no longer than a second."""
        options = JobOptions(limits=JobLimits(queue_timeout=1.0))
        loop, made = asyncio.get_running_loop(), list[Job[Any]]()
        for _ in range(count):
            number = self.registry.next_id()
            job: Job[Any] = Job(number, known_function(), options, Owner(), loop)
            self.registry.enter(job)
            made.append(job)
        return made


@pytest_asyncio.fixture
async def ending() -> AsyncIterator[Ending]:
    async with patience(), asyncio.TaskGroup() as tasks:
        yield Ending(tasks)


def failing() -> list[asyncio.Task[Any]]:
    """Return the tasks that fail jobs."""
    return [
        task
        for task in asyncio.all_tasks()
        if task.get_name() == "asyncpool: fail queued jobs"
    ]


async def test_many_are_failed_some_in_each_turn_as_they_were_known_before(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncpool._runtime.pool.supervisor._FAILED_A_TURN", 2)
    jobs = ending.jobs(7)
    break_starts(ending.state)
    ending.state.crashes.append(CRASH)
    ending.failing.fail(tuple(job.id for job in jobs), "broken")
    succeed(ending.state)
    done = [sum(job.done() for job in jobs)]
    jobs[6].cancel()  # in the meantime
    for _ in range(2):
        await asyncio.sleep(0)
        done.append(sum(job.done() for job in jobs[:6]))
    assert done == [2, 4, 6]
    [task] = failing()
    await task
    assert not ending.registry.jobs
    errors = [job.exception() for job in jobs[:6]]
    told = {
        (type(error), error.reason, error.retry_after)
        for error in errors
        if isinstance(error, PoolBrokenError)
    }
    [(kind, reason, retry_after)] = told
    assert (kind, reason) == (PoolBrokenError, "the start failed")
    assert retry_after is not None
    assert 0 < retry_after <= 100


async def test_few_need_no_other_turn(ending: Ending) -> None:
    [job] = ending.jobs(1)
    ending.failing.fail((job.id,), "expired")
    assert not failing()
    error = job.exception()
    assert isinstance(error, JobTimeoutError)
    assert (error.limit, error.seconds) == ("queue_timeout", 1.0)


@pytest.mark.parametrize(
    ("number", "attempt", "delivery"),
    [(1, 1, "sent"), (2, 1, "started"), (1, 2, "started")],
)
async def test_a_pool_that_closes_says_how_far_it_was(
    ending: Ending, number: int, attempt: int, delivery: str
) -> None:
    job = ending.jobs(number)[-1]
    job._slot, job.attempt, job._frame_end = 0, attempt, 0
    ending.failing.fail((job.id,), "closed")
    error = job.exception()
    assert isinstance(error, PoolClosedError)
    assert (error.job_id, error.delivery) == (number, delivery)
    assert str(error) == f"the pool was closed before job {number} was done"


@pytest.mark.parametrize(("attempt", "delivery"), [(0, "never sent"), (1, "started")])
async def test_so_it_does_of_one_that_is_with_no_worker(
    ending: Ending, attempt: int, delivery: str
) -> None:
    [job] = ending.jobs(1)
    job.attempt = attempt
    ending.failing.fail((job.id,), "closed")
    error = job.exception()
    assert isinstance(error, PoolClosedError)
    assert error.delivery == delivery
