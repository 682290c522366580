"""Decide which worker runs which job.

Jobs wait in the order in which they came; one that lost its worker goes back to
the head.  An idle worker is always the first choice, and they are handed out last-in,
first-out: the one that stopped working most recently has the warmest caches, and the
others get to be idle long enough to be let go.

If there is none, a job that is known to be short may travel ahead, to wait inside a
worker behind other short ones, as long as what that worker has in hand is no more
than a budget; see ``profiles.py``.  So a worker need not wait for the pool between
two short jobs, and nobody waits behind a long one.

Plain method calls: this is the hot path.
"""

from __future__ import annotations

from collections import OrderedDict

from asyncpool._core.flight import Flight
from asyncpool._core.profiles import BUDGET, Profile

__all__ = ["Dispatcher"]


class Dispatcher:
    """The jobs that wait and the workers that have room.

    A job waits only if no worker is idle.
    """

    def __init__(self) -> None:
        # An OrderedDict gives what a deque cannot: removal from the middle at a
        # constant price, so that cancelling thousands of queued jobs is linear.
        self._waiting: OrderedDict[int, Profile] = OrderedDict()
        # Jobs that come to the queue when they are pickled.
        self._preparing: dict[int, None] = {}
        self._idle: dict[int, Flight] = {}
        self._roomy: dict[int, Flight] = {}

    @property
    def waiting(self) -> int:
        """How many jobs have no worker yet."""
        return len(self._waiting) + len(self._preparing)

    @property
    def idle(self) -> int:
        """How many slots wait for a job."""
        return len(self._idle)

    def submit(self, job: int, profile: Profile) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        slot = None if self._waiting else self._place(job, profile)
        if slot is None:
            self._waiting[job] = profile
        return slot

    def announce(self, job: int) -> None:
        """Count *job* among those that wait; it is submitted when it can be sent."""
        self._preparing[job] = None

    def give_back(self, jobs: dict[int, Profile]) -> list[tuple[int, int]]:
        """Put *jobs* at the head of the queue, in their order.

        Returns:
            The jobs that need not wait, each with its slot before it.
        """
        waiting = self._waiting
        for job in reversed(jobs):
            waiting[job] = jobs[job]
            waiting.move_to_end(job, last=False)
        placed = []
        while waiting:
            job = next(iter(waiting))
            slot = self._place(job, waiting[job])
            if slot is None:
                break
            del waiting[job]
            placed.append((slot, job))
        return placed

    def refill(self, slot: int, flight: Flight) -> list[int]:
        """Return the jobs that *slot* gets now, and note whether it has room."""
        jobs: list[int] = []
        waiting = self._waiting
        while waiting:
            job = next(iter(waiting))
            profile = waiting[job]
            if flight.jobs and flight.backlog + profile.cost > BUDGET:
                break
            del waiting[job]
            flight.add(job, profile)
            jobs.append(job)
        self._classify(slot, flight)
        return jobs

    def discard(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job in self._preparing:
            del self._preparing[job]
            return True
        return self._waiting.pop(job, None) is not None

    def worker_gone(self, slot: int) -> None:
        """Give *slot* no more jobs."""
        self._idle.pop(slot, None)
        self._roomy.pop(slot, None)

    def empty(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = [*self._waiting, *self._preparing]
        self._waiting.clear()
        self._preparing.clear()
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
