"""Hear the heartbeats of jobs.

They are on the page of their worker, where they are looked for when it rings and when it
is dead; the last one of each job also comes on the job channel, ahead of the outcome.
"""

from __future__ import annotations

from functools import partial

from asyncpool._core.wire.frames import Frame
from asyncpool._core.wire.heartbeat_records import INTERVAL, Beat, unpack
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.errors import ProtocolError


class Heartbeats:
    """The heartbeats of a pool's jobs.

    Args:
        state: The pool.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._alarms: dict[WorkerHandle, Alarm] = {}

    def on_notice(self, handle: WorkerHandle) -> None:
        """Look at the page of a worker that has rung, and again when it may next ring."""
        self.look(handle)
        alarm = self._alarms.get(handle)
        if alarm is None:
            alarm = Alarm(self._state.loop, partial(self._look_again, handle))
            self._alarms[handle] = alarm
        alarm.set_in(INTERVAL)

    def look(self, handle: WorkerHandle) -> None:
        """Hear what is on the page of a worker, which may be dead."""
        for beat in handle.page.beats():
            self._hear(handle, beat)

    def on_last_heartbeat(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hear the last beat of a job, whose outcome is next.

        Raises:
            ProtocolError: If it is none, or not of a job that the worker has.
        """
        beat = unpack(bytes(frame.payload))
        if beat is None:
            raise ProtocolError("a heartbeat cannot be read")
        job = self._state.registry.jobs.get(beat.job)  # or its caller has given it up
        in_flight = self._state.core.slots[handle.slot].in_flight
        if beat.job in in_flight.jobs and (job is None or job.attempt == beat.attempt):
            self._hear(handle, beat)
        else:
            raise ProtocolError(
                f"it sent a heartbeat of attempt {beat.attempt} of job {beat.job}, which "
                "it has not"
            )

    def stop(self) -> None:
        """Look no more."""
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _look_again(self, handle: WorkerHandle, _: float) -> None:
        del self._alarms[handle]
        self.look(handle)

    def _hear(self, handle: WorkerHandle, beat: Beat) -> None:
        """Take note of a beat, if it is one of a job that the worker has."""
        job = self._state.registry.jobs.get(beat.job)
        if (
            job is not None
            and job._slot == handle.slot
            and job.attempt == beat.attempt
            and not job.done()
        ):
            job._listen().add(beat, self._state.loop.time())
