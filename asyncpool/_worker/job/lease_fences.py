"""End this process when the lease of a job that it runs lapses.

The pool has said in advance when that is, and says so again at each extension.  So nothing
is asked of it in that moment: it may be stopped, or its loop blocked.

The thread here and the one that begins jobs need no lock.  That one takes note that a job
runs, and then looks at the clock; this one looks at the clock, and then whether it runs.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock, start_new_thread
from time import monotonic

from asyncpool._worker.job.job_claims import JobClaims

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable


class LeaseFences:
    """Until when jobs may run, by their places.

    Args:
        claims: Which place was taken last.
        runs: Tells whether the job in a place is running.
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
        start_new_thread(self._watch, ())

    def put(self, sequence: int, until: float) -> None:
        """Let the job in *sequence* run until then, whatever was said before."""
        self._until[sequence] = until
        if self._bell.locked():
            self._bell.release()

    def check(self, sequence: int) -> None:
        """End this process if the job in *sequence*, which begins now, came too late."""
        until = self._until.get(sequence)
        if until is not None and until <= monotonic():
            self._end()

    def _watch(self) -> None:
        try:
            while True:
                self._bell.acquire(timeout=self._look())
        finally:
            self._end()  # for want of memory, say: no job would be watched any more

    def _look(self) -> float:
        """End this process if it is time, or return for how long it is not.

        Forgets the jobs that are over.
        """
        wait = TIMEOUT_MAX
        for sequence, until in list(self._until.items()):
            # In this order: what is before the last one that was taken had begun by then.
            now, taken, runs = monotonic(), self._claims.taken, self._runs(sequence)
            if until <= now and runs:
                self._end()
            elif until > now:
                wait = min(wait, until - now)
            if sequence < taken and not runs:
                self._until.pop(sequence, None)
        return wait
