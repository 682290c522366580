"""What comes of a broadcast that a client has asked for: the agent reads no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncpool._core.remote_wire.own_objects import kind_of
from asyncpool._core.remote_wire.remote_messages import load_parts, pack_parts
from asyncpool._runtime.remote.agent_errors import AgentErrors, pack_error
from asyncpool.errors import BroadcastError, ProtocolError

# The first slot of an agent, and what it has answered.
Answer = tuple[int, object]


def pack_results(results: dict[int, Any]) -> dict[int, bytes]:
    """Return the results of workers, by slot, as an answer has them."""
    return {slot: pack_parts(value) for slot, value in results.items()}


def pack_failure(error: BroadcastError) -> tuple[Any, Any]:
    """Return the results and the errors of a broadcast that has failed in some workers."""
    errors = {slot: pack_error(one) for slot, one in error.errors.items()}
    return pack_results(error.results), errors


def read_broadcast(
    answers: list[Answer], errors: AgentErrors, pause: Callable[[], None] | None = None
) -> dict[int, Any]:
    """Return the result of each worker, by slot.

    Args:
        answers: Those of the agents.
        errors: Reads the errors of the calls.
        pause: Called now and then.

    Raises:
        BroadcastError: If some of the calls have failed.
        ProtocolError: If an answer is none.
    """
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for first, answer in answers:
        match answer:
            case (dict() as results, dict() as found):
                for slot, it in results.items():
                    value = errors.serializer.load_value(load_parts(it), pause)
                    values[first + slot] = value
                for slot, it in found.items():
                    failed[first + slot] = errors.read(it, first, pause)
            case _:
                raise ProtocolError(
                    f"an agent answered a broadcast by {kind_of(answer)}"
                )
    if not failed:
        return values
    raise BroadcastError(errors.name, results=values, errors=failed)
