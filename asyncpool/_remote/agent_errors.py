"""Errors of calls that have no job at the client: those of broadcasts.

The agent does not read what a function has raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asyncpool._core.options import JobOptions
from asyncpool._engine.job import attribute_by_number
from asyncpool._remote.client_jobs import crash_at_client
from asyncpool._remote.messages import load_parts, pack_parts
from asyncpool._remote.objects import kind_of
from asyncpool._remote.stored_calls import PackedError
from asyncpool._wire.pickling import Serializer
from asyncpool.enums import TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobError,
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


def pack_error(error: BaseException) -> bytes | BaseException:
    """Return what an answer has of an error."""
    return error.payload if isinstance(error, PackedError) else error


class AgentErrors(NamedTuple):
    """Reads such errors.

    Attributes:
        name: The function, as errors call it.
        options: Those of the calls.
        serializer: Loads what was raised.
        next_id: Returns the number of a job of the client.  Agents have numbers of their own.
    """

    name: str
    options: JobOptions
    serializer: Serializer
    next_id: Callable[[], int]

    def read(
        self,
        found: object,
        first_slot: int,
        pause: Callable[[], None] | None = None,
    ) -> BaseException:
        """Return an error as the client knows it.

        Args:
            found: What :func:`pack_error` has returned.
            first_slot: What is added to the slots of the agent's workers.
            pause: Called now and then, in a thread.

        Raises:
            ProtocolError: If it is something else.
        """
        if isinstance(found, bytes):
            error = self.serializer.load_error(found, pause)
            if isinstance(error, JobError):
                attribute_by_number(error, self.next_id(), 1, self.name)
            return error
        if isinstance(found, JobTimeoutError):
            return self._late(found)
        if isinstance(found, WorkerCrashedError):
            return self._crashed(found, first_slot)
        if isinstance(found, AsyncPoolError):
            return found
        raise ProtocolError(f"an agent sent {kind_of(found)} as an error")

    def _late(self, found: JobTimeoutError) -> JobTimeoutError:
        """Return it with the limit as it was set here: the agent knows a deadline by its clock."""
        limit: object = found.limit  # as the agent says
        seconds = getattr(self.options, limit) if isinstance(limit, TimeLimit) else None
        if seconds is None:
            raise ProtocolError("an agent sent a time limit that was not set")
        return JobTimeoutError(
            job_id=self.next_id(),
            attempt=found.attempt,
            limit=found.limit,
            seconds=seconds,
            stack=found.stack,
            function=self.name,
        )

    def _crashed(
        self, found: WorkerCrashedError, first_slot: int
    ) -> WorkerCrashedError:
        """Return it with the numbers that the job and the slot have here."""
        number = self.next_id()
        crashes = tuple(
            crash_at_client(crash, first_slot, {found.job_id: number})
            for crash in found.crashes
        )
        return type(found)(
            job_id=number,
            crashes=crashes,
            delivery=found.delivery,
            function=self.name,
        )
