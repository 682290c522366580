"""The client: the jobs of a program whose workers belong to an agent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Any

from asyncpool._core.data_only import DataOnly
from asyncpool._core.endings import Finish
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import PoolJob, StreamJob, unreadable
from asyncpool._engine.large import load_item
from asyncpool._engine.loop import Threads, check_loop
from asyncpool._engine.registry import JobRegistry, crash_error, limit_error
from asyncpool._engine.traffic import FunctionTables
from asyncpool._remote.client_broadcasts import ClientBroadcasts
from asyncpool._remote.client_jobs import ClientJobs, RemoteFunctionTable
from asyncpool._remote.client_sessions import ClientSessions
from asyncpool._remote.job_ends import JobEnds
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.node_figures import NodeFigures
from asyncpool._remote.nodes import Nodes, no_agent
from asyncpool._remote.submissions import Submissions
from asyncpool._wire.frames import Frame
from asyncpool.enums import Delivery
from asyncpool.errors import PoolClosedError, ProtocolError


class JobWaits:
    """Fails jobs whose time is over before they have begun.

    Args:
        client: The client.
        look: Called when a job has failed.
    """

    def __init__(self, client: Client, look: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._look = look
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, job: PoolJob[Any]) -> None:
        """Watch a job that waits from now on."""
        end = job.options.queue_end(self._loop.time())
        if end is not None:
            self._timers[job.id] = self._loop.call_at(end, self._on_late, job)

    def forget(self, number: int) -> None:
        """Watch a job no longer: it has begun, or ended."""
        if self._timers:
            timer = self._timers.pop(number, None)
            if timer is not None:
                timer.cancel()

    def left(self, job: PoolJob[Any]) -> float:
        """Return for how many more seconds *job* may wait for its first attempt."""
        limit = job.options.queue_timeout
        if limit is None or job.attempt:
            return math.inf
        return max(1e-3, limit - (monotonic() - job.queued_at))

    def stop(self) -> None:
        """Watch no jobs any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _on_late(self, job: PoolJob[Any]) -> None:
        self._timers.pop(job.id, None)
        if job.done() or self._client.is_running(job):
            return
        self._client.drop(job)
        if job.slot is not None:  # an agent has it, and has not begun it
            self._client.registry.unassign(job)
        self._client.registry.fail(job, limit_error(job, self._loop.time()))
        self._look()


class ClientHolds:
    """Knows when a client is done.

    Args:
        registry: The open jobs.

    Attributes:
        closed: Whether the client takes no more jobs but those of maps and sessions.
        holds: The maps, sessions and broadcasts that hold it open.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self.closed = False
        self._registry = registry
        self.holds: set[object] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def hold(self, hold: object) -> None:
        """Let *hold* keep the client open, unless it closes already."""
        if not self.closed:
            self.holds.add(hold)
            self._idle.clear()

    def release(self, hold: object) -> None:
        """Let the client close, whatever is left of *hold*."""
        self.holds.discard(hold)
        self.look()

    def busy(self) -> None:
        """Note that there is an open job."""
        self._idle.clear()

    def look(self) -> None:
        """Note it if nothing is left to do."""
        if not self._registry.jobs and not self.holds:
            self._idle.set()

    async def drain(self) -> None:
        """Take no more jobs, and wait for those that there are.

        Cancellation:
            Safe.
        """
        self.closed = True
        await self._idle.wait()

    def close(self) -> None:
        """Take no more jobs, and let nothing keep the client open."""
        self.closed = True
        self.holds.clear()
        self.look()


class Client:
    """Submits jobs to agents, and settles them; callers, maps and streams use it as a supervisor.

    Args:
        title: What errors call it.
        name: What logs and metrics call it.
        node_timeout: Seconds after which an agent is lost that is not heard; ``None`` for half as
            many again as the agent works for a client that it does not hear.
        data: What calls may be, if the pool is data only.
        max_queued: How many jobs may wait for an agent; ``None`` for no bound.
        hub: Where events go.

    Attributes:
        registry: The jobs that are open.
        nodes: The agents.
        sessions: The workers that belong to this client.
        broadcasts: Calls that every worker of all agents makes.
        traffic: Submits jobs.
        threads: Pickle and copy large objects.
        draining: What keeps it open.
        leases: The holders of leases; submits jobs that have one.
        title: As above.
        name: As above.
        agent_closes: Whether the only agent has said that it ends.
        hub: As above.
        loop: Its event loop.
        figures: What the agents tell of their pools.
        left: Whether it has left the agents.
    """

    concurrency = 1
    is_remote = True

    def __init__(
        self,
        title: str,
        name: str,
        node_timeout: float | None,
        data: DataOnly | None,
        max_queued: int | None,
        hub: PoolHub,
    ) -> None:
        self.title, self.name, self._data = title, name, data
        self._listens = self.left = False
        self.loop = asyncio.get_running_loop()
        self.hub = hub
        self.registry = JobRegistry(hub)
        totals = self.registry.figures.functions
        self._functions = FunctionTables(totals, data, RemoteFunctionTable)
        self.threads = Threads(self.loop)
        self.jobs = ClientJobs()
        self.agent_closes = False
        self.draining = ClientHolds(self.registry)
        self._questions = Questions(self._flush_soon)
        self.sessions = ClientSessions(self, self._questions)
        self.broadcasts = ClientBroadcasts(self, self._questions, self.threads, data)
        self.leases = self.registry.leases
        self.ends = JobEnds(
            self.registry,
            self.threads,
            self.sessions,
            self._again,
            self.draining.look,
        )
        self.waits = JobWaits(self, self.draining.look)
        self.nodes = Nodes(self, self._questions, node_timeout)
        self.leases.fence = self.nodes.fence
        self.figures = NodeFigures(self)
        self.traffic = Submissions(self, self._functions, max_queued)

    # What callers, maps and streams need of a supervisor.

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return max(1, sum(node.lanes for node in self.nodes))

    @property
    def fresh(self) -> bool:
        """Whether each job has a new worker, at any of the agents."""
        return any(node.fresh for node in self.nodes)

    @property
    def counts_jobs(self) -> bool:
        """Whether a worker begins a limited number of jobs, at any of the agents."""
        return any(node.counts_jobs for node in self.nodes)

    @property
    def admission(self) -> Submissions:
        """What admits jobs."""
        return self.traffic

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell whether a store of the engine has arguments of a map's *items*."""
        return self.traffic.are_stored(items, star=star)

    def check_loop(self) -> None:
        """Check that this is the client's event loop."""
        check_loop(self.loop, self.title)

    async def load(self, job: PoolJob[Any], frame: Frame) -> Any:
        """Return the item of a stream."""
        try:
            return await load_item(self.threads, job, frame)
        except ProtocolError as error:
            raise unreadable(error) from error

    def _again(self, job: PoolJob[Any]) -> None:
        if self.agent_closes:
            self._fail_closed(job)
        else:
            self.nodes.send_again(job)

    def _fail_closed(self, job: PoolJob[Any]) -> None:
        """Fail a job that no agent will have."""
        error = PoolClosedError(f"{self.title} is closed")
        if job.crashes:
            error.__cause__ = crash_error(job, Delivery.STARTED)
        self.registry.fail(job, error)

    # Calls for workers that belong to this client.

    def send_call(self, node: Node, job: PoolJob[Any]) -> bool:
        """Send a call to the agent that has its worker; false if it goes later."""
        self.jobs.bind(node.number, job.id)
        self.nodes.send(node.number, [job.id])
        return not self.nodes.is_loading(job.id)

    def usual_nodes(self) -> list[Node]:
        """Return the agents.

        Raises:
            PoolClosedError: If there is none, or the client is closed.
        """
        nodes = [*self.nodes]
        if not nodes or self.draining.closed:
            raise no_agent(self.title)
        return nodes

    # What jobs need of their owner.

    def pid_of(self, _: PoolJob[Any]) -> None:
        """Tell nothing: it is a process of an agent."""

    def is_running(self, job: PoolJob[Any]) -> bool:
        """Tell whether the agent has given *job* to its pool."""
        return self.nodes.has_begun(job.id)

    def on_cancel(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        if self.registry.remove_done(job):
            self.drop(job)
            self.draining.look()

    async def stack_of(self, job: PoolJob[Any]) -> str:
        """Ask where a job is; the text is empty if it runs nowhere."""
        if not self.is_running(job):
            return ""
        text: str = await self.ask("stack", job=job.id)
        return text

    def give_credit(self, job: StreamJob) -> None:
        """Tell the agent how many items it may send in all."""
        node = self.nodes.of(job.id)
        if node is not None:
            node.put(Message(Kind.CREDIT, job.id, priority=job.credit))
            self._flush_soon()

    def fail(self, job: PoolJob[Any], error: BaseException) -> None:
        """End a job without an outcome."""
        self.registry.fail(job, error)
        self.draining.look()

    def drop(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        self.waits.forget(job.id)
        number = self.jobs.give_up(job.id)
        if number is not None:
            self.nodes.cancel(number, job.id)

    # What is asked about the pool.

    async def ask(
        self, what: str, payload: bytes = b"", *, at: Node | None = None, **details: Any
    ) -> Any:
        """Ask the agent *at* hand, or the first one; see :meth:`Questions.ask`."""
        self.check_loop()
        node = at or self.nodes.first
        if node is None:
            raise no_agent(self.title)
        return await self._questions.ask(node, what, payload, **details)

    def listen(self) -> None:
        """Have the agents tell of events."""
        self._listens = True
        for node in self.nodes:
            self._questions.send(node, "events")

    def on_lost(self, node: Node) -> None:
        """Hear that an agent is gone."""
        self.figures.lost(node)

    def on_join(self, node: Node) -> bool:
        """Hear that there is another agent; return whether it may have jobs at once."""
        if self._listens:
            self._questions.send(node, "events")
        return self.broadcasts.on_join(node)

    def on_ready(self, node: Node) -> None:
        """Hear that an agent that has joined may have jobs."""
        self.nodes.ready(node)

    def on_unfit(self, node: Node, why: Exception) -> None:
        """Hear that an agent that has joined may have none."""
        self.nodes.lose(node, why)

    def next_id(self) -> int:
        """Return the number of the next job."""
        return self.registry.next_id()

    # The end.

    def on_closing(self) -> None:
        """Hear that the only agent ends: it gets no more jobs, and finishes those that it has."""
        self.agent_closes = self.draining.closed = True
        for job in [*self.registry.jobs.values()]:
            if self.jobs.agent_of(job.id) is None:
                self.drop(job)
                self._fail_closed(job)

    async def finish(self, which: str) -> None:
        """Take no more jobs, and wait for ``"all"``, for the ``"running"`` ones or for ``"none"``.

        Cancellation:
            Safe.
        """
        if which == "none":
            return
        for job in [*self.registry.jobs.values()]:
            if which == "running" and not self.is_running(job):
                self.drop(job)
                self.registry.fail(job, PoolClosedError())
        if which == "running":
            self.broadcasts.give_up()
        self.draining.look()
        await self.draining.drain()

    @property
    def queued(self) -> int:
        """How many jobs no agent has."""
        return self.jobs.waiting

    def limit_ahead(self) -> None:
        """Let agents have only jobs that they can begin soon, so that others can be cancelled here."""
        self.nodes.limit_ahead()

    def close(
        self, finish: Finish = Finish.NOTHING, timeout: float | None = 0.0
    ) -> None:
        """Give up every job and leave the agents; called as that of a local pool's supervisor."""
        del finish, timeout
        if self.left:
            return
        self.left = True
        self.draining.close()
        self.registry.fail_all(
            PoolClosedError(f"{self.title} was left before the job was done")
        )
        self.waits.stop()
        self.hub.end()  # a trace ends with the figures of the nodes
        self.figures.close()
        self.nodes.close()
        self.leases.worker_gone()
        self.draining.look()

    async def close_threads(self) -> None:
        """Wait for the threads."""
        await self.threads.close()

    def _flush_soon(self) -> None:
        self.nodes.flush_soon()
