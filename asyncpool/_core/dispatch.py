"""Decide which worker runs which job.

Jobs wait in the order in which they came; one that lost its worker goes back to
the head.  Idle workers are handed out last-in, first-out: the one that stopped
working most recently has the warmest caches, and the others get to be idle long
enough to be let go.

Plain method calls on plain integers: this is the hot path.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Dispatcher"]


class Dispatcher:
    """The jobs that wait and the slots that are free.

    Never both: whoever adds to one side takes from the other first.
    """

    def __init__(self) -> None:
        # An OrderedDict gives what a deque cannot: removal from the middle at a
        # constant price, so that cancelling thousands of queued jobs is linear.
        self._waiting: OrderedDict[int, None] = OrderedDict()
        self._idle: dict[int, None] = {}

    @property
    def waiting(self) -> int:
        """How many jobs have no worker yet."""
        return len(self._waiting)

    @property
    def idle(self) -> int:
        """How many slots wait for a job."""
        return len(self._idle)

    def submit(self, job: int) -> int | None:
        """Return the slot that runs *job* now, or queue it and return ``None``."""
        if self._idle:
            return self._idle.popitem()[0]
        self._waiting[job] = None
        return None

    def give_back(self, job: int) -> int | None:
        """Like :meth:`submit`, but *job* is the next in the queue."""
        slot = self.submit(job)
        if slot is None:
            self._waiting.move_to_end(job, last=False)
        return slot

    def worker_free(self, slot: int) -> int | None:
        """Return the job that *slot* runs next, or note that it is idle."""
        if self._waiting:
            return self._waiting.popitem(last=False)[0]
        self._idle[slot] = None
        return None

    def discard(self, job: int) -> bool:
        """Forget *job* if it waits, and tell whether it did."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        return True

    def worker_gone(self, slot: int) -> None:
        """Give *slot* no more jobs."""
        self._idle.pop(slot, None)

    def empty(self) -> list[int]:
        """Forget every job that waits, and return them in their order."""
        jobs = list(self._waiting)
        self._waiting.clear()
        return jobs
