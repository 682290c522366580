"""Decide which deaths of workers the kernel caused because memory ran out.

The kernel counts the processes that it kills for this reason, but does not say which
ones they were.  So each such kill explains one death of a worker by a SIGKILL that the
pool has not sent: the death that the pool finds first.  If the kernel killed several
workers together, the pool finds the others while it already replaces the first.

The kernel's count also includes processes that are no workers, such as a program that a
job has started.  Such a kill would explain any death that happens much later.  So the
pool soon forgets each kill.
"""

from __future__ import annotations

# Seconds for which a kill may explain a death.  A process with much memory takes a
# while to end.  If the time is too short, the pool does not recognise a death for lack
# of memory, and may retry a job that takes the memory of the next worker as well.  If
# it is too long, the pool does not retry a job that it could.
FRESH = 5.0


class OomLedger:
    """The kills that have explained no death so far.

    Args:
        count: How many kills the kernel has counted before.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._unclaimed = 0
        self._seen_at = 0.0

    def update(self, count: int, now: float) -> None:
        """Record how many kills the kernel has counted by now."""
        if now - self._seen_at > FRESH:
            self._unclaimed = 0
        if count > self._count:  # it falls only if it could not be read
            self._unclaimed += count - self._count
            self._count, self._seen_at = count, now

    def claim(self) -> bool:
        """Tell whether a kill explains a death that was just found; it explains one death only."""
        if not self._unclaimed:
            return False
        self._unclaimed -= 1
        return True
