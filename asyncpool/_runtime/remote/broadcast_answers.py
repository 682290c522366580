"""What comes of a broadcast that a client has asked for: the agent reads no result."""

from __future__ import annotations

from typing import Any

from asyncpool._core.pickling.serializers import Serializer
from asyncpool._core.remote.remote_messages import load_parts, pack_parts
from asyncpool._runtime.remote.packed_calls import PackedError
from asyncpool.errors import AsyncPoolError, BroadcastError, ProtocolError


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
    answers: list[tuple[int, object]], name: str, serializer: Serializer
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
                    failed[first + slot] = _error(serializer, it)
            case _:
                raise ProtocolError(f"an agent answered a broadcast with {answer!r}")
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
    raise ProtocolError(f"an agent sent {found!r} as an error")
