"""Which worker has which job: how the pool assigns a job to a worker, and takes it back.

The hot path is :meth:`JobAssignment.submit`, :meth:`JobAssignment.outcome` and
:meth:`JobAssignment.refill`.  :meth:`JobAssignment.submit` returns the slot to send the
job to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncpool._core.base.job_traits import PINNED, JobTraits, SessionTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.placement.sessions import PinnedJobs, Sessions
from asyncpool._core.policies.job_options import KILL, CancelMode
from asyncpool._core.slots.commands import Assign, Command, DropPinnedJobs, Unassign
from asyncpool._core.slots.lifecycle import SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import Slot, SlotEvent
from asyncpool._core.supervision.closing import Closing, Finish
from asyncpool._core.supervision.replacement import Replacements
from asyncpool._core.supervision.termination import Termination
from asyncpool.enums import SlotState

CLOSED = "the pool was closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionParts:
    """The state of a pool: one part for each kind of decision.

    Attributes:
        lifecycle: The slots, and how workers start and end in them.
        dispatcher: The jobs that have no worker, and which workers may have them.
        pinned: The jobs for one given worker each.
        sessions: The workers that belong to sessions, and how many more are wanted.
        affinity_slots: Which slots the keys belong to.
        termination: The jobs that the pool ends.
        closing: The end of the pool.
        replacements: Planned exits.
        serving: Whether workers serve as long as they live, and have no jobs.
    """

    lifecycle: SlotLifecycle
    dispatcher: Dispatcher
    pinned: PinnedJobs
    sessions: Sessions
    affinity_slots: AffinitySlots
    termination: Termination
    closing: Closing
    replacements: Replacements
    serving: bool


class JobAssignment:
    """The jobs of a pool, and the workers that have them.

    Args:
        parts: The state of the pool.
    """

    def __init__(self, parts: SupervisionParts) -> None:
        self._slots = parts.lifecycle.slots
        self._lifecycle = parts.lifecycle
        self._dispatcher = parts.dispatcher
        self._pinned = parts.pinned
        self._sessions = parts.sessions
        self._affinity_slots = parts.affinity_slots
        self._termination = parts.termination
        self._closing = parts.closing
        self._replacements = parts.replacements

    # The hot path.

    def submit(self, job: int, traits: JobTraits, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        index = self._dispatcher.submit(job, traits, priority)
        if index is not None:
            self._slots[index].assign()
        return index

    def submit_keyed(self, job: int, traits: JobTraits, priority: int) -> int | None:
        """Do the same as :meth:`submit` for a job that has a key."""
        index = self._dispatcher.submit_keyed(job, traits, priority)
        if index is not None:
            self._slots[index].assign()
        return index

    def submit_pinned(self, index: int, job: int) -> list[Command]:
        """Have the worker in slot *index*, and no other one, run *job* before all others.

        The worker begins it as soon as it has nothing else in flight.  Several pinned
        jobs begin in the order of these calls.
        """
        return self._pinned.add(self._slots[index], job)

    def prepare(self, job: int) -> None:
        """Record a job that is still being pickled; :meth:`submit_prepared` submits it."""
        self._dispatcher.prepare(job)

    def submit_prepared(
        self, job: int, traits: JobTraits, now: float, priority: int = 0
    ) -> list[Command]:
        """Submit a job that is pickled now."""
        self._dispatcher.remove(job)
        if isinstance(traits, SessionTraits):
            commands = self._sessions.call(job, traits)
            return [*commands, *self.settle(now)]
        submit = self.submit if traits.key is None else self.submit_keyed
        index = submit(job, traits, priority)
        commands = [] if index is None else [Assign(index, (job,))]
        return [*commands, *self.settle(now)]

    def outcome(self, index: int, job: int) -> None:
        """Record that the worker in slot *index* finished *job*.

        Raises:
            ProtocolError: If it was not this job's turn there.
        """
        slot = self._slots[index]
        slot.in_flight.complete(job)
        slot.outcomes += 1
        if slot.job_endings:
            self._termination.clear_ending(slot, job)

    def refill(self, index: int, now: float) -> list[Command]:
        """Give the worker in slot *index* more jobs, or let it go, after it has sent outcomes."""
        slot = self._slots[index]
        if slot.state is not SlotState.BUSY:
            return []  # it ends already
        endings = slot.job_endings
        must_end = endings and endings.killing is not None
        if must_end or slot.faulty or slot.draining or self._lifecycle.broken:
            commands = self._termination.end_worker(slot, now)
        elif (endings and endings.by_itself) or not slot.in_flight.wants_more:
            commands = []
        else:
            if not slot.in_flight.jobs:
                slot.apply(SlotEvent.RELEASE)
                slot.idle_since = now
            commands = self.feed(slot, now)
            if (
                slot.in_flight.exhausted
                and not slot.in_flight.jobs
                and slot.session is None
            ):
                # It may run no more jobs, so it goes even before its replacement is
                # ready.
                commands += self._replacements.retire(
                    slot, "max_jobs", now, unsent=None
                )
            elif slot.in_flight.exhausted or slot.outcomes >= slot.recycle_limits.jobs:
                commands += self._replacements.replace(slot, "max_jobs", now)
        if self._closing.finish is not None:
            commands += self.settle(now)
        return commands

    def feed(self, slot: Slot, now: float) -> list[Command]:
        """Give the worker of *slot* what it should run next."""
        if slot.session is not None:
            return self._sessions.go_on(slot)
        if slot.pinned:
            return self._pinned.begin(slot)
        if self._dispatcher.wanted:
            commands = self._sessions.take(slot)
            if commands is not None:
                return [
                    *commands,
                    *self._affinity_slots.update(),
                    *self.feed_released(now),
                ]
        jobs = self._dispatcher.refill(slot.index, slot.in_flight)
        if not jobs:
            return []
        slot.assign()
        return [Assign(slot.index, tuple(jobs))]

    def arguments_loaded(self, index: int, now: float) -> list[Command]:
        """Record that the last job of slot *index* has been sent, with its large arguments."""
        in_flight = self._slots[index].in_flight
        if not in_flight.closed:
            return []
        in_flight.closed = False
        return self.refill(index, now)

    # Jobs that leave their worker, or the queue.

    def requeue(self, jobs: dict[int, JobTraits], now: float) -> list[Command]:
        """Put *jobs* at the head of the queue, or assign them to workers with room."""
        return [*self.put_back(jobs), *self.settle(now)]

    def drop(self, job: int, now: float) -> list[Command]:
        """Give up *job*, which may be in the queue, or is about to be queued."""
        commands: list[Command] = []
        if not self._dispatcher.remove(job):
            slot = self._pinned.discard(job)
            if slot is not None:
                # The worker may have a free lane now.
                commands += self.refill(slot.index, now)
        return [*commands, *self.settle(now)]

    def cancel(
        self, job: int, now: float, *, index: int, begun: bool, mode: CancelMode = KILL
    ) -> list[Command]:
        """Give up *job*, which the worker in slot *index* may have in flight.

        Args:
            job: The job.
            now: The time.
            index: The slot.
            begun: Whether the pool knows that the worker has begun it.
            mode: How the pool ends the job if it has begun.
        """
        slot = self._slots[index]
        if job not in slot.in_flight.jobs:
            return self.drop(job, now)
        return self._termination.cancel(slot, job, now, begun=begun, mode=mode)

    def withdraw(self, index: int, job: int, now: float) -> list[Command]:
        """Take back *job*, which was assigned to slot *index* but not sent yet."""
        slot = self._slots[index]
        slot.in_flight.withdraw(job)
        self._termination.clear_ending(slot, job)
        return [Unassign((job,)), *self.refill(index, now), *self.settle(now)]

    def revoked(
        self, index: int, sequences: Iterable[int], now: float
    ) -> list[Command]:
        """Handle a worker's answer to a :class:`Revoke`: the jobs that it will not begin.

        Raises:
            ProtocolError: If the pool has not asked for these jobs.
        """
        slot = self._slots[index]
        commands, wanted = self._termination.take_answer(slot, sequences, now)
        if self._closing.finish is not None and self._closing.finish >= Finish.RUNNING:
            commands += fail_jobs(list(wanted), "closed")
        else:
            commands += self.put_back(wanted)
        commands += self.refill(index, now)
        return [*commands, *self.settle(now)]

    def outcome_unpacked(self, job: int, now: float) -> list[Command]:
        """Record that the outcome of *job*, a large one, is unpickled."""
        self._closing.end_unpacking(job)
        return self.settle(now)

    # Questions.

    def count_in_flight(self, index: int) -> int:
        """How many jobs the worker in slot *index* has in flight."""
        return len(self._slots[index].in_flight.jobs)

    def head(self, index: int) -> int | None:
        """Return the first job that the worker in slot *index* runs, or is about to run."""
        return self._slots[index].in_flight.head

    def running(self, index: int) -> tuple[int, ...]:
        """Return the jobs that the worker in slot *index* runs, or is about to run."""
        return self._slots[index].in_flight.running

    def runs(self, index: int, job: int) -> bool:
        """Tell whether the worker in slot *index* runs *job*, or is about to run it."""
        return self._slots[index].in_flight.runs(job)

    def last(self, index: int) -> int | None:
        """Return the job that was assigned last to the worker in slot *index*."""
        return self._slots[index].in_flight.last

    # For the other decisions.

    def put_back(self, jobs: dict[int, JobTraits]) -> list[Command]:
        """Put *jobs*, which have left their worker, where they wait for another one."""
        if self._lifecycle.broken is not None:
            return fail_jobs(list(jobs), "broken")
        commands: list[Command] = []
        pinned_jobs = tuple(job for job in jobs if jobs[job] is PINNED)
        if pinned_jobs:
            jobs = {job: jobs[job] for job in jobs if job not in pinned_jobs}
            commands.append(DropPinnedJobs(pinned_jobs))
        calls = {job: of for job, of in jobs.items() if isinstance(of, SessionTraits)}
        if calls:
            jobs = {job: jobs[job] for job in jobs if job not in calls}
            commands += self._sessions.requeue(calls)
        for index, job in self._dispatcher.requeue(jobs):
            self._slots[index].assign()
            commands.append(Assign(index, (job,)))
        return commands

    def feed_released(self, now: float) -> list[Command]:
        """Give jobs again to workers that were held back for sessions nobody wants any more."""
        spare = self._sessions.release_spare()
        return [command for it in spare for command in self.refill(it.index, now)]

    def settle(self, now: float) -> list[Command]:
        """If the pool closes, let workers go that no job needs any more."""
        if self._closing.over or not self._closing.needs_nobody:
            return []
        return [*self._replacements.stop(CLOSED), *self._closing.settle(now)]
