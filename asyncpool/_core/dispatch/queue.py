"""The jobs that wait, in the order in which they are to begin.

The more urgent one begins first, which is the one whose priority is the lower number;
among equals, the one that came first.  Age counts as well: *of every 64 jobs that
leave the queue, at least one is the one that has waited longest*, whatever its
priority.  So nothing starves: if m older jobs wait when a job comes, it is among the
next 64 (m + 1) that leave, however many more urgent ones keep coming.  And until
others have passed the oldest job 63 times in a row, the order is strict.

Rejected: a place that is fixed when a job comes, as its number, or the time, plus so
much for each step of priority.  It needs no more than a heap, and after that nobody
who is more urgent passes a job that is older than those steps are worth.  But the jobs
of a long queue are all that old, and then an urgent one waits behind them for as long
as if it had no priority: just when priorities are needed, they have no effect.  There
is no good worth of a step, either, for jobs of 50 us and for jobs of an hour; and the
time costs 60 ns for each job, and memory to remember it.  A share has no unit, needs
no clock, and holds for a queue of any length: with only urgent jobs in sight the
others have at least 1/64 of the turns, and as soon as there is a pause, all of them.

Jobs that come back because they lost their worker leave before all others, and in
their order; they had their turn, and it is not counted again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from asyncpool._core.base.run_times import Profile

# Of so many jobs that leave in a row, at least one is the oldest.  With 16 the urgent
# ones would give up 6 % of all turns; with 1024, jobs of a second each, passed by all
# others, would move once in a quarter of an hour.
PATIENCE = 64

# So many closed lines may have their priority on the heap, and as many as are open.
_SPARE = 16


class Entry(NamedTuple):
    """A job that waits; without a priority if it came back."""

    job: int
    profile: Profile
    priority: int | None


class JobQueue:
    """The jobs that have no worker.

    Each priority has a line of its own, and each line is an ``OrderedDict``, which
    gives what a deque cannot: removal from the middle at a constant price, so that
    cancelling thousands of queued jobs is linear.  To open a line, or to close it, costs
    the logarithm of how many there are; everything else is constant.

    The oldest is the first in the usual line, or the first that came of all others:
    whose number is lower, so that no time need be remembered.  Numbers are given when
    a job is submitted; one that takes a while to come here keeps its age.

    Args:
        patience: Of so many jobs that leave in a row, at least one is the oldest; two
            or more.

    Attributes:
        usual: The line of priority 0.  As long as there are no others, it is the
            whole queue, and whoever is in a hurry may treat it so: a method call
            costs as much as all the rest.
        others: How many jobs are not in it.
    """

    __slots__ = (
        "_lines",
        "_passed",
        "_passes",
        "_patience",
        "_priorities",
        "_priority_of",
        "_returned",
        "others",
        "usual",
    )

    def __init__(self, patience: int = PATIENCE) -> None:
        self.usual: OrderedDict[int, Profile] = OrderedDict()
        self.others = 0
        self._patience = patience
        self._returned: OrderedDict[int, Profile] = OrderedDict()
        # The other lines, of which none is empty, and the jobs in them as they came.
        self._lines: dict[int, OrderedDict[int, Profile]] = {}
        self._priority_of: OrderedDict[int, int] = OrderedDict()
        # A heap of their priorities, and of some whose lines are closed.
        self._priorities: list[int] = []
        # Who was the oldest when somebody else left, and how often that was so.
        self._passed: int | None = None
        self._passes = 0

    def __len__(self) -> int:
        return len(self.usual) + self.others

    def add(self, job: int, profile: Profile, priority: int = 0) -> None:
        """Let *job* wait behind all that are as urgent."""
        if not priority:
            self.usual[job] = profile
            return
        line = self._lines.get(priority)
        if line is None:
            line = self._open(priority)
        line[job] = profile
        self._priority_of[job] = priority
        self.others += 1

    def give_back(self, jobs: dict[int, Profile]) -> None:
        """Let *jobs* wait before all others, in their order."""
        returned = self._returned
        for job in reversed(jobs):
            returned[job] = jobs[job]
            returned.move_to_end(job, last=False)
        self.others += len(jobs)

    def head(self) -> tuple[int, Profile]:
        """Return the job whose turn it is; there must be one."""
        if self._returned:
            return next(iter(self._returned.items()))
        oldest = self._neglected()
        if oldest is None:
            priority = self._most_urgent()
        else:
            priority = self._priority_of.get(oldest, 0)
        line = self._lines[priority] if priority else self.usual
        return next(iter(line.items()))

    def rank(self) -> tuple[int, int, int]:
        """Return what tells whose head is the next of two queues: that with the lower.

        There must be a head.  Who came back is before all others, then who was passed
        too often; then the more urgent, then the older one.
        """
        if self._returned:
            return 0, 0, next(iter(self._returned))
        oldest = self._neglected()
        if oldest is not None:
            return 1, 0, oldest
        priority = self._most_urgent()
        line = self._lines[priority] if priority else self.usual
        return 2, priority, next(iter(line))

    def pop(self, job: int) -> None:
        """Let *job* leave, which is the head."""
        if job not in self._returned:
            self.passes(job)
        self.remove(job)

    def remove(self, job: int) -> bool:
        """Forget *job*, wherever it waits, and tell whether it did."""
        if self.usual.pop(job, None) is not None:
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

    def leads(self, priority: int) -> bool:
        """Tell whether a job of *priority* would be the head if it came now."""
        if self._returned or self._neglected() is not None:
            return False
        return not len(self) or priority < self._most_urgent()

    def passes(self, job: int) -> None:
        """Take note that it is the turn of *job*, which may have come just now."""
        oldest = self._oldest()
        if oldest is None or oldest == job:
            return
        if oldest != self._passed:
            self._passed, self._passes = oldest, 0
        self._passes += 1

    def passed_by(self, job: int) -> None:
        """Take note that *job*, which was in another queue, had the turn of this one."""
        oldest = self._oldest()
        if oldest is not None and oldest < job:
            self.passes(job)

    def entry(self, job: int) -> Entry:
        """Return all that is known of *job*, which waits here."""
        if job in self.usual:
            return Entry(job, self.usual[job], 0)
        priority = self._priority_of.get(job)
        if priority is None:
            return Entry(job, self._returned[job], None)
        return Entry(job, self._lines[priority][job], priority)

    def entries(self) -> Iterator[Entry]:
        """Yield every job."""
        for job in (*self._returned, *self.usual, *self._priority_of):
            yield self.entry(job)

    def clear(self) -> list[int]:
        """Forget every job, and return them: the more urgent first, whatever their age."""
        lines = {**self._lines, 0: self.usual}
        jobs = [*self._returned]
        for priority in sorted(lines):
            jobs += lines[priority]
        self.usual.clear()  # it may be known elsewhere
        self._returned.clear()
        self._lines.clear()
        self._priority_of.clear()
        self._priorities.clear()
        self.others = 0
        return jobs

    def _open(self, priority: int) -> OrderedDict[int, Profile]:
        if len(self._priorities) > 2 * len(self._lines) + _SPARE:
            # Most are of lines that were closed since, which pays for this.
            self._priorities = list(self._lines)
            heapify(self._priorities)
        heappush(self._priorities, priority)
        line = self._lines[priority] = OrderedDict()
        return line

    def _most_urgent(self) -> int:
        """Return the priority of the most urgent job that did not come back."""
        priorities, lines = self._priorities, self._lines
        while priorities and priorities[0] not in lines:
            heappop(priorities)
        if not priorities or (self.usual and priorities[0] > 0):
            return 0
        return priorities[0]

    def _neglected(self) -> int | None:
        """Return the oldest job, if no other one may leave before it."""
        if self._passes < self._patience - 1:
            return None
        oldest = self._oldest()
        return oldest if oldest == self._passed else None

    def _oldest(self) -> int | None:
        usual = next(iter(self.usual), None)
        other = next(iter(self._priority_of), None)
        if usual is None or (other is not None and other < usual):
            return other
        return usual
