"""How many jobs an agent may have at once, if there are others, or if callers want jobs back.

A job that an agent has is one that no other agent can take, also if that one has nothing to do.
So an agent gets few more jobs than it can run.  But each job that it does not have yet takes a
way through the network, and an agent whose jobs are short would wait for them.

Twice as many jobs as the agent can run at once, and as many again of each function as it has ended
in the last tenth of a second: its workers have jobs while the next ones are on their way, and what
waits for them there is done in a tenth of a second more, if the next jobs of a function are like the
last ones.  Of a function of which an agent has ended nothing it gets only the few, also after many
short jobs of another one.  While a way takes less than that tenth of a second, each turn doubles
what short jobs get, as the slow start of TCP does (RFC 5681), until the agent is busy all the time.
"""

from __future__ import annotations

from asyncpool._core.base.deadlines import RecentCount
from asyncpool._core.base.job_traits import JobTraits

# Times as many jobs as can run at once: one that runs, and one that comes when that ends.
_DEPTH = 2

# Seconds in which an end is forgotten.
_SPAN = 0.1


class AgentWindow:
    """The window of one agent.

    Args:
        lanes: How many jobs it can run at once.

    Attributes:
        lanes: As above; it changes with the agent's pool.
        ahead: How many jobs the agent has ended of late, of each function of which it has.
        total: How many these are.
    """

    __slots__ = ("_recent", "ahead", "lanes", "total")

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._recent: dict[JobTraits, RecentCount] = {}
        self.ahead: dict[JobTraits, int] = {}
        self.total = 0

    @property
    def least(self) -> int:
        """How many jobs the agent may have, whatever their functions."""
        return _DEPTH * self.lanes

    def ended(self, function: JobTraits) -> None:
        """Count a job that has ended."""
        found = self._recent.get(function)
        if found is None:
            found = self._recent[function] = RecentCount(_SPAN)
        found.add()

    def look(self, now: float) -> None:
        """Find what counts from *now* on, and forget functions of which nothing ends any more."""
        ahead, self.total, over = self.ahead, 0, list[JobTraits]()
        for function, recent in self._recent.items():
            count = ahead[function] = recent.at(now)
            self.total += count
            if not count:
                over.append(function)
        for function in over:
            del self._recent[function], ahead[function]
