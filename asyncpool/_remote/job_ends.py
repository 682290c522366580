"""How the jobs of a client end, or come to another attempt: by the rules of a local pool."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from asyncpool._engine.deaths import with_job
from asyncpool._engine.job import ChunkJob, PoolJob, load_outcome
from asyncpool._engine.large import unpack
from asyncpool._engine.registry import crash_error, timeout_error
from asyncpool._remote.carrier import Why
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.node import Node, frame_of, reason_of
from asyncpool._remote.objects import kind_of, load_own
from asyncpool._wire.buffers import SURELY_QUICK
from asyncpool._wire.frames import Frame
from asyncpool.enums import CrashKind, Delivery, NextStep, TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    PoolClosedError,
    PoolFullError,
    ProtocolError,
    WorkerCrashedError,
    WorkerGoneError,
)
from asyncpool.events import Crash, TakenOver

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


class JobEnds:
    """Settles the jobs of a client.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client, self._registry = client, client.registry

    def on_end(self, node: Node, job: PoolJob[Any], message: Message) -> None:
        """Settle a job with what its agent says, or try it again.

        Raises:
            ProtocolError: If it cannot be read.
        """
        job.slot = None
        if message.kind is Kind.FAILED:
            self._on_failed(job, load_own(message.payload, node.first_slot))
        elif message.kind is Kind.DROPPED:
            # The agent's pool has dropped it, though nobody here has asked for that.
            why = PoolClosedError("the shared pool was closed before the job was done")
            self._registry.fail(job, why)
        elif message.payload is None:
            name = job.function.name
            text = (
                f"the result of {name} is in memory that this process cannot map: it may open no "
                "more files, or has too many mappings"
            )
            error = JobNotPicklableError(text, direction="result", name=name)
            self._registry.fail(job, error)
        else:
            self._on_outcome(job, frame_of(job, message))

    def _on_outcome(self, job: PoolJob[Any], frame: Frame) -> None:
        serializer = job.function.serializer
        if (size := len(frame.payload)) > SURELY_QUICK:
            job.outcome_size += size
        if serializer.is_heavy(frame.payload):
            # The client distrusts no worker: its agent does.
            unpack(self._client.threads, job, frame, self._unpacked)
        elif self._registry.settle(job, load_outcome(serializer, frame)):
            self._client.again(job)

    def _unpacked(self, job: PoolJob[Any], outcome: Any) -> None:
        """Settle a job whose outcome a thread has unpickled."""
        if self._registry.settle(job, outcome):
            self._client.again(job)
        self._client.holds.look()

    def _on_failed(self, job: PoolJob[Any], error: object) -> None:
        """Decide about a job that the agent's pool has failed."""
        worker = job.options.hold if job.options.session is not None else None
        if isinstance(error, WorkerCrashedError):
            job.crashes += tuple(with_job(job, crash, ()) for crash in error.crashes)
            if worker is not None:
                self._client.sessions.worker_gone(worker, job.crashes[-1])
            self._crashed(job, error.kind, error.delivery)
        elif isinstance(error, JobTimeoutError):
            self._expired(job, error)
        elif isinstance(error, AsyncPoolError):
            if isinstance(error, PoolFullError | WorkerGoneError):
                job.attempt -= 1
            if isinstance(error, WorkerGoneError) and worker is not None:
                self._client.sessions.worker_gone(worker, error.crash, job)
            else:
                self._registry.fail(job, error)
        else:
            raise ProtocolError(f"an agent sent {kind_of(error)} as an error")

    def _crashed(self, job: PoolJob[Any], kind: CrashKind, delivery: Delivery) -> None:
        error = crash_error(job, delivery)
        if self._may_go_on(job, kind):
            self._try_again(job, error)
            self._client.again(job)
        else:
            self._registry.fail(job, error)

    def _expired(self, job: PoolJob[Any], error: JobTimeoutError) -> None:
        if error.attempt:
            job.began = monotonic()
        else:  # it has waited in the agent's pool
            job.attempt -= 1
        job.exceeded = error.limit
        late = timeout_error(job, error.stack)
        may = error.limit is TimeLimit.TIMEOUT
        if may and job.attempt_policy.after_exception(late, attempt=job.attempt):
            self._try_again(job, late)
            job.exceeded = None
            self._client.again(job)
        else:
            self._registry.fail(job, late)

    def _try_again(self, job: PoolJob[Any], error: BaseException) -> None:
        """Note that an attempt has failed with *error*, and that the job waits for the next."""
        self._registry.lose_attempt(job)
        events = self._registry.events
        if isinstance(error, WorkerCrashedError):
            self._registry.figures.takeovers += 1
            events.hub.publish(TakenOver(job.id, job.attempt))
        events.attempt_failed(job, error)

    @staticmethod
    def _may_go_on(job: PoolJob[Any], kind: CrashKind) -> bool:
        return job.options.session is None and job.attempt_policy.after_crash(
            kind, attempt=job.attempt
        )

    # Agents that are lost.

    def lose_attempt(
        self, node: Node, job: PoolJob[Any], delivery: Delivery, why: Why
    ) -> bool:
        """Count an attempt that may have begun at an agent that is lost; return whether it has another."""
        job.crashes += (_crash(node, job, why),)
        again = self._client.nodes.any and self._may_go_on(job, CrashKind.CRASH)
        if again:
            self._try_again(job, crash_error(job, delivery))
        return again

    def fail_lost(
        self, node: Node, job: PoolJob[Any], delivery: Delivery, why: Why
    ) -> None:
        """Fail a job whose agent is lost."""
        begun = delivery in {Delivery.STARTED, Delivery.UNKNOWN}
        if begun and isinstance(job, ChunkJob):
            job.assume_lost()  # no item is begun twice, and nobody knows which have begun
        error = NodeLostError(
            job_id=job.id,
            crashes=job.crashes or (_crash(node, job, why),),
            delivery=delivery,
            function=job.function.name,
            node=node.name,
            silence=self._client.loop.time() - node.carrier.heard_at,
            own_silence=node.carrier.own_silence,
            reason="" if why is None else reason_of(node, why),
        )
        if isinstance(why, Exception):
            error.__cause__ = why
        self._registry.fail(job, error)


def _crash(node: Node, job: PoolJob[Any], why: Why) -> Crash:
    crash = Crash(
        slot=0,
        generation=node.number,
        pid=None,
        exit_code=None,
        signal=None,
        kind=CrashKind.CRASH,
        uptime=0.0,
        job_id=None,
        attempt=0,
        detail=f"its agent {node.name} is lost: {reason_of(node, why)}",
        stderr_tail=(),
        next_step=NextStep.CLOSE,
    )
    return with_job(job, crash, ())
