"""Which agent gets which job of a client.

The client has the one queue.  It is that of a local pool (``_core/dispatcher.py``), to which an
agent is a worker with as many lanes as its *window* allows: so many jobs may be with the agent at
once.  Priorities, keys, and the order of jobs that come back are those of a local pool.

A job that an agent has is one that no other agent can take, also if that one has nothing to do.
So among several an agent gets few more jobs than it can run.  But each job that it does not have
yet takes a way through the network, and an agent whose jobs are short would wait for them.

Twice as many jobs as the agent can run at once, and as many again of each function as it has ended
in the last tenth of a second: its workers have jobs while the next ones are on their way, and what
waits for them there is done in a tenth of a second more, if the next jobs of a function are like
the last ones.  Of a function of which an agent has ended nothing it gets only the few, also after
many short jobs of another one.  While a way takes less than that tenth of a second, each turn
doubles what short jobs get, as the slow start of TCP does (RFC 5681), until the agent is busy all
the time.
"""

from __future__ import annotations

from collections import Counter

from asyncpool._core.deadlines import RecentCount
from asyncpool._core.dispatcher import Dispatcher, InFlight
from asyncpool._core.functions import JobTraits

# The most jobs of one client that an agent takes, and the most that a client gives it.
CREDITS = 1024
MAX_CREDITS = 4096

# Times as many jobs as can run at once: one that runs, and one that comes when that ends.
_DEPTH = 2

# Seconds in which an end is forgotten.
_SPAN = 0.1


class Window(InFlight):
    """The jobs that one agent has.

    Args:
        credits: How many it takes.
        lanes: How many it can run at once.

    Attributes:
        credits: As above.
        lanes: As above; it changes with the agent's pool.
    """

    def __init__(self, credits: int, lanes: int) -> None:  # noqa: A002
        super().__init__(credits)
        self.credits, self.lanes = credits, lanes
        # What follows is counted only while the window is limited.
        self._is_limited = False
        self._of_function: Counter[JobTraits] = Counter()
        self._recent: dict[JobTraits, RecentCount] = {}
        # What those have counted at the last look.
        self._ahead: dict[JobTraits, int] = {}

    def look(self, now: float, *, is_limited: bool) -> None:
        """Count what the agent has ended of late, if that limits what it gets."""
        if is_limited and not self._is_limited:
            jobs = self.jobs.values()
            self._of_function = Counter(traits.function for *_, traits in jobs)
        self._is_limited = is_limited
        least = _DEPTH * self.lanes if is_limited else self.credits
        self.concurrency = min(least, self.credits)
        counts = {of: recent.at(now) for of, recent in self._recent.items()}
        self._ahead = {function: count for function, count in counts.items() if count}
        for function in counts.keys() - self._ahead.keys():
            del self._recent[function]

    def takes(self, traits: JobTraits) -> bool:
        """Tell whether a job may be sent now."""
        count, least = len(self.jobs), self.concurrency
        if count < least:
            return True
        if not self._is_limited or count >= self.credits:
            return False
        function, ahead = traits.function, self._ahead
        return count < least + sum(ahead.values()) and self._of_function[
            function
        ] < least + ahead.get(function, 0)

    # These do without the costs of jobs, which a client does not know, and take less time for it.

    def add(self, job: int, traits: JobTraits) -> None:
        """Add *job*, which is sent."""
        self.sent += 1
        self.jobs[job] = (self.sent, 0.0, traits)
        if self._is_limited:
            self._of_function[traits.function] += 1

    def remove(self, job: int) -> None:
        """Forget *job*, which has come back, or has ended."""
        traits = self.jobs.pop(job)[2]
        self.max_sent += 1
        if self._is_limited:
            function = traits.function
            self._of_function[function] -= 1
            if not self._of_function[function]:
                del self._of_function[function]

    def note_end(self, job: int) -> None:
        """Forget *job*, which the agent has ended."""
        if self._is_limited:
            function = self.traits_of(job).function
            if function not in self._recent:
                self._recent[function] = RecentCount(_SPAN)
            self._recent[function].add()
        self.remove(job)


class Router(Dispatcher):
    """The jobs that no agent has, and the agents, by number: they are its slots."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[int, Window] = {}
        self._resting: set[int] = set()  # those that may have no more jobs

    def submit(self, job: int, traits: JobTraits, priority: int = 0) -> int | None:
        """Return the agent that gets *job*, or queue it; it may have been prepared before."""
        self.preparing.pop(job, None)
        if traits.key is None:
            return super().submit(job, traits, priority)
        return self.submit_keyed(job, traits, priority)

    def refill(self, agent: int) -> list[int]:
        """Return the jobs that *agent* gets now."""
        if agent in self._resting:
            return []
        return self.jobs_for(agent, self._windows[agent])

    def join(
        self, agent: int, window: Window, *, is_ready: bool
    ) -> list[tuple[int, int]]:
        """Add *agent*, a number that none had before; return what agents get.

        Args:
            agent: The agent.
            window: Which jobs it may have.
            is_ready: Whether it may have them already.

        Returns:
            The jobs that need not wait, each as a pair of its agent and the job.
        """
        self._windows[agent] = window
        if not is_ready:
            self._resting.add(agent)
        pairs = self._spread_keys()
        return [*pairs, *((agent, job) for job in self.refill(agent))]

    def resume(self, agent: int) -> None:
        """Let *agent* have jobs, which was not ready when it joined."""
        self._resting.discard(agent)

    def rest(self, agent: int) -> None:
        """Give *agent* no more jobs."""
        self._resting.add(agent)
        self.exclude(agent)

    def lose(self, agent: int) -> list[tuple[int, int]]:
        """Forget *agent*; return what others get for that, as above."""
        del self._windows[agent]
        self._resting.discard(agent)
        self.exclude(agent)
        return self._spread_keys()

    def _spread_keys(self) -> list[tuple[int, int]]:
        return self.assign_buckets({agent: agent for agent in self._windows})
