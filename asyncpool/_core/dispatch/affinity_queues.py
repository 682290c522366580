"""The jobs that wait for one worker, since they have a key.

Each worker that stays in the pool has a *bucket*; see ``affinity_slots.py``.  Each
bucket has a queue of its own, with the same rules as the common queue.  A job waits in
the queue of the bucket that its key belongs to (``rendezvous.py``).  If the key comes
to belong to another bucket, the job moves to the queue of that one, with its age, its
priority, and how often others have passed it.  While the pool has no bucket at all, the
job waits for the first one.

A bucket that goes from one worker to another costs nothing.  The number of buckets
rarely changes, so a change may take some time: a microsecond for each key of a waiting
job, and four for each job that moves, or whose queue other jobs join.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.dispatch.queue import JobQueue, QueuedJob
from asyncpool._core.dispatch.rendezvous import choose


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
            # Where workers run few jobs each, keys move more often than a job may be passed.
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
