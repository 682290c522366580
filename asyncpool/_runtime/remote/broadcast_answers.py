"""What comes of a broadcast that a client has asked for: the agent reads no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asyncpool._core.pickling.serializers import Serializer
from asyncpool._core.policies.job_options import JobLimits
from asyncpool._core.remote.own_objects import kind_of
from asyncpool._core.remote.remote_messages import load_parts, pack_parts
from asyncpool._runtime.remote.packed_calls import PackedError
from asyncpool.enums import TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobTimeoutError,
    ProtocolError,
    WorkerCrashedError,
)

# The first slot of an agent, and what it has answered.
Answer = tuple[int, object]


def pack_results(results: dict[int, Any]) -> dict[int, bytes]:
    """Return the results of workers, by slot, as an answer has them."""
    return {slot: pack_parts(value) for slot, value in results.items()}


def pack_failure(error: BroadcastError) -> tuple[Any, Any]:
    """Return the results and the errors of a broadcast that has failed in some workers."""
    errors = {
        slot: one.payload if isinstance(one, PackedError) else one
        for slot, one in error.errors.items()
    }
    return pack_results(error.results), errors


def read_broadcast(
    answers: list[Answer],
    name: str,
    limits: JobLimits,
    serializer: Serializer,
    next_id: Callable[[], int],
) -> dict[int, Any]:
    """Return the result of each worker, by slot.

    Args:
        answers: Those of the agents.
        name: The function, as errors call it.
        limits: Those of each call.
        serializer: Loads the results.
        next_id: Returns the number of a job of the client.  Agents have numbers of their own.

    Raises:
        BroadcastError: If some of the calls have failed.
        ProtocolError: If an answer is none.
    """
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for first, answer in answers:
        match answer:
            case (dict() as results, dict() as errors):
                for slot, it in results.items():
                    values[first + slot] = _value(serializer, it)
                for slot, it in errors.items():
                    error = _error(serializer, it)
                    failed[first + slot] = _as_own(error, limits, next_id, first)
            case _:
                raise ProtocolError(
                    f"an agent answered a broadcast by {kind_of(answer)}"
                )
    if not failed:
        return values
    raise BroadcastError(name, results=values, errors=failed)


def _value(serializer: Serializer, packed: bytes) -> Any:
    return serializer.load_value(load_parts(packed))


def _error(serializer: Serializer, found: object) -> BaseException:
    if isinstance(found, bytes):
        return serializer.load_error(found)
    if isinstance(found, AsyncPoolError):
        return found
    raise ProtocolError(f"an agent sent {kind_of(found)} as an error")


def _as_own(
    error: BaseException, limits: JobLimits, next_id: Callable[[], int], first: int
) -> BaseException:
    """Return the error of a call as the client knows it."""
    if isinstance(error, JobTimeoutError):
        return _late(limits, error, next_id())
    if isinstance(error, WorkerCrashedError):
        return _crashed(error, next_id(), first)
    return error


def _late(limits: JobLimits, found: JobTimeoutError, job: int) -> JobTimeoutError:
    """Return the error with the limit as it was set here: the agent knows a deadline by its clock."""
    limit: object = found.limit  # as the agent says
    seconds = getattr(limits, limit) if isinstance(limit, TimeLimit) else None
    if seconds is None:
        raise ProtocolError("an agent sent a time limit that was not set")
    return JobTimeoutError(
        job_id=job,
        attempt=found.attempt,
        limit=found.limit,
        seconds=seconds,
        stack=found.stack,
        function=found.function,
    )


def _crashed(found: WorkerCrashedError, job: int, first: int) -> WorkerCrashedError:
    """Return the error with the numbers that the job and the slot have here."""
    crashes = tuple(
        replace(
            crash,
            slot=first + crash.slot,
            job_id=job if crash.job_id == found.job_id else None,
            concurrent_jobs=(),
        )
        for crash in found.crashes
    )
    return type(found)(
        job_id=job, crashes=crashes, delivery=found.delivery, function=found.function
    )
