"""The jobs that wait, in the order in which they begin.

The more urgent job begins first: the one whose priority is the lower number.  Among
equals, the job that came first begins first.  Age counts as well: *of every 64 jobs
that leave the queue, at least one is the one that has waited longest*, whatever its
priority.  So no job waits for ever.  If m older jobs wait when a job comes, it is among
the next 64 (m + 1) that leave, however many more urgent ones keep coming.  The order is
strict until other jobs have passed the oldest job 63 times in a row.

Rejected: a fixed virtual deadline for each job: its number, or the time, plus so much for
each step of priority.  That would need no more than a heap.  An urgent job could pass
the jobs that have waited for less time than those steps are worth, and no others.  But all
jobs of a long queue have waited for longer than that.  Then an urgent job waits behind them
for as long as if it had no priority: priorities would have no effect just when they are
needed.  There is also no good value for a step, which must
suit jobs of 50 us and jobs of an hour.  And the time costs 60 ns for each job, and
memory.  A share has no unit, needs no clock, and holds for a queue of any length.
While only urgent jobs come, the others have at least 1/64 of the turns.  As soon as no
urgent job waits, they have all of them.

Jobs that come back because they lost their worker leave before all others, and in their
order.  They had their turn, which does not count again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from asyncpool._core.functions import JobTraits

# Of this many jobs that leave in a row, at least one is the oldest.  With 16, urgent
# jobs would give up 6 % of all turns.  With 1024, and jobs of a second each, an oldest
# job that all others pass would leave only after a quarter of an hour.
OLDEST_EVERY = 64

# How many priorities of closed lines the heap may keep, beyond as many as there are open lines.
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


class Head(NamedTuple):
    """The job whose turn it is in a queue.  Of the heads of two queues, the lower one is next."""

    standing: Standing
    priority: int
    job: int
    traits: JobTraits


class JobQueue:
    """The jobs that have no worker.

    Each priority has a line of its own.  Each line is an ``OrderedDict``, since a deque
    cannot remove a job from its middle in constant time.  So cancelling thousands of
    queued jobs takes linear time.  To open or to close a line takes logarithmic time in
    the number of lines.  Everything else takes constant time.

    The oldest job is the first one of the usual line, or the oldest of all others: whichever
    has the lower number.  So the queue need not remember times.  A job
    gets its number when it is submitted, so a job that comes here later keeps its age.

    Args:
        oldest_every: Of this many jobs that leave in a row, at least one is the oldest;
            two or more.

    Attributes:
        default_line: The line of priority 0.  As long as there are no others, it is the
            whole queue.  Then the hot path may use it directly, since a method call
            costs as much as all the rest.
        others: How many jobs are not in the default line.
    """

    def __init__(self, oldest_every: int = OLDEST_EVERY) -> None:
        self.default_line: OrderedDict[int, JobTraits] = OrderedDict()
        self.others = 0
        self._oldest_every = oldest_every
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

    def head(self) -> Head:
        """Return the job whose turn it is; there must be one."""
        if self._returned:
            return Head(Standing.RETURNED, 0, *next(iter(self._returned.items())))
        oldest = self._neglected()
        if oldest is not None:
            line = self._lines[self._priority_of.get(oldest, 0)]
            return Head(Standing.NEGLECTED, 0, oldest, line[oldest])
        priority = self._most_urgent()
        line = self._lines[priority]
        return Head(Standing.USUAL, priority, *next(iter(line.items())))

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
        """Record that *job*, of another queue, has a turn that this queue shares with that one."""
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
        self.default_line.clear()  # cleared and not replaced: the dispatcher keeps a reference
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
            self._priorities = [of for of in self._lines if of]
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
        if self._times_passed < self._oldest_every - 1:
            return None
        oldest = self._oldest()
        return oldest if oldest == self._passed_job else None

    def _oldest(self) -> int | None:
        usual = next(iter(self.default_line), None)
        other = next(iter(self._priority_of), None)
        if usual is None or (other is not None and other < usual):
            return other
        return usual
