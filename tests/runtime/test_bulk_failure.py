"""Tests of asyncpool/_runtime/state/bulk_failure.py."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool._core.pickling.functions import Function
from asyncpool._core.policies.job_limits import JobLimits, JobOptions
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.bulk_failure import BulkFailure
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.state.registry import JobRegistry
from asyncpool.enums import CrashKind
from asyncpool.errors import JobTimeoutError, PoolBrokenError, PoolClosedError
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.owner import Owner

pytestmark = BOTH_LOOPS


class Ending:
    """The jobs of a pool that ends."""

    def __init__(self) -> None:
        self.book = JobRegistry()
        workers = SimpleNamespace(retry_in=lambda now: now - 93.0)
        self.core = SimpleNamespace(broken=None, workers=workers)
        self.tasks: list[asyncio.Task[None]] = []
        self.page = SimpleNamespace(begun=lambda number, _: number == 2)
        outbox = SimpleNamespace(unsent=0, loading=False)
        handle = SimpleNamespace(page=self.page, outbox=outbox)
        state = SimpleNamespace(
            registry=self.book,
            core=self.core,
            crashes=deque([SimpleNamespace(kind=CrashKind.CRASH, stderr_tail=())]),
            loop=SimpleNamespace(time=lambda: 100.0),
            handles={0: handle},
        )
        group = SimpleNamespace(create_task=self.spawn)
        self.failing = BulkFailure(
            cast("PoolState", state), cast("asyncio.TaskGroup", group)
        )

    def spawn(self, coro: Coroutine[Any, Any, None], /, *, name: str) -> object:
        self.tasks.append(asyncio.create_task(coro, name=name))
        return None

    def jobs(self, count: int) -> list[Job[Any]]:
        """Return jobs that are open, and wait no longer than a second."""
        options = JobOptions(limits=JobLimits(queue_timeout=1.0))
        loop, made = asyncio.get_running_loop(), list[Job[Any]]()
        for _ in range(count):
            number = self.book.next_id()
            job: Job[Any] = Job(number, Function(0, b""), options, Owner(), loop)
            self.book.enter(job)
            made.append(job)
        return made


async def test_many_are_failed_some_in_each_turn_as_they_were_known_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncpool._runtime.state.bulk_failure._FAILED_A_TURN", 2)
    ending = Ending()
    jobs = ending.jobs(7)
    ending.core.broken = "first"
    ending.failing.fail(tuple(job.id for job in jobs), "broken")
    ending.core.broken = "second"
    done = [sum(job.done() for job in jobs)]
    jobs[6].cancel()  # in the meantime
    for _ in range(2):
        await asyncio.sleep(0)
        done.append(sum(job.done() for job in jobs[:6]))
    assert done == [2, 4, 6]
    [task] = ending.tasks
    await task
    assert not ending.book.jobs
    assert task.get_name() == "failing what is queued"
    for job in jobs[:6]:
        error = job.exception()
        assert isinstance(error, PoolBrokenError)
        assert (error.reason, error.retry_after) == ("first", 7.0)


async def test_few_need_no_other_turn() -> None:
    ending = Ending()
    [job] = ending.jobs(1)
    ending.failing.fail((job.id,), "late")
    assert not ending.tasks
    error = job.exception()
    assert isinstance(error, JobTimeoutError)
    assert (error.limit, error.seconds) == ("queue_timeout", 1.0)


@pytest.mark.parametrize(
    ("number", "attempt", "delivery"),
    [(1, 1, "sent"), (2, 1, "started"), (1, 2, "started")],
)
async def test_a_pool_that_closes_says_how_far_it_was(
    number: int, attempt: int, delivery: str
) -> None:
    ending = Ending()
    job = ending.jobs(number)[-1]
    job._slot, job.attempt = 0, attempt
    ending.failing.fail((job.id,), "closed")
    error = job.exception()
    assert isinstance(error, PoolClosedError)
    assert (error.job_id, error.delivery) == (number, delivery)
    assert str(error) == f"the pool was closed before job {number} was done"


@pytest.mark.parametrize(("attempt", "delivery"), [(0, "never sent"), (1, "started")])
async def test_so_it_does_of_one_that_is_with_no_worker(
    attempt: int, delivery: str
) -> None:
    ending = Ending()
    [job] = ending.jobs(1)
    job.attempt = attempt
    ending.failing.fail((job.id,), "closed")
    error = job.exception()
    assert isinstance(error, PoolClosedError)
    assert error.delivery == delivery
