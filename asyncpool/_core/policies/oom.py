"""Which deaths were the kernel's doing, for want of memory.

The kernel counts the processes that it kills so, and tells nobody here which they were.  So each
of these kills explains one death of a worker by a SIGKILL that the pool has not sent, whichever
is found first: when several were killed together, the others are found while the first is
already replaced.  Who is nobody's worker is counted, too, such as a program that a job has
started.  Such a kill would explain whatever happens much later; so each is forgotten soon.
"""

from __future__ import annotations

# Seconds for which a kill may explain a death.  A process that has much memory takes a while to
# end.  If it is too long, a job is not retried that could be; if it is too short, one is that
# takes the memory of the next worker as well.
FRESH = 5.0


class OomLedger:
    """The kills that explain no death so far.

    Args:
        count: How many the kernel has counted before.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._unclaimed = 0
        self._seen_at = 0.0

    def look(self, count: int, now: float) -> None:
        """Take note that the kernel has counted so many by now."""
        if now - self._seen_at > FRESH:
            self._unclaimed = 0
        if count > self._count:  # it never falls, unless it could not be read
            self._unclaimed += count - self._count
            self._count, self._seen_at = count, now

    def claim(self) -> bool:
        """Tell whether a kill explains a death that was just found; then it explains no other."""
        if not self._unclaimed:
            return False
        self._unclaimed -= 1
        return True
