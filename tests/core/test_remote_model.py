"""Clients and agents over a network that loses, doubles, delays and reorders what it carries.

Agents die, pause and go on; the client loses them by silence or by the carrier's word.  The
model knows what pools really started.  It checks what a caller relies on: no job starts more often
than it may, no attempt is lost for nothing, and each job is settled once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncpool._core.functions import JobTraits
from asyncpool._remote.agent_jobs import AgentJobs, AgentWindow
from asyncpool._remote.client_jobs import ClientJobs, SignsOfLife, Trust
from asyncpool._remote.reliable_link import Batch, ReliableLink
from asyncpool.enums import Delivery

LEASE, PATIENCE = 4.0, 5.0
CREDITS, ROOM = 4, 2
JOB, CANCEL, BEGAN, DONE, CRASHED, DROPPED = range(6)
TRAITS = JobTraits()
MESSAGE = struct.Struct(">BQ")
INDEX = st.integers(min_value=0, max_value=1000)


@dataclass
class ModelJob:
    """What the client knows of a job, and what is true of it."""

    max_attempts: int
    key: int | None
    counted: int = 0  # attempts, by the client
    really: int = 0  # starts, by the pools
    settled: int = 0
    outcome: str = ""
    cancelled: bool = False


@dataclass
class ModelAgent:
    """An agent with its pool."""

    number: int
    session: int
    jobs: AgentJobs
    link: ReliableLink
    alive: bool = True
    paused: bool = False
    running: set[int] = field(default_factory=set)

    @property
    def works(self) -> bool:
        """Whether its loop turns."""
        return self.alive and not self.paused


class RemoteModel(RuleBasedStateMachine):
    """One client, and agents that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.client = ClientJobs()
        self.jobs: dict[int, ModelJob] = {}
        self.agents: dict[int, ModelAgent] = {}
        self.links: dict[int, ReliableLink] = {}
        self.signs: dict[int, SignsOfLife] = {}
        self.unready: set[int] = set()
        self.windows: dict[int, AgentWindow] = {}
        # What is on its way: the agent, whether it goes to the agent, and the batch.
        self.network: list[tuple[int, bool, bytes]] = []

    @initialize()
    def begin(self) -> None:
        self.join()

    # What happens to agents.

    @precondition(lambda self: len(self.links) < 3)
    @rule()
    def add_agent(self) -> None:
        self.join()

    def join(self, *, is_ready: bool = True) -> None:
        number = len(self.agents)
        jobs = AgentJobs(credits=CREDITS, most_clients=4, lease=LEASE)
        session = jobs.open(self.now)
        assert session is not None
        self.agents[number] = ModelAgent(number, session, jobs, ReliableLink(session))
        self.links[number] = ReliableLink(session)
        self.signs[number] = SignsOfLife(lease=LEASE, patience=PATIENCE, now=self.now)
        if not is_ready:
            self.unready.add(number)
        window = self.windows[number] = AgentWindow(1)
        self.send(number, self.client.join(number, CREDITS, window, is_ready=is_ready))

    @precondition(lambda self: len(self.links) < 3)
    @rule()
    def add_agent_that_is_not_ready(self) -> None:
        self.join(is_ready=False)

    @rule(at=INDEX)
    def become_ready(self, at: int) -> None:
        self.make_ready(self.pick(at).number)

    def make_ready(self, number: int) -> None:
        self.unready.discard(number)
        if number in self.links:
            self.send(number, self.client.ready(number))

    @rule(at=INDEX, is_limited=st.booleans())
    def limit(self, at: int, *, is_limited: bool) -> None:
        """Let an agent have more jobs, or fewer than it has."""
        number = self.pick(at).number
        if number in self.links:
            self.windows[number].look(self.now)
            self.client.limit(number, is_limited=is_limited)
            self.send(number, self.client.refill(number))

    @rule(at=INDEX)
    def kill(self, at: int) -> None:
        agent = self.pick(at)
        agent.alive = False
        agent.running.clear()

    @rule(at=INDEX, paused=st.booleans())
    def pause(self, at: int, *, paused: bool) -> None:
        self.pick(at).paused = paused

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    @rule(at=INDEX)
    def carrier_says_gone(self, at: int) -> None:
        agent = self.pick(at)
        if not agent.alive and agent.number in self.links:
            self.lose(agent.number)

    # What the client does.

    @rule(
        most=st.integers(min_value=1, max_value=3),
        key=st.sampled_from([None, None, 1, 2]),
        priority=st.sampled_from([0, 0, -1]),
    )
    def submit(self, most: int, key: int | None, priority: int) -> None:
        number = len(self.jobs) + 1
        self.jobs[number] = ModelJob(most, key)
        agent = self.client.submit(number, TRAITS, key=key, priority=priority)
        if agent is not None:
            self.send(agent, [number])

    @rule(at=INDEX)
    def cancel(self, at: int) -> None:
        open_ones = [n for n, job in self.jobs.items() if not job.settled]
        if not open_ones:
            return
        number = open_ones[at % len(open_ones)]
        self.settle(number, "cancelled")
        self.jobs[number].cancelled = True
        agent = self.client.give_up(number)
        if agent is not None:
            self.links[agent].put(MESSAGE.pack(CANCEL, number))

    @rule(at=INDEX, again=st.booleans())
    def client_flushes(self, at: int, *, again: bool) -> None:
        if self.links:
            number = [*self.links][at % len(self.links)]
            link = self.links[number]
            batch = link.repeat() if again else link.next_batch()
            self.network.append((number, True, batch.pack()))

    # What agents do.

    @rule(at=INDEX, again=st.booleans())
    def agent_turns(self, at: int, *, again: bool) -> None:
        self.agent_works(self.pick(at), again=again)

    def agent_works(self, agent: ModelAgent, *, again: bool) -> None:
        if not agent.works:
            return
        for session in agent.jobs.lapsed(self.now):
            agent.running -= agent.jobs.close(session)
        room = max(0, ROOM - len(agent.running) - agent.jobs.pending)
        agent.jobs.look(0, room + agent.jobs.pending)
        for session, number in agent.jobs.release(self.now):
            message = agent.link.put(MESSAGE.pack(BEGAN, number))
            agent.jobs.told(session, [number], message)
        if agent.session in agent.jobs.sessions:
            self.begin_what_is_known(agent)
            self.agent_sends(agent, again=again)

    def begin_what_is_known(self, agent: ModelAgent) -> None:
        known = agent.link.acknowledged
        for number in agent.jobs.may_begin(agent.session, known, self.now):
            agent.running.add(number)
            self.jobs[number].really += 1

    @rule(at=INDEX, which=INDEX, crash=st.booleans())
    def job_ends(self, at: int, which: int, *, crash: bool) -> None:
        agent = self.pick(at)
        if agent.running and agent.works:
            number = sorted(agent.running)[which % len(agent.running)]
            self.end_job(agent, number, CRASHED if crash else DONE)

    # What the network does.

    @precondition(lambda self: self.network)
    @rule(at=INDEX, fate=st.sampled_from(["deliver", "deliver", "double", "lose"]))
    def carry(self, at: int, fate: str) -> None:
        index = at % len(self.network)
        if fate == "lose":
            del self.network[index]
        elif fate == "double":
            self.network.append(self.network[index])
        else:
            self.deliver(*self.network.pop(index))

    @rule()
    def exchange(self) -> None:
        """Have the network be well for a moment."""
        self.agents_hear()
        for agent in self.agents.values():
            self.agent_works(agent, again=True)
        self.carry_all()

    @rule()
    def agents_hear(self) -> None:
        """Have all that clients say come to the agents, at once."""
        for number in [*self.links]:
            self.network.append((number, True, self.links[number].repeat().pack()))
        self.carry_all()

    @rule(at=INDEX, again=st.booleans(), dies=st.booleans())
    def an_agent_works_and_its_word_is_lost(
        self, at: int, *, again: bool, dies: bool
    ) -> None:
        agent = self.pick(at)
        self.agent_works(agent, again=again)
        self.network = [it for it in self.network if it[1] or it[0] != agent.number]
        if dies:
            self.kill(at)
            self.carrier_says_gone(at)

    def deliver(self, number: int, to_agent: bool, data: bytes) -> None:  # noqa: FBT001
        batch = Batch.unpack(data)
        if not to_agent:
            if number in self.links:  # else the session is over
                self.signs[number].heard(self.now)
                self.send(number, self.client.trust(number))
                for message in self.links[number].receive(batch):
                    self.client_hears(number, *MESSAGE.unpack(message))
                if number in self.links:
                    self.send(number, self.client.refill(number))
            return
        agent = self.agents[number]
        if agent.paused:
            self.network.append((number, to_agent, data))  # it waits in a socket
        elif agent.alive and agent.session in agent.jobs.sessions:
            agent.jobs.heard(agent.session, batch.echo / 1e6)
            for message in agent.link.receive(batch):
                self.agent_hears(agent, *MESSAGE.unpack(message))
            self.begin_what_is_known(agent)

    # Both ends.

    def client_hears(self, agent: int, kind: int, number: int) -> None:
        job = self.jobs[number]
        if kind == BEGAN:
            for began in self.client.began(agent, [number]):
                self.jobs[began].counted += 1
            return
        if not self.client.ended(agent, number) or job.cancelled:
            return
        if kind == DONE:
            self.settle(number, "done")
        elif kind == CRASHED:
            self.lost_attempt(number)

    def agent_hears(self, agent: ModelAgent, kind: int, number: int) -> None:
        if kind == JOB:
            agent.jobs.accept(agent.session, number, 0, TRAITS)
        elif agent.jobs.cancel(agent.session, number):
            agent.link.put(MESSAGE.pack(DROPPED, number))
        elif number in agent.running:
            self.end_job(agent, number, DROPPED)

    def agent_sends(self, agent: ModelAgent, *, again: bool) -> None:
        stamp = int(self.now * 1e6)
        batch = agent.link.repeat(stamp) if again else agent.link.next_batch(stamp)
        self.network.append((agent.number, False, batch.pack()))

    def end_job(self, agent: ModelAgent, number: int, kind: int) -> None:
        agent.running.discard(number)
        if agent.jobs.ended(agent.session, number):
            agent.link.put(MESSAGE.pack(kind, number))

    def send(self, agent: int, numbers: list[int]) -> None:
        assert not numbers or agent not in self.unready
        for number in numbers:
            self.links[agent].put(MESSAGE.pack(JOB, number))

    def lost_attempt(self, number: int) -> None:
        job = self.jobs[number]
        if job.counted >= job.max_attempts:
            self.settle(number, "crashed")
            return
        for agent, other in self.client.again(number, TRAITS, key=job.key):
            self.send(agent, [other])

    def look(self) -> None:
        for number, signs in [*self.signs.items()]:
            trust = signs.trust(self.now)
            if trust is Trust.LOST:
                self.lose(number)
            elif trust is Trust.SUSPECTED:
                self.client.suspect(number)

    def lose(self, number: int) -> None:
        del self.links[number], self.signs[number]
        losses, pairs = self.client.lose(number)
        for agent, other in pairs:
            self.send(agent, [other])
        for loss in losses:
            if loss.delivery is Delivery.STARTED:
                self.lost_attempt(loss.job)

    def settle(self, number: int, outcome: str) -> None:
        self.jobs[number].settled += 1
        self.jobs[number].outcome = outcome

    def pick(self, at: int) -> ModelAgent:
        return self.agents[at % len(self.agents)]

    # What callers rely on.

    @invariant()
    def promises_hold(self) -> None:
        for job in self.jobs.values():
            assert job.really <= job.counted <= job.max_attempts
            assert job.settled <= 1
            if job.outcome == "crashed":
                assert job.counted == job.max_attempts

    def teardown(self) -> None:
        """Let the network be well: then each job is settled, and nothing outlives the client."""
        self.network.clear()
        self.add_agent_at_last()
        for number in [*self.unready]:
            self.make_ready(number)
        for _ in range(20 * (len(self.jobs) + 2)):
            if all(job.settled for job in self.jobs.values()):
                break
            self.turn()
        assert all(job.settled == 1 for job in self.jobs.values())
        self.promises_hold()
        self.now += 2 * LEASE
        for agent in self.agents.values():
            agent.paused = False
            self.agent_works(agent, again=False)
            assert not agent.alive or not (agent.running or agent.jobs.sessions)

    def add_agent_at_last(self) -> None:
        """Have one agent that works."""
        for agent in self.agents.values():
            agent.paused = False
        self.join()

    def turn(self) -> None:
        """Have everything happen once."""
        self.now += 0.5
        self.exchange()
        for agent in self.agents.values():
            for number in [*agent.running]:
                self.end_job(agent, number, DONE)
        self.carry_all()
        self.look()

    def carry_all(self) -> None:
        """Deliver what is on its way."""
        waiting, self.network = self.network, []
        for one in waiting:
            self.deliver(*one)


TestRemoteModel = RemoteModel.TestCase
TestRemoteModel.settings = settings(max_examples=500, stateful_step_count=60)
