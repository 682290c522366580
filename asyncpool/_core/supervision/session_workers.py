"""Workers that are somebody's own for a while, and what that means for all others.

Who has which worker, and which call is next there, is in ``placement/sessions.py``; here is what
follows for jobs, keys and planned exits.
"""

from __future__ import annotations

from asyncpool._core.base.run_times import Bound
from asyncpool._core.slots.commands import Command
from asyncpool._core.slots.slots import UP
from asyncpool._core.supervision.job_assignment import JobAssignment, SupervisionParts
from asyncpool.enums import SlotState


class SessionWorkers:
    """The sessions of a pool.

    Args:
        parts: The state of the pool.
        jobs: What gives jobs to workers that are nobody's own.
    """

    def __init__(self, parts: SupervisionParts, jobs: JobAssignment) -> None:
        self._sessions = parts.sessions
        self._affinity_slots = parts.affinity_slots
        self._replacements = parts.replacements
        self._jobs = jobs

    def want_worker(self) -> list[Command]:
        """Have the next idle worker be offered to whoever waits for one."""
        return [*self._sessions.want(), *self._affinity_slots.update()]

    def leave_queue(self, now: float) -> list[Command]:
        """Take note that one who has waited wants none any more."""
        self._sessions.leave()
        return self._jobs.let_go(now)

    def make_last(self, session: int) -> None:
        """Have *session* go on in another worker when it loses its own."""
        self._sessions.last(session)

    def call(self, job: int, profile: Bound) -> list[Command]:
        """Have the worker of a session run *job*, behind its other calls."""
        return self._sessions.call(job, profile)

    def rebuilt(self, session: int, job: int) -> list[Command]:
        """Have the calls of *session* begin, now that *job* has rebuilt it."""
        return self._sessions.rebuilt(session, job)

    def end(self, session: int, now: float, *, fresh: bool) -> list[Command]:
        """Give the worker of *session* back, or have a *fresh* one come instead.

        None of its calls may wait.
        """
        slot = self._sessions.end(session)
        if slot is None:
            return []
        commands: list[Command] = []
        if fresh and slot.ready_at is not None:
            commands += self._replacements.release(slot, "session", now)
        elif slot.in_flight.exhausted and slot.state is SlotState.IDLE:
            commands += self._replacements.retire(slot, "max_jobs", now, unsent=None)
        elif slot.state in UP:
            self._affinity_slots.assign(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                commands += self._jobs.feed(slot, now)
        commands += self._replacements.step(now)
        self._replacements.resizing.count(now)
        return [*commands, *self._jobs.settle(now)]

    def refuse(self, now: float) -> list[Command]:
        """Turn away all who wait for a worker.

        Whoever was held back for them has room for what is tried again.
        """
        return [*self._sessions.refuse(), *self._jobs.let_go(now)]
