"""A pool with several nodes, all in this process, on a network that may be bad."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from asyncpool import Pool, __version__
from asyncpool._remote.agent import Agent
from asyncpool._remote.client import Client
from asyncpool._remote.messages import greeting, pack_greeting, unpack_greeting
from asyncpool.sharedpool._remote_pool import RemotePool
from tests.helpers.carriers import Network
from tests.helpers.inside import agent_of, client_of

__all__ = ["NodesPool", "join", "nodes_pool", "two_nodes"]

LEASE = 2.0


def join(client: Client, agent: Agent, network: Network) -> None:
    """Have the client use the agent by that network."""
    here, there = network.way(client.threads)
    agent.welcome(there, pack_greeting(greeting(__version__, "pickle")))
    about = unpack_greeting(there.greeting())
    # By the clock that all batches of the agent show.
    about["stamp"] += network.ahead * 1_000_000
    client.join(here, about)
    here.begin()


class NodesPool(RemotePool):
    """A pool whose agents are told to it.

    Attributes:
        networks: The network of each agent.
    """

    def __init__(self, agents: list[Agent], ahead: int, control: str | None) -> None:
        super().__init__(
            "the pool of nodes",
            "nodes",
            max_queued=None,
            data=None,
            control=control,
        )
        self.networks = [Network(number, 0.0, LEASE) for number in range(len(agents))]
        for network in self.networks:
            network.ahead = ahead
        self._agents = agents

    async def start(self) -> None:
        await self._start()

    async def _reach(self, client: Client) -> None:
        client.expected = True  # as nodes of a cluster are
        for agent, network in zip(self._agents, self.networks, strict=True):
            join(client, agent, network)

    @asynccontextmanager
    async def with_another(self, pool: Pool) -> AsyncGenerator[Agent]:
        """Use a node more, with that pool."""
        number = len(self._agents)
        agent, network = agent_of(pool, f"node-{number}"), Network(number, 0.0, LEASE)
        self._agents.append(agent)
        self.networks.append(network)
        try:
            join(client_of(self), agent, network)
            yield agent
        finally:
            agent.close()


@asynccontextmanager
async def nodes_pool(
    *pools: Pool, ahead: int = 0, control: str | None = None
) -> AsyncGenerator[NodesPool]:
    """Yield a pool whose nodes have these pools.

    Args:
        *pools: The pools.
        ahead: Seconds that the clocks of the nodes are ahead.
        control: Where its control socket is, if it has one.
    """
    async with AsyncExitStack() as stack:
        agents = [agent_of(pool, f"node-{number}") for number, pool in enumerate(pools)]
        for agent in agents:
            stack.callback(agent.close)
        yield await stack.enter_async_context(NodesPool(agents, ahead, control))


@asynccontextmanager
async def two_nodes(
    ahead: int = 0, control: str | None = None
) -> AsyncGenerator[tuple[NodesPool, Pool, Pool]]:
    """Yield such a pool, and the pools of its two nodes, which have a worker each."""
    async with (
        Pool(1) as one,
        Pool(1) as two,
        nodes_pool(one, two, ahead=ahead, control=control) as pool,
    ):
        yield pool, one, two
