"""Decide which worker runs which job.

Jobs wait in the order that ``queue.py`` keeps, and the dispatcher only ever gives the
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

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from asyncpool._core.functions import BUDGET, JobTraits
from asyncpool._core.in_flight import InFlight
from asyncpool._core.queue import OLDEST_EVERY, JobQueue, QueuedJob, Standing

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


# The jobs that wait for one worker, since they have a key.
#
# Each worker that stays in the pool has a *bucket*; see ``sessions.py``.  Each
# bucket has a queue of its own, with the same rules as the common queue.  A job waits in
# the queue of the bucket that its key belongs to.  If the key comes
# to belong to another bucket, the job moves to the queue of that one, with its age, its
# priority, and how often others have passed it.  While the pool has no bucket at all, the
# job waits for the first one.
#
# A bucket that goes from one worker to another costs nothing.  The number of buckets
# rarely changes, so a change may take some time: a microsecond for each key of a waiting
# job, and four for each job that moves, or whose queue other jobs join.


class AffinityQueues:
    """A queue for each bucket for which jobs wait.

    Args:
        oldest_every: As in :class:`JobQueue`, for each of the queues.

    Attributes:
        open: The queues that are not empty, by bucket.  The queue of ``None`` is
            for jobs without a bucket.
        slots_by_bucket: The slot of each bucket.
    """

    def __init__(self, oldest_every: int) -> None:
        self.open: dict[int | None, JobQueue] = {}
        self.slots_by_bucket: Mapping[int, int] = {}
        self._oldest_every = oldest_every
        self._buckets: dict[int, int] = {}  # by slot
        # The key of each job that waits.  And for each of these keys, its bucket and
        # its jobs.
        self._keys: dict[int, int] = {}
        self._groups: dict[int, tuple[int | None, set[int]]] = {}

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._keys)

    def slot_of(self, key: int | None) -> int | None:
        """Return the slot that a key belongs to, if any does."""
        bucket = self._bucket_of(key)
        return None if bucket is None else self.slots_by_bucket[bucket]

    def queue_of(self, slot: int) -> JobQueue | None:
        """Return the queue of the jobs that wait for *slot*, unless it is empty."""
        return self.open.get(self._buckets[slot]) if slot in self._buckets else None

    def add(self, job: int, traits: JobTraits, priority: int) -> None:
        """Queue *job*."""
        self._enter(job, traits.key).add(job, traits, priority)

    def requeue(self, jobs: dict[int, JobTraits]) -> None:
        """Queue *jobs* before all others, in their order."""
        for job in reversed(jobs):
            traits = jobs[job]
            self._enter(job, traits.key).requeue({job: traits})

    def note_leaving(self, job: int) -> None:
        """Record that *job* has left its queue."""
        key = self._keys.pop(job)
        bucket, group = self._groups[key]
        group.remove(job)
        if not group:
            del self._groups[key]
        if not self.open[bucket]:
            del self.open[bucket]

    def remove(self, job: int) -> bool:
        """Forget *job*, and tell whether it waited."""
        key = self._keys.get(job)
        if key is None:
            return False
        self.open[self._groups[key][0]].remove(job)
        self.note_leaving(job)
        return True

    def take_all(self) -> list[int]:
        """Forget every job, and return them, queue by queue."""
        jobs = [job for queue in self.open.values() for job in queue.take_all()]
        self.open.clear()
        self._keys.clear()
        self._groups.clear()
        return jobs

    def assign(self, slots_by_bucket: Mapping[int, int]) -> None:
        """Assign the buckets to slots, and move each job to the queue where it belongs now."""
        there, self.slots_by_bucket = self.slots_by_bucket, slots_by_bucket
        self._buckets = {slot: bucket for bucket, slot in slots_by_bucket.items()}
        new = [bucket for bucket in slots_by_bucket if bucket not in there]
        moved: defaultdict[int | None, list[QueuedJob]] = defaultdict(list)
        if new or len(slots_by_bucket) < len(there):
            for key, (bucket, group) in list(self._groups.items()):
                if bucket is None or bucket not in slots_by_bucket:
                    chosen = choose(key, slots_by_bucket)
                else:  # the bucket was the first choice before, too
                    chosen = choose(key, (bucket, *new)) if new else bucket
                if chosen != bucket:
                    queue = self.open[bucket]
                    moved[chosen] += [queue.entry(job) for job in group]
        for entries in moved.values():
            for entry in entries:
                self.remove(entry.job)
        for bucket, entries in moved.items():
            self._join(bucket, entries)

    def _join(self, bucket: int | None, entries: list[QueuedJob]) -> None:
        """Add jobs of other queues to this one, as if they had always been here."""
        present = self.open.pop(bucket, None)
        if present is not None:
            entries += present.entries()
        # By age: jobs are numbered as they come.
        entries.sort(key=lambda entry: entry.job)
        back: dict[int, JobTraits] = {}
        oldest: QueuedJob | None = None
        for entry in entries:
            if entry.priority is None:
                back[entry.job] = entry.traits
            else:
                self.add(entry.job, entry.traits, entry.priority)
                oldest = oldest or entry
        if oldest is not None:
            # It keeps its count of passes: a job whose key moves often would else starve.
            self.open[bucket].restore(oldest)
        self.requeue(back)

    def _enter(self, job: int, key: int | None) -> JobQueue:
        """Record that *job* comes to a queue, and return the queue."""
        assert key is not None, "without a key, a job waits for anybody"
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = (self._bucket_of(key), set())
        self._keys[job] = key
        bucket, jobs = group
        jobs.add(job)
        queue = self.open.get(bucket)
        if queue is None:
            queue = self.open[bucket] = JobQueue(self._oldest_every)
        return queue

    def _bucket_of(self, key: int | None) -> int | None:
        assert key is not None, "without a key, a job waits for anybody"
        group = self._groups.get(key)
        return choose(key, self.slots_by_bucket) if group is None else group[0]


class Dispatcher:
    """The jobs that wait, and the workers that have room.

    A job without a key waits only if no worker is idle.  A job with a key waits only if
    its own worker is not idle.

    Args:
        oldest_every: As in :class:`JobQueue`.

    Attributes:
        queue: The jobs without a key that wait.
        session_waiters: How many workers callers want for sessions; see ``sessions.py``.
    """

    def __init__(self, *, oldest_every: int = OLDEST_EVERY) -> None:
        self.queue = JobQueue(oldest_every)
        # Jobs that are still being pickled, and then come to the queue.
        self._preparing: dict[int, None] = {}
        # The workers that have room, by slot; no worker is in two of them.  One has
        # nothing to do, has a free lane beside what it runs, or has less than BUDGET of
        # work in flight.  A worker for which jobs wait in a queue of its own is in none.
        self._idle: dict[int, InFlight] = {}
        self._with_free_lane: dict[int, InFlight] = {}
        self._below_budget: dict[int, InFlight] = {}
        self._affinity_queues = AffinityQueues(oldest_every)
        # Kept here, since the hot path reads it.
        self._open_queues = self._affinity_queues.open
        self.session_waiters = 0

    @property
    def waiting(self) -> int:
        """How many jobs have no worker yet."""
        queue = self.queue
        count = len(queue.default_line) + queue.others + len(self._preparing)
        return count + len(self._affinity_queues) if self._open_queues else count

    @property
    def unserved(self) -> int:
        """How many jobs and sessions wait that more workers could serve.

        A job that waits for its own worker while another worker is idle does not count.
        """
        room = self._idle or self._with_free_lane
        jobs = self.waiting - len(self._affinity_queues) if room else self.waiting
        return jobs + self.session_waiters

    @property
    def idle(self) -> int:
        """How many workers are idle."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """How many more jobs could begin at once."""
        workers = (*self._idle.values(), *self._with_free_lane.values())
        return sum(in_flight.free_lanes for in_flight in workers)

    def idle_slots(self) -> list[int]:
        """Return the slots of idle workers; the first one gets the next job."""
        return [*reversed(self._idle)]

    @property
    def preparing(self) -> int:
        """How many jobs are still being pickled."""
        return len(self._preparing)

    def can_begin_now(self, key: int | None) -> bool:
        """Tell whether a job that came now, with this *key*, would begin at once."""
        if key is None:
            return self.free > len(self._preparing)
        slot = self._affinity_queues.slot_of(key)
        return slot in self._idle or slot in self._with_free_lane

    def submit(self, job: int, traits: JobTraits, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        queue = self.queue
        if priority or queue.others:
            slot = None
            if queue.would_be_first(priority):
                slot = self._place(job, traits)
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
        if slot in self._idle:
            in_flight = self._idle.pop(slot)
        elif slot in self._with_free_lane:
            in_flight = self._with_free_lane.pop(slot)
        elif (
            slot in self._below_budget
            and self._below_budget[slot].takes(traits)
            and self.queue.would_be_first(priority)
        ):
            in_flight = self._below_budget.pop(slot)
            self.queue.note_dequeued(job)
        else:
            self._affinity_queues.add(job, traits, priority)
            if slot is not None:
                self._below_budget.pop(slot, None)
            return None
        assert slot is not None
        in_flight.add(job, traits)
        self._classify(slot, in_flight)
        return slot

    def prepare(self, job: int) -> None:
        """Count *job* among those that wait; the pool submits it when it can be sent."""
        self._preparing[job] = None

    def end_preparing(self, job: int) -> None:
        """Count *job* no longer as one that is pickled: the pool submits it now."""
        self._preparing.pop(job, None)

    def requeue(self, jobs: dict[int, JobTraits]) -> list[tuple[int, int]]:
        """Put *jobs* at the head of the queue, in their order.

        Returns:
            The jobs that need not wait, each as a pair of its slot and the job.
        """
        queue = self.queue
        keyed = {job: jobs[job] for job in jobs if jobs[job].key is not None}
        placed: list[tuple[int, int]] = []
        if keyed:
            self._affinity_queues.requeue(keyed)
            jobs = {job: jobs[job] for job in jobs if job not in keyed}
        queue.requeue(jobs)
        if keyed:
            slots = {
                self._affinity_queues.slot_of(traits.key) for traits in keyed.values()
            }
            placed += self._serve(slot for slot in slots if slot is not None)
        while queue:
            job, traits = queue.head()
            slot = self._place(job, traits)
            if slot is None:
                break
            queue.pop(job)
            placed.append((slot, job))
        return placed

    def refill(self, slot: int, in_flight: InFlight) -> list[int]:
        """Return the jobs that *slot* gets now, and record whether it has room."""
        queue = self.queue
        jobs: list[int] = []
        if self._open_queues:
            own_queue = self._affinity_queues.queue_of(slot)
            if own_queue is not None:
                jobs = self._take_from_both(own_queue, in_flight)
                if own_queue:
                    self.exclude(slot)
                    return jobs
        if queue.others:
            jobs += self._take_in_turn(in_flight)
        if queue.default_line and not queue.others:
            jobs += in_flight.fill(queue.default_line)
        self._classify(slot, in_flight)
        return jobs

    def remove(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job in self._preparing:
            del self._preparing[job]
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
        """Give *slot* no more jobs, until it is filled again."""
        self._idle.pop(slot, None)
        self._with_free_lane.pop(slot, None)
        self._below_budget.pop(slot, None)

    def take_all(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = [
            *self.queue.take_all(),
            *self._affinity_queues.take_all(),
            *self._preparing,
        ]
        self._preparing.clear()
        return jobs

    def _take_in_turn(self, in_flight: InFlight) -> list[int]:
        """Fill *in_flight* while the order of the jobs matters."""
        jobs: list[int] = []
        queue = self.queue
        while queue.others:
            job, traits = queue.head()
            if not in_flight.takes(traits):
                break
            queue.pop(job)
            in_flight.add(job, traits)
            jobs.append(job)
        return jobs

    def _take_from_both(self, own_queue: JobQueue, in_flight: InFlight) -> list[int]:
        """Fill *in_flight* from its own queue and the common one, until its own is empty."""
        jobs: list[int] = []
        queue = self.queue
        while own_queue:
            first, second, precedence = own_queue, queue, own_queue.precedence()
            if queue and queue.precedence() < precedence:
                first, second, precedence = queue, own_queue, queue.precedence()
            job, traits = first.head()
            if not in_flight.takes(traits):
                break
            first.pop(job)
            if first is own_queue:
                self._affinity_queues.note_leaving(job)
            if precedence.standing is not Standing.RETURNED:
                second.note_turn_elsewhere(job)
            in_flight.add(job, traits)
            jobs.append(job)
        return jobs

    def _serve(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Give the jobs that wait to those of *slots* that have room."""
        served = []
        for slot in slots:
            in_flight = (
                self._idle.get(slot)
                or self._with_free_lane.get(slot)
                or self._below_budget.get(slot)
            )
            if (
                in_flight is not None
                and self._affinity_queues.queue_of(slot) is not None
            ):
                self._idle.pop(slot, None)
                served += [(slot, job) for job in self.refill(slot, in_flight)]
        return served

    def _place(self, job: int, traits: JobTraits) -> int | None:
        """Give *job* to a worker that has room, if there is one; return its slot."""
        if self._idle:
            slot, in_flight = self._idle.popitem()
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
            self._idle[slot] = in_flight
        elif in_flight.concurrency > 1 and in_flight.free_lanes:
            self._below_budget.pop(slot, None)
            self._with_free_lane[slot] = in_flight
        elif in_flight.backlog < BUDGET:
            self._below_budget[slot] = in_flight
        else:
            self._below_budget.pop(slot, None)
