"""Decide which worker runs which job.

Jobs wait in the order that ``queue.py`` keeps, and only the first of them is ever
given to a worker.  One that is more urgent than all who wait need not join them if
there is room for it.

An idle worker is always the first choice, and they are handed out last-in, first-out:
the one that stopped working most recently has the warmest caches, and the others get
to be idle long enough to be let go.

If there is none, a job that is known to be short may travel ahead, to wait inside a
worker behind other short ones, as long as what that worker has in hand is no more
than a budget; see ``profiles.py``.  So a worker need not wait for the pool between
two short jobs, and nobody waits behind a long one.

Plain method calls: this is the hot path.
"""

from __future__ import annotations

from asyncpool._core.flight import Flight
from asyncpool._core.profiles import BUDGET, Profile
from asyncpool._core.queue import PATIENCE, JobQueue

__all__ = ["Dispatcher"]


class Dispatcher:
    """The jobs that wait and the workers that have room.

    A job waits only if no worker is idle.

    Args:
        patience: Of so many jobs that leave the queue in a row, at least one is the
            one that has waited longest.
    """

    def __init__(self, *, patience: int = PATIENCE) -> None:
        self._queue = JobQueue(patience)
        # Jobs that come to the queue when they are pickled.
        self._preparing: dict[int, None] = {}
        self._idle: dict[int, Flight] = {}
        self._roomy: dict[int, Flight] = {}

    @property
    def waiting(self) -> int:
        """How many jobs have no worker yet."""
        return len(self._queue.usual) + self._queue.others + len(self._preparing)

    @property
    def idle(self) -> int:
        """How many slots wait for a job."""
        return len(self._idle)

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

    def announce(self, job: int) -> None:
        """Count *job* among those that wait; it is submitted when it can be sent."""
        self._preparing[job] = None

    def give_back(self, jobs: dict[int, Profile]) -> list[tuple[int, int]]:
        """Put *jobs* at the head of the queue, in their order.

        Returns:
            The jobs that need not wait, each with its slot before it.
        """
        queue = self._queue
        queue.give_back(jobs)
        placed: list[tuple[int, int]] = []
        while queue:
            job, profile = queue.head()
            slot = self._place(job, profile)
            if slot is None:
                break
            queue.pop(job)
            placed.append((slot, job))
        return placed

    def refill(self, slot: int, flight: Flight) -> list[int]:
        """Return the jobs that *slot* gets now, and note whether it has room."""
        queue = self._queue
        jobs = self._take_in_turn(flight) if queue.others else []
        usual = queue.usual
        while usual and not queue.others:
            job = next(iter(usual))
            profile = usual[job]
            if flight.jobs and flight.backlog + profile.cost > BUDGET:
                break
            del usual[job]
            flight.add(job, profile)
            jobs.append(job)
        self._classify(slot, flight)
        return jobs

    def discard(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job in self._preparing:
            del self._preparing[job]
            return True
        return self._queue.remove(job)

    def worker_gone(self, slot: int) -> None:
        """Give *slot* no more jobs."""
        self._idle.pop(slot, None)
        self._roomy.pop(slot, None)

    def empty(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = [*self._queue.clear(), *self._preparing]
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

    def _take_in_turn(self, flight: Flight) -> list[int]:
        """Fill *flight*, as long as it is a question whose turn it is."""
        jobs: list[int] = []
        queue = self._queue
        while queue.others:
            job, profile = queue.head()
            if flight.jobs and flight.backlog + profile.cost > BUDGET:
                break
            queue.pop(job)
            flight.add(job, profile)
            jobs.append(job)
        return jobs

    def _place(self, job: int, profile: Profile) -> int | None:
        if self._idle:
            slot, flight = self._idle.popitem()
        else:
            found = self._first_with_room(profile.cost)
            if found is None:
                return None
            # Each in turn, so that a burst spreads over all.
            slot, flight = found, self._roomy.pop(found)
        flight.add(job, profile)
        self._classify(slot, flight)
        return slot

    def _first_with_room(self, cost: float) -> int | None:
        for slot, flight in self._roomy.items():
            if flight.backlog + cost <= BUDGET:
                return slot
        return None

    def _classify(self, slot: int, flight: Flight) -> None:
        if not flight.jobs:
            self._roomy.pop(slot, None)
            self._idle[slot] = flight
        elif flight.backlog < BUDGET:
            self._roomy[slot] = flight
        else:
            self._roomy.pop(slot, None)
