"""End this process when the lease of a job that it runs lapses.

The pool sends that time in advance, and again at each renewal.  So the worker does not need
the pool at that moment: the service may be stopped, or its event loop blocked.

The thread here and the main thread need no lock.  The main thread notes that a job runs, and
then looks at the clock.  The thread here looks at the clock, and then whether the job runs.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock
from time import monotonic

from asyncpool._worker.job_ending.job_claims import JobClaims
from asyncpool._worker.process import start_thread

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable


class LeaseFences:
    """Until when jobs may run, by their sequence numbers.

    Args:
        claims: Which number was claimed last.
        runs: Tells whether the job with a number is running.
        end: Ends this process.
    """

    def __init__(
        self, claims: JobClaims, runs: Callable[[int], bool], end: Callable[[], None]
    ) -> None:
        self._claims = claims
        self._runs = runs
        self._end = end
        self._until: dict[int, float] = {}
        self._bell = allocate_lock()
        self._bell.acquire()
        start_thread(self._watch)

    def put(self, sequence: int, until: float) -> None:
        """Let the job with the number *sequence* run until then, and forget the time before."""
        self._until[sequence] = until
        if self._bell.locked():
            self._bell.release()

    def check(self, sequence: int) -> None:
        """End this process if the job that begins now, *sequence*, came too late."""
        until = self._until.get(sequence)
        if until is not None and until <= monotonic():
            self._end()

    def _watch(self) -> None:
        try:
            while True:
                self._bell.acquire(timeout=self._look())
        finally:
            self._end()  # a MemoryError, say: nobody would watch the jobs

    def _look(self) -> float:
        """End this process if a lease has lapsed, or return the seconds until the next one.

        It forgets the jobs that are over.
        """
        wait = TIMEOUT_MAX
        for sequence, until in list(self._until.items()):
            # In this order: all jobs before the last claimed one had begun by then.
            now, taken, runs = monotonic(), self._claims.taken, self._runs(sequence)
            if until <= now and runs:
                self._end()
            elif until > now:
                wait = min(wait, until - now)
            if sequence < taken and not runs:
                self._until.pop(sequence, None)
        return wait
