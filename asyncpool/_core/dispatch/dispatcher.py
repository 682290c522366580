"""Decide which worker runs which job.

Jobs wait in the order that ``queue.py`` keeps, and only the first of them is ever
given to a worker.  One that is more urgent than all who wait need not join them if
there is room for it.

An idle worker is always the first choice, and they are handed out last-in, first-out:
the one that stopped working most recently has the warmest caches, and the others get
to be idle long enough to be let go.

If there is none, a job that is known to be short may travel ahead, to wait inside a
worker behind other short ones, as long as what that worker has in flight is no more
than a budget; see ``run_times.py``.  So a worker need not wait for the pool between
two short jobs, and nobody waits behind a long one.

Where workers run several jobs at once, those have their turn behind the idle ones that
have a lane free, one job each, so that a burst spreads over all.

A job with a key is for one worker, whatever the others do.  It waits in a line of its
own (``affinity_queues.py``); whose worker becomes free takes the head of that line, or of the common
queue, whichever is the next by the queue's rules.  While jobs wait in its line nothing is
sent to it but from there and from the queue's head, so nobody passes them.

Plain method calls: this is the hot path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncpool._core.base.run_times import BUDGET, Profile
from asyncpool._core.dispatch.affinity_queues import AffinityQueues
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.dispatch.queue import PATIENCE, JobQueue


class Dispatcher:
    """The jobs that wait and the workers that have room.

    A job without a key waits only if no worker is idle; one with a key, only if its own
    is not.

    Args:
        patience: Of so many jobs that leave the queue in a row, at least one is the
            one that has waited longest.

    Attributes:
        wanted: How many workers are wanted for sessions; see ``sessions.py``.
    """

    def __init__(self, *, patience: int = PATIENCE) -> None:
        self._queue = JobQueue(patience)
        # Jobs that come to the queue when they are pickled.
        self._preparing: dict[int, None] = {}
        # Those for whose worker no job waits in a line: with nothing to do, with a free
        # lane beside what it does, and with some time left.
        self._idle: dict[int, InFlight] = {}
        self._spacious: dict[int, InFlight] = {}
        self._roomy: dict[int, InFlight] = {}
        self._affinity_queues = AffinityQueues(patience)
        self._open_queues = self._affinity_queues.open  # to look at in a hurry
        self.wanted = 0

    @property
    def waiting(self) -> int:
        """How many jobs have no worker yet."""
        queue = self._queue
        count = len(queue.usual) + queue.others + len(self._preparing)
        return count + len(self._affinity_queues) if self._open_queues else count

    @property
    def unserved(self) -> int:
        """How many jobs and sessions wait that might not, were there more workers.

        One that waits for its own worker while another is idle is none of them.
        """
        room = self._idle or self._spacious
        jobs = self.waiting - len(self._affinity_queues) if room else self.waiting
        return jobs + self.wanted

    def waiting_for(self, slot: int) -> int:
        """How many jobs have no worker yet, and may go to that of *slot*."""
        own = self._affinity_queues.queue_of(slot)
        return (
            self.waiting - len(self._affinity_queues) + (0 if own is None else len(own))
        )

    @property
    def idle(self) -> int:
        """How many slots wait for a job."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """How many jobs would begin at once."""
        busy = (*self._idle.values(), *self._spacious.values())
        return sum(in_flight.free_lanes for in_flight in busy)

    def idle_slots(self) -> list[int]:
        """Return the slots that wait for a job; the next one to get one is the first."""
        return [*reversed(self._idle)]

    @property
    def preparing(self) -> int:
        """How many jobs are still being pickled."""
        return len(self._preparing)

    def has_idle_worker_for(self, key: int | None) -> bool:
        """Tell whether a job that came now would not wait."""
        if key is None:
            return self.free > len(self._preparing)
        slot = self._affinity_queues.slot_of(key)
        return slot in self._idle or slot in self._spacious

    def submit(self, job: int, profile: Profile, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        queue = self._queue
        if priority or queue.others:
            return self._submit_among_others(job, profile, priority)
        usual = queue.usual
        slot = None if usual else self._place(job, profile)
        if slot is None:
            usual[job] = profile
        return slot

    def submit_keyed(self, job: int, profile: Profile, priority: int) -> int | None:
        """Do the same with a job that has a key."""
        slot = self._affinity_queues.slot_of(profile.key)
        if slot in self._idle:
            in_flight = self._idle.pop(slot)
        elif slot in self._spacious:
            in_flight = self._spacious.pop(slot)
        elif slot in self._roomy and self._may_go_ahead(slot, profile, priority):
            in_flight = self._roomy.pop(slot)
            self._queue.passes(job)
        else:
            self._affinity_queues.add(job, profile, priority)
            if slot is not None:
                self._roomy.pop(slot, None)
            return None
        assert slot is not None
        in_flight.add(job, profile)
        self._classify(slot, in_flight)
        return slot

    def announce(self, job: int) -> None:
        """Count *job* among those that wait; it is submitted when it can be sent."""
        self._preparing[job] = None

    def give_back(self, jobs: dict[int, Profile]) -> list[tuple[int, int]]:
        """Put *jobs* at the head of the queue, in their order.

        Returns:
            The jobs that need not wait, each with its slot before it.
        """
        queue = self._queue
        keyed = {job: jobs[job] for job in jobs if jobs[job].key is not None}
        placed: list[tuple[int, int]] = []
        if keyed:
            self._affinity_queues.give_back(keyed)
            jobs = {job: jobs[job] for job in jobs if job not in keyed}
        queue.give_back(jobs)
        if keyed:
            slots = {
                self._affinity_queues.slot_of(profile.key) for profile in keyed.values()
            }
            placed += self._serve(slot for slot in slots if slot is not None)
        while queue:
            job, profile = queue.head()
            slot = self._place(job, profile)
            if slot is None:
                break
            queue.pop(job)
            placed.append((slot, job))
        return placed

    def refill(self, slot: int, in_flight: InFlight) -> list[int]:
        """Return the jobs that *slot* gets now, and note whether it has room."""
        queue = self._queue
        jobs: list[int] = []
        if self._open_queues:
            line = self._affinity_queues.queue_of(slot)
            if line is not None:
                jobs = self._take_from_both(line, in_flight)
                if line:
                    self._spacious.pop(slot, None)
                    self._roomy.pop(slot, None)
                    return jobs
        if queue.others:
            jobs += self._take_in_turn(in_flight)
        usual = queue.usual
        while usual and not queue.others:
            job = next(iter(usual))
            profile = usual[job]
            if not in_flight.takes(profile):
                break
            del usual[job]
            in_flight.add(job, profile)
            jobs.append(job)
        self._classify(slot, in_flight)
        return jobs

    def discard(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job in self._preparing:
            del self._preparing[job]
            return True
        return self._queue.remove(job) or self._affinity_queues.remove(job)

    def assign_buckets(
        self, slots_by_bucket: Mapping[int, int]
    ) -> list[tuple[int, int]]:
        """Let these places, each with its slot, be those that keys belong to.

        Returns:
            The jobs that need not wait any more, each with its slot before it.
        """
        if slots_by_bucket == self._affinity_queues.slots_by_bucket:
            return []
        self._affinity_queues.assign(slots_by_bucket)
        return self._serve(slots_by_bucket.values()) if self._open_queues else []

    def worker_gone(self, slot: int) -> None:
        """Give *slot* no more jobs."""
        self._idle.pop(slot, None)
        self._spacious.pop(slot, None)
        self._roomy.pop(slot, None)

    def clear(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = [*self._queue.clear(), *self._affinity_queues.clear(), *self._preparing]
        self._preparing.clear()
        return jobs

    def _submit_among_others(
        self, job: int, profile: Profile, priority: int
    ) -> int | None:
        """Submit a job for which it matters how urgent it is, and how the others are."""
        queue = self._queue
        if queue.leads(priority):
            slot = self._place(job, profile)
            if slot is not None:
                queue.passes(job)
                return slot
        queue.add(job, profile, priority)
        return None

    def _take_in_turn(self, in_flight: InFlight) -> list[int]:
        """Fill *in_flight*, as long as it is a question whose turn it is."""
        jobs: list[int] = []
        queue = self._queue
        while queue.others:
            job, profile = queue.head()
            if not in_flight.takes(profile):
                break
            queue.pop(job)
            in_flight.add(job, profile)
            jobs.append(job)
        return jobs

    def _take_from_both(self, line: JobQueue, in_flight: InFlight) -> list[int]:
        """Fill *in_flight* from its line and the queue, until the line is empty."""
        jobs: list[int] = []
        queue = self._queue
        while line:
            first, second, rank = line, queue, line.rank()
            if queue and queue.rank() < rank:
                first, second, rank = queue, line, queue.rank()
            job, profile = first.head()
            if not in_flight.takes(profile):
                break
            first.pop(job)
            if first is line:
                self._affinity_queues.left(job)
            if rank[0]:  # who comes back had the turn before
                second.passed_by(job)
            in_flight.add(job, profile)
            jobs.append(job)
        return jobs

    def _serve(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Give those of *slots* that have room the jobs that wait for them."""
        served = []
        for slot in slots:
            in_flight = (
                self._idle.get(slot)
                or self._spacious.get(slot)
                or self._roomy.get(slot)
            )
            if (
                in_flight is not None
                and self._affinity_queues.queue_of(slot) is not None
            ):
                self._idle.pop(slot, None)
                self._spacious.pop(slot, None)
                served += [(slot, job) for job in self.refill(slot, in_flight)]
        return served

    def _may_go_ahead(self, slot: int, profile: Profile, priority: int) -> bool:
        """Tell whether a job may be sent to a worker that has others in flight."""
        return self._roomy[slot].takes(profile) and self._queue.leads(priority)

    def _place(self, job: int, profile: Profile) -> int | None:
        if self._idle:
            slot, in_flight = self._idle.popitem()
        elif self._spacious:
            slot = next(iter(self._spacious))
            in_flight = self._spacious.pop(slot)
        else:
            found = self._first_with_room(profile)
            if found is None:
                return None
            # Each in turn, so that a burst spreads over all.
            slot, in_flight = found, self._roomy.pop(found)
        in_flight.add(job, profile)
        self._classify(slot, in_flight)
        return slot

    def _first_with_room(self, profile: Profile) -> int | None:
        for slot, in_flight in self._roomy.items():
            if in_flight.takes(profile):
                return slot
        return None

    def _classify(self, slot: int, in_flight: InFlight) -> None:
        if self._spacious:
            self._spacious.pop(slot, None)
        if in_flight.sent >= in_flight.most:  # spent; a property takes longer
            self.worker_gone(slot)
        elif not in_flight.jobs:
            self._roomy.pop(slot, None)
            self._idle[slot] = in_flight
        elif in_flight.concurrency > 1 and in_flight.free_lanes:
            self._roomy.pop(slot, None)
            self._spacious[slot] = in_flight
        elif in_flight.backlog < BUDGET:
            self._roomy[slot] = in_flight
        else:
            self._roomy.pop(slot, None)
