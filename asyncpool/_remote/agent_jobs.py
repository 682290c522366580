"""The agent's side: the clients that it has, how many jobs it may have, and whose job is next.

A job that an agent has is one that no other agent can take, also if that one has nothing to do.
So an agent gets few more jobs than it can run.  But each job that it does not have yet takes a
way through the network, and an agent whose jobs are short would wait for them.

Twice as many jobs as the agent can run at once, and as many again of each function as it has ended
in the last tenth of a second: its workers have jobs while the next ones are on their way, and what
waits for them there is done in a tenth of a second more, if the next jobs of a function are like
the last ones.  Of a function of which an agent has ended nothing it gets only the few, also after
many short jobs of another one.  While a way takes less than that tenth of a second, each turn
doubles what short jobs get, as the slow start of TCP does (RFC 5681), until the agent is busy all
the time.

A client has a *session* and in it a *lease*.  The lease is over when the client has not been
heard of for a while, see :class:`ClientLease`; then its jobs are given up.  The agent
never begins a job of a client whose lease is over, since that client may have given the
job to another agent.

The jobs that an agent has and its pool has not wait here, in a queue for each client.  The
pool gets one job of each client in turn, and no more than it soon begins: as many as can run at
once wait in it, and more only if their functions are known to be so short that all that it has
takes some milliseconds.  So a client that floods the agent holds up the others by a few
jobs, or a few milliseconds.  And few jobs count as begun that have not, if the agent dies.

The client must know that a job begins before it does, since it gives the jobs of a lost agent that
have not begun to another one, at no cost.  Where both see the same memory, the agent notes it
there.  Elsewhere it sends a message, which may be lost with the agent: the job begins only when
the client has acknowledged that message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile

from asyncpool._core.deadlines import RecentCount
from asyncpool._core.dispatcher import JobQueue
from asyncpool._core.functions import BUDGET, JobTraits
from asyncpool.errors import ProtocolError

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


# How many jobs of one client may be with an agent.
CREDITS = 1024

# How much work the pool may have for each lane, in microseconds.  Its workers have half of it at
# the most.  While they do that, the other half comes, whose clients may have to answer first.
AHEAD = 2 * BUDGET


class ClientLease:
    """How long the agent may work for a client that it does not hear.

    The client returns the agent's own times (see ``reliable_link.py``), so it does not matter how
    long its words were on their way.  The client waits for at least as long before it gives
    the agent up.

    Args:
        seconds: For how long, after the client has seen a time of the agent's.
        now: The time.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self.until = now + seconds

    def heard(self, echo: float) -> None:
        """Record that the client has seen the agent's time *echo*."""
        self.until = max(self.until, echo + self._seconds)


class _Client:
    __slots__ = ("calls", "jobs", "lease", "pending", "queue", "released")

    def __init__(self, lease: ClientLease) -> None:
        self.lease = lease
        self.queue = JobQueue()
        self.jobs: set[int] = set()  # in the queue or released
        self.released: dict[int, float] = {}  # with their expected costs
        # Those of them that the client may not know to begin, and the message that tells it.
        self.pending: dict[int, int] = {}
        self.calls: set[int] = set()  # for workers that belong to the client


class AgentJobs:
    """The jobs that an agent has, by session.

    Args:
        credits: How many jobs of one client may be here at once.
        most_clients: How many clients there may be.
        lease: For how many seconds the agent works for a client that it does not hear.

    Attributes:
        credits: As above.
        waiting: How many jobs wait for their turn.
        pending: How many jobs wait until their client has acknowledged that they begin.
        backlog: How long those jobs will take that are released and have not ended, in
            microseconds, as far as their functions are known.
    """

    def __init__(self, *, credits: int, most_clients: int, lease: float) -> None:  # noqa: A002
        self.credits = credits
        self._most_clients = most_clients
        self._lease = lease
        self._patient_until = -math.inf
        self._clients: dict[int, _Client] = {}
        self._sessions = 0
        self.waiting = self.pending = 0
        self.backlog = 0.0
        self._free, self._most = 0, 0.0
        # The sessions with a queue, whose turn is next first.
        self._turns: dict[int, None] = {}

    @property
    def sessions(self) -> tuple[int, ...]:
        """The sessions that are open."""
        return tuple(self._clients)

    def open(self, now: float) -> int | None:
        """Return the number of a new session, or ``None`` if there are too many.

        No number is given twice, so that a batch of a session that is over is known as such.
        """
        if len(self._clients) >= self._most_clients:
            return None
        self._sessions += 1
        self._clients[self._sessions] = _Client(ClientLease(self._lease, now))
        return self._sessions

    def heard(self, session: int, echo: float) -> None:
        """Record that the client of *session* has seen the agent's time *echo*."""
        self._clients[session].lease.heard(echo)

    def look(self, waiting: int, lanes: int) -> None:
        """Record what the pool has: how many jobs wait there, and how many can run at once."""
        self._free = lanes - waiting - self.pending
        self._most = AHEAD * lanes

    def _take_room(self, cost: float) -> bool:
        """Tell whether the pool may get a job that costs so much, and count it if so."""
        if self._free <= 0 and self.backlog + cost > self._most:
            return False
        self._free -= 1
        self.backlog += cost
        return True

    def accept(self, session: int, job: int, priority: int, traits: JobTraits) -> None:
        """Take a job of a client, which waits for its turn.

        Raises:
            ProtocolError: If it is here already, or is one too many.
        """
        client = self._checked(session, job)
        client.jobs.add(job)
        client.queue.add(job, traits, priority)
        self.waiting += 1
        self._turns[session] = None

    def accept_at_once(
        self, session: int, job: int, traits: JobTraits, now: float
    ) -> bool:
        """Take a job for which the pool has room, unless others wait or the lease is over.

        Returns:
            Whether it may begin now.  If not, it was not taken.

        Raises:
            ProtocolError: If it is here already, or is one too many.
        """
        if self.waiting or self._clients[session].lease.until <= now:
            return False
        client = self._checked(session, job)
        cost = traits.cost
        if not self._take_room(cost):
            return False
        client.jobs.add(job)
        client.released[job] = cost
        return True

    def _checked(self, session: int, job: int) -> _Client:
        client = self._clients[session]
        if job in client.jobs:
            raise ProtocolError(f"the client sent job {job} twice")
        if len(client.jobs) - len(client.calls) >= self.credits:
            raise ProtocolError(f"the client sent more than {self.credits} jobs")
        return client

    def accept_call(self, session: int, job: int) -> None:
        """Take a call for a worker that the client has to itself: it waits for nothing here.

        Raises:
            ProtocolError: If it is here already, or is one too many.
        """
        client = self._clients[session]
        if job in client.jobs:
            raise ProtocolError(f"the client sent job {job} twice")
        if len(client.calls) >= 2 * self.credits:
            raise ProtocolError(f"the client sent more than {2 * self.credits} calls")
        client.jobs.add(job)
        client.calls.add(job)
        client.released[job] = 0.0

    def release(self, now: float) -> list[tuple[int, int]]:
        """Return the jobs for which the pool has room, as pairs of the session and the job.

        Tell the clients that these jobs began, and then give them to the pool.
        """
        released: list[tuple[int, int]] = []
        turns, clients = self._turns, self._clients
        ready = [s for s in turns if clients[s].lease.until > now]
        while ready:
            for session in ready:
                client = clients[session]
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
                del turns[session]
                if queue:
                    turns[session] = None  # behind the others
                released.append((session, job))
            ready = [s for s in ready if s in turns]
        self.waiting -= len(released)
        return released

    def told(self, session: int, jobs: Iterable[int], message: int) -> None:
        """Record that the message with the number *message* says that released *jobs* begin."""
        pending = self._clients[session].pending
        self.pending -= len(pending)
        pending.update(dict.fromkeys(jobs, message))
        self.pending += len(pending)

    def may_begin(self, session: int, acknowledged: int, now: float) -> list[int]:
        """Return the jobs that begin now: their client has taken *acknowledged* messages."""
        client = self._clients[session]
        if not client.pending or client.lease.until <= now:
            return []
        # The older messages come first.
        known = takewhile(
            lambda job: client.pending[job] <= acknowledged, client.pending
        )
        jobs = [*known]
        for job in jobs:
            del client.pending[job]
        self.pending -= len(jobs)
        return jobs

    def ended(self, session: int, job: int) -> bool:
        """Record that the pool is done with *job*; return whether its client is there."""
        client = self._clients.get(session)
        if client is None:
            return False
        self.backlog -= client.released.pop(job, 0.0)
        client.calls.discard(job)
        client.jobs.discard(job)
        return True

    def cancel(self, session: int, job: int) -> bool:
        """Forget *job* if the pool has not got it, and tell whether that was so."""
        client = self._clients[session]
        if client.pending.pop(job, None) is not None:
            self.pending -= 1
            return self.ended(session, job)
        if not client.queue.remove(job):
            return False
        self.waiting -= 1
        client.jobs.discard(job)
        if not client.queue:
            del self._turns[session]
        return True

    def held_up(self, now: float) -> None:
        """Record that this process could hear nobody until *now*.

        Clients could not see its times either, and have a whole lease to answer those that
        come.  Until then no job begins of a client whose lease is over.
        """
        self._patient_until = now + self._lease

    def lapsed(self, now: float) -> list[int]:
        """Return the sessions to end, since their lease is over."""
        if now < self._patient_until:
            return []
        return [s for s, client in self._clients.items() if client.lease.until <= now]

    def close(self, session: int) -> set[int]:
        """End *session*; return its jobs that the pool has, which must be given up."""
        self._turns.pop(session, None)
        client = self._clients.pop(session, None)
        if client is None:
            return set()
        self.waiting -= len(client.queue)
        self.pending -= len(client.pending)
        self.backlog -= sum(client.released.values())
        return client.released.keys() - client.pending.keys()
