"""Workers that belong to a session, and what that means for all other parts.

``placement/sessions.py`` knows which session has which worker, and which call is next
there.  This module decides what follows for jobs, keys and planned exits.
"""

from __future__ import annotations

from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.slots.commands import Command
from asyncpool._core.slots.slots import UP
from asyncpool._core.supervision.job_assignment import JobAssignment, SupervisionParts
from asyncpool.enums import SlotState


class SessionWorkers:
    """The sessions of a pool.

    Args:
        parts: The state of the pool.
        jobs: What gives jobs to workers that have no session.
    """

    def __init__(self, parts: SupervisionParts, jobs: JobAssignment) -> None:
        self._sessions = parts.sessions
        self._affinity_slots = parts.affinity_slots
        self._replacements = parts.replacements
        self._jobs = jobs

    def want_worker(self) -> list[Command]:
        """Offer the next idle worker to a caller that waits for a session."""
        return [*self._sessions.want(), *self._affinity_slots.update()]

    def leave_queue(self, now: float) -> list[Command]:
        """Record that a caller that waited wants no session any more."""
        self._sessions.leave()
        return self._jobs.feed_released(now)

    def call(self, job: int, traits: SessionTraits) -> list[Command]:
        """Let the worker of a session run *job*, after the session's other calls."""
        return self._sessions.call(job, traits)

    def end(self, session: int, now: float, *, fresh: bool) -> list[Command]:
        """Return the worker of *session* to the pool, or replace it by a *fresh* one.

        The session must have no calls that wait.
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
        """Refuse all callers that wait for a session.

        Workers that were held back for them have room for jobs that are tried again.
        """
        return [*self._sessions.refuse(), *self._jobs.feed_released(now)]
