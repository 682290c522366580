"""Errors: what a handler learns from their attributes, and what else it may catch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never, assert_type

import asyncpool
from asyncpool import Crash, Job
from asyncpool.enums import CrashKind, Delivery, TimeLimit


async def accepted(job: Job[int]) -> None:
    try:
        await job
    except asyncpool.errors.JobTimeoutError as error:
        assert_type(error.limit, TimeLimit)
        assert_type(error.seconds, float)
        assert_type(error.stack, str)
    except asyncpool.errors.WorkerCrashedError as error:
        assert_type(error.kind, CrashKind)
        assert_type(error.delivery, Delivery)
        assert_type(error.crashes, tuple[Crash, ...])
        assert_type(error.pid, int | None)
        assert_type(error.exit_code, int | None)
        assert_type(error.signal, str | None)
        assert_type(error.stderr_tail, tuple[str, ...])
    except asyncpool.errors.JobNotPicklableError as error:
        assert_type(
            error.direction, Literal["arguments", "result", "exception", "details"]
        )
        assert_type(error.name, str)
    except asyncpool.errors.JobRaisedError as error:
        assert_type(error.exception, BaseException)
    except asyncpool.errors.JobError as error:
        assert_type(error.job_id, int)
        assert_type(error.attempt, int)
    except asyncpool.errors.PoolClosedError as error:
        assert_type(error.job_id, int | None)
    except asyncpool.errors.PoolFullError as error:
        assert_type((error.waiting, error.max_queued), tuple[int, int])
    except asyncpool.errors.PoolBrokenError as error:
        assert_type(error.retry_after, float | None)
        assert_type(error.reason, str)
    except (
        asyncpool.errors.ProtocolError,
        asyncpool.errors.RollInProgressError,
    ) as error:
        raise RuntimeError from error


def what_they_are_besides(
    late: asyncpool.errors.JobTimeoutError,
    closed: asyncpool.errors.PoolClosedError,
    hung: asyncpool.errors.WorkerHungError,
    start: asyncpool.errors.WorkerStartError,
    memory: asyncpool.errors.WorkerOutOfMemoryError,
    cancelled: asyncpool.errors.JobCancelled,
) -> None:
    timeout: TimeoutError = late
    runtime: RuntimeError = closed
    crashes: Sequence[asyncpool.errors.WorkerCrashedError] = [hung, start, memory]
    ours: Sequence[asyncpool.errors.AsyncPoolError] = [late, closed, hung]
    base: BaseException = cancelled
    print(timeout, runtime, crashes, ours, base)


def every_limit(limit: TimeLimit) -> str:
    match limit:
        case TimeLimit.TIMEOUT | TimeLimit.QUEUE_TIMEOUT:
            return limit
        case TimeLimit.DEADLINE:
            return limit.value
        case _:
            assert_never(limit)


def raised_by_users() -> None:
    raise asyncpool.errors.ThrottledError(
        retry_after=2.0
    ) from asyncpool.errors.LeaseLostError()


def rejected(
    error: asyncpool.errors.AsyncPoolError,
    late: asyncpool.errors.JobTimeoutError,
    cancelled: asyncpool.errors.JobCancelled,
) -> None:
    print(error.job_id)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(late.limit is TimeLimit.TIME)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    mine: Exception = cancelled  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(mine)
    asyncpool.errors.ThrottledError(2.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    asyncpool.errors.PoolFullError(3, 4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    asyncpool.errors.JobTimeoutError("too late")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    print(asyncpool.WorkerCrashed)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
