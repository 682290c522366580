"""Read the heartbeats of jobs.

A worker writes them on its page.  The pool looks there when the worker gives notice, and when
it is dead.  The last heartbeat of each job also comes on the job channel, ahead of the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asyncpool._core.wire.frames import Frame
from asyncpool._core.wire.heartbeat_records import INTERVAL, Beat, unpack
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.errors import ProtocolError


class Heartbeats:
    """The heartbeats of a pool's jobs.

    Args:
        state: The pool's state.

    Attributes:
        listeners: Called with each job that was heard, and its heartbeat.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self.listeners: list[Callable[[Job[Any], Beat], object]] = []
        self._alarms: dict[WorkerHandle, Alarm] = {}

    def on_notice(self, handle: WorkerHandle) -> None:
        """Look at the page of a worker that has given notice; look again when it may do so next."""
        self.look(handle)
        alarm = self._alarms.get(handle)
        if alarm is None:
            alarm = Alarm(self._state.loop, partial(self._look_again, handle))
            self._alarms[handle] = alarm
        alarm.set_in(INTERVAL)

    def look(self, handle: WorkerHandle) -> None:
        """Read the heartbeats on the page of a worker, which may be dead."""
        for beat in handle.page.beats():
            self._hear(handle, beat)

    def on_last_heartbeat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Read the last heartbeat of a job; the job's outcome is next.

        Raises:
            ProtocolError: If it cannot be read, or the worker does not have that job.
        """
        beat = unpack(bytes(frame.payload))
        if beat is None:
            raise ProtocolError("a heartbeat cannot be read")
        job = self._state.registry.jobs.get(
            beat.job
        )  # None if its caller has given it up
        in_flight = self._state.core.slots[handle.slot].in_flight
        if beat.job in in_flight.jobs and (job is None or job.attempt == beat.attempt):
            self._hear(handle, beat)
        else:
            raise ProtocolError(
                f"it sent a heartbeat of attempt {beat.attempt} of job {beat.job}, which "
                "it does not have"
            )

    def stop(self) -> None:
        """Stop looking."""
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _look_again(self, handle: WorkerHandle, _: float) -> None:
        del self._alarms[handle]
        self.look(handle)

    def _hear(self, handle: WorkerHandle, beat: Beat) -> None:
        """Add a heartbeat to its job, if the worker runs that attempt of the job."""
        job = self._state.registry.jobs.get(beat.job)
        if (
            job is not None
            and job._slot == handle.slot
            and job.attempt == beat.attempt
            and not job.done()
        ):
            job._listen().add(beat, self._state.loop.time())
            for listener in self.listeners:
                listener(job, beat)
