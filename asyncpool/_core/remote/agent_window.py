"""How many jobs an agent may have at once, if there are others.

A job that an agent has is one that no other agent can take, also if that one has nothing to do.
So an agent gets few more jobs than it can run.  But each job that it does not have yet takes a
way through the network, and an agent whose jobs are short would wait for them.

Twice as many jobs as the agent can run at once, and as many again as it has ended in the last
tenth of a second: its workers have jobs while the next ones are on their way, and what waits for
them there is done in a tenth of a second more, if the next jobs are like the last ones.  An agent
that has ended nothing yet begins with the few.  While a way takes less than that tenth of a second,
each turn doubles what short jobs get, as the slow start of TCP does (RFC 5681), until the agent is
busy all the time.
"""

from __future__ import annotations

from asyncpool._core.base.recent_count import RecentCount

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
    """

    __slots__ = ("_recent", "lanes")

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._recent = RecentCount(_SPAN)

    def ended(self) -> None:
        """Count a job that has ended."""
        self._recent.add()

    def size(self, now: float) -> int:
        """Return how many jobs the agent may have."""
        return _DEPTH * self.lanes + self._recent.at(now)
