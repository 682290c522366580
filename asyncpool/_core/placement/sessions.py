"""Sessions: workers that belong to one caller for a while.

A caller that asks for a session gets the next idle worker.  While callers wait, the
pool holds back as many workers as are wanted: it sends them no job of the queue, so
that they finish what they have in flight.  The first worker that has finished goes to a
caller.  From then on until the session ends, the worker runs only the session's
*calls*, one after the other, and pinned jobs.

A worker that is to be replaced stays until its session is over.  If the worker dies, or
a call retires it, that ends the session.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from asyncpool._core.base.job_traits import PINNED, SessionTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.commands import (
    Assign,
    Command,
    DropPinnedJobs,
    EndSession,
    Offer,
    RefuseSessions,
)
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

# Pinned jobs: jobs for one given worker, which begins them before any other.
#
# They wait at their slot, never in the queue.  If the worker goes before it has begun
# such a job, the pool drops the job.


class PinnedJobs:
    """The pinned jobs of a pool that have not begun.

    Args:
        slots: The slots; there may be more later.
        dispatcher: What decides which worker runs which job.  It gives no job to a
            worker that has a pinned job before it.
    """

    def __init__(self, slots: Sequence[Slot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher

    @property
    def any(self) -> bool:
        """Whether there is a pinned job that has not begun."""
        return any(slot.pinned for slot in self._slots)

    def add(self, slot: Slot, job: int) -> list[Command]:
        """Let *job* begin as soon as the worker of *slot* has nothing in flight."""
        slot.pinned.append(job)
        if slot.state is SlotState.IDLE and slot.hung:
            return []
        self._dispatcher.exclude(slot.index)
        return self.begin(slot) if slot.state is SlotState.IDLE else []

    def begin(self, slot: Slot) -> list[Command]:
        """Begin the next pinned job of *slot*, if its worker has nothing in flight."""
        if slot.in_flight.jobs:
            return []
        job = slot.pinned.popleft()
        slot.in_flight.add(job, PINNED)
        # It does not count towards max_jobs: each replacement would also have one, and
        # go again.
        slot.recycle_limits = slot.recycle_limits._replace(
            jobs=slot.recycle_limits.jobs + 1
        )
        slot.in_flight.most += 1
        slot.assign()
        return [Assign(slot.index, (job,))]

    def discard(self, job: int) -> Slot | None:
        """Forget *job* if it is a pinned job or a session's call, and return its slot."""
        for slot in self._slots:
            for jobs in (slot.pinned, slot.calls):
                if job in jobs:
                    jobs.remove(job)
                    return slot
        return None

    @staticmethod
    def drop(slot: Slot) -> list[Command]:
        """Drop the pinned jobs of *slot*, since its worker goes."""
        pinned_jobs = tuple(slot.pinned)
        slot.pinned.clear()
        return [DropPinnedJobs(pinned_jobs)] if pinned_jobs else []

    def take_all(self) -> dict[int, Slot]:
        """Forget all pinned jobs, and all calls of sessions; return them, each with its slot."""
        jobs: dict[int, Slot] = {}
        for slot in self._slots:
            jobs |= dict.fromkeys((*slot.pinned, *slot.calls), slot)
            slot.pinned.clear()
            slot.calls.clear()
        return jobs


class Sessions:
    """The sessions of a pool, and how many more callers want.

    Args:
        slots: The slots; there may be more later.
        dispatcher: What sends no job to a worker that belongs to a session.
        pinned_jobs: The pinned jobs, which come before the session's calls.
    """

    def __init__(
        self, slots: Sequence[Slot], dispatcher: Dispatcher, pinned_jobs: PinnedJobs
    ) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._pinned = pinned_jobs
        self._numbers = itertools.count(1)
        self._slot_of: dict[int, Slot] = {}
        # Slots that are held back, and still have jobs in flight.
        self._held: set[int] = set()

    # Sessions begin.

    def want(self) -> list[Command]:
        """Record that a caller waits for a session."""
        self._dispatcher.wanted += 1
        return self.hand_out()

    def hand_out(self) -> list[Command]:
        """Offer idle workers to callers that wait.

        A worker is offered when it becomes idle.  But a worker that was to be replaced,
        and stays because its replacement has failed, is idle already.
        """
        commands: list[Command] = []
        if self._dispatcher.wanted:
            for index in self._dispatcher.idle_slots():
                if self._dispatcher.wanted and self._may_have(self._slots[index]):
                    commands += self._begin(self._slots[index])
        return commands

    def leave(self) -> None:
        """Record that a caller that waited wants no session any more."""
        self._dispatcher.wanted -= 1

    def take(self, slot: Slot) -> list[Command] | None:
        """Give the worker of *slot*, which needs no job just now, to a caller that waits.

        ``None`` says that no caller gets the worker, so that it gets a job.
        """
        if not self._may_have(slot):
            self._held.discard(slot.index)
            return None
        if not slot.in_flight.jobs:
            return self._begin(slot)
        if slot.index not in self._held:
            # Workers that have begun to end meanwhile are of no use.
            self._held = {n for n in self._held if self._may_come(self._slots[n])}
            if len(self._held) >= self._dispatcher.wanted:
                return None
            self._held.add(slot.index)
            self._dispatcher.exclude(slot.index)
        return []

    def release_spare(self) -> list[Slot]:
        """Return the slots that are held back in vain, so that they get jobs again."""
        spare = sorted(self._held)[self._dispatcher.wanted :]
        self._held.difference_update(spare)
        return [self._slots[index] for index in spare]

    def refuse(self) -> list[Command]:
        """Refuse all callers that wait; the slots held back for them are for :meth:`release_spare`."""
        wanted, self._dispatcher.wanted = self._dispatcher.wanted, 0
        return [RefuseSessions()] if wanted else []

    def _begin(self, slot: Slot) -> list[Command]:
        self._dispatcher.wanted -= 1
        self._dispatcher.exclude(slot.index)
        self._held.discard(slot.index)
        slot.session = next(self._numbers)
        self._slot_of[slot.session] = slot
        return [Offer(slot.index, slot.session)]

    def _may_have(self, slot: Slot) -> bool:
        # A worker whose replacement is starting is about to leave.  So is a worker that
        # may run no more jobs.
        return not slot.in_flight.exhausted and not any(
            other.replaces == slot.index for other in self._slots
        )

    def _may_come(self, slot: Slot) -> bool:
        stays = slot.state in UP and not (slot.draining or slot.faulty)
        return stays and slot.job_endings.killing is None and self._may_have(slot)

    # Sessions go on.

    def call(self, job: int, traits: SessionTraits) -> list[Command]:
        """Run *job* in the worker of its session, after the session's other calls."""
        slot = self._slot_of.get(traits.session)
        if slot is None:
            return [EndSession(traits.session, (job,))]
        slot.calls.append(job)
        return self.go_on(slot)

    def go_on(self, slot: Slot) -> list[Command]:
        """Begin the next call in the worker of *slot*, if it has nothing in flight."""
        if slot.in_flight.jobs or slot.state not in UP or slot.hung or slot.draining:
            return []
        if slot.pinned:
            return self._pinned.begin(slot)
        assert slot.session is not None
        if not slot.calls:
            return []
        job = slot.calls.popleft()
        slot.in_flight.add(job, SessionTraits(slot.session))
        slot.assign()
        return [Assign(slot.index, (job,))]

    def requeue(self, jobs: Mapping[int, SessionTraits]) -> list[Command]:
        """Put *jobs*, which have not begun, before the other calls of their session."""
        commands: list[Command] = []
        for job, traits in jobs.items():
            slot = self._slot_of.get(traits.session)
            if slot is None:
                commands.append(EndSession(traits.session, (job,)))
            else:
                slot.calls.appendleft(job)
        return commands

    # Sessions lose their worker, and end.

    def gone(self, slot: Slot) -> list[Command]:
        """Record that the worker of *slot* is gone."""
        self._held.discard(slot.index)
        session = slot.session
        if session is None:
            return []
        calls = tuple(slot.calls)
        self.end(session)
        return [EndSession(session, calls)]

    def break_off(self) -> list[Command]:
        """Record that the pool is broken: refuse all callers that wait."""
        self._held.clear()  # the workers get jobs again when the pool has recovered
        return self.refuse()

    def end(self, session: int) -> Slot | None:
        """End *session*; return the slot of its worker, unless it is over already."""
        slot = self._slot_of.pop(session, None)
        if slot is not None:
            slot.session = None
            slot.calls.clear()
        return slot
