"""Points in time, each with the job whose time is over then.

The heap forgets lazily.  An entry that was discarded or changed stays in the heap until
its time comes, or until such entries are the greater part of it.  So nothing has to be
searched.  Most often a new deadline is later than all others, since all jobs have the
same limit.  To add such a deadline costs the same however many there are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# For fewer entries it does not pay to clean up.
_FEW = 64


def earliest(*times: float | None) -> float | None:
    """Return the earliest of *times*; ``None`` stands for never."""
    return min((when for when in times if when is not None), default=None)


class Deadlines:
    """At most one point in time for each job."""

    __slots__ = ("_heap", "_when")

    def __init__(self) -> None:
        self._when: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """How many jobs have a deadline."""
        return len(self._when)

    def set(self, job: int, when: float) -> None:
        """Set the deadline of *job* to *when*, whatever it was before."""
        self._when[job] = when
        heap = self._heap
        if len(heap) > _FEW + 2 * len(self._when):
            heap[:] = [(time, job) for job, time in self._when.items()]
            heapify(heap)
        else:
            heappush(heap, (when, job))

    def is_set(self, job: int, by: float) -> bool:
        """Tell whether *job* already has a deadline at *by* or earlier."""
        when = self._when.get(job)
        return when is not None and when <= by

    def discard(self, job: int) -> None:
        """Remove the deadline of *job*."""
        self._when.pop(job, None)

    def next(self) -> float | None:
        """When the next deadline is; ``None`` if there is none."""
        heap, when = self._heap, self._when
        while heap:
            time, job = heap[0]
            if when.get(job) == time:
                return time
            heappop(heap)
        return None

    def pop(self, now: float) -> list[int]:
        """Return the jobs whose time is over, in the order of their deadlines, and forget them."""
        due: list[int] = []
        while (time := self.next()) is not None and time <= now:
            job = heappop(self._heap)[1]
            del self._when[job]
            due.append(job)
        return due
