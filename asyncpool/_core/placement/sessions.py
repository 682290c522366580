"""Sessions: workers that are somebody's own for a while.

Whoever wants a worker to himself gets the next one that is idle.  As long as somebody waits
for one, no job of the queue is sent to as many workers as are wanted, so that those run out
of what they have in flight: the next one that has is handed over.  From then on until the
session ends, its worker gets the session's *calls* alone, one after the other, and pinned jobs.

A worker that is to be replaced stays until its session is over.  If it dies, or a call
retires it, that ends the session, unless it *lasts*: then it goes on in the next worker of
the same slot, whose first call rebuilds what the old one knew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from asyncpool._core.base.run_times import Bound
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.pinned_jobs import PinnedJobs
from asyncpool._core.slots.commands import (
    Assign,
    Command,
    EndSession,
    Offer,
    Rebuild,
    RefuseSessions,
)
from asyncpool._core.slots.lifecycle import EMPTY
from asyncpool._core.slots.slots import UP, Slot


class Sessions:
    """The sessions of a pool, and how many more are wanted.

    Args:
        slots: The slots; there may be more later.
        dispatcher: Which sends no job to a worker that is somebody's own.
        pinned_jobs: Which come before the session's calls.
    """

    def __init__(
        self, slots: Sequence[Slot], dispatcher: Dispatcher, pinned_jobs: PinnedJobs
    ) -> None:
        self._slots = slots
        self._dispatcher = dispatcher
        self._pinned = pinned_jobs
        self._numbers = itertools.count(1)
        self._slot_of: dict[int, Slot] = {}
        self._held: set[int] = set()  # slots that get no job, and have some in flight
        self._lasting: set[int] = set()
        # Those that are rebuilt, each with the call that does it, once that has come.
        self._rebuilding: dict[int, int | None] = {}

    # They begin.

    def want(self) -> list[Command]:
        """Take note that somebody wants a worker to himself."""
        self._dispatcher.wanted += 1
        return self.hand_out()

    def hand_out(self) -> list[Command]:
        """Offer idle workers to those who wait.

        One that becomes idle is offered then; one that was to be replaced, and stays since
        its replacement has failed, is idle already.
        """
        commands: list[Command] = []
        if self._dispatcher.wanted:
            for index in self._dispatcher.idle_slots():
                if self._dispatcher.wanted and self._may_have(self._slots[index]):
                    commands += self._begin(self._slots[index])
        return commands

    def leave(self) -> None:
        """Take note that one who has waited wants none any more."""
        self._dispatcher.wanted -= 1

    def take(self, slot: Slot) -> list[Command] | None:
        """Give the worker of *slot*, which needs no job just now, to one who waits.

        ``None`` if nobody is to have it, so that it gets a job.
        """
        if not self._may_have(slot):
            self._held.discard(slot.index)
            return None
        if not slot.in_flight.jobs:
            return self._begin(slot)
        if slot.index not in self._held:
            # Of no use are those that are on their way out by now.
            self._held = {n for n in self._held if self._may_come(self._slots[n])}
            if len(self._held) >= self._dispatcher.wanted:
                return None
            self._held.add(slot.index)
            self._dispatcher.worker_gone(slot.index)
        return []

    def let_go(self) -> list[Slot]:
        """Return those that are held back, and nobody waits for: they get jobs again."""
        spare = sorted(self._held)[self._dispatcher.wanted :]
        self._held.difference_update(spare)
        return [self._slots[index] for index in spare]

    def refuse(self) -> list[Command]:
        """Turn away all who wait; then :meth:`let_go` of who is held back for them."""
        wanted, self._dispatcher.wanted = self._dispatcher.wanted, 0
        return [RefuseSessions()] if wanted else []

    def _begin(self, slot: Slot) -> list[Command]:
        self._dispatcher.wanted -= 1
        self._dispatcher.worker_gone(slot.index)
        self._held.discard(slot.index)
        slot.session = next(self._numbers)
        self._slot_of[slot.session] = slot
        return [Offer(slot.index, slot.session)]

    def _may_have(self, slot: Slot) -> bool:
        # Whose replacement is on its way is about to leave, and so is who may run no more.
        return not slot.in_flight.exhausted and not any(
            other.replaces == slot.index for other in self._slots
        )

    def _may_come(self, slot: Slot) -> bool:
        stays = slot.state in UP and not (slot.draining or slot.faulty)
        return stays and slot.job_endings.killing is None and self._may_have(slot)

    # They go on.

    def lasts(self, slot: Slot) -> bool:
        """Tell whether the session in *slot*, if there is one, survives its worker."""
        return slot.session in self._lasting

    def last(self, session: int) -> None:
        """Have *session* go on in another worker if it loses its own."""
        self._lasting.add(session)

    def call(self, job: int, profile: Bound) -> list[Command]:
        """Have *job* run in the worker of its session, behind its other calls.

        What rebuilds the session is the first.
        """
        slot = self._slot_of.get(profile.session)
        if slot is None:
            return [EndSession(profile.session, (job,))]
        if profile.first:
            self._rebuilding[profile.session] = job
            slot.calls.appendleft(job)
        else:
            slot.calls.append(job)
        return self.go_on(slot)

    def rebuilt(self, session: int, job: int) -> list[Command]:
        """Have the calls of *session* begin, now that *job* has rebuilt it.

        Unless it has lost that worker, too, since *job* has ended.
        """
        if self._rebuilding.get(session) != job:
            return []
        del self._rebuilding[session]
        return self.go_on(self._slot_of[session])

    def go_on(self, slot: Slot) -> list[Command]:
        """Have the worker of *slot* begin with the next call, if it has nothing in flight."""
        if slot.in_flight.jobs or slot.state not in UP or slot.hung or slot.draining:
            return []
        if slot.pinned:
            return self._pinned.begin(slot)
        assert slot.session is not None
        if not slot.calls:
            return []
        if self._rebuilding.get(slot.session, slot.calls[0]) != slot.calls[0]:
            return []  # the others wait for what rebuilds it
        job = slot.calls.popleft()
        slot.in_flight.add(job, Bound(slot.session))
        slot.assign()
        return [Assign(slot.index, (job,))]

    def give_back(self, jobs: Mapping[int, Bound]) -> list[Command]:
        """Put *jobs*, which have not begun, before the other calls of their session."""
        commands: list[Command] = []
        for job, profile in jobs.items():
            slot = self._slot_of.get(profile.session)
            if slot is None:
                commands.append(EndSession(profile.session, (job,)))
            else:
                slot.calls.appendleft(job)
        return commands

    # They lose their worker, and end.

    def gone(self, slot: Slot, *, followed: bool) -> list[Command]:
        """Take note that the worker of *slot* is gone, and another one comes if *followed*."""
        self._held.discard(slot.index)
        session = slot.session
        if session is None:
            return []
        if followed and session in self._lasting:
            job = self._rebuilding.get(session)
            self._rebuilding[session] = job if job in slot.calls else None
            return []
        calls = tuple(slot.calls)
        self.end(session)
        return [EndSession(session, calls)]

    def renew(self, slot: Slot) -> list[Command]:
        """Take note that *slot*, which is somebody's own, has its next worker.

        What was to rebuild the session in the last one, and has not begun, does so here.
        """
        assert slot.session is not None
        return [Rebuild(slot.index, slot.session), *self.go_on(slot)]

    def give_up(self) -> list[Command]:
        """Turn away all who wait, and end those that last and have no worker now."""
        commands = self.refuse()
        self._held.clear()  # they get jobs again when the pool has recovered
        for slot in [*self._slot_of.values()]:
            if slot.state in EMPTY:
                commands += self.gone(slot, followed=False)
        return commands

    def end(self, session: int) -> Slot | None:
        """End *session*; return whose worker it had, unless it is over already."""
        slot = self._slot_of.pop(session, None)
        self._lasting.discard(session)
        self._rebuilding.pop(session, None)
        if slot is not None:
            slot.session = None
            slot.calls.clear()
        return slot
