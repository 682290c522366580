"""What a job uses of the pool, and what of that its caller sees: heartbeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, assert_type

import asyncpool
from asyncpool import CurrentJob, Job


def accepted() -> None:
    job = asyncpool.current_job()
    assert_type(job, CurrentJob)
    assert_type(job.id, int)
    assert_type(job.attempt, int)
    assert_type(job.deadline, float | None)
    assert_type(job.last_details, Any)
    job.logger.warning("attempt %d", job.attempt)
    assert_type(asyncpool.heartbeat(), None)
    asyncpool.heartbeat({"page": 3})
    asyncpool.heartbeat(details=3)
    assert_type(asyncpool.retire_worker(), None)
    assert_type(asyncpool.worker_state(), SimpleNamespace)
    asyncpool.worker_state().model = 3
    assert_type(asyncpool.in_worker(), bool)


async def seen_from_outside(job: Job[int]) -> None:
    async for details in job.progress():
        assert_type(details, Any)


async def rejected(job: Job[int], current: CurrentJob) -> None:
    asyncpool.heartbeat(1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    asyncpool.retire_worker(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    current.attempt = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    print(current.deadline + 1)  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand]
    print(asyncpool.current_job.id)  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    for details in job.progress():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(details)
    await job.progress()  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
