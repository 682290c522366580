"""The jobs that one worker has been sent and has not answered yet.

A worker has one *lane* or several: it runs as many jobs at once, and takes them in their
order.  So the first of them are running, or about to; the others wait in the worker for
their turn.  A job that waits there can be *revoked*: the worker is asked not to begin what
came in these *sequences*, counted from 1 in the order of sending, and answers which of
them will indeed not begin.  Exactly one side wins each, and both know which: until
the answer is there, such a job belongs to the worker, and its outcome is welcome.

Costs are in microseconds.  What a job costs is its share of the time until all are done:
where several run at once, each takes one lane of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from asyncpool._core.base.run_times import (
    BUDGET,
    LEAST,
    PINNED,
    REFILL,
    UNKNOWN,
    Profile,
)
from asyncpool._core.policies.worker_limits import NEVER
from asyncpool.errors import ProtocolError


class InFlight:
    """What one generation of a slot has in flight.

    Args:
        concurrency: How many jobs its worker runs at once.

    Attributes:
        jobs: Each job's place, what it is expected to cost, and what that is known
            from, in their order.
        backlog: The sum of those costs.
        concurrency: As above.
        closed: Whether nothing may be sent beside the last one, which is yet to be sent
            itself, or is before all others.  Where there is one lane it is taken anyway.
        sent: How many were sent.
        most: How many may be, and more by those that came back.
    """

    __slots__ = ("_asked", "backlog", "closed", "concurrency", "jobs", "most", "sent")

    def __init__(self, concurrency: int = 1) -> None:
        self.jobs: dict[int, tuple[int, float, Profile]] = {}
        self.backlog = 0.0
        self.concurrency = concurrency
        self.closed = False
        self.most = NEVER
        self.sent = 0
        self._asked: deque[tuple[int, ...]] = deque()

    @property
    def head(self) -> int | None:
        """The first of those that are running, or about to."""
        return next(iter(self.jobs), None)

    @property
    def last(self) -> int | None:
        """The one that was sent last, or is yet to be."""
        return next(reversed(self.jobs), None)

    @property
    def running(self) -> tuple[int, ...]:
        """Those that are running, or about to."""
        return tuple(islice(self.jobs, self.concurrency))

    def runs(self, job: int) -> bool:
        """Tell whether *job* is running, or about to."""
        return job in islice(self.jobs, self.concurrency)

    @property
    def exhausted(self) -> bool:
        """Whether it may get no more."""
        return self.sent >= self.most

    @property
    def free_lanes(self) -> int:
        """How many more jobs would begin at once."""
        if self.closed:
            return 0
        return max(0, min(self.concurrency - len(self.jobs), self.most - self.sent))

    @property
    def wants_more(self) -> bool:
        """Whether it should get more."""
        return len(self.jobs) < self.concurrency or self.backlog <= REFILL

    def takes(self, profile: Profile) -> bool:
        """Tell whether a job may be sent now: it begins at once, or before long."""
        if self.closed or self.sent >= self.most:
            return False
        if len(self.jobs) < self.concurrency:
            return True
        return self.backlog + self._cost(profile) <= BUDGET

    @property
    def least_work(self) -> float:
        """What there is to do at the least, even if those that are running end now.

        By the shortest calls, and not by the mean: one long call raises that for dozens.
        """
        behind = islice(self.jobs.values(), self.concurrency, None)
        least = (entry[2].least / self.concurrency for entry in behind)
        return sum(one - LEAST for one in least if one > LEAST)

    @property
    def revoking(self) -> bool:
        """Whether the worker has been asked something that it has not answered."""
        return bool(self._asked)

    def add(self, job: int, profile: Profile) -> None:
        """Send *job*."""
        self.sent += 1
        if self.concurrency == 1:
            cost = profile.cost
        else:
            cost, self.closed = self._cost(profile), profile.exclusive
        self.jobs[job] = (self.sent, cost, profile)
        self.backlog += cost

    def complete(self, job: int) -> None:
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
            self.closed = False

    def remove(self, job: int) -> None:
        """Forget *job*, which came back."""
        _, cost, profile = self.jobs.pop(job)
        self.backlog -= cost
        self.most += profile is not PINNED  # there was room made for that one
        if not self.jobs:
            self.backlog = 0.0
            self.closed = False

    def withdraw(self, job: int) -> None:
        """Forget *job*, the last that was added: it has not been sent after all."""
        self.remove(job)
        self.closed = False
        self.sent -= 1
        self.most -= 1

    def block(self, jobs: Iterable[int]) -> None:
        """Expect no end of *jobs*; nothing may wait behind them."""
        for job in jobs:
            sequence, cost, profile = self.jobs[job]
            self.jobs[job] = (sequence, UNKNOWN, profile)
            self.backlog += UNKNOWN - cost

    def waiting(self) -> list[int]:
        """Return the jobs that wait for their turn, oldest first."""
        return list(islice(self.jobs, self.concurrency, None))

    def begin_revoke(self, jobs: Iterable[int]) -> tuple[int, ...]:
        """Take note that the worker is asked for *jobs*; return their places."""
        sequences = tuple(self.jobs[job][0] for job in jobs)
        self._asked.append(sequences)
        return sequences

    def sequence_of(self, job: int) -> int:
        """Return the place in which *job* was sent."""
        return self.jobs[job][0]

    def is_revoking(self, job: int) -> bool:
        """Tell whether the worker has been asked for *job*, and has not answered."""
        sequence = self.jobs[job][0]
        return any(sequence in sequences for sequences in self._asked)

    def end_revoke(self, won: Iterable[int]) -> tuple[dict[int, Profile], list[int]]:
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
        sequences = {entry[0]: job for job, entry in self.jobs.items()}
        given = sorted(set(won))
        for sequence in given:
            if sequence not in asked or sequence not in sequences:
                raise ProtocolError(f"it gave back job {sequence}, which it cannot")
        back = {
            sequences[sequence]: self.jobs[sequences[sequence]][2] for sequence in given
        }
        for job in back:
            self.remove(job)
        kept = [sequences[sequence] for sequence in asked if sequence in sequences]
        return back, [job for job in kept if job in self.jobs]

    def _cost(self, profile: Profile) -> float:
        # The floor is that of one lane: beyond DEEPEST nothing is gained by more either.
        return max(profile.cost / self.concurrency, LEAST)

    def _check_turn(self, job: int) -> None:
        # It can have begun only when all before it had, but for those that the worker may
        # have given back; and so many run beside it at the most.
        asked = {sequence for sequences in self._asked for sequence in sequences}
        others = self.concurrency
        for other, entry in self.jobs.items():
            if other == job:
                return
            others -= entry[0] not in asked
            if not others:
                break
        raise ProtocolError(f"it sent an outcome of job {job}, whose turn it is not")
