"""How many of the ended jobs of a pool its watchers may hear of.

To hear of a job costs the pool a few microseconds.  A pool may end 100 000 jobs a second, and
then its watchers hear of a sample, whose rate depends on none of them: a bucket of tokens is
filled at a steady rate, and each job that is heard of takes one.  A pool that ends few jobs
never empties it, so its watchers hear of all of them.
"""

from __future__ import annotations

# Jobs a second, whatever the watchers ask for.  They cost the pool half a percent of a core.
MOST_PER_SECOND = 2000.0


class JobBudget:
    """The bucket of one pool.  The times come from outside."""

    def __init__(self) -> None:
        self._wishes: dict[object, tuple[int, float]] = {}
        self._rate = self._tokens = self._filled_at = 0.0
        self._size = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to hear of jobs."""
        return self._size > 0

    def add(self, watcher: object, jobs: int, every: float, now: float) -> None:
        """Let *watcher* hear of up to *jobs* jobs in each *every* seconds."""
        self.fill(now)
        self._wishes[watcher] = jobs, every
        before = self._size
        self._set()
        self._tokens += max(0, self._size - before)

    def remove(self, watcher: object) -> None:
        """Forget what *watcher* wants."""
        self._wishes.pop(watcher, None)
        self._set()

    def fill(self, now: float) -> bool:
        """Put in what has come until *now*; return whether there is one job's worth."""
        passed = max(0.0, now - self._filled_at)
        self._filled_at = now
        self._tokens = min(self._size, self._tokens + passed * self._rate)
        return self._tokens >= 1

    def take(self) -> bool:
        """Count a job that was heard of; return whether there may be another one."""
        self._tokens -= 1
        return self._tokens >= 1

    def _set(self) -> None:
        # All watchers hear of the same jobs, so the one that wants most decides.
        wanted = self._wishes.values()
        self._size = max((jobs for jobs, _ in wanted), default=0)
        rate = max((jobs / every for jobs, every in wanted), default=0.0)
        self._rate = min(rate, MOST_PER_SECOND)
        self._tokens = min(self._tokens, self._size)
