"""The jobs that the pool has sent to one worker, and that the worker has not answered yet.

A worker runs one job at a time, or several.  For each of them it has a *lane*.  It begins
jobs in the order in which the pool sends them.  So the first jobs in flight are running,
or about to run, and the others wait in the worker for their turn.

The pool can *revoke* a waiting job.  It counts the jobs that it sends to a worker from 1;
that is the *sequence number* of a job.  It asks the worker not to begin the jobs with
certain sequence numbers, and the worker answers which of them it will not begin.  So each
of these jobs either begins or comes back, never both, and both sides know which.  Until
the pool has the answer, such a job belongs to the worker, and the pool accepts its
outcome.

Costs are in microseconds.  A worker with n lanes needs an n-th of a job's run time to get
one job further, so that is the cost of a job there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice

from asyncpool._core.functions import BUDGET, LEAST, PINNED, REFILL, UNKNOWN, JobTraits
from asyncpool._core.options import NEVER
from asyncpool.errors import ProtocolError


class InFlight:
    """What one generation of a slot has in flight.

    Args:
        concurrency: How many jobs its worker runs at once.

    Attributes:
        jobs: For each job its sequence number, its expected cost, and the traits from
            which that cost comes; in the order of sending.
        backlog: The sum of those costs.
        concurrency: How many jobs its worker runs at once.
        blocked: Whether the pool may send nothing beside the last job, because that job
            is not sent itself yet, or must run alone.  With one lane it stays false.
        sent: How many jobs the pool has sent.
        ended: How many of them have an outcome.
        max_sent: How many jobs the pool may send; each job that comes back allows one more.
    """

    def __init__(self, concurrency: int = 1) -> None:
        # Plain tuples: a named one would take 0.15 us more for each job.
        self.jobs: dict[int, tuple[int, float, JobTraits]] = {}
        self.backlog = 0.0
        self.concurrency = concurrency
        self.blocked = False
        self.max_sent = NEVER
        self.sent = self.ended = 0
        self._asked: deque[tuple[int, ...]] = deque()
        # Those of them that somebody still wants, and that may come back to the queue.
        self._requeued: set[int] = set()

    @property
    def head(self) -> int | None:
        """The first of the jobs that are running, or about to run."""
        return next(iter(self.jobs), None)

    @property
    def last(self) -> int | None:
        """The job that was sent last, or is about to be sent."""
        return next(reversed(self.jobs), None)

    @property
    def running(self) -> tuple[int, ...]:
        """The jobs that are running, or about to run."""
        return tuple(islice(self.jobs, self.concurrency))

    def runs(self, job: int) -> bool:
        """Tell whether *job* is running, or about to run."""
        return job in islice(self.jobs, self.concurrency)

    @property
    def exhausted(self) -> bool:
        """Whether the worker may get no more jobs."""
        return self.sent >= self.max_sent

    @property
    def ahead(self) -> int:
        """How many jobs wait there behind others."""
        return max(0, len(self.jobs) - self.concurrency)

    @property
    def free_lanes(self) -> int:
        """How many more jobs could begin at once."""
        if self.blocked:
            return 0
        return max(0, min(self.concurrency - len(self.jobs), self.max_sent - self.sent))

    @property
    def wants_more(self) -> bool:
        """Whether the worker should get more jobs.

        Not while one may come back from it, which is older than those that wait.
        """
        if self._requeued and not self._requeued.isdisjoint(
            sequence for sequence, _, _ in self.jobs.values()
        ):
            return False
        return len(self.jobs) < self.concurrency or self.backlog <= REFILL

    def room_after(self, ended: int) -> float:
        """Return how much more work the worker should get when the first *ended* jobs have ended."""
        backlog = self.backlog - sum(it[1] for it in islice(self.jobs.values(), ended))
        full = backlog > REFILL or self.blocked or self.exhausted
        return 0.0 if full else BUDGET - backlog

    def takes(self, traits: JobTraits) -> bool:
        """Tell whether a job may be sent now, because it begins at once or soon."""
        if self.blocked or self.sent >= self.max_sent:
            return False
        if len(self.jobs) < self.concurrency:
            return True
        return self.backlog + self._cost(traits) <= BUDGET

    def fill(self, waiting: OrderedDict[int, JobTraits]) -> list[int]:
        """Add the jobs at the head of *waiting* that this may have now, and return them."""
        own = self.jobs
        before = len(own)
        if self.concurrency > 1:
            for job, traits in waiting.items():
                if not self.takes(traits):
                    break
                self.add(job, traits)
        else:
            # takes() and add(), inlined: their calls would be a tenth of what a short job costs.
            sent, most, backlog = self.sent, self.max_sent, self.backlog
            for job, traits in waiting.items():
                cost = traits.cost
                if sent >= most or (own and backlog + cost > BUDGET):
                    break
                sent += 1
                backlog += cost
                own[job] = (sent, cost, traits)
            self.sent, self.backlog = sent, backlog
        jobs = [*islice(own, before, None)]
        for job in jobs:
            del waiting[job]
        return jobs

    @property
    def revoking(self) -> bool:
        """Whether the worker has been asked for jobs, and has not answered."""
        return bool(self._asked)

    def add(self, job: int, traits: JobTraits) -> None:
        """Add *job*, which is sent."""
        self.sent = sent = self.sent + 1
        cost = traits.cost
        if self.concurrency > 1:
            cost, self.blocked = self._cost(traits), traits.exclusive
        self.jobs[job] = (sent, cost, traits)
        self.backlog += cost

    def complete(self, *ended: int) -> None:
        """Record the outcomes of the jobs that have *ended*, in this order.

        Raises:
            ProtocolError: If it was not the turn of one of them; those before it are recorded.
        """
        jobs, backlog = self.jobs, self.backlog
        if (*islice(jobs, len(ended)),) == ended:
            for job in ended:
                backlog -= jobs.pop(job)[1]
            self.backlog = backlog
            self.ended += len(ended)
        else:
            for job in ended:
                self._check_turn(job)
                self.backlog -= jobs.pop(job)[1]
                self.ended += 1
        if not jobs:
            self.backlog = 0.0  # corrects rounding errors
            self.blocked = False

    def remove(self, job: int) -> JobTraits:
        """Forget *job*, which has come back; return its traits."""
        _, cost, traits = self.jobs.pop(job)
        self.backlog -= cost
        self.max_sent += traits is not PINNED  # a pinned job had its room made for it
        if not self.jobs:
            self.backlog = 0.0
            self.blocked = False
        return traits

    def withdraw(self, job: int) -> None:
        """Take back :meth:`add` for *job*, the last one: the pool has not sent it after all."""
        self.remove(job)
        self.blocked = False
        self.sent -= 1
        self.max_sent -= 1

    def block(self, jobs: Iterable[int]) -> None:
        """Note that nobody knows when *jobs* end, so that the pool sends no job behind them."""
        for job in jobs:
            sequence, cost, traits = self.jobs[job]
            self.jobs[job] = (sequence, UNKNOWN, traits)
            self.backlog += UNKNOWN - cost

    def waiting(self) -> list[int]:
        """Return the jobs that wait for their turn, oldest first."""
        return list(islice(self.jobs, self.concurrency, None))

    def begin_revoke(
        self, jobs: Iterable[int], *, requeue: bool = True
    ) -> tuple[int, ...]:
        """Record that the worker is asked for *jobs*; return their sequence numbers.

        It is not asked again for those that it was asked for already.  *requeue* tells whether
        those that come back are to run elsewhere.
        """
        new = (job for job in jobs if not self.is_revoking(job))
        sequences = tuple(self.jobs[job][0] for job in new)
        if sequences:
            self._asked.append(sequences)
        if requeue:
            self._requeued.update(sequences)
        return sequences

    def sequence_of(self, job: int) -> int:
        """Return the sequence number of *job*."""
        return self.jobs[job][0]

    def traits_of(self, job: int) -> JobTraits:
        """Return the traits with which *job* was added."""
        return self.jobs[job][2]

    def is_revoking(self, job: int) -> bool:
        """Tell whether the worker has been asked for *job*, and has not answered."""
        sequence = self.jobs[job][0]
        return any(sequence in sequences for sequences in self._asked)

    def end_revoke(
        self, given_back: Iterable[int]
    ) -> tuple[dict[int, JobTraits], list[int]]:
        """Take the worker's answer to the oldest request.

        Args:
            given_back: The sequence numbers of the jobs that the worker will not begin.

        Returns:
            Those jobs, oldest first, which are no longer in flight; and the other jobs
            of the request that are still in flight, since the worker has begun them.

        Raises:
            ProtocolError: If the pool has not asked for one of these jobs, or has its
                outcome already.
        """
        asked = self._asked.popleft() if self._asked else ()
        self._requeued.difference_update(asked)
        by_sequence = {sequence: job for job, (sequence, _, _) in self.jobs.items()}
        numbers = sorted(set(given_back))
        for number in numbers:
            if number not in asked or number not in by_sequence:
                raise ProtocolError(
                    f"it gave back the job with sequence number {number}, which it cannot"
                )
        back = {job: self.remove(job) for job in map(by_sequence.pop, numbers)}
        return back, [by_sequence[number] for number in asked if number in by_sequence]

    def _cost(self, traits: JobTraits) -> float:
        # The lower bound is that of one lane, since more than DEEPEST jobs gain nothing
        # either.
        lanes = self.concurrency
        return traits.cost if lanes == 1 else max(traits.cost / lanes, LEAST)

    def _check_turn(self, job: int) -> None:
        # It can have begun only if all jobs before it have begun, except those that the
        # worker may have given back.  And as many jobs as there are lanes run at once.
        asked = {sequence for sequences in self._asked for sequence in sequences}
        lanes = self.concurrency
        for other, (sequence, _, _) in self.jobs.items():
            if other == job:
                return
            lanes -= sequence not in asked
            if not lanes:
                break
        raise ProtocolError(f"it sent an outcome of job {job}, whose turn it is not")
