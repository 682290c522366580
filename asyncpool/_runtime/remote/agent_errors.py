"""Errors of calls that have no job at the client: those of broadcasts, and what rebuilds a session.

The agent does not read what a function has raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncpool._core.pickling.serializers import Serializer
from asyncpool._core.policies.job_options import JobLimits
from asyncpool._core.remote.slot_numbers import crash_at_client
from asyncpool._core.remote_wire.own_objects import kind_of
from asyncpool._runtime.job.job import claim_as
from asyncpool._runtime.remote.packed_calls import PackedError
from asyncpool.enums import TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    JobError,
    JobTimeoutError,
    ProtocolError,
    WorkerCrashedError,
)


def pack_error(error: BaseException) -> bytes | BaseException:
    """Return what an answer has of an error."""
    return error.payload if isinstance(error, PackedError) else error


class AgentErrors(NamedTuple):
    """Reads such errors.

    Attributes:
        name: The function, as errors call it.
        limits: Those of the calls.
        serializer: Loads what was raised.
        next_id: Returns the number of a job of the client.  Agents have numbers of their own.
    """

    name: str
    limits: JobLimits
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
                claim_as(error, self.next_id(), 1, self.name)
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
        seconds = getattr(self.limits, limit) if isinstance(limit, TimeLimit) else None
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
