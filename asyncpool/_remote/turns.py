"""Whose job an agent's pool gets next.

The jobs that an agent has and its pool has not wait here, in a queue for each client.  The
pool gets one job of each client in turn, and no more than it soon begins: as many as can run at
once wait in it, and more only if their functions are known to be so short that all that it has
takes some milliseconds.  So a client that floods the agent holds up the others by a few
jobs, or a few milliseconds.  And few jobs count as begun that have not, if the agent dies.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.dispatcher import JobQueue
from asyncpool._core.functions import BUDGET, JobTraits

# How much work the pool may have for each lane, in microseconds.  Its workers have half of it at
# the most.  While they do that, the other half comes.
AHEAD = 2 * BUDGET


class _Client:
    __slots__ = ("queue", "released")

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.released: dict[int, float] = {}  # with their expected costs


class Turns:
    """The jobs that clients want an agent's pool to run.

    Attributes:
        waiting: How many of them wait for their turn.
        backlog: How long those will take that the pool has, in microseconds, as far as their
            functions are known.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.backlog = 0.0
        self._clients: dict[int, _Client] = {}
        self._turns: dict[int, None] = {}  # who has a queue, whose turn is next first
        self._free, self._most = 0, 0.0

    def open(self, client: int) -> None:
        """Let jobs of a new client come."""
        self._clients[client] = _Client()

    def close(self, client: int) -> None:
        """Forget a client and its jobs."""
        gone = self._clients.pop(client)
        self._turns.pop(client, None)
        self.waiting -= len(gone.queue)
        self.backlog -= sum(gone.released.values())

    def look(self, waiting: int, lanes: int) -> None:
        """Record what the pool has: how many jobs wait there, and how many can run at once."""
        self._free, self._most = lanes - waiting, AHEAD * lanes

    def _take_room(self, cost: float) -> bool:
        """Tell whether the pool may get a job that costs so much, and count it if so."""
        if self._free <= 0 and self.backlog + cost > self._most:
            return False
        self._free -= 1
        self.backlog += cost
        return True

    def begins(self, client: int, job: int, traits: JobTraits) -> bool:
        """Tell whether the pool gets a job at once that has just come."""
        if self.waiting or not self._take_room(traits.cost):
            return False
        self._clients[client].released[job] = traits.cost
        return True

    def add(self, client: int, job: int, priority: int, traits: JobTraits) -> None:
        """Let a job wait for its turn."""
        self._clients[client].queue.add(job, traits, priority)
        self.waiting += 1
        self._turns[client] = None

    def release(self, may_begin: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Return the jobs for which the pool has room, as pairs of the client and the job.

        Args:
            may_begin: Tells whether jobs of a client may begin.
        """
        released: list[tuple[int, int]] = []
        turns = self._turns
        ready = [*filter(may_begin, turns)]
        while ready:
            for number in ready:
                client = self._clients[number]
                queue = client.queue
                if queue.others:
                    *_, job, traits = queue.head()
                else:  # the same, in a fraction of the time
                    job, traits = next(iter(queue.default_line.items()))
                cost = traits.cost
                # If it has to wait, nobody else passes it, or it would wait for ever.
                if not self._take_room(cost):
                    self.waiting -= len(released)
                    return released
                if queue.others:
                    queue.pop(job)
                else:
                    del queue.default_line[job]
                client.released[job] = cost
                del turns[number]
                if queue:
                    turns[number] = None  # behind the others
                released.append((number, job))
            ready = [one for one in ready if one in turns]
        self.waiting -= len(released)
        return released

    def ended(self, client: int, job: int) -> None:
        """Record that the pool is done with *job*."""
        self.backlog -= self._clients[client].released.pop(job, 0.0)

    def cancel(self, client: int, job: int) -> bool:
        """Forget *job* if it waits here, and tell whether it did."""
        queue = self._clients[client].queue
        if not queue.remove(job):
            return False
        self.waiting -= 1
        if not queue:
            del self._turns[client]
        return True
