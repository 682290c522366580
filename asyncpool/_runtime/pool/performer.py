"""Commands of the core become effects here, and nowhere else.

The core decides (``_core/supervision``).  The parts of a pool pass its commands to the
:class:`~asyncpool._runtime.state.pool_state.Performer` of their :class:`PoolState`, which is
this one.  The parts tell the core what comes of an effect: what a worker has sent
(``pool_worker_events.py``), that a worker has ended (``worker_exit.py``), or that the timer here
has fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from asyncpool import events
from asyncpool._core.slots import commands as cmd
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.pool.parts import Parts
from asyncpool._runtime.pool.workers import Workers
from asyncpool._runtime.state.bulk_failure import BulkFailure
from asyncpool._runtime.state.job_errors import broken_errors
from asyncpool._runtime.state.pool_state import Performer, decision


class CommandPerformer(Performer):
    """Carries out the commands of one pool's core.

    Args:
        parts: The parts of the pool, which the commands are for.
        workers: Starts workers.
        bulk_failure: Fails the jobs that the core has given up.

    Attributes:
        finished: Set when the pool is closed and all its workers are gone.
    """

    def __init__(
        self, parts: Parts, workers: Workers, bulk_failure: BulkFailure
    ) -> None:
        self._state = parts.state
        self._parts = parts
        self._workers = workers
        self._bulk_failure = bulk_failure
        self._alarm = Alarm(parts.state.loop, self._on_alarm)
        self.finished = asyncio.Event()

    def perform(self, commands: list[cmd.Command]) -> None:
        """Carry out *commands*, in their order."""
        lifecycle = False
        for command in commands:
            if isinstance(command, cmd.Assign):
                jobs = self._state.registry.jobs
                self._parts.traffic.send(command.slot, [jobs[n] for n in command.jobs])
            else:
                lifecycle = True
                self._carry_out(command)
        if lifecycle:
            self.rearm()
        # Checked here, since only commands take jobs out of the queue.
        if self._parts.admission.saturated:
            self._parts.admission.update_saturated()

    def rearm(self) -> None:
        """Set the pool's timer to the core's next deadline."""
        self._alarm.set_at(self._state.core.next_deadline())
        self._parts.traffic.stack_dumps.rearm()

    def stop(self) -> None:
        """Cancel the timer."""
        self._alarm.cancel()

    @decision
    def _on_alarm(self, now: float) -> None:
        self.perform(self._state.core.on_timer(now))
        self.rearm()

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.Spawn(slot, generation):
                self._workers.start(slot, generation)
            case cmd.Unassign(jobs):
                self._take_back(jobs)
            case cmd.DropPinnedJobs(jobs):
                self._parts.broadcasts.on_dropped(jobs)
            case cmd.Offer(slot, session):
                self._parts.sessions.offer(slot, session)
            case cmd.EndSession(session, jobs):
                self._parts.sessions.end(session, jobs)
            case cmd.RefuseSessions():
                self._parts.sessions.refuse()
            case cmd.Revoke(slot, sequences):
                self._state.handles[slot].requests.revoke(sequences)
            case cmd.Interrupt(slot, sequence):
                self._state.handles[slot].requests.interrupt(sequence)
            case cmd.WriteStacks(slot, number):
                job = self._state.registry.jobs.get(number or 0)
                attempt = 0 if job is None else job.attempt
                self._state.handles[slot].requests.ask_for_stacks(number or 0, attempt)
            case cmd.Stop(slot):
                self._state.handles[slot].stop()
            case cmd.Terminate(slot):
                self._state.handles[slot].terminate()
            case cmd.Kill(slot, reason):
                self._state.handles[slot].kill(reason)
            case cmd.Abandon(slot):
                self._state.handles[slot].abandon()
            case cmd.FailJobs(jobs, why):
                self._bulk_failure.fail(jobs, why)
            case cmd.TellRestart(slot, delay):
                self._state.hub.publish(events.Restarting(slot, delay))
            case cmd.ParkSlot(slot, reason, probe_in):
                if self._parts.status.cannot_start:
                    probe_in = None
                self._state.hub.publish(events.Parked(slot, reason, probe_in))
            case cmd.Retiring() | cmd.Resized() | cmd.RollEnded():
                self._parts.replacement.carry_out(command)
            case cmd.LeaveEmpty():
                self._parts.replacement.resize_waits.check()
            case cmd.KeepWorker():
                pass  # the crash report says so
            case cmd.GiveUp():
                self._parts.status.note_broken(broken_errors(self._state)(None))
            case cmd.Recover(slot):
                self._parts.status.note_recovered(slot)
            case cmd.Finished():
                self.finished.set()
            case cmd.Assign():
                raise AssertionError("assignments take the short way")
            case _:
                assert_never(command)

    def _take_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            job = self._state.registry.take_back(number)
            if job is not None:
                self._parts.traffic.timers.wait_again(job)
