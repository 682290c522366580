"""The client's side: which agent gets which job, and what becomes of the jobs of a lost one.

What is in ``__main__`` travels by value, whatever the workers of this program can import.

The client has the one queue.  It is that of a local pool (``_core/dispatcher.py``), to which an
agent is a worker with as many lanes as it has *credits*, or as many as its window allows: so
many jobs may be with the agent at once.  Priorities, keys, and the order of jobs that come back
are those of a local pool.

An agent says that a job *began* before it gives the job to its pool.  So a job of which the
client has not heard this when the agent is lost has run nowhere, and goes elsewhere at no
cost.  All others count as begun, although some may have waited inside the agent's pool: the
pool would otherwise start a job once too often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

from asyncpool._core.dispatcher import Dispatcher, InFlight
from asyncpool._core.functions import FunctionTable, JobTraits, KeyedTraits
from asyncpool._core.slots import text_for_client
from asyncpool._remote.agent_jobs import AgentWindow
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.pickling import Serializer, pack_job
from asyncpool._wire.scripts import Abroad, script
from asyncpool.enums import Delivery
from asyncpool.errors import JobNotPicklableError
from asyncpool.events import Crash


def _pack_job(
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    **how: Any,
) -> bytes | OutOfBandPickle:
    if script() is None:  # as in most programs, and the context takes 0.5 us
        try:
            return pack_job(function, args, kwargs, **how)
        except JobNotPicklableError:
            pass  # with the context, the error says what helps with workers of another program
    with Abroad():
        return pack_job(function, args, kwargs, **how)


class RemotePickle(Serializer):
    """Pickle, by value where workers of another program would not find a reference."""

    pack_job = staticmethod(_pack_job)


REMOTE_PICKLE = RemotePickle()


class RemoteFunctionTable(FunctionTable):
    """Those of a client that pickles; see :class:`FunctionTable`."""

    def _describe(self, function: Callable[..., Any]) -> tuple[bytes, Serializer]:
        with Abroad():
            payload, _ = super()._describe(function)
        return payload, REMOTE_PICKLE


class Trust(IntEnum):
    """What the client thinks of an agent."""

    TRUSTED = 0
    SUSPECTED = 1
    LOST = 2


class Silence(NamedTuple):
    """For how long two processes have not heard each other when one of them was given up.

    Attributes:
        agent: For how many seconds the agent was not heard.
        own: For how many seconds before it was lost this process had said nothing, if that may be
            why; else 0.
        why: Why the agent was given up, if that is known: the error, or a text.
    """

    agent: float
    own: float
    why: Exception | str | None = None

    def __str__(self) -> str:
        if self.why is not None:
            return str(self.why).partition("\n")[0]  # Ray's go on for many lines
        if self.own:
            return f"it is gone, or has given this client up, which was silent for {self.own:.1f} s"
        return f"it is gone, or silent: it was heard last {self.agent:.1f} s before"


class SignsOfLife:
    """When an agent was heard last.

    A suspected agent gets no more jobs; nothing else happens to it.  A lost one does not come
    back: its session is over.

    Args:
        lease: For how many seconds the agent works for a client that it does not hear.
        patience: After how many seconds without a sign of life the agent is lost.
        now: The time.

    Raises:
        ValueError: If *patience* is shorter than *lease*: the agent could begin a job that the
            client has given to another one.
    """

    def __init__(self, *, lease: float, patience: float, now: float) -> None:
        if patience < lease:
            raise ValueError(
                f"node_timeout must be at least {lease:g} s, for which agents work for a "
                f"client that they do not hear, not {patience:g}"
            )
        self._suspect_after = lease / 2
        self._patience = patience
        self._deaf = self._last_late = 0.0
        self.heard_at = now

    def heard(self, now: float) -> None:
        """Record a sign of life."""
        self.heard_at = now
        self._deaf = 0.0

    def held_up(self, seconds: float) -> None:
        """Record that this process could hear nobody for so long: that is no silence."""
        self._deaf += seconds
        self._last_late = seconds

    def trust(self, now: float) -> Trust:
        """Return what to think of the agent *now*."""
        silent = now - self.heard_at - self._deaf
        if silent >= self._patience:
            return Trust.LOST
        return Trust.SUSPECTED if silent >= self._suspect_after else Trust.TRUSTED

    def silence(self, now: float, late: float) -> Silence:
        """Return how silent both were before the agent was lost.

        Args:
            now: The time.
            late: How late this process is now with what it was to say.
        """
        own = max(late, self._last_late)
        return Silence(now - self.heard_at, own if own >= self._suspect_after else 0.0)


# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000


def first_slot(agent: int) -> int:
    """Return what is added to the slots of an agent, by its number at the client."""
    return (agent - 1) * SLOTS


def crash_at_client(crash: Crash, first_slot: int, numbers: Mapping[int, int]) -> Crash:
    """Return a crash that an agent has told with an error, as the client tells it.

    Args:
        crash: The crash.
        first_slot: What is added to the slots of the agent.
        numbers: See :func:`crash_for_client`.
    """
    told = crash_for_client(crash, numbers)
    return replace(told, slot=first_slot + told.slot)


def crash_for_client(crash: Crash, numbers: Mapping[int, int]) -> Crash:
    """Return a crash with the client's numbers of its jobs; it only counts others.

    The agent's numbers are those of other jobs at the client.

    Args:
        crash: The crash.
        numbers: The client's numbers, by those of the agent.
    """
    job = None if crash.job_id is None else numbers.get(crash.job_id)
    beside = tuple(numbers[job] for job in crash.concurrent_jobs if job in numbers)
    return replace(
        crash,
        job_id=job,
        attempt=0 if job is None else crash.attempt,
        concurrent_jobs=beside,
        other_jobs=crash.other_jobs + len(crash.concurrent_jobs) - len(beside),
        detail=text_for_client(crash.detail, numbers),
    )


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


class _InFlight(InFlight):
    """The jobs that an agent has.

    Args:
        credits: How many there may be.
        window: How many of them there may be of each function.

    Attributes:
        credits: As above.
        window: As above.
        is_limited: Whether the window counts, and not the credits alone.
    """

    __slots__ = ("_of_function", "credits", "is_limited", "window")

    def __init__(self, credits: int, window: AgentWindow) -> None:  # noqa: A002
        super().__init__(credits)
        self.credits, self.window = credits, window
        self.is_limited = False
        self._of_function: dict[JobTraits, int] = {}

    def limit(self, *, is_limited: bool) -> None:
        """Have the window count as it is now, or the credits alone."""
        self.is_limited = is_limited
        least = self.window.least if is_limited else self.credits
        self.concurrency = min(least, self.credits)

    def takes(self, traits: JobTraits) -> bool:
        """Tell whether a job may be sent now."""
        count = len(self.jobs)
        if count < self.concurrency:
            return True
        if not self.is_limited or count >= self.credits:
            return False
        function, least, window = traits.function, self.concurrency, self.window
        if count >= least + window.total:
            return False
        of_it = self._of_function.get(function, 0)
        return of_it < least + window.ahead.get(function, 0)

    # These do without the costs of jobs, which a client does not know, and take less time for it.

    def add(self, job: int, traits: JobTraits) -> None:
        """Add *job*, which is sent."""
        self.sent += 1
        self.jobs[job] = (self.sent, 0.0, traits)
        function, known = traits.function, self._of_function
        known[function] = known.get(function, 0) + 1

    def remove(self, job: int) -> None:
        """Forget *job*, which has come back, or has ended."""
        function, known = self.jobs.pop(job)[2].function, self._of_function
        self.max_sent += 1
        left = known[function] - 1
        if left:
            known[function] = left
        else:
            del known[function]


class _Agent:
    __slots__ = ("begun", "calls", "in_flight", "is_ready", "suspected")

    def __init__(self, in_flight: _InFlight, is_ready: bool) -> None:  # noqa: FBT001
        self.in_flight = in_flight
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

    def submit(
        self, job: int, traits: JobTraits, *, key: int | None, priority: int
    ) -> int | None:
        """Return the agent that gets *job*, or queue it; it may have been prepared before.

        Args:
            job: The job.
            traits: Those of its function.
            key: The hash of its key, if it has one.
            priority: How urgent it is.
        """
        self._dispatcher.preparing.pop(job, None)
        if key is None:
            agent = self._dispatcher.submit(job, traits, priority)
        else:
            keyed = KeyedTraits(traits, key)
            agent = self._dispatcher.submit_keyed(job, keyed, priority)
        if agent is not None:
            self._agent_of[job] = agent
        return agent

    def prepare(self, job: int) -> None:
        """Count *job* among those that wait: it is submitted when it is pickled."""
        self._dispatcher.preparing[job] = None

    def bind(self, agent: int, job: int) -> None:
        """Note that *agent* gets *job*, a call for a worker that it has lent: no queue, no credit."""
        self._agents[agent].calls[job] = None
        self._agent_of[job] = agent

    def join(
        self,
        agent: int,
        credits: int,  # noqa: A002
        window: AgentWindow,
        *,
        is_limited: bool = False,
        is_ready: bool = True,
    ) -> list[int]:
        """Add *agent*, a number that none had before, and return the jobs that it gets.

        Args:
            agent: The agent.
            credits: How many jobs it takes.
            window: How many of them it gets of each function; the ends of jobs are counted there.
            is_limited: Whether the window counts; see :meth:`limit`.
            is_ready: Whether it may have jobs already; see :meth:`ready`.
        """
        in_flight = _InFlight(max(1, min(credits, MAX_CREDITS)), window)
        self._agents[agent] = _Agent(in_flight, is_ready)
        self.limit(agent, is_limited=is_limited)
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
        known = self._agents[agent]
        if job not in known.calls:
            in_flight = known.in_flight
            in_flight.window.ended(in_flight.traits_of(job).function)
        self._leave(agent, job)
        return True

    def limit(self, agent: int, *, is_limited: bool) -> None:
        """Let *agent* have what its window says now, or all that it takes.

        Call :meth:`refill` after it.
        """
        self._agents[agent].in_flight.limit(is_limited=is_limited)

    def refill(self, agent: int) -> list[int]:
        """Return the jobs that *agent* gets now."""
        known = self._agents[agent]
        if known.suspected or not known.is_ready:
            return []
        jobs = self._dispatcher.refill(agent, known.in_flight)
        for job in jobs:
            self._agent_of[job] = agent
        return jobs

    def again(
        self, job: int, traits: JobTraits, *, key: int | None
    ) -> list[tuple[int, int]]:
        """Put *job*, which has left its agent, at the head of the queue.

        Returns:
            The jobs that need not wait, each as a pair of its agent and the job.
        """
        return self._place({job: traits if key is None else KeyedTraits(traits, key)})

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

    def leave(self, agent: int) -> None:
        """Give *agent* no more jobs: it ends when those that it has are done."""
        self._agents[agent].is_ready = False
        self._dispatcher.exclude(agent)

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
