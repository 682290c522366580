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

import math

# Times as many jobs as can run at once: one that runs, and one that comes when that ends.
_DEPTH = 2

# In so many seconds an end counts 1/e of what it counts at first.
_SPAN = 0.1


class AgentWindow:
    """The window of one agent.

    Args:
        lanes: How many jobs it can run at once.

    Attributes:
        lanes: As above; it changes with the agent's pool.
    """

    __slots__ = ("_at", "_new", "_recent", "lanes")

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        # How many jobs have ended; those that ended long ago count less.
        self._recent: float = 0.0
        self._new: int = 0  # and since the last look
        self._at: float = -math.inf  # when that was

    def ended(self) -> None:
        """Count a job that has ended."""
        self._new += 1

    def size(self, now: float) -> int:
        """Return how many jobs the agent may have."""
        # A beat may tell a time that is older than that of the last batch.
        now = max(self._at, now)
        self._recent *= math.exp((self._at - now) / _SPAN)
        self._recent += self._new
        self._new, self._at = 0, now
        return _DEPTH * self.lanes + int(self._recent)
