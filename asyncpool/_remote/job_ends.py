"""How the jobs of a client end, or come to another attempt: by the rules of a local pool."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from asyncpool._engine.deaths import with_job
from asyncpool._engine.job import ChunkJob, PoolJob, load_outcome
from asyncpool._engine.large import unpack
from asyncpool._engine.loop import Threads
from asyncpool._engine.registry import JobRegistry, crash_error, timeout_error
from asyncpool._remote.client_jobs import Silence, crash_at_client
from asyncpool._remote.client_sessions import ClientSessions
from asyncpool._remote.messages import PLAIN, Kind, Message, load_parts
from asyncpool._remote.node import Node
from asyncpool._remote.objects import kind_of, load_own
from asyncpool._wire.buffers import SURELY_QUICK, ReceivedPickle
from asyncpool._wire.frames import Frame, FrameKind
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

_PLAIN_SIZE = len(PLAIN)

_KINDS = {
    Kind.VALUE: FrameKind.VALUE,
    Kind.ERROR: FrameKind.ERROR,
    Kind.ITEM: FrameKind.ITEM,
}


class JobEnds:
    """Settles the jobs of a client.

    Args:
        registry: The open jobs.
        threads: Unpickle what is large.
        sessions: Know why sessions are over.
        again: Called with a job that has another attempt.
        idle: Called when an outcome was unpickled and its job is settled.
    """

    def __init__(
        self,
        registry: JobRegistry,
        threads: Threads,
        sessions: ClientSessions,
        again: Callable[[PoolJob[Any]], object],
        idle: Callable[[], object],
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._again = again
        self._idle = idle
        self._threads = threads

    # What agents say.

    def on_end(self, job: PoolJob[Any], message: Message, first_slot: int) -> None:
        """Settle a job with its outcome, or try it again.

        Args:
            job: The job.
            message: What its agent says.
            first_slot: What is added to the slots of the agent's workers.

        Raises:
            ProtocolError: If it cannot be read.
        """
        job.slot = None
        if message.kind is Kind.FAILED:
            self._on_failed(job, load_own(message.payload), first_slot)
        elif message.kind is Kind.DROPPED:
            # The agent's pool has dropped it, though nobody here has asked for that.
            why = PoolClosedError("the shared pool was closed before the job was done")
            self._registry.fail(job, why)
        elif message.payload is None:
            self._registry.fail(job, _no_memory(job))
        else:
            self._on_outcome(job, frame_of(job, message))

    def _on_outcome(self, job: PoolJob[Any], frame: Frame) -> None:
        serializer = job.function.serializer
        if (size := len(frame.payload)) > SURELY_QUICK:
            job.size += size
        if serializer.is_heavy(frame.payload):
            # The client distrusts no worker: its agent does.
            unpack(self._threads, job, frame, self.unpacked)
        elif self._registry.settle(job, load_outcome(serializer, frame)):
            self._again(job)

    def unpacked(self, job: PoolJob[Any], outcome: Any) -> None:
        """Settle a job whose outcome a thread has unpickled."""
        if self._registry.settle(job, outcome):
            self._again(job)
        self._idle()

    def _on_failed(self, job: PoolJob[Any], error: object, first_slot: int) -> None:
        """Decide about a job that the agent's pool has failed."""
        if isinstance(error, WorkerCrashedError):
            job.crashes += tuple(
                with_job(job, crash_at_client(crash, first_slot, {}), ())
                for crash in error.crashes
            )
            if self._may_go_on(job, error.kind):
                self._try_again(job, crash_error(job, error.delivery))
                self._again(job)
            else:
                self._registry.fail(job, crash_error(job, error.delivery))
        elif isinstance(error, JobTimeoutError):
            self._on_expired(job, error)
        elif isinstance(error, AsyncPoolError):
            if isinstance(error, PoolFullError | WorkerGoneError):
                job.attempt -= 1
            if isinstance(error, WorkerGoneError) and job.options.session is not None:
                self._sessions.fail([job])
            else:
                self._registry.fail(job, error)
        else:
            raise ProtocolError(f"an agent sent {kind_of(error)} as an error")

    def _on_expired(self, job: PoolJob[Any], error: JobTimeoutError) -> None:
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
            self._again(job)
        else:
            self._registry.fail(job, late)

    # Agents that are lost.

    def lose_attempt(
        self, job: PoolJob[Any], node: Node, silence: Silence, *, others: bool
    ) -> bool:
        """Count the attempt of a job whose agent is lost; return whether it has another one.

        Args:
            job: The job.
            node: The agent.
            silence: For how long it and this client have been silent.
            others: Whether there are other agents, or may be some.
        """
        job.crashes += (_crash(job, node, silence),)
        again = others and self._may_go_on(job, CrashKind.CRASH)
        if again:
            self._try_again(job, crash_error(job, Delivery.STARTED))
        return again

    def _try_again(self, job: PoolJob[Any], error: BaseException) -> None:
        """Note that an attempt has failed with *error*, and that the job waits for the next."""
        self._registry.lose_attempt(job)
        events = self._registry.events
        if isinstance(error, WorkerCrashedError):
            self._registry.figures.takeovers += 1
            events.hub.publish(TakenOver(job.id, job.attempt))
        events.attempt_failed(job, error)

    def fail_lost(
        self, job: PoolJob[Any], node: Node, silence: Silence, delivery: Delivery
    ) -> None:
        """Fail a job whose agent is lost."""
        if delivery is Delivery.STARTED and isinstance(job, ChunkJob):
            job.assume_lost()  # no item is begun twice, and nobody knows which have begun
        error = NodeLostError(
            job_id=job.id,
            crashes=job.crashes or (_crash(job, node, silence),),
            delivery=delivery,
            function=job.function.name,
            node=node.name,
            silence=silence.agent,
            own_silence=silence.own,
            reason="" if silence.why is None else str(silence),
        )
        if isinstance(silence.why, Exception):
            error.__cause__ = silence.why
        self._registry.fail(job, error)

    @staticmethod
    def _may_go_on(job: PoolJob[Any], kind: CrashKind) -> bool:
        return job.options.session is None and job.attempt_policy.after_crash(
            kind, attempt=job.attempt
        )


def frame_of(job: PoolJob[Any], message: Message) -> Frame:
    """Return what a local worker would have sent.

    Raises:
        ProtocolError: If its parts do not fit together.
    """
    payload: bytes | ReceivedPickle = message.payload
    if message.kind is Kind.ERROR or not isinstance(payload, bytes):
        pass
    elif payload.startswith(PLAIN):
        payload = payload[_PLAIN_SIZE:]
    else:
        payload = load_parts(payload)
    return Frame(_KINDS[message.kind], job.id, job.attempt, 0, payload)


def _crash(job: PoolJob[Any], node: Node, silence: Silence) -> Crash:
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
        detail=f"its agent {node.name} is lost: {silence}",
        stderr_tail=(),
        next_step=NextStep.CLOSE,
    )
    return with_job(job, crash, ())


def _no_memory(job: PoolJob[Any]) -> JobNotPicklableError:
    name = job.function.name
    return JobNotPicklableError(
        f"the result of {name} is in memory that this process cannot map: it may open no more "
        "files, or has too many mappings",
        direction="result",
        name=name,
    )
