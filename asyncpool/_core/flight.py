"""The jobs that one worker has been sent and has not answered yet.

The first of them is running, or about to; the others wait in the worker for their
turn.  A job that waits there can be *revoked*: the worker is asked not to begin what
came in these *places*, counted from 1 in the order of sending, and answers which of
them will indeed not begin.  Exactly one side wins each, and both know which: until
the answer is there, such a job belongs to the worker, and its outcome is welcome.

Costs are in microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from asyncpool._core.profiles import LEAST, UNKNOWN, Profile
from asyncpool.errors import ProtocolError

__all__ = ["Flight"]


class Flight:
    """What one generation of a slot has in hand.

    Attributes:
        jobs: Each job's place, what it is expected to cost, and what that is known
            from, in their order.
        backlog: The sum of those costs.
    """

    __slots__ = ("_asked", "_sent", "backlog", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[int, float, Profile]] = {}
        self.backlog = 0.0
        self._sent = 0
        self._asked: deque[tuple[int, ...]] = deque()

    @property
    def head(self) -> int | None:
        """The job that is running, or about to."""
        return next(iter(self.jobs), None)

    @property
    def assured(self) -> float:
        """What there is to do at the least, even if the one that is running ends now."""
        if not self.jobs:
            return 0.0
        head = next(iter(self.jobs.values()))[1]
        return self.backlog - head - LEAST * (len(self.jobs) - 1)

    @property
    def asking(self) -> bool:
        """Whether the worker has been asked something that it has not answered."""
        return bool(self._asked)

    def add(self, job: int, profile: Profile) -> None:
        """Send *job*."""
        self._sent += 1
        cost = profile.cost
        self.jobs[job] = (self._sent, cost, profile)
        self.backlog += cost

    def land(self, job: int) -> None:
        """Take note of an outcome of *job*.

        Raises:
            ProtocolError: If it was not this job's turn.
        """
        jobs = self.jobs
        if next(iter(jobs), None) != job:
            self._check_turn(job)
        self.backlog -= jobs.pop(job)[1]
        if not jobs:
            self.backlog = 0.0  # whatever rounding has made of it

    def remove(self, job: int) -> None:
        """Forget *job*."""
        self.backlog -= self.jobs.pop(job)[1]
        if not self.jobs:
            self.backlog = 0.0

    def withdraw(self, job: int) -> None:
        """Forget *job*, the last that was added: it has not been sent after all."""
        self.remove(job)
        self._sent -= 1

    def stall(self) -> None:
        """Expect no end of the job that is running; nothing may wait behind it."""
        head = self.head
        if head is not None:
            place, cost, profile = self.jobs[head]
            self.jobs[head] = (place, UNKNOWN, profile)
            self.backlog += UNKNOWN - cost

    def behind(self) -> list[int]:
        """Return the jobs that wait for their turn, oldest first."""
        return list(self.jobs)[1:]

    def ask(self, jobs: Iterable[int]) -> tuple[int, ...]:
        """Take note that the worker is asked for *jobs*; return their places."""
        places = tuple(self.jobs[job][0] for job in jobs)
        self._asked.append(places)
        return places

    def place(self, job: int) -> int:
        """Return the place in which *job* was sent."""
        return self.jobs[job][0]

    def asks_for(self, job: int) -> bool:
        """Tell whether the worker has been asked for *job*, and has not answered."""
        place = self.jobs[job][0]
        return any(place in places for places in self._asked)

    def answer(self, won: Iterable[int]) -> tuple[dict[int, Profile], list[int]]:
        """Take the worker's answer to the oldest question.

        Args:
            won: The places of the jobs that will not begin.

        Returns:
            Those jobs, oldest first, which are no longer in flight; and those that
            are, since they have begun.

        Raises:
            ProtocolError: If nobody asked for them, or one of them is done.
        """
        asked = self._asked.popleft() if self._asked else ()
        places = {entry[0]: job for job, entry in self.jobs.items()}
        given = sorted(set(won))
        for place in given:
            if place not in asked or place not in places:
                raise ProtocolError(f"it gave back job {place}, which it cannot")
        back = {places[place]: self.jobs[places[place]][2] for place in given}
        for job in back:
            self.remove(job)
        kept = [places[place] for place in asked if place in places]
        return back, [job for job in kept if job in self.jobs]

    def _check_turn(self, job: int) -> None:
        # Only a job that the worker may have given back can be overtaken.
        asked = {place for places in self._asked for place in places}
        for other, entry in self.jobs.items():
            if other == job:
                return
            if entry[0] not in asked:
                break
        raise ProtocolError(f"it sent an outcome of job {job}, whose turn it is not")
