"""What comes of the things that workers tell their pool."""

from __future__ import annotations

from time import monotonic

from asyncpool import events
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.pool.parts import Parts
from asyncpool._runtime.pool.worker_exit import WorkerExit
from asyncpool._runtime.state.pool_state import decision
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool._runtime.worker.worker_events import WorkerEvents
from asyncpool.errors import ProtocolError


class PoolWorkerEvents(WorkerEvents):
    """Passes on what the workers of one pool say, each thing to the part that it is for.

    Args:
        parts: The parts of the pool, which hear of it.
        worker_exit: What is to know of each worker that was started.
    """

    def __init__(self, parts: Parts, worker_exit: WorkerExit) -> None:
        self._state = parts.state
        self._parts = parts
        self._worker_exit = worker_exit

    # Their life.

    def config_for(self, handle: WorkerHandle) -> bytes:
        """Return what a worker is told that is being started, packed."""
        if self._parts.serving is not None:
            return self._parts.serving.config(handle)
        return self._parts.broadcasts.config()

    def on_spawned(self, handle: WorkerHandle) -> None:
        """Count a worker that has a process, and tell the listeners."""
        state = self._state
        state.registry.figures.spawned += 1
        self._worker_exit.on_spawned()
        assert handle.pid is not None
        state.hub.publish(events.Spawned(handle.slot, handle.generation, handle.pid))
        state.log.worker_started(handle)

    @decision
    def on_ready(self, handle: WorkerHandle) -> None:
        """Have a worker that is ready get its first jobs, or serve."""
        state, now = self._state, self._state.loop.time()
        assert handle.pid is not None
        took = now - handle.began_at
        state.registry.figures.starts.note(took)
        handle.since = monotonic()
        state.hub.publish(
            events.Ready(handle.slot, handle.generation, handle.pid, took)
        )
        state.log.worker_ready(handle, took)
        state.performer.perform(state.core.workers.ready(handle.slot, now))
        if self._parts.serving is not None:
            self._parts.serving.ready(handle)
        state.performer.rearm()  # it grows old from now on
        self._parts.replacement.resize_waits.check()
        self._parts.status.worker_ready()
        self._parts.profiles.join(handle)

    @decision
    def on_fault(self, handle: WorkerHandle) -> None:
        """Have a worker replaced that has lost a thread."""
        core, now = self._state.core, self._state.loop.time()
        self._state.performer.perform(core.workers.replace_faulty(handle.slot, now))

    def on_exit(self, handle: WorkerHandle) -> None:
        """Settle the jobs whose outcomes a dead worker has noted, and not sent."""
        self._parts.traffic.on_exit(handle)
        self._parts.profiles.lose(handle)

    # Their jobs.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Settle jobs, and give their worker the next ones."""
        state = self._state
        # As @decision does, whose call costs 0.4 us.
        before, state.deciding = state.deciding, True
        try:
            self._parts.traffic.on_outcomes(handle, frames)
        finally:
            state.deciding = before

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hand over what streams have yielded."""
        self._parts.traffic.job_control.on_items(handle, frames)

    def on_revoked(self, handle: WorkerHandle, sequences: tuple[int, ...]) -> None:
        """Give jobs to others that a worker will not begin."""
        self._parts.traffic.job_control.on_revoked(handle, sequences)

    def on_heartbeat(self, handle: WorkerHandle) -> None:
        """Look for heartbeats on a worker's page."""
        self._parts.traffic.heartbeats.on_notice(handle)

    def on_last_beat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hear the last heartbeat of a job."""
        self._parts.traffic.heartbeats.on_last_heartbeat(handle, frame)

    # What they ask for, and answer.

    def on_retire(self, handle: WorkerHandle, reason: str) -> None:
        """Have a worker end after the job that asks for it."""
        self._parts.replacement.retire(handle, reason)

    def on_worn(self, handle: WorkerHandle, reason: str) -> None:
        """Have a worker replaced that asks for it."""
        self._parts.replacement.replace(handle, reason)

    @decision
    def on_stacks(self, handle: WorkerHandle, job: int | None) -> None:
        """Read where a worker's threads are, which may be what its end waits for."""
        core, now = self._state.core, self._state.loop.time()
        self._parts.stacks.written(handle)
        self._state.performer.perform(
            core.termination.stacks_written(handle.slot, now, job)
        )
        self._state.performer.rearm()  # it may have to give back other jobs first

    def on_samples(self, handle: WorkerHandle, frame: Frame) -> None:
        """Count what a worker's sampler has found."""
        self._parts.profiles.hear(handle, frame)

    def on_where(self, handle: WorkerHandle, job: int, payload: bytes) -> None:
        """Tell those who have asked where a worker's jobs are."""
        self._parts.traffic.live_stacks.answered(handle, job, payload)

    def on_pong(self, handle: WorkerHandle) -> None:
        """Take a worker for healthy that has answered a ping."""
        if self._parts.pings is None:
            raise ProtocolError("it answered a ping, and nobody sends any")
        try:
            self._parts.pings.answered(handle)
        except ProtocolError:
            if not self._state.core.slots[
                handle.slot
            ].hung:  # or else it is only too late
                raise
