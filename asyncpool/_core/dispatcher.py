"""Decide which worker runs which job.

Jobs wait in the order that :class:`JobQueue` keeps, and the dispatcher only ever gives the
first of them to a worker.  A new job that is more urgent than all that wait need not
join the queue if a worker has room for it.

An idle worker is always the first choice.  The one that stopped working most recently
comes first, since it has the warmest caches.  So the others are idle for long enough
that the pool can let them go.

If no worker is idle, a job that is known to be short may travel ahead.  It then waits
inside a worker behind other short jobs, as long as what that worker has in flight does
not exceed a budget; see ``functions.py``.  So a worker need not wait for the pool
between two short jobs, and no job waits behind a long one.

Where workers run several jobs at once, workers with a free lane come after the idle
ones.  They get one job each in turn, so that a burst spreads over all.

A job with a key is for one worker, whatever the others do.  It waits in a queue of its
own (:class:`AffinityQueues`).  When that worker has room, it gets the head of that queue
or of the common queue, whichever comes first by the rules of the queue.  While jobs
wait in its own queue, the worker gets jobs only from the heads of these two, so no job
passes them.

The methods are plain calls, since this is the hot path.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

from asyncpool._core.functions import (
    BUDGET,
    LEAST_COST,
    PINNED,
    REFILL_BELOW,
    UNKNOWN_COST,
    JobTraits,
)
from asyncpool._core.options import NEVER
from asyncpool.errors import ProtocolError

# The jobs that wait, in the order in which they begin.
#
# The more urgent job begins first: the one whose priority is the lower number.  Among
# equals, the job that came first begins first.  Age counts as well: *of every 64 jobs
# that leave the queue, at least one is the one that has waited longest*, whatever its
# priority.  So no job waits for ever.  If m older jobs wait when a job comes, it is among
# the next 64 (m + 1) that leave, however many more urgent ones keep coming.  The order is
# strict until other jobs have passed the oldest job 63 times in a row.
#
# Rejected: a fixed virtual deadline for each job: its number, or the time, plus so much for
# each step of priority.  That would need no more than a heap.  An urgent job could pass
# the jobs that have waited for less time than those steps are worth, and no others.  But all
# jobs of a long queue have waited for longer than that.  Then an urgent job waits behind them
# for as long as if it had no priority: priorities would have no effect just when they are
# needed.  There is also no good value for a step, which must
# suit jobs of 50 us and jobs of an hour.  And the time costs 60 ns for each job, and
# memory.  A share has no unit, needs no clock, and holds for a queue of any length.
# While only urgent jobs come, the others have at least 1/64 of the turns.  As soon as no
# urgent job waits, they have all of them.
#
# Jobs that come back because they lost their worker leave before all others, and in their
# order.  They had their turn, which does not count again.

# Of this many jobs that leave in a row, at least one is the oldest.  With 16, urgent
# jobs would give up 6 % of all turns.  With 1024, and jobs of a second each, an oldest
# job that all others pass would leave only after a quarter of an hour.
OLDEST_EVERY = 64

# The heap is rebuilt when it has this many more priorities than twice the open lines.
_SPARE = 16


class QueuedJob(NamedTuple):
    """A job that waits; it has no priority if it came back.

    *times_passed* is how many younger jobs have left since it is the oldest.
    """

    job: int
    traits: JobTraits
    priority: int | None
    times_passed: int


class Standing(IntEnum):
    """Why a job is the head of its queue; the lower one comes first."""

    RETURNED = 0  # it came back from a worker, and had its turn before
    NEGLECTED = 1  # others have passed it as often as they may
    USUAL = 2  # it is the most urgent one


class JobQueue:
    """The jobs that have no worker.

    Each priority has a line of its own.  Each line is an ``OrderedDict``, since a deque
    cannot remove a job from its middle in constant time.  So cancelling thousands of
    queued jobs takes linear time.  To open or to close a line takes logarithmic time in
    the number of lines.  Everything else takes constant time.

    The oldest job is the first one of the default line, or the oldest in all other lines: whichever
    has the lower number.  So the queue need not remember times.  A job
    gets its number when it is submitted, so a job that comes here later keeps its age.

    Attributes:
        default_line: The line of priority 0.  As long as there are no others, it is the
            whole queue.  Then the hot path may use it directly, since a method call
            costs as much as all the rest.
        others: How many jobs are not in the default line.
    """

    # Of this many jobs that leave in a row, at least one is the oldest; two or more.
    oldest_every = OLDEST_EVERY

    def __init__(self) -> None:
        self.default_line: OrderedDict[int, JobTraits] = OrderedDict()
        self.others = 0
        self._returned: OrderedDict[int, JobTraits] = OrderedDict()
        # Each line by its priority.  None but the default line is empty.
        self._lines = {0: self.default_line}
        # The jobs in the other lines, in the order in which they came.
        self._priority_of: OrderedDict[int, int] = OrderedDict()
        # A heap of their priorities, and of those of some lines that are closed.
        self._priorities: list[int] = []
        # The job that was the oldest when the last one left, and how many younger jobs
        # have left since it is the oldest.
        self._passed_job: int | None = None
        self._times_passed = 0

    def __len__(self) -> int:
        return len(self.default_line) + self.others

    def add(self, job: int, traits: JobTraits, priority: int = 0) -> None:
        """Add *job* behind all jobs that are as urgent."""
        line = self._lines.get(priority)
        if line is None:
            line = self._open(priority)
        line[job] = traits
        if priority:
            self._priority_of[job] = priority
            self.others += 1

    def requeue(self, jobs: dict[int, JobTraits]) -> None:
        """Put *jobs* before all others, in their order."""
        returned = self._returned
        for job in reversed(jobs):
            returned[job] = jobs[job]
            returned.move_to_end(job, last=False)
        self.others += len(jobs)

    def head(self) -> tuple[Standing, int, int, JobTraits]:
        """Return the job whose turn it is, with its traits; there must be one.

        The first three numbers decide between the heads of two queues, of which the lower one
        is next: why it is the head, its priority where that matters, and the job.
        """
        if self._returned:
            return Standing.RETURNED, 0, *next(iter(self._returned.items()))
        oldest = self._neglected()
        if oldest is not None:
            line = self._lines[self._priority_of.get(oldest, 0)]
            return Standing.NEGLECTED, 0, oldest, line[oldest]
        priority = self._most_urgent()
        line = self._lines[priority]
        return Standing.USUAL, priority, *next(iter(line.items()))

    def pop(self, job: int) -> None:
        """Remove *job*, which is the head."""
        if job not in self._returned:
            self.note_dequeued(job)
        self.remove(job)

    def remove(self, job: int) -> bool:
        """Forget *job*, wherever it waits, and tell whether it did."""
        if self.default_line.pop(job, None) is not None:
            return True
        priority = self._priority_of.pop(job, None)
        if priority is not None:
            line = self._lines[priority]
            del line[job]
            if not line:
                del self._lines[priority]
        elif self._returned.pop(job, None) is None:
            return False
        self.others -= 1
        return True

    def would_be_first(self, priority: int) -> bool:
        """Tell whether a job of *priority* would be the head if it came now."""
        if self._returned or self._neglected() is not None:
            return False
        return not len(self) or priority < self._most_urgent()

    def note_dequeued(self, job: int) -> None:
        """Record that *job* has its turn now; it may have come just now.

        If an older job waits, *job* passes it.
        """
        oldest = self._oldest()
        if oldest is None or oldest == job:
            return
        if oldest != self._passed_job:
            self._passed_job, self._times_passed = oldest, 0
        self._times_passed += 1

    def note_turn_elsewhere(self, job: int) -> None:
        """Record that a worker which serves this queue as well has taken *job* from another one.

        If the oldest job here is older, *job* has passed it.
        """
        oldest = self._oldest()
        if oldest is not None and oldest < job:
            self.note_dequeued(job)

    def restore(self, entry: QueuedJob) -> None:
        """Record how often the oldest job was passed in the queue that it comes from."""
        self._passed_job, self._times_passed = entry.job, entry.times_passed

    def entries(self) -> Iterator[QueuedJob]:
        """Yield every job, with what the queue knows of it."""
        for priority, line in ((None, self._returned), *self._lines.items()):
            for job, traits in line.items():
                passed = self._times_passed if job == self._passed_job else 0
                yield QueuedJob(job, traits, priority, passed)

    def take_all(self) -> list[int]:
        """Forget all jobs and return them, the more urgent first, whatever their age."""
        jobs = [*self._returned]
        for priority in sorted(self._lines):
            jobs += self._lines[priority]
        self.default_line.clear()
        self._returned.clear()
        self._lines = {0: self.default_line}
        self._priority_of.clear()
        self._priorities.clear()
        self.others = 0
        return jobs

    def _open(self, priority: int) -> OrderedDict[int, JobTraits]:
        if len(self._priorities) > 2 * len(self._lines) + _SPARE:
            # Most of them are of lines that were closed since the last time, so on
            # average this costs little.
            self._priorities = [priority for priority in self._lines if priority]
            heapify(self._priorities)
        heappush(self._priorities, priority)
        line = self._lines[priority] = OrderedDict()
        return line

    def _most_urgent(self) -> int:
        """Return the priority of the most urgent job that did not come back."""
        priorities, lines = self._priorities, self._lines
        while priorities and priorities[0] not in lines:
            heappop(priorities)
        if not priorities or (self.default_line and priorities[0] > 0):
            return 0
        return priorities[0]

    def _neglected(self) -> int | None:
        """Return the oldest job if none may pass it any more, else ``None``."""
        if self._times_passed < self.oldest_every - 1:
            return None
        oldest = self._oldest()
        return oldest if oldest == self._passed_job else None

    def _oldest(self) -> int | None:
        usual = next(iter(self.default_line), None)
        other = next(iter(self._priority_of), None)
        if usual is None or (other is not None and other < usual):
            return other
        return usual


# The jobs that the pool has sent to one worker, and that the worker has not answered yet.
#
# A worker runs one job at a time, or several.  For each of them it has a *lane*.  It begins
# jobs in the order in which the pool sends them.  So the first jobs in flight are running,
# or about to run, and the others wait in the worker for their turn.
#
# The pool can *revoke* a waiting job.  It counts the jobs that it sends to a worker from 1;
# that is the *sequence number* of a job.  It asks the worker not to begin the jobs with
# certain sequence numbers, and the worker answers which of them it will not begin.  So each
# of these jobs either begins or comes back, never both, and both sides know which.  Until
# the pool has the answer, such a job belongs to the worker, and the pool accepts its
# outcome.
#
# Costs are in microseconds.  A worker with n lanes needs an n-th of a job's run time to get
# one job further, so that is the cost of a job there.


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
        self._revokes: deque[tuple[int, ...]] = deque()
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
        """How many jobs wait in the worker, behind those that run."""
        return max(0, len(self.jobs) - self.concurrency)

    @property
    def free_lanes(self) -> int:
        """How many more jobs could begin at once."""
        lanes = min(self.concurrency - len(self.jobs), self.max_sent - self.sent)
        return 0 if self.blocked else max(0, lanes)

    @property
    def wants_more(self) -> bool:
        """Whether the worker should get more jobs.

        Not while a revoked job may come back from it: that is older than those in the queue.
        """
        if self._requeued and not self._requeued.isdisjoint(
            sequence for sequence, _, _ in self.jobs.values()
        ):
            return False
        return len(self.jobs) < self.concurrency or self.backlog <= REFILL_BELOW

    def room_after(self, ended: int) -> float:
        """Return how much more work the worker should get when the first *ended* jobs have ended."""
        backlog = self.backlog - sum(it[1] for it in islice(self.jobs.values(), ended))
        full = backlog > REFILL_BELOW or self.blocked or self.exhausted
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
        return bool(self._revokes)

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

    def remove(self, job: int) -> None:
        """Forget *job*, which has come back."""
        _, cost, traits = self.jobs.pop(job)
        self.backlog -= cost
        self.max_sent += traits is not PINNED  # a pinned job had its room made for it
        if not self.jobs:
            self.backlog = 0.0
            self.blocked = False

    def withdraw(self, job: int) -> None:
        """Take back :meth:`add` for *job*, the last one: the pool has not sent it after all."""
        self.remove(job)
        self.blocked = False
        self.sent -= 1
        self.max_sent -= 1

    def expect_no_end(self, jobs: Iterable[int]) -> None:
        """Note that nobody knows when *jobs* end, so that the pool sends no job behind them."""
        for job in jobs:
            sequence, cost, traits = self.jobs[job]
            self.jobs[job] = (sequence, UNKNOWN_COST, traits)
            self.backlog += UNKNOWN_COST - cost

    def waiting_jobs(self) -> list[int]:
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
            self._revokes.append(sequences)
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
        return any(sequence in sequences for sequences in self._revokes)

    def end_revoke(
        self, revoked: Iterable[int]
    ) -> tuple[dict[int, JobTraits], list[int]]:
        """Take the worker's answer to the oldest request.

        Args:
            revoked: The sequence numbers of the jobs that the worker will not begin.

        Returns:
            Those jobs, oldest first, which are no longer in flight; and the other jobs
            of the request that are still in flight, since the worker has begun them.

        Raises:
            ProtocolError: If the pool has not asked for one of these jobs, or has its
                outcome already.
        """
        asked = self._revokes.popleft() if self._revokes else ()
        self._requeued.difference_update(asked)
        by_sequence = {sequence: job for job, (sequence, _, _) in self.jobs.items()}
        numbers = sorted(set(revoked))
        for number in numbers:
            if number not in asked or number not in by_sequence:
                raise ProtocolError(
                    f"it gave back the job with sequence number {number}, which nobody has asked back"
                )
        back = {job: self.traits_of(job) for job in map(by_sequence.pop, numbers)}
        for job in back:
            self.remove(job)
        return back, [by_sequence[number] for number in asked if number in by_sequence]

    def _cost(self, traits: JobTraits) -> float:
        # Never below the least cost of one lane: with several, too, more than DEEPEST jobs in flight
        # gain nothing.
        lanes = self.concurrency
        return traits.cost if lanes == 1 else max(traits.cost / lanes, LEAST_COST)

    def _check_turn(self, job: int) -> None:
        # It can have begun only if all jobs before it have begun, except those that the
        # worker may have given back.  And as many jobs as there are lanes run at once.
        asked = {sequence for sequences in self._revokes for sequence in sequences}
        lanes = self.concurrency
        for other, (sequence, _, _) in self.jobs.items():
            if other == job:
                return
            lanes -= sequence not in asked
            if not lanes:
                break
        raise ProtocolError(f"it sent an outcome of job {job}, whose turn it is not")


# Which bucket a key belongs to is decided by rendezvous hashing.  Rendezvous hashing (Thaler and
# Ravishankar, "Using name-based mappings to increase hit rates", 1998) is also called highest random
# weight.  Each pair of a key and a bucket has a weight that looks random.  A key belongs to the bucket
# with which its weight is the highest.  So buckets have equal shares of all keys.  A new bucket takes
# its share from all others alike.  A bucket that goes leaves its keys to the others, each key to its
# next choice.  No other keys move, and nothing has to be remembered of any key.
#
# Rejected: the hash modulo the number of buckets, which moves nearly all keys when that
# number changes.  Also rejected: a ring of hashes, which needs a table with a hundred
# points for each bucket until the shares are nearly equal.  It would find one of hundreds
# of buckets sooner.  But a weight costs 0.5 us, and a pool has some dozens of buckets at
# the most.

_MASK = (1 << 64) - 1

# The buckets of so many keys are remembered.
_KEYS = 1024

# The constants of SplitMix64 (Steele, Lea and Flood, 2014), and its last steps below.
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_FIRST = 0xBF58_476D_1CE4_E5B9
_SECOND = 0x94D0_49BB_1331_11EB


def weight(key: int, bucket: int) -> int:
    """Return the weight of a key's hash and a bucket; the key belongs to the highest."""
    x = (key & _MASK) ^ ((bucket + 1) * _GOLDEN & _MASK)
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def choose(key: int, buckets: Collection[int]) -> int | None:
    """Return the bucket that *key* belongs to; ``None`` if there is no bucket."""
    return max(buckets, key=lambda bucket: weight(key, bucket), default=None)


def _chooser(buckets: Collection[Any]) -> Callable[[int | None], int | None]:
    """Return what chooses for keys, and remembers that of the latest ones."""
    return lru_cache(_KEYS)(partial(choose, buckets=buckets))


# The jobs that wait for one worker, since they have a key.
#
# Each worker that stays in the pool has a *bucket*; see ``core.py``.  Each
# bucket has a queue of its own, with the same rules as the common queue.  A job waits in
# the queue of the bucket that its key belongs to.  If the key comes
# to belong to another bucket, the job moves to the queue of that one, with its age, its
# priority, and how often others have passed it.  While the pool has no bucket at all, the
# job waits for the first one.
#
# A bucket that goes from one worker to another costs nothing.  The number of buckets
# rarely changes, so a change may take some time: some microseconds for each job that waits.


class AffinityQueues:
    """A queue for each bucket for which jobs wait.

    Attributes:
        open: The queues that are not empty, by bucket.  The queue of ``None`` is
            for jobs without a bucket.
        slots_by_bucket: The slot of each bucket.
    """

    def __init__(self) -> None:
        self.open: defaultdict[int | None, JobQueue] = defaultdict(JobQueue)
        self.slots_by_bucket: Mapping[int, int] = {}
        self._buckets: dict[int, int] = {}  # by slot
        self._bucket_of: dict[int, int | None] = {}  # of each job that waits
        self._choose = _chooser(())

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._bucket_of)

    def slot_of(self, key: int | None) -> int | None:
        """Return the slot that a key belongs to, if any does."""
        bucket = self._choose(key)
        return None if bucket is None else self.slots_by_bucket[bucket]

    def queue_of(self, slot: int) -> JobQueue | None:
        """Return the queue of the jobs that wait for *slot*, unless it is empty."""
        return self.open.get(self._buckets[slot]) if slot in self._buckets else None

    def add(self, job: int, traits: JobTraits, priority: int) -> None:
        """Queue *job*."""
        bucket = self._bucket_of[job] = self._choose(traits.key)
        self.open[bucket].add(job, traits, priority)

    def requeue(self, jobs: dict[int, JobTraits]) -> None:
        """Queue *jobs* before all others, in their order."""
        for job in reversed(jobs):
            bucket = self._bucket_of[job] = self._choose(jobs[job].key)
            self.open[bucket].requeue({job: jobs[job]})

    def note_leaving(self, job: int) -> None:
        """Record that *job* has left its queue."""
        bucket = self._bucket_of.pop(job)
        if not self.open[bucket]:
            del self.open[bucket]

    def remove(self, job: int) -> bool:
        """Forget *job*, and tell whether it waited."""
        if job not in self._bucket_of:
            return False
        self.open[self._bucket_of[job]].remove(job)
        self.note_leaving(job)
        return True

    def take_all(self) -> list[int]:
        """Forget every job, and return them, queue by queue."""
        jobs = [job for queue in self.open.values() for job in queue.take_all()]
        self.open.clear()
        self._bucket_of.clear()
        return jobs

    def assign(self, slots_by_bucket: Mapping[int, int]) -> None:
        """Assign the buckets to slots, and move each job to the queue where it belongs now."""
        there, self.slots_by_bucket = self.slots_by_bucket, slots_by_bucket
        self._buckets = {slot: bucket for bucket, slot in slots_by_bucket.items()}
        if there.keys() == slots_by_bucket.keys():
            return
        self._choose = _chooser([*slots_by_bucket])
        new = [bucket for bucket in slots_by_bucket if bucket not in there]
        waiting: list[tuple[QueuedJob, int | None]] = []
        for bucket, queue in self.open.items():
            # A key of a bucket that stays can only move to a new bucket.
            stays = bucket in slots_by_bucket
            find = _chooser([bucket, *new]) if stays else self._choose
            waiting += [(entry, find(entry.traits.key)) for entry in queue.entries()]
        # All queues are made anew: with many keys a bucket that comes or goes changes each of them.
        self.open.clear()
        back: dict[int, JobTraits] = {}
        for entry, chosen in sorted(waiting):  # by age: jobs are numbered as they come
            if entry.priority is None:
                back[entry.job] = entry.traits
                continue
            self._bucket_of[entry.job] = chosen
            queue = self.open[chosen]
            if not queue:
                # It keeps its count of passes: a job whose key moves often would else starve.
                queue.restore(entry)
            queue.add(entry.job, entry.traits, entry.priority)
        self.requeue(back)


class Dispatcher:
    """The jobs that wait, and the workers that have room.

    A job without a key waits only if no worker is idle.  A job with a key waits only if
    its own worker is not idle.

    Attributes:
        queue: The jobs without a key that wait.
        preparing: Jobs that are still being pickled, and count among those that wait; the pool
            submits each when it can be sent.
        idle: The workers that have nothing to do, by slot; the last one gets the next job.
        session_waiters: How many workers callers want for sessions; see ``core.py``.
    """

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.preparing: dict[int, None] = {}
        # The workers that have room, by slot; no worker is in two of them.  One has
        # nothing to do, has a free lane beside what it runs, or has less than BUDGET of
        # work in flight.  A worker for which jobs wait in a queue of its own is in none.
        self.idle: dict[int, InFlight] = {}
        self._with_free_lane: dict[int, InFlight] = {}
        self._below_budget: dict[int, InFlight] = {}
        self._affinity_queues = AffinityQueues()
        # Kept here, since the hot path reads it.
        self._open_queues = self._affinity_queues.open
        self.session_waiters = 0

    @property
    def unassigned(self) -> int:
        """How many jobs are with no worker."""
        queue = self.queue
        count = len(queue.default_line) + queue.others + len(self.preparing)
        return count + len(self._affinity_queues) if self._open_queues else count

    @property
    def unserved(self) -> int:
        """How many jobs and sessions wait that more workers could serve.

        A job that waits for its own worker while another worker is idle does not count.
        """
        room = self.idle or self._with_free_lane
        jobs = self.unassigned - len(self._affinity_queues) if room else self.unassigned
        return jobs + self.session_waiters

    @property
    def free(self) -> int:
        """How many more jobs could begin at once."""
        workers = (*self.idle.values(), *self._with_free_lane.values())
        return sum(in_flight.free_lanes for in_flight in workers)

    def can_begin_now(self, key: int | None) -> bool:
        """Tell whether a job that came now, with this *key*, would begin at once."""
        if key is None:
            return self.free > len(self.preparing)
        slot = self._affinity_queues.slot_of(key)
        return slot in self.idle or slot in self._with_free_lane

    def submit(self, job: int, traits: JobTraits, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        queue = self.queue
        if priority or queue.others:
            first = queue.would_be_first(priority)
            slot = self._place(job, traits) if first else None
            if slot is None:
                queue.add(job, traits, priority)
            else:
                queue.note_dequeued(job)
            return slot
        line = queue.default_line
        slot = None if line else self._place(job, traits)
        if slot is None:
            line[job] = traits
        return slot

    def submit_keyed(self, job: int, traits: JobTraits, priority: int) -> int | None:
        """Do the same as :meth:`submit` for a job that has a key."""
        slot = self._affinity_queues.slot_of(traits.key)
        in_flight = None if slot is None else self._room_of(slot)
        if slot in self._below_budget and in_flight is not None:
            # It would wait there behind others.
            if in_flight.takes(traits) and self.queue.would_be_first(priority):
                self.queue.note_dequeued(job)
            else:
                in_flight = None
        if slot is not None:
            self.exclude(slot)
        if slot is None or in_flight is None:
            self._affinity_queues.add(job, traits, priority)
            return None
        in_flight.add(job, traits)
        self._classify(slot, in_flight)
        return slot

    def requeue(self, jobs: dict[int, JobTraits]) -> list[tuple[int, int]]:
        """Put *jobs* at the head of the queue, in their order.

        Returns:
            The jobs that need not wait, each as a pair of its slot and the job.
        """
        queue, own = self.queue, self._affinity_queues
        keyed = {job: jobs[job] for job in jobs if jobs[job].key is not None}
        queue.requeue({job: jobs[job] for job in jobs if job not in keyed})
        own.requeue(keyed)
        slots = {own.slot_of(traits.key) for traits in keyed.values()}
        placed = self._serve(slot for slot in slots if slot is not None)
        while queue:
            *_, job, traits = queue.head()
            slot = self._place(job, traits)
            if slot is None:
                break
            queue.pop(job)
            placed.append((slot, job))
        return placed

    def jobs_for(self, slot: int, in_flight: InFlight) -> list[int]:
        """Return the jobs that *slot* gets now, and record whether it has room."""
        queue = self.queue
        jobs: list[int] = []
        own = self._affinity_queues.queue_of(slot) if self._open_queues else None
        while own or queue.others:  # the order of the jobs matters
            first = own if own and (not queue or own.head() < queue.head()) else queue
            standing, _, job, traits = first.head()
            if not in_flight.takes(traits):
                break
            first.pop(job)
            if first is own:
                self._affinity_queues.note_leaving(job)
            if own is not None and standing is not Standing.RETURNED:
                (queue if first is own else own).note_turn_elsewhere(job)
            in_flight.add(job, traits)
            jobs.append(job)
        else:
            if queue.default_line:
                jobs += in_flight.fill(queue.default_line)
        if own:
            self.exclude(slot)
        else:
            self._classify(slot, in_flight)
        return jobs

    def remove(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job in self.preparing:
            del self.preparing[job]
            return True
        return self.queue.remove(job) or self._affinity_queues.remove(job)

    def assign_buckets(
        self, slots_by_bucket: Mapping[int, int]
    ) -> list[tuple[int, int]]:
        """Assign the buckets, to which keys belong, to slots.

        Returns:
            The jobs that need not wait any more, each as a pair of its slot and the job.
        """
        if slots_by_bucket == self._affinity_queues.slots_by_bucket:
            return []
        self._affinity_queues.assign(slots_by_bucket)
        return self._serve(slots_by_bucket.values()) if self._open_queues else []

    def exclude(self, slot: int) -> None:
        """Give *slot* no more jobs, until :meth:`jobs_for` is called for it."""
        self.idle.pop(slot, None)
        self._with_free_lane.pop(slot, None)
        self._below_budget.pop(slot, None)

    def take_all(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = self.queue.take_all() + self._affinity_queues.take_all()
        jobs += self.preparing
        self.preparing.clear()
        return jobs

    def _serve(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Give the jobs that wait to those of *slots* that have room."""
        served = []
        for slot in slots:
            in_flight = self._room_of(slot)
            own_queue = self._affinity_queues.queue_of(slot)
            if in_flight is not None and own_queue is not None:
                self.idle.pop(slot, None)
                served += [(slot, job) for job in self.jobs_for(slot, in_flight)]
        return served

    def _room_of(self, slot: int) -> InFlight | None:
        """Return what *slot* has in flight, if it has room."""
        rooms = self.idle, self._with_free_lane, self._below_budget
        return next((room[slot] for room in rooms if slot in room), None)

    def _place(self, job: int, traits: JobTraits) -> int | None:
        """Give *job* to a worker that has room, if there is one; return its slot."""
        if self.idle:
            slot, in_flight = self.idle.popitem()
        elif self._with_free_lane:
            slot = next(iter(self._with_free_lane))
            in_flight = self._with_free_lane.pop(slot)
        else:
            # The workers get jobs in turn, so that a burst spreads over all.
            for slot, in_flight in self._below_budget.items():
                if in_flight.takes(traits):
                    del self._below_budget[slot]
                    break
            else:
                return None
        in_flight.add(job, traits)
        self._classify(slot, in_flight)
        return slot

    def _classify(self, slot: int, in_flight: InFlight) -> None:
        """Put a worker where it belongs by the room that it has."""
        if self._with_free_lane:
            self._with_free_lane.pop(slot, None)
        if in_flight.sent >= in_flight.max_sent:  # exhausted; a property takes longer
            self.exclude(slot)
        elif not in_flight.jobs:
            self._below_budget.pop(slot, None)
            self.idle[slot] = in_flight
        elif in_flight.concurrency > 1 and in_flight.free_lanes:
            self._below_budget.pop(slot, None)
            self._with_free_lane[slot] = in_flight
        elif in_flight.backlog < BUDGET:
            self._below_budget[slot] = in_flight
        else:
            self._below_budget.pop(slot, None)
