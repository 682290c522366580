"""Whose time is over: points in time, each with the job that it ends.

A heap that forgets lazily: what was discarded, or set anew, stays in it until its time
comes, or until such entries are the greater part.  So nothing has to be searched for,
and adding one that is later than all others, which is the rule where all jobs have the
same limit, costs the same however many there are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# Below that, nothing is gained by cleaning up.
_FEW = 64


def earliest(*times: float | None) -> float | None:
    """Return the first of *times*; ``None`` stands for never."""
    return min((when for when in times if when is not None), default=None)


class Deadlines:
    """At most one point in time for each job."""

    __slots__ = ("_heap", "_when")

    def __init__(self) -> None:
        self._when: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """How many jobs have one."""
        return len(self._when)

    def set(self, job: int, when: float) -> None:
        """Let the time of *job* be over at *when*, whatever was set before."""
        self._when[job] = when
        heap = self._heap
        if len(heap) > _FEW + 2 * len(self._when):
            heap[:] = [(time, job) for job, time in self._when.items()]
            heapify(heap)
        else:
            heappush(heap, (when, job))

    def is_set(self, job: int, by: float) -> bool:
        """Tell whether the time of *job* is over at *by* anyway, or before."""
        when = self._when.get(job)
        return when is not None and when <= by

    def discard(self, job: int) -> None:
        """Give *job* all the time it wants."""
        self._when.pop(job, None)

    def next(self) -> float | None:
        """When the next one is due; ``None`` if none will be."""
        heap, when = self._heap, self._when
        while heap:
            time, job = heap[0]
            if when.get(job) == time:
                return time
            heappop(heap)
        return None

    def pop(self, now: float) -> list[int]:
        """Return the jobs whose time is over, in that order, and forget them."""
        due: list[int] = []
        while (time := self.next()) is not None and time <= now:
            job = heappop(self._heap)[1]
            del self._when[job]
            due.append(job)
        return due
