"""The client: the jobs of a program whose workers belong to an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from asyncpool._core.codec.data_only import DataOnly
from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    OutOfBandPickle,
    StreamTooLongError,
)
from asyncpool._core.placement.broadcasts import Broadcast
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.remote.client_jobs import ClientJobs
from asyncpool._core.remote.reliable_link import MAX_PAYLOAD
from asyncpool._core.remote.remote_messages import Kind, Message
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.base.event_loop import check_home
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.client.client_holds import ClientHolds
from asyncpool._runtime.client.client_sessions import ClientSessions, packed_call
from asyncpool._runtime.client.job_ends import JobEnds
from asyncpool._runtime.client.job_waits import JobWaits
from asyncpool._runtime.client.node import Node
from asyncpool._runtime.client.nodes import Nodes
from asyncpool._runtime.client.questions import Questions
from asyncpool._runtime.job.job import Job, StreamJob
from asyncpool._runtime.remote.broadcast_answers import read_broadcast
from asyncpool._runtime.state.job_watch import JobWatch
from asyncpool._runtime.state.registry import JobRegistry
from asyncpool._runtime.traffic.broadcast_calls import (
    check_broadcast,
    pack_broadcast,
    serializer_of,
)
from asyncpool._runtime.traffic.function_tables import FunctionTables
from asyncpool._runtime.traffic.large_jobs import (
    Packer,
    load_item,
    too_large,
    unpicklable,
)
from asyncpool.errors import JobNotPicklableError, PoolClosedError, PoolFullError

# How many large calls are pickled ahead of those that an agent has.
_PACKED_AHEAD = 3


class Client:
    """Submits jobs to agents, and settles them; callers, maps and streams use it as a supervisor.

    Args:
        title: What errors call it.
        node_timeout: Seconds after which an agent is lost that is not heard; ``None`` for half as
            many again as the agent works for a client that it does not hear.
        data: What calls may be, if the pool is data only.
        max_queued: How many jobs may wait for an agent; ``None`` for no bound.
        hub: Where events go.

    Attributes:
        registry: The jobs that are open.
        nodes: The agents.
        sessions: The workers that belong to this client.
        draining: What keeps it open.
        leases: The holders of leases; submits jobs that have one.
        hub: As above.
    """

    concurrency = 1
    counts_jobs = False
    fresh = True  # each item of a map travels by itself: batches carry many
    max_payload = MAX_PAYLOAD

    def __init__(
        self,
        title: str,
        node_timeout: float | None,
        data: DataOnly | None,
        max_queued: int | None,
        hub: PoolHub,
    ) -> None:
        self._title, self._data, self._max_queued = title, data, max_queued
        self._loop = asyncio.get_running_loop()
        self.hub = hub
        self.registry = JobRegistry(JobWatch(hub))
        self._functions = FunctionTables(self.registry.figures.functions, data)
        self._threads = Threads(self._loop)
        self._packer = Packer(self._threads, self, ahead=_PACKED_AHEAD)
        self.jobs = ClientJobs()
        self.draining = ClientHolds(self.registry)
        self._questions = Questions(self._flush_soon)
        self.sessions = ClientSessions(self, self._questions)
        self.leases = self.registry.leases
        self.leases.fence = self._fence
        self.ends = JobEnds(
            self.registry, self._threads, self._again, self.draining.look
        )
        self.waits = JobWaits(self, self.draining.look)
        self.nodes = Nodes(self, self._questions, node_timeout)

    # What callers, maps and streams need of a supervisor.

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return max(1, sum(node.lanes for node in self.nodes))

    @property
    def traffic(self) -> Client:
        """Itself: it submits jobs."""
        return self

    @property
    def broadcasts(self) -> Client:
        """Itself: it asks for broadcasts."""
        return self

    @property
    def admission(self) -> Client:
        """Itself: it admits jobs."""
        return self

    def check_home(self) -> None:
        """Check that this is the client's event loop."""
        check_home(self._loop, self._title)

    async def room(self) -> None:
        """Wait until jobs that wait have left the queue.

        Cancellation:
            Safe.
        """
        while self._is_full() and self.nodes.any:
            await self.nodes.next_turn()

    def hold(self, hold: Any, /) -> None:
        """Let *hold* keep the client open."""
        self.draining.hold(hold)

    async def load(self, job: Job[Any], frame: Frame) -> Any:
        """Return the item of a stream."""
        return await load_item(self._threads, job, frame)

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Queue a call, or send it to an agent; return its future."""
        self.check_home()
        self._check(options)
        known = self._functions.of(options).find(function, options.name, options.via)
        make = StreamJob if options.via == "stream" else Job
        job: Job[Any] = make(self.registry.next_id(), known, options, self, self._loop)
        try:
            payload = known.serializer.pack_job(
                function, args, kwargs, number=known.number, limit=HEAVY
            )
        except StreamTooLongError:
            return self._submit_large(job, (function, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - an argument's
            return self._refuse(job, error)
        if len(payload) > MAX_PAYLOAD:
            return self._refuse(job, too_large(len(payload), MAX_PAYLOAD))
        self._enter(job)
        job._payload = payload
        self._place(job)
        return job

    def _check(self, options: JobOptions) -> None:
        closed = self.draining.closed and not (options.hold and options.hold.held)
        if closed or not self.nodes.any:
            raise PoolClosedError("the shared pool is closed, or its agent is gone")
        if self._is_full() and options.bound is None:
            if options.hold is None:
                self.registry.figures.refused += 1
            assert self._max_queued is not None
            raise PoolFullError(waiting=self.jobs.waiting, max_queued=self._max_queued)

    def _is_full(self) -> bool:
        most = self._max_queued
        return most is not None and self.jobs.waiting >= most

    def _refuse(self, job: Job[Any], error: BaseException) -> Job[Any]:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self.registry.withdraw()
            raise error
        if not isinstance(error, JobNotPicklableError):
            error = unpicklable(error)
        self.registry.refuse(job, error)
        return job

    def _enter(self, job: Job[Any]) -> None:
        self.registry.enter(job)
        self.draining.busy()
        if job._limits.timed:
            self.waits.begin(job)

    def _submit_large(self, job: Job[Any], call: Any) -> Job[Any]:
        self._enter(job)
        self.jobs.announce(job.id)
        self._packer.add(job, call)
        return job

    def packed(self, job: Job[Any], payload: bytes | OutOfBandPickle) -> None:
        """Queue a job whose call a thread has pickled."""
        if len(payload) > MAX_PAYLOAD:
            self.refused(job, too_large(len(payload), MAX_PAYLOAD))
        else:
            job._payload = payload
            self._place(job)

    def refused(self, job: Job[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        self.drop(job)
        self.registry.fail(job, error)
        self.draining.look()

    def _place(self, job: Job[Any]) -> None:
        options = job._options
        if options.bound is not None:
            self.sessions.enqueue(job, options.bound.session)
            return
        node = self.jobs.submit(job.id, key=options.key, priority=options.priority)
        if node is not None:
            self.nodes.send(node, [job.id])

    def _again(self, job: Job[Any]) -> None:
        for node, number in self.jobs.again(job.id, key=job._options.key):
            self.nodes.send(node, [number])

    # Calls for workers that belong to this client.

    def send_call(self, node: Node, job: Job[Any]) -> None:
        """Send a call to the agent that has its worker."""
        self.jobs.bind(node.number, job.id)
        self.nodes.send(node.number, [job.id])

    def pack_call(
        self, function: Callable[[], Any], options: JobOptions
    ) -> tuple[str, bytes, bytes]:
        """Return the name of a function, its reference, and a call of it without arguments."""
        known = self._functions.of(options).find(function)
        call = packed_call(known.serializer, function, known.number)
        return known.name, known.payload, call

    def usual_node(self) -> Node:
        """Return an agent.

        Raises:
            PoolClosedError: If there is none, or the client is closed.
        """
        node = self.nodes.first
        if node is None or self.draining.closed:
            raise PoolClosedError("the shared pool is closed, or its agent is gone")
        return node

    # What jobs need of their owner.

    def is_running(self, job: Job[Any]) -> bool:
        """Tell whether the agent has given *job* to its pool."""
        return self.nodes.has_begun(job.id)

    def on_cancel(self, job: Job[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        if self.registry.cancelled(job):
            self.drop(job)
            self.draining.look()

    async def stack_of(self, job: Job[Any]) -> str:
        """Ask where a job is; the text is empty if it runs nowhere."""
        if not self.is_running(job):
            return ""
        text: str = await self.ask("stack", job=job.id)
        return text

    def give_credit(self, job: StreamJob) -> None:
        """Tell the agent how many items it may send in all."""
        node = self.nodes.of(job.id)
        if node is not None:
            node.put(Message(Kind.CREDIT, job.id, priority=job._credit))
            self._flush_soon()

    def _fence(self, job: Job[Any], slot: int, until: float) -> None:
        """Tell an agent until when its worker may run a job with a lease."""
        self.nodes.fence(slot, job.id, until)

    def drop(self, job: Job[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        self.waits.forget(job.id)
        number = self.jobs.give_up(job.id)
        if number is not None:
            self.nodes.cancel(number, job.id)

    # What is asked about the pool.

    async def ask(self, what: str, payload: bytes = b"", **details: Any) -> Any:
        """Ask the agent, and return its answer; see :meth:`Questions.ask`."""
        self.check_home()
        node = self.nodes.first
        if node is None:
            raise PoolClosedError("the shared pool is closed, or its agent is gone")
        return await self._questions.ask(node, what, payload, **details)

    def listen(self) -> None:
        """Have the agents tell of events."""
        for node in self.nodes:
            self._questions.send(node, "events")

    async def broadcast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        """Have every worker of the agent make a call; see :meth:`asyncpool.Pool.broadcast`."""
        check_broadcast(options)
        self._check(options)
        serializer = serializer_of(self._data, function, options)
        call = (function, args, kwargs)
        payload = await pack_broadcast(self._threads, self._data, call, options)
        about = Broadcast.of(0, function, b"")
        found = await self.ask("broadcast", payload, name=about.name, line=about.line)
        return read_broadcast(found, about.name, serializer)

    # The end.

    def on_closing(self) -> None:
        """Hear that the only agent ends: it gets no more jobs, and finishes those that it has."""
        self.draining.closed = True
        for job in [*self.registry.jobs.values()]:
            if self.jobs.agent_of(job.id) is None:
                self.drop(job)
                self.registry.fail(job, PoolClosedError("the shared pool is closed"))

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
        self.draining.look()
        await self.draining.drain()

    def close(self) -> None:
        """Give up every job and leave the agents."""
        self.draining.close()
        self.registry.fail_all(
            PoolClosedError("the shared pool was left before the job was done")
        )
        self.waits.stop()
        self.nodes.close()
        self.leases.close()
        self.hub.end()

    async def close_threads(self) -> None:
        """Wait for the threads."""
        await self._threads.close()

    def _flush_soon(self) -> None:
        self.nodes.flush_soon()
