"""What comes of a broadcast that a client has asked for: the agent reads no result."""

from __future__ import annotations

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
)


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
    answers: list[tuple[int, object]],
    name: str,
    limits: JobLimits,
    serializer: Serializer,
) -> dict[int, Any]:
    """Return the result of each worker, by slot, of several agents, each with its first slot.

    Raises:
        BroadcastError: If some of them have failed.
        ProtocolError: If the answer is none.
    """
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for first, answer in answers:
        match answer:
            case (dict() as results, dict() as errors):
                for slot, it in results.items():
                    values[first + slot] = _value(serializer, it)
                for slot, it in errors.items():
                    failed[first + slot] = _error(serializer, limits, it)
            case _:
                raise ProtocolError(
                    f"an agent answered a broadcast by {kind_of(answer)}"
                )
    if not failed:
        return values
    raise BroadcastError(name, results=values, errors=failed)


def _value(serializer: Serializer, packed: bytes) -> Any:
    return serializer.load_value(load_parts(packed))


def _error(serializer: Serializer, limits: JobLimits, found: object) -> BaseException:
    if isinstance(found, bytes):
        return serializer.load_error(found)
    if isinstance(found, JobTimeoutError):
        return _late(limits, found)
    if isinstance(found, AsyncPoolError):
        return found
    raise ProtocolError(f"an agent sent {kind_of(found)} as an error")


def _late(limits: JobLimits, found: JobTimeoutError) -> JobTimeoutError:
    """Return the error with the limit as it was set here: the agent knows a deadline by its clock."""
    limit: object = found.limit  # as the agent says
    seconds = getattr(limits, limit) if isinstance(limit, TimeLimit) else None
    if seconds is None:
        raise ProtocolError("an agent sent a time limit that was not set")
    return JobTimeoutError(
        job_id=found.job_id,
        attempt=found.attempt,
        limit=found.limit,
        seconds=seconds,
        stack=found.stack,
        function=found.function,
    )
