"""The client: the jobs of a program whose workers belong to agents.

To callers, maps and streams it is what a local pool's engine is.  It has the queue of what no agent
has, the futures, and what the caller alone can decide: whether there is another attempt.  What is in
``__main__`` travels by value, whatever the workers of this program can import.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from time import monotonic
from typing import Any, Protocol

from asyncpool._core.data_only import DataOnly
from asyncpool._core.endings import Finish
from asyncpool._core.functions import FunctionTable
from asyncpool._core.options import JobOptions
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import JOB_TYPES, PoolJob, StreamJob, unreadable
from asyncpool._engine.large import Packer, load_item
from asyncpool._engine.loop import Threads, check_loop
from asyncpool._engine.registry import JobRegistry, crash_error, expired_error
from asyncpool._engine.traffic import FunctionTables
from asyncpool._remote.client_broadcasts import ClientBroadcasts
from asyncpool._remote.client_sessions import ClientSessions
from asyncpool._remote.figures import NodeFigures
from asyncpool._remote.job_ends import JobEnds
from asyncpool._remote.messages import MAX_PAYLOAD, Kind, Message
from asyncpool._remote.node import Node, StoredCall
from asyncpool._remote.nodes import Nodes
from asyncpool._wire.buffers import HEAVY, OutOfBandPickle, OverLimitError
from asyncpool._wire.frames import Frame
from asyncpool._wire.pickling import Serializer, pack_job, too_large
from asyncpool._wire.scripts import Abroad, script
from asyncpool._wire.text import function_name
from asyncpool.enums import Delivery
from asyncpool.errors import (
    JobNotPicklableError,
    PoolClosedError,
    PoolFullError,
    ProtocolError,
)

# How many large calls are pickled ahead of those that an agent has.
_PACKED_AHEAD = 3


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


class StoredArguments(Protocol):
    """What finds arguments that are in a store of the engine, and packs calls that have some."""

    # What workers run: it is given the call and the values.
    function: Callable[..., Any]

    def are_in(self, values: Iterable[Any], /) -> bool:
        """Tell whether there are any among *values*.

        Raises:
            TypeError: If the pool takes none.
        """
        ...

    def pack(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, /
    ) -> StoredCall:
        """Pack a call."""
        ...


class JobWaits:
    """Fails jobs whose time is over before they have begun.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def begin(self, job: PoolJob[Any]) -> None:
        """Watch a job that waits from now on."""
        loop = self._client.loop
        end = job.options.queue_end(loop.time())
        if end is not None:
            self._timers[job.id] = loop.call_at(end, self._on_late, job)

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
        for number in [*self._timers]:
            self.forget(number)

    def _on_late(self, job: PoolJob[Any]) -> None:
        self._timers.pop(job.id, None)
        client = self._client
        if job.done() or client.is_running(job):
            return
        client.drop(job)
        if job.slot is not None:  # an agent has it, and has not begun it
            client.registry.unassign(job)
        client.fail(job, expired_error(job, client.loop.time()))


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

    def hold(self, hold: object) -> None:
        """Let *hold* keep the client open, unless it closes already."""
        if not self.closed:
            self.holds.add(hold)

    def release(self, hold: object) -> None:
        """Let the client close, whatever is left of *hold*."""
        self.holds.discard(hold)
        self.look()

    def look(self) -> None:
        """Note it if nothing is left to do."""
        if self.closed and not self._registry.jobs and not self.holds:
            self._idle.set()

    async def drain(self) -> None:
        """Take no more jobs, and wait for those that there are.

        Cancellation:
            Safe.
        """
        self.closed = True
        self.look()
        await self._idle.wait()

    def close(self) -> None:
        """Take no more jobs, and let nothing keep the client open."""
        self.closed = True
        self.holds.clear()
        self.look()


class Client(Packer):
    """Submits jobs to agents; callers, maps and streams use it as an engine.

    Args:
        title: What errors call it.
        name: What logs and metrics call it.
        data: What calls may be, if the pool is data only.
        max_queued: How many jobs may wait for an agent; ``None`` for no bound.
        hub: Where events go.

    Attributes:
        registry: The jobs that are open.
        nodes: The agents.
        sessions: The workers that belong to this client.
        broadcasts: Calls that every worker of all agents makes.
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
        waits: Fails jobs that have waited for too long.
        ends: Settles jobs.
        stored: Finds arguments that are in a store of the engine, if that has one.
        reconnects: Whether another agent may take the place of the only one.
    """

    concurrency = 1
    is_remote = True

    def __init__(
        self,
        title: str,
        name: str,
        data: DataOnly | None,
        max_queued: int | None,
        hub: PoolHub,
    ) -> None:
        self.title, self.name, self.hub = title, name, hub
        self._max_queued = max_queued
        self._listens = self.left = self.agent_closes = self.reconnects = False
        self.loop = asyncio.get_running_loop()
        self.threads = Threads(self.loop)
        super().__init__(self.threads, lambda: _PACKED_AHEAD, MAX_PAYLOAD)
        self.registry = JobRegistry(hub)
        totals = self.registry.figures.functions
        self._functions = FunctionTables(totals, data, RemoteFunctionTable)
        self._last_question = itertools.count(1)
        self.stored: StoredArguments | None = None
        self.holds = ClientHolds(self.registry)
        self.waits = JobWaits(self)
        self.nodes = Nodes(self)
        self.sessions = ClientSessions(self)
        self.broadcasts = ClientBroadcasts(self, data)
        self.ends = JobEnds(self)
        self.figures = NodeFigures(self)
        self.leases = self.registry.leases
        self.leases.fence = self.nodes.fence
        # What callers, maps and streams ask of the parts of a local pool.
        self.traffic = self.admission = self

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return max(1, sum(node.window.lanes for node in self.nodes))

    @property
    def fresh(self) -> bool:
        """Whether each job has a new worker, at any of the agents."""
        return any(node.fresh for node in self.nodes)

    @property
    def counts_jobs(self) -> bool:
        """Whether a worker begins a limited number of jobs, at any of the agents."""
        return any(node.counts_jobs for node in self.nodes)

    @property
    def queued(self) -> int:
        """How many jobs no agent has."""
        return self.nodes.router.waiting

    def limit_ahead(self) -> None:
        """Let agents have only jobs that they can begin soon, so that others can be cancelled here."""
        self.nodes.limit_ahead()

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell whether a store of the engine has arguments of a map's *items*.

        Raises:
            TypeError: If there are such, and the pool takes none.
        """
        values = chain.from_iterable(items) if star else items
        return self.stored is not None and self.stored.are_in(values)

    def check_loop(self) -> None:
        """Check that this is the client's event loop."""
        check_loop(self.loop, self.title)

    async def load(self, job: PoolJob[Any], frame: Frame) -> Any:
        """Return the item of a stream."""
        try:
            return await load_item(self.threads, job, frame)
        except ProtocolError as error:
            raise unreadable(error) from error

    async def room(self) -> None:
        """Wait until jobs that wait have left the queue.

        Cancellation:
            Safe.
        """
        while self._is_full and self.nodes.any:
            await self.nodes.next_turn()

    # The way of a job to an agent, or into the queue.

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        """Queue a call, or send it to an agent; return its future."""
        self.check_loop()
        self._check(options)
        stored, called, name = self.stored, function, options.name
        if stored is None or not stored.are_in((*args, *kwargs.values())):
            stored = None
        else:
            called, name = stored.function, name or function_name(function)
        known = self._functions.of(options).find(called, name, options.via)
        job: PoolJob[Any] = JOB_TYPES[options.via](
            self.registry.next_id(), known, options, self, self.loop
        )
        payload: Any
        try:
            if stored is None:
                payload = known.serializer.pack_job(
                    function, args, kwargs, number=known.number, limit=HEAVY
                )
            else:
                payload = stored.pack(function, args, kwargs)
        except OverLimitError:
            self._enter(job)
            self.nodes.router.prepare(job.id)
            self.add(job, (function, args, kwargs))
            return job
        except BaseException as error:  # noqa: BLE001 - an argument's
            return self.registry.refuse(job, error)
        if (size := len(payload)) > MAX_PAYLOAD:
            return self.registry.refuse(job, too_large(size, MAX_PAYLOAD))
        self._enter(job)
        job.payload = payload
        self.queue(job)
        return job

    def _check(self, options: JobOptions) -> None:
        """Check that the client takes a job.

        Raises:
            PoolClosedError: If it is closed, or has no agent.
            PoolFullError: If too many jobs wait.
        """
        closed = self.holds.closed and options.hold not in self.holds.holds
        if closed or not self.nodes.any:
            raise self.no_agent()
        if self._is_full and options.session is None:
            if options.hold is None:
                self.registry.figures.refused += 1
            assert self._max_queued is not None
            raise PoolFullError(waiting=self.queued, max_queued=self._max_queued)

    @property
    def _is_full(self) -> bool:
        return self._max_queued is not None and self.queued >= self._max_queued

    def _enter(self, job: PoolJob[Any]) -> None:
        self.registry.enter(job)
        if job.options.timed:
            self.waits.begin(job)

    def queue(self, job: PoolJob[Any]) -> None:
        """Put a job into the queue, or send it to an agent."""
        session = job.options.session
        if session is None:
            self.nodes.submit(job)
        else:
            self.nodes.router.remove(job.id)
            self.sessions.enqueue(job, session.session)

    def refused(self, job: PoolJob[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        self.drop(job)
        self.fail(job, error)

    def on_unloaded(self, node: Node, job: PoolJob[Any], error: BaseException) -> None:
        """Fail a job whose arguments cannot be brought to an agent, which has not heard of it."""
        self.nodes.take_back(node, job.id)
        self.fail(job, error)

    def on_loaded(self) -> None:
        """Hear that a job goes to an agent whose large parts are there by now."""
        self.flush_soon()
        self.go_on()
        self.sessions.go_on()

    def again(self, job: PoolJob[Any]) -> None:
        """Have a job go to an agent once more."""
        if self.agent_closes:
            self._fail_closed(job)
        else:
            self.nodes.again(job)

    def _fail_closed(self, job: PoolJob[Any]) -> None:
        """Fail a job that no agent will have."""
        error = PoolClosedError(f"{self.title} is closed")
        if job.crashes:
            error.__cause__ = crash_error(job, Delivery.STARTED)
        self.registry.fail(job, error)

    # What jobs need of their owner.

    def pid_of(self, _: PoolJob[Any]) -> None:
        """Tell nothing: it is a process of an agent."""

    def is_running(self, job: PoolJob[Any]) -> bool:
        """Tell whether an agent has said that *job* began."""
        node = self.nodes.of(job.id)
        return node is not None and node.told.get(job.id, False)

    def on_cancel(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        if self.registry.remove_done(job):
            self.drop(job)
            self.holds.look()

    async def stack_of(self, job: PoolJob[Any]) -> str:
        """Ask where a job is; the text is empty if it runs nowhere."""
        node = self.nodes.of(job.id)
        text: str = "" if node is None else await node.ask("stack", job=job.id)
        return text

    def give_credit(self, job: StreamJob) -> None:
        """Tell the agent how many items it may send in all."""
        node = self.nodes.of(job.id)
        if node is not None:
            node.put(Message(Kind.CREDIT, job.id, priority=job.credit))
            self.flush_soon()

    def fail(self, job: PoolJob[Any], error: BaseException) -> None:
        """End a job without an outcome."""
        self.registry.fail(job, error)
        self.holds.look()

    def drop(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        self.waits.forget(job.id)
        node = self.nodes.of(job.id)
        if node is None:
            self.nodes.router.remove(job.id)
        else:
            self.nodes.cancel(node, job.id)

    # What is asked of the agents.

    def no_agent(self) -> PoolClosedError:
        """Return the error of whoever comes too late."""
        return PoolClosedError(f"{self.title} is closed, or its agent is gone")

    def usual_nodes(self) -> list[Node]:
        """Return the agents.

        Raises:
            PoolClosedError: If there is none, or the client is closed.
        """
        nodes = [*self.nodes]
        if not nodes or self.holds.closed:
            raise self.no_agent()
        return nodes

    def next_question(self) -> int:
        """Return a number that no question has had."""
        return next(self._last_question)

    def flush_soon(self) -> None:
        """Send what was put for agents, at the end of this iteration of the loop."""
        self.nodes.flush_soon()

    def listen(self) -> None:
        """Have the agents tell of events."""
        self._listens = True
        for node in self.nodes:
            node.tell("events")

    def on_join(self, node: Node) -> bool:
        """Hear that there is another agent; return whether it may have jobs at once."""
        if self._listens:
            node.tell("events")
        return self.broadcasts.on_join(node)

    # The end.

    def on_closing(self, node: Node) -> None:
        """Hear that the only agent ends: it gets no more jobs, and finishes those that it has."""
        self.nodes.router.rest(node.number)
        if self.reconnects:
            return  # the others wait for the next one
        self.agent_closes = self.holds.closed = True
        for job in [*self.registry.jobs.values()]:
            if self.nodes.of(job.id) is None:
                self.drop(job)
                self._fail_closed(job)

    async def finish(self, which: str) -> None:
        """Take no more jobs, and wait for ``"all"``, for the ``"running"`` ones or for ``"none"``.

        Cancellation:
            Safe.
        """
        if which == "none":
            return
        if which == "running":
            for job in [*self.registry.jobs.values()]:
                if not self.is_running(job):
                    self.drop(job)
                    self.registry.fail(job, PoolClosedError())
            self.broadcasts.give_up()
        await self.holds.drain()

    def close(
        self, finish: Finish = Finish.NOTHING, timeout: float | None = 0.0
    ) -> None:
        """Give up every job and leave the agents; called as that of a local pool's engine."""
        del finish, timeout
        if self.left:
            return
        self.left = True
        self.holds.close()
        self.registry.fail_all(
            PoolClosedError(f"{self.title} was left before the job was done")
        )
        self.waits.stop()
        self.hub.end()  # a trace ends with the figures of the nodes
        self.figures.close()
        self.nodes.close()
        self.leases.worker_gone()
        self.holds.look()
