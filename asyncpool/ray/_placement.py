"""One agent for each node: its actor, which Ray starts there, and the client's side of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from asyncpool import __version__
from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import Threads
from asyncpool._remote.agent import Agent
from asyncpool._remote.client import Client
from asyncpool._remote.messages import flaw, greeting, pack_greeting, unpack_greeting
from asyncpool._remote.objects import load_own, pack_own
from asyncpool.errors import AsyncPoolError, ProtocolError
from asyncpool.pool import Pool
from asyncpool.ray._ends import AgentEnd, ClientEnd
from asyncpool.ray._engine import HEAD_PATIENCE, Engine, RayNode
from asyncpool.ray._references import payload_of

# Seconds between two looks at the nodes of the cluster.
_LOOK_EVERY = 1.0

# Seconds until a node gets another agent whose agent is lost.
_PAUSE = 5.0

# Seconds that an agent has to end its workers.
_GRACE = 5.0


class NodeAgent(AgentEnd):
    """The pool of one node, and the agent that lets the client use it; the actor is the agent's end.

    Ray calls its methods in one event loop, also those that are no coroutines.

    Args:
        name: What the client calls the node.
        workers: How many workers its pool has.
        options: The other options of the pool.
        lease: For how many seconds it works for a client that it does not hear.
    """

    def __init__(
        self, name: str, workers: int, options: Mapping[str, Any], lease: float
    ) -> None:
        super().__init__(lease)
        self._name = f"{name}/{os.getpid()}"
        self._pool = Pool(workers, **options)
        self._agent: Agent | None = None

    async def start(self, hello: bytes) -> tuple[bool, bytes]:
        """Start the pool and begin a session with the client.

        Returns:
            Whether that went well, and the greeting, or the error.
        """
        try:
            await self._pool.start()
        except AsyncPoolError as error:
            return False, pack_own(error)
        self._agent = Agent(self._pool, self._name, most_clients=1)
        self._agent.welcome(self, hello)
        return True, self.greeting()

    async def take(self, number: int, call: bytes, *values: Any) -> None:
        """Take the call of a job whose arguments are in part in Ray's store; the job comes later.

        Args:
            number: The client's number of the job.
            call: The call.
            values: Those arguments, which Ray has brought here.
        """
        if self._agent is not None:
            self._agent.stored[number] = payload_of(call, values)

    async def stop(self) -> None:
        """End the session and the pool; all jobs end."""
        if self._agent is not None:
            self._agent.close()
        await self._pool.close(finish="none", timeout=0)
        await asyncio.sleep(0)


class Plan(NamedTuple):
    """What a pool wants of a cluster.

    Attributes:
        nodes: On how many nodes it has agents at the most; ``None`` for all.
        workers: How many workers each has; ``None`` for the CPUs of the node.
        resources: What Ray sets aside for each agent; ``None`` for a CPU for each worker.
        options: Those of the pool of each agent.
        codec: How calls travel.
        lease: For how many seconds an agent works for a client that it does not hear.
    """

    nodes: int | None
    workers: int | None
    resources: Mapping[str, float] | None
    options: Mapping[str, Any]
    codec: str
    lease: float


class Placement:
    """Keeps agents on the nodes of a cluster.

    Args:
        client: Uses the agents.
        engine: The connection to the cluster.
        plan: What is wanted.
    """

    def __init__(self, client: Client, engine: Engine, plan: Plan) -> None:
        self._client, self._engine, self._plan = client, engine, plan
        self._loop = asyncio.get_running_loop()
        # Of its own: what is asked of a cluster that is gone may never return.
        self._threads = Threads(self._loop)
        self._actors: dict[str, Any] = {}  # by node
        self._ends: dict[str, ClientEnd] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._failed: dict[str, Exception] = {}
        self._lost: dict[str, float] = {}  # when nodes have lost their agents
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect to the cluster; see :meth:`Engine.connect`."""
        await self._threads.copy(self._engine.connect)

    async def start(self) -> None:
        """Place agents, and wait for the first.

        Raises:
            ConnectionError: If the cluster has no node with a CPU, or Ray starts no agent.
            AsyncPoolError: That of an agent, if all have failed.
        """
        await self._look()
        if not self._starting:
            raise ConnectionError("no node of the Ray cluster has a CPU for workers")
        while not self._ends:
            if not self._starting:
                why = next(iter(self._failed.values()))
                await self._look()  # a pool for some nodes may have others to take
                if not self._starting:
                    raise why
            self._changed.clear()
            await self._changed.wait()
        self._client.expected = True
        self._watch = self._loop.create_task(
            self._keep_looking(), name="asyncpool nodes of Ray"
        )

    async def close(self) -> None:
        """End all agents.

        Cancellation:
            Leaves them to Ray, which ends them with this process.
        """
        tasks = [*self._starting.values()]
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in [*self._actors]:
            self._stop_soon(node)
        await asyncio.gather(*self._stopping)
        await self._threads.close()

    # Nodes that come and go.

    async def _keep_looking(self) -> None:
        answered = self._loop.time()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            began = self._loop.time()
            try:
                async with asyncio.timeout(HEAD_PATIENCE):
                    await self._look()
            except Exception as error:  # noqa: BLE001 - Ray has many
                now = self._loop.time()
                if now - began > HEAD_PATIENCE + _LOOK_EVERY:
                    answered = now  # this loop was blocked, and could hear nobody
                if now - answered < HEAD_PATIENCE:
                    continue
                why = f"the head of the Ray cluster has not answered for {now - answered:.0f} s"
                if not isinstance(error, TimeoutError):
                    why += f": {error!r}"
                self._client.give_up(why)
            else:
                self._client.expected = True
            answered = self._loop.time()

    async def _look(self) -> None:
        """Place agents on nodes that are new, and give up those of nodes that are gone."""
        there = await self._threads.copy(self._engine.nodes)
        nodes = {node.node_id: node for node in there}
        for node_id in [one for one in self._failed if one not in nodes]:
            del self._failed[node_id]
        for node_id in [one for one in self._ends if one not in nodes]:
            self._ends[node_id].gone(ConnectionError("Ray says that its node is gone"))
        for node_id, node in nodes.items():
            if self._is_wanted(node):
                self._starting[node_id] = self._loop.create_task(
                    self._place(node), name="asyncpool start of an agent"
                )

    def _is_wanted(self, node: RayNode) -> bool:
        node_id, most = node.node_id, self._plan.nodes
        known = self._actors.keys() | self._starting.keys()
        lost_at = self._lost.get(node_id)
        if node_id in known or node_id in self._failed:
            return False
        if lost_at is not None and self._loop.time() < lost_at + _PAUSE:
            return False
        has_workers = bool(self._plan.workers or node.cpus)
        return has_workers and (most is None or len(known) < most)

    async def _place(self, node: RayNode) -> None:
        try:
            await self._greet(node)
        except Exception as error:  # noqa: BLE001 - Ray has many
            if not isinstance(error, AsyncPoolError):
                why = f"Ray starts no agent on the node {node.address}: {error}"
                error = ConnectionError(why)
            self._failed[node.node_id] = error
            self._client.lost_nodes += 1
            say.NODE_REFUSED.log(LOGGER, {"node": node.address}, why=error)
            self._stop_soon(node.node_id)
        finally:
            del self._starting[node.node_id]
            self._changed.set()

    async def _greet(self, node: RayNode) -> None:
        plan, node_id = self._plan, node.node_id
        workers = plan.workers or node.cpus
        resources = {"CPU": workers} if plan.resources is None else plan.resources
        name = f"{node.address}/{node_id[:8]}"
        about_pool = name, workers, plan.options, plan.lease
        place = partial(self._engine.place, node, NodeAgent, resources, *about_pool)
        actor = self._actors[node_id] = await self._threads.copy(place)
        hello = pack_greeting(greeting(__version__, plan.codec))
        well, said = await actor.start.remote(hello)
        if not well:
            raise load_own(said)
        about = unpack_greeting(said)
        why = flaw(about)
        if why:
            raise ProtocolError(f"the agent on the node {name} refuses: {why}")
        end = ClientEnd(actor, self._client.threads, self._engine, plan.lease)
        end.on_close = partial(self._stop_soon, node_id)
        self._ends[node_id] = end
        self._client.join(end, about)
        end.begin()

    def _stop_soon(self, node_id: str) -> None:
        """End the agent of a node, since the client uses it no more."""
        if self._ends.pop(node_id, None) is not None:
            self._lost[node_id] = self._loop.time()
        actor = self._actors.pop(node_id, None)
        if actor is not None:
            task = self._loop.create_task(
                self._stop(actor), name="asyncpool end of an agent"
            )
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _stop(self, actor: Any) -> None:
        """End an agent and its workers, and kill it if that takes too long."""
        with contextlib.suppress(Exception):  # it may be dead
            async with asyncio.timeout(_GRACE):
                await actor.stop.remote()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_GRACE):
                await self._threads.copy(self._engine.kill, actor)
