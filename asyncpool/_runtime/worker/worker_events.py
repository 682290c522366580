"""What a worker may tell the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncpool._core.wire.frames import Frame
    from asyncpool._runtime.worker.handle import WorkerHandle


class WorkerEvents(Protocol):
    """What a worker tells the pool through its handle, and the one question that the handle asks.

    One class implements it: ``PoolWorkerEvents`` in ``_runtime/pool/pool_worker_events.py``.

    A method that reads what the worker has sent raises :exc:`ProtocolError` if it breaks the
    protocol.  The handle then trusts the worker no more.
    """

    # The life of the worker.

    def config_for(self, handle: WorkerHandle) -> bytes:
        """Return the configuration of a worker that is being started, packed."""
        ...

    def on_spawned(self, handle: WorkerHandle) -> None:
        """Hear that the worker has a process."""
        ...

    def on_ready(self, handle: WorkerHandle) -> None:
        """Hear that the worker has begun to take jobs, or to serve."""
        ...

    def on_fault(self, handle: WorkerHandle) -> None:
        """Hear that an exception has ended a thread of the worker, so it has to be replaced."""
        ...

    def on_exit(self, handle: WorkerHandle) -> None:
        """Hear that the process has ended, and that all that it sent has been read."""
        ...

    # The worker's jobs.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hear of jobs that have ended: ``VALUE`` and ``ERROR`` frames, in their order."""
        ...

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hear what streams have yielded: ``ITEM`` frames, in their order."""
        ...

    def on_revoked(self, handle: WorkerHandle, sequences: tuple[int, ...]) -> None:
        """Hear that the worker will not begin the jobs with these sequence numbers."""
        ...

    def on_heartbeat(self, handle: WorkerHandle) -> None:
        """Hear that there are new heartbeats of jobs on the worker's page."""
        ...

    def on_last_beat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hear the last heartbeat of a job, a ``LAST_HEARTBEAT`` frame; the job's outcome is next.

        Raises:
            ProtocolError: If it cannot be read, or the worker does not have that job.
        """
        ...

    # What the worker asks for and answers.

    def on_retire(self, handle: WorkerHandle, reason: str) -> None:
        """Hear that a job asks for the worker to end after it, and why."""
        ...

    def on_worn(self, handle: WorkerHandle, reason: str) -> None:
        """Hear that the worker asks for a replacement, and works on until there is one."""
        ...

    def on_stacks(self, handle: WorkerHandle, job: int | None) -> None:
        """Hear that the stacks of the worker's threads are on its page.

        Args:
            handle: The worker.
            job: The job for which the pool asked for them, or ``None``.
        """
        ...

    def on_samples(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hear what the worker's sampler has found, a ``SAMPLES`` frame.

        Raises:
            ProtocolError: If it cannot be read.
        """
        ...

    def on_where(self, handle: WorkerHandle, job: int, payload: bytes) -> None:
        """Hear where the jobs of the worker are, or where *job* is if that is not 0.

        Raises:
            ProtocolError: If it tells too much.
        """
        ...

    def on_pong(self, handle: WorkerHandle) -> None:
        """Hear that the worker has answered a ping.

        Raises:
            ProtocolError: If the pool has sent it no ping.
        """
        ...
