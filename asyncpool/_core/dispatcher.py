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

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

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
# Each worker that stays in the pool has a *bucket*; see ``sessions.py``.  Each
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
        self._enter(job, self._choose(traits.key)).add(job, traits, priority)

    def requeue(self, jobs: dict[int, JobTraits]) -> None:
        """Queue *jobs* before all others, in their order."""
        for job in reversed(jobs):
            queue = self._enter(job, self._choose(jobs[job].key))
            queue.requeue({job: jobs[job]})

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
        moving: list[tuple[QueuedJob, int | None]] = []
        for bucket, queue in self.open.items():
            # A bucket that stays was the first choice before, too.
            stays = bucket in slots_by_bucket
            find = _chooser([bucket, *new]) if stays else self._choose
            moving += [(entry, find(entry.traits.key)) for entry in queue.entries()]
        self.take_all()
        back: dict[int, JobTraits] = {}
        for entry, chosen in sorted(moving):  # by age: jobs are numbered as they come
            if entry.priority is None:
                back[entry.job] = entry.traits
                continue
            queue = self._enter(entry.job, chosen)
            if not queue:
                # It keeps its count of passes: a job whose key moves often would else starve.
                queue.restore(entry)
            queue.add(entry.job, entry.traits, entry.priority)
        self.requeue(back)

    def _enter(self, job: int, bucket: int | None) -> JobQueue:
        """Record that *job* comes to the queue of *bucket*, and return that."""
        self._bucket_of[job] = bucket
        queue = self.open.get(bucket)
        if queue is None:
            queue = self.open[bucket] = JobQueue(self._oldest_every)
        return queue


class Dispatcher:
    """The jobs that wait, and the workers that have room.

    A job without a key waits only if no worker is idle.  A job with a key waits only if
    its own worker is not idle.

    Args:
        oldest_every: As in :class:`JobQueue`.

    Attributes:
        queue: The jobs without a key that wait.
        preparing: Jobs that are still being pickled, and count among those that wait; the pool
            submits each when it can be sent.
        idle: The workers that have nothing to do, by slot; the last one gets the next job.
        session_waiters: How many workers callers want for sessions; see ``sessions.py``.
    """

    def __init__(self, *, oldest_every: int = OLDEST_EVERY) -> None:
        self.queue = JobQueue(oldest_every)
        self.preparing: dict[int, None] = {}
        # The workers that have room, by slot; no worker is in two of them.  One has
        # nothing to do, has a free lane beside what it runs, or has less than BUDGET of
        # work in flight.  A worker for which jobs wait in a queue of its own is in none.
        self.idle: dict[int, InFlight] = {}
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
        count = len(queue.default_line) + queue.others + len(self.preparing)
        return count + len(self._affinity_queues) if self._open_queues else count

    @property
    def unserved(self) -> int:
        """How many jobs and sessions wait that more workers could serve.

        A job that waits for its own worker while another worker is idle does not count.
        """
        room = self.idle or self._with_free_lane
        jobs = self.waiting - len(self._affinity_queues) if room else self.waiting
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
        in_flight = None if slot is None else self._room_of(slot)
        waits = slot in self._below_budget  # in its worker, behind others
        if (
            slot is None
            or in_flight is None
            or (
                waits
                and not (
                    in_flight.takes(traits) and self.queue.would_be_first(priority)
                )
            )
        ):
            self._affinity_queues.add(job, traits, priority)
            if slot is not None:
                self._below_budget.pop(slot, None)
            return None
        if waits:
            self.queue.note_dequeued(job)
        self.exclude(slot)
        in_flight.add(job, traits)
        self._classify(slot, in_flight)
        return slot

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
            *_, job, traits = queue.head()
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
        """Give *slot* no more jobs, until it is filled again."""
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
                served += [(slot, job) for job in self.refill(slot, in_flight)]
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
