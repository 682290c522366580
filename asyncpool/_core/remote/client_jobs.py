"""The client's side: which agent gets which job, and what becomes of the jobs of a lost one.

The client has the one queue.  It is that of a local pool (``_core/dispatch``), to which an
agent is a worker with as many lanes as it has *credits*: so many jobs may be with the agent
at once.  Priorities, keys, and the order of jobs that come back are those of a local pool.

An agent says that a job *began* before it gives the job to its pool.  So a job of which the
client has not heard this when the agent is lost has run nowhere, and goes elsewhere at no
cost.  All others count as begun, although some may have waited inside the agent's pool: the
pool would otherwise start a job once too often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from asyncpool._core.base.job_traits import JobTraits, KeyedTraits
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool.enums import Delivery

# Nothing is known of the times of jobs: an agent gets as many as it has credits.
_TRAITS = JobTraits()

# The most credits of an agent: what one client may cost it.
MAX_CREDITS = 4096


class LostJob(NamedTuple):
    """A job whose agent is lost.

    Attributes:
        job: The job.
        delivery: How far it had got.  Only ``STARTED`` costs it an attempt, and only these
            have left the queue: the others wait for another agent.
    """

    job: int
    delivery: Delivery


class _Agent:
    __slots__ = ("begun", "calls", "credits", "in_flight", "is_ready", "suspected")

    def __init__(self, credits: int, is_ready: bool) -> None:  # noqa: A002, FBT001
        self.credits = credits
        self.in_flight = InFlight(credits)
        self.begun: set[int] = set()
        self.calls: dict[int, None] = {}  # for workers that the agent has lent
        self.suspected = False
        self.is_ready = is_ready


class ClientJobs:
    """The jobs of a client, and the agents that it has."""

    def __init__(self) -> None:
        self._dispatcher = Dispatcher()
        self._agents: dict[int, _Agent] = {}
        self._agent_of: dict[int, int] = {}
        # Jobs that nobody wants any more, and that an agent still has.
        self._given_up: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many jobs no agent has."""
        return self._dispatcher.waiting

    def agent_of(self, job: int) -> int | None:
        """Return the agent that has *job*, if any has."""
        return self._agent_of.get(job)

    def held_by(self, agent: int) -> int:
        """Return how many jobs *agent* has; none if it is gone."""
        known = self._agents.get(agent)
        return 0 if known is None else len(known.in_flight.jobs) + len(known.calls)

    def is_suspected(self, agent: int) -> bool:
        """Tell whether *agent* gets no jobs for now."""
        known = self._agents.get(agent)
        return known is not None and known.suspected

    def is_alone(self, agent: int) -> bool:
        """Tell whether *agent* has at most one job."""
        return self.held_by(agent) <= 1

    def has_begun(self, job: int) -> bool:
        """Tell whether an agent has said that *job* began."""
        agent = self._agent_of.get(job)
        return agent is not None and job in self._agents[agent].begun

    def submit(self, job: int, *, key: int | None, priority: int) -> int | None:
        """Return the agent that gets *job*, or queue it; it may have been prepared before."""
        self._dispatcher.end_preparing(job)
        if key is None:
            agent = self._dispatcher.submit(job, _TRAITS, priority)
        else:
            traits = KeyedTraits(_TRAITS, key)
            agent = self._dispatcher.submit_keyed(job, traits, priority)
        if agent is not None:
            self._agent_of[job] = agent
        return agent

    def prepare(self, job: int) -> None:
        """Count *job* among those that wait: it is submitted when it is pickled."""
        self._dispatcher.prepare(job)

    def bind(self, agent: int, job: int) -> None:
        """Note that *agent* gets *job*, a call for a worker that it has lent: no queue, no credit."""
        self._agents[agent].calls[job] = None
        self._agent_of[job] = agent

    def join(
        self,
        agent: int,
        credits: int,  # noqa: A002
        most: int = MAX_CREDITS,
        *,
        is_ready: bool = True,
    ) -> list[int]:
        """Add *agent*, a number that none had before, and return the jobs that it gets.

        Args:
            agent: The agent.
            credits: How many jobs it takes.
            most: How many of them it gets for now; see :meth:`allow`.
            is_ready: Whether it may have jobs already; see :meth:`ready`.
        """
        self._agents[agent] = _Agent(max(1, min(credits, MAX_CREDITS)), is_ready)
        self.allow(agent, most)
        moved = self._assign_buckets()
        return [*moved.get(agent, ()), *self.refill(agent)]

    def ready(self, agent: int) -> list[int]:
        """Return the jobs that *agent* gets, which was not ready when it joined."""
        self._agents[agent].is_ready = True
        return self.refill(agent)

    def began(self, agent: int, jobs: Iterable[int]) -> list[int]:
        """Record that *agent* gives *jobs* to its pool; return those that it has."""
        own = [job for job in jobs if self._agent_of.get(job) == agent]
        self._agents[agent].begun.update(own)
        return own

    def ended(self, agent: int, job: int) -> bool:
        """Record that *job* has left *agent*; return whether it was there.

        Call :meth:`refill` after a batch.
        """
        if self._agent_of.get(job) != agent:
            return False
        self._leave(agent, job)
        return True

    def allow(self, agent: int, most: int) -> None:
        """Let *agent* have no more than *most* jobs; call :meth:`refill` after it."""
        known = self._agents[agent]
        known.in_flight.concurrency = min(most, known.credits)

    def refill(self, agent: int) -> list[int]:
        """Return the jobs that *agent* gets now."""
        known = self._agents[agent]
        if known.suspected or not known.is_ready:
            return []
        jobs = self._dispatcher.refill(agent, known.in_flight)
        for job in jobs:
            self._agent_of[job] = agent
        return jobs

    def again(self, job: int, *, key: int | None) -> list[tuple[int, int]]:
        """Put *job*, which has left its agent, at the head of the queue.

        Returns:
            The jobs that need not wait, each as a pair of its agent and the job.
        """
        return self._requeue({job: key})

    def give_up(self, job: int) -> int | None:
        """Forget *job* if it waits, else return the agent that must be told.

        The agent answers when the job has ended.
        """
        agent = self._agent_of.get(job)
        if agent is None:
            self._dispatcher.remove(job)
        else:
            self._given_up.add(job)
        return agent

    def suspect(self, agent: int) -> None:
        """Give *agent* no more jobs for now: nothing was heard of it."""
        self._agents[agent].suspected = True
        self._dispatcher.exclude(agent)

    def trust(self, agent: int) -> list[int]:
        """Return the jobs that *agent* gets, which was suspected and is heard again."""
        if not self._agents[agent].suspected:
            return []
        self._agents[agent].suspected = False
        return self.refill(agent)

    def lose(self, agent: int) -> tuple[list[LostJob], list[tuple[int, int]]]:
        """Forget *agent*, which is dead, or whose session is over.

        Returns:
            The jobs that it had, and the jobs that other agents get now, each as a pair of its
            agent and the job.
        """
        lost = self._agents.pop(agent)
        self._dispatcher.exclude(agent)
        losses: list[LostJob] = []
        back: dict[int, JobTraits] = {}
        traits = {job: entry[2] for job, entry in lost.in_flight.jobs.items()}
        for job in (*traits, *lost.calls):
            del self._agent_of[job]
            if job in self._given_up:
                self._given_up.discard(job)
            elif job in lost.begun:
                losses.append(LostJob(job, Delivery.STARTED))
            else:
                losses.append(LostJob(job, Delivery.SENT))
                if job in traits:
                    back[job] = traits[job]
        moved = self._assign_buckets()
        pairs = [(other, job) for other, jobs in moved.items() for job in jobs]
        return losses, [*pairs, *self._place(back)]

    def _requeue(self, jobs: dict[int, int | None]) -> list[tuple[int, int]]:
        return self._place(
            {
                job: _TRAITS if key is None else KeyedTraits(_TRAITS, key)
                for job, key in jobs.items()
            }
        )

    def _place(self, jobs: dict[int, JobTraits]) -> list[tuple[int, int]]:
        pairs = self._dispatcher.requeue(jobs)
        for agent, job in pairs:
            self._agent_of[job] = agent
        return pairs

    def _leave(self, agent: int, job: int) -> None:
        known = self._agents[agent]
        known.begun.discard(job)
        if job in known.calls:
            del known.calls[job]
        else:
            known.in_flight.remove(job)
        self._given_up.discard(job)
        del self._agent_of[job]

    def _assign_buckets(self) -> dict[int, list[int]]:
        """Spread the keys over the agents; return the jobs that agents get by that."""
        moved: dict[int, list[int]] = {}
        for agent, job in self._dispatcher.assign_buckets({a: a for a in self._agents}):
            self._agent_of[job] = agent
            moved.setdefault(agent, []).append(job)
        return moved
