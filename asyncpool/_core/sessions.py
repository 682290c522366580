"""Workers that certain jobs need: pinned jobs, sessions, keys.

A *pinned* job is for one given worker, which begins it before any other.  Such jobs wait
at their slot, never in the queue.  If the worker goes before it has begun such a job,
the pool drops the job.

A caller that asks for a *session* gets the next idle worker.  While callers wait, the
pool holds back as many workers as are wanted: it sends them no job of the queue, so
that they finish what they have in flight.  The first worker that has finished goes to a
caller.  From then on until the session ends, the worker runs only the session's
*calls*, one after the other, and pinned jobs.

A worker that is to be replaced stays until its session is over.  If the worker dies, or
a call retires it, that ends the session.

A *bucket* is a number that stands for one worker.  The keys of jobs are divided among
the buckets (``dispatcher.py``).  A bucket passes from a worker to the one that
follows it:

* If a worker ends and another one follows at once in its slot, that one gets the
  bucket.  Jobs wait for it, since it is there within milliseconds.
* A replacement, which starts in an unused slot, gets the bucket when it is ready and
  the old worker leaves.
* A worker that belongs to a session has no bucket meanwhile.
* If no worker follows at once, the bucket is given up, and its keys go to their next
  choices.  That is so if there is a backoff, if the slot is parked or not needed, or if
  a worker leaves before its replacement is ready.  A worker that is ready and has no
  bucket takes the lowest free one.  Most likely that is the one that was given up, so
  its keys come back, and no other keys move.

A worker that is started because the pool grows has no bucket before it is ready.  The
workers with which a pool begins have theirs from the start.  Otherwise all keys would
first belong to the first worker that is ready, and then move.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncpool._core.functions import PINNED, SessionTraits
from asyncpool._core.slots import ALIVE, UP, Slot
from asyncpool.enums import SlotState

if TYPE_CHECKING:
    from asyncpool._core.core import Core


class SessionSlots:
    """The pinned jobs of a pool, its sessions, and its buckets.

    Args:
        core: The core of the pool.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._slots = core.slots
        self._dispatcher = core.dispatcher
        self._numbers = itertools.count(1)
        # Slots that are held back, and still have jobs in flight.
        self._held: set[int] = set()

    # Pinned jobs.

    def pin(self, index: int, job: int) -> None:
        """Have the worker in slot *index*, and no other one, run *job* before all others.

        The worker begins it as soon as it has nothing else in flight.  Several pinned
        jobs begin in the order of these calls.
        """
        slot = self._slots[index]
        slot.pinned.append(job)
        if slot.state is not SlotState.IDLE or not slot.hung:
            self._dispatcher.exclude(slot.index)
            self.go_on(slot)

    def drop_pinned(self, slot: Slot) -> None:
        """Drop the pinned jobs of *slot*, since its worker goes."""
        pinned_jobs = tuple(slot.pinned)
        slot.pinned.clear()
        if pinned_jobs:
            self._core.end_jobs(pinned_jobs, "drop_pinned", pinned_jobs)

    def discard(self, job: int) -> Slot | None:
        """Forget *job* if it is a pinned job or a session's call, and return its slot."""
        for slot in self._slots:
            for jobs in (slot.pinned, slot.calls):
                if job in jobs:
                    jobs.remove(job)
                    return slot
        return None

    def take_all(self) -> dict[int, Slot]:
        """Forget all pinned jobs, and all calls of sessions; return them, each with its slot."""
        jobs: dict[int, Slot] = {}
        for slot in self._slots:
            jobs |= dict.fromkeys((*slot.pinned, *slot.calls), slot)
            slot.pinned.clear()
            slot.calls.clear()
        return jobs

    # Sessions begin.

    def request(self) -> None:
        """Offer the next idle worker to a caller that waits for a session."""
        self._dispatcher.session_waiters += 1
        self.grant_waiting()
        self.update_buckets()

    def cancel_request(self, now: float) -> None:
        """Record that a caller that waited wants no session any more."""
        self._dispatcher.session_waiters -= 1
        self._feed_spare(now)

    def grant_waiting(self) -> None:
        """Offer idle workers to callers that wait.

        A worker is offered when it becomes idle.  But a worker that was to be replaced,
        and stays because its replacement has failed, is idle already.
        """
        for index in [*reversed(self._dispatcher.idle)]:
            slot = self._slots[index]
            if self._dispatcher.session_waiters and self._is_grantable(slot):
                self._offer(slot)

    def take(self, slot: Slot, now: float) -> bool:
        """Give the worker of *slot*, which needs no job just now, to a caller that waits.

        Returns:
            Whether it gets no job, since it is a caller's, or is held back for one.
        """
        if not self._is_grantable(slot):
            self._held.discard(slot.index)
            return False
        if not slot.in_flight.jobs:
            self._offer(slot)
        elif slot.index not in self._held:
            # Workers that have begun to end meanwhile are of no use.
            self._held = {n for n in self._held if self._may_come(self._slots[n])}
            if len(self._held) >= self._dispatcher.session_waiters:
                return False
            self._held.add(slot.index)
            self._dispatcher.exclude(slot.index)
        self.update_buckets()
        self._feed_spare(now)
        return True

    def _feed_spare(self, now: float) -> None:
        """Give jobs again to workers that were held back for sessions nobody wants any more."""
        spare = sorted(self._held)[self._dispatcher.session_waiters :]
        self._held.difference_update(spare)
        for index in spare:
            self._core.refill(index, now)

    def refuse(self, now: float) -> None:
        """Refuse all callers that wait for a session.

        Workers that were held back for them have room for jobs that are tried again.
        """
        wanted, self._dispatcher.session_waiters = self._dispatcher.session_waiters, 0
        if wanted:
            self._core.do("refuse_sessions")
        self._feed_spare(now)

    def _offer(self, slot: Slot) -> None:
        self._dispatcher.session_waiters -= 1
        self._dispatcher.exclude(slot.index)
        self._held.discard(slot.index)
        slot.session = next(self._numbers)
        self._core.do("offer", slot.index, slot.session)

    def _is_grantable(self, slot: Slot) -> bool:
        # A worker whose replacement is starting is about to leave.  So is a worker that
        # may run no more jobs.
        return not slot.in_flight.exhausted and not any(
            other.replaces == slot.index for other in self._slots
        )

    def _may_come(self, slot: Slot) -> bool:
        ends = slot.faulty or slot.job_endings.killing is not None
        return slot.stays and not ends and self._is_grantable(slot)

    # Pinned jobs and sessions go on.

    def call(self, job: int, traits: SessionTraits) -> None:
        """Run *job* in the worker of its session, after the session's other calls."""
        slot = self._slot_of_call(job, traits)
        if slot is not None:
            slot.calls.append(job)
            self.go_on(slot)

    def requeue(self, jobs: Mapping[int, SessionTraits]) -> None:
        """Put *jobs*, which have not begun, before the other calls of their session."""
        for job, traits in jobs.items():
            slot = self._slot_of_call(job, traits)
            if slot is not None:
                slot.calls.appendleft(job)

    def _slot_of_call(self, job: int, traits: SessionTraits) -> Slot | None:
        """Return the slot of the worker that is to run *job*; without one the job ends."""
        slot = self._slot_of(traits.session)
        if slot is None:
            self._core.end_jobs((job,), "end_session", traits.session, (job,))
        return slot

    def _slot_of(self, session: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.session == session), None)

    def go_on(self, slot: Slot) -> None:
        """Begin what only the worker of *slot* may run, if it has nothing in flight."""
        if slot.in_flight.jobs or slot.state not in UP or slot.hung or slot.draining:
            return
        if slot.pinned:
            job, traits = slot.pinned.popleft(), PINNED
            # It does not count towards max_jobs: each replacement would also have one, and
            # go again.
            slot.in_flight.max_sent += 1
        elif slot.calls:
            assert slot.session is not None
            job, traits = slot.calls.popleft(), SessionTraits(slot.session)
        else:
            return
        slot.in_flight.add(job, traits)
        slot.assign()
        self._core.do("assign", slot.index, (job,))

    # Sessions lose their worker, and end.

    def gone(self, slot: Slot) -> None:
        """Record that the worker of *slot* is gone."""
        self._held.discard(slot.index)
        if slot.session is not None:
            session, calls, slot.session = slot.session, tuple(slot.calls), None
            slot.calls.clear()
            self._core.end_jobs(calls, "end_session", session, calls)

    def break_off(self, now: float) -> None:
        """Record that the pool is broken: refuse all callers that wait."""
        self._held.clear()  # the workers get jobs again when the pool has recovered
        self.refuse(now)

    def end(self, session: int, now: float, *, fresh: bool) -> None:
        """Return the worker of *session* to the pool, or replace it by a *fresh* one.

        The session must have no calls that wait.
        """
        slot, core = self._slot_of(session), self._core
        if slot is None:
            return  # it is over already
        slot.session = None
        slot.calls.clear()
        if fresh and slot.ready_at is not None:
            core.lifecycle.drain(slot, "session", now)
        elif slot.in_flight.exhausted and slot.state is SlotState.IDLE:
            core.lifecycle.drain_now(slot, "max_jobs", now)
        elif slot.state in UP:
            self.assign_bucket(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                core.feed(slot, now)
        core.after_change(now)

    # Buckets.

    def open_buckets(self) -> None:
        """Give buckets to the workers with which the pool begins."""
        for slot in self._slots:
            if slot.state is SlotState.STARTING:
                slot.bucket = slot.index
        self.update_buckets()

    def assign_bucket(self, slot: Slot) -> None:
        """Give a bucket to the worker of *slot*, which is ready; then update all of them."""
        if slot.bucket is None and slot.replaces is not None:
            old = self._slots[slot.replaces]
            slot.bucket, old.bucket = old.bucket, None
        if slot.bucket is None:
            taken = {other.bucket for other in self._slots}
            slot.bucket = min(set(range(len(self._slots))) - taken)

    def update_buckets(self) -> None:
        """Free the buckets that were given up, and move jobs to where their keys belong now."""
        for slot in self._slots:
            if slot.draining or slot.session or slot.state not in ALIVE:
                slot.bucket = None
        slots_by_bucket = {
            s.bucket: s.index for s in self._slots if s.bucket is not None
        }
        self._core.assign(self._dispatcher.assign_buckets(slots_by_bucket))
