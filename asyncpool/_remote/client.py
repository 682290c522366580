"""The client: the jobs of a program whose workers belong to agents.

To callers, maps and streams it is what a local pool's engine is.  It has the queue of what no agent
has, the futures, and what the caller alone can decide: whether there is another attempt.  What is in
``__main__`` travels by value, whatever the workers of this program can import.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._core.data_only import DataOnly
from asyncpool._core.endings import Finish
from asyncpool._core.functions import FunctionTable, JobTraits, KeyedTraits
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.admission import list_functions
from asyncpool._engine.deaths import with_job
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import (
    JOB_TYPES,
    ChunkJob,
    PoolJob,
    StreamJob,
    attribute_by_number,
    load_outcome,
    unreadable,
)
from asyncpool._engine.large import Packer, load_item, unpack
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.loop import Threads, check_loop
from asyncpool._engine.registry import (
    JobRegistry,
    crash_error,
    expired_error,
    timeout_error,
)
from asyncpool._engine.sessions import Broadcast, Broadcasts, SessionWorker, error_of
from asyncpool._engine.traffic import FunctionTables
from asyncpool._remote.carrier import Carrier, Why
from asyncpool._remote.figures import NodeFigures
from asyncpool._remote.messages import (
    MAX_PAYLOAD,
    Kind,
    Message,
    load_parts,
    write_options,
)
from asyncpool._remote.node import SLOTS, Node
from asyncpool._remote.objects import kind_of
from asyncpool._remote.router import Router
from asyncpool._wire.buffers import HEAVY, SURELY_QUICK, OutOfBandPickle, OverLimitError
from asyncpool._wire.frames import Frame
from asyncpool._wire.pickling import Serializer, pack_job, too_large
from asyncpool._wire.scripts import Abroad, script
from asyncpool._wire.text import function_name
from asyncpool.enums import CrashKind, Delivery, NextStep, TimeLimit
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobError,
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    PoolClosedError,
    PoolFullError,
    ProtocolError,
    WorkerCrashedError,
    WorkerGoneError,
)
from asyncpool.events import Crash, TakenOver
from asyncpool.stats import PoolStats

# How many large calls are pickled ahead of those that an agent has.
_PACKED_AHEAD = 3

# So many jobs go out in the middle of a iteration of the loop: whoever submits thousands in one turn
# has the agent begin meanwhile.
_AT_ONCE = 64

# Seconds after which it is looked again how many jobs agents have ended of late.
_LOOK_EVERY = 0.1

# How many calls of a session are with the agent: one that runs, and the next one.
_AHEAD = 2

_MAY_HAVE_BEGUN = frozenset((Delivery.STARTED, Delivery.UNKNOWN))


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


class Client(Packer):
    """Submits jobs to agents; callers, maps and streams use it as an engine.

    Args:
        title: What errors call it.
        name: What logs and metrics call it.
        data: What calls may be, if the pool is data only.
        max_queued: How many jobs may wait for an agent; ``None`` for no bound.
        hub: Where events go.

    Attributes:
        title: As above.
        name: As above.
        hub: As above.
        loop: Its event loop.
        threads: Pickle and copy large objects.
        registry: The jobs that are open.
        leases: The holders of leases; submits jobs that have one.
        nodes: The agents, by number.
        router: Which agent gets which job.
        expected: Whether jobs wait for another agent if there is none.
        on_lost: Called when an agent is lost; tells whether another one may take its place.
        lost_nodes: How many agents were lost, or could not be used.
        reconnects: Whether another agent may take the place of the only one.
        agent_closes: Whether the only agent has said that it ends.
        closed: Whether the client takes no more jobs but those of maps and sessions.
        left: Whether it has left the agents.
        questions: A number for each question to an agent.
        sessions: The workers that belong to this client.
        broadcasts: Calls that every worker of all agents makes.
        figures: What the agents tell of their pools.
        stored: What finds arguments that are in Ray's store, and packs calls that have some: the
            ``References`` of ``ray/_references.py``.
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
        self.loop = asyncio.get_running_loop()
        self.threads = Threads(self.loop)
        super().__init__(self.threads, lambda: _PACKED_AHEAD, MAX_PAYLOAD)
        self.registry = JobRegistry(hub)
        totals = self.registry.figures.functions
        self._functions = FunctionTables(totals, data, RemoteFunctionTable)
        self.leases = self.registry.leases
        self.leases.fence = self._fence
        self.stored: Any = None
        self.on_lost: Callable[[], bool] = lambda: False
        self.nodes: dict[int, Node] = {}
        self.router = Router()
        self.expected = self.reconnects = self.agent_closes = False
        self.closed = self.left = self._listens = False
        self._is_limited = self._flush_is_due = False
        self.lost_nodes = 0
        self._unsent = 0  # how many jobs were put since the last flush
        self._looked_at = 0.0
        self.questions, self._last_node = itertools.count(1), itertools.count(1)
        self._late: dict[int, asyncio.TimerHandle] = {}
        self._held: set[object] = set()
        self._changed = asyncio.Event()
        self.sessions = ClientSessions(self)
        self.broadcasts = ClientBroadcasts(self, data)
        self.figures = NodeFigures(self)
        # What callers, maps and streams ask of the parts of a local pool.
        self.traffic = self.admission = self.holds = self

    @property
    def most_workers(self) -> int:
        """How many workers there may be."""
        return max(1, sum(node.window.lanes for node in self.nodes.values()))

    @property
    def fresh(self) -> bool:
        """Whether each job has a new worker, at any of the agents."""
        return any(node.fresh for node in self.nodes.values())

    @property
    def counts_jobs(self) -> bool:
        """Whether a worker begins a limited number of jobs, at any of the agents."""
        return any(node.counts_jobs for node in self.nodes.values())

    @property
    def unassigned(self) -> int:
        """How many jobs no agent has."""
        return self.router.unassigned

    @property
    def _has_agents(self) -> bool:
        """Whether there is an agent, or one may come."""
        return bool(self.nodes) or self.expected

    def stats(self) -> PoolStats:
        """Return the figures as the agents have told them last, in any thread."""
        return self.figures.latest()

    def check_loop(self) -> None:
        """Check that this is the client's event loop."""
        check_loop(self.loop, self.title)

    def are_stored(self, items: list[Any], *, star: bool) -> bool:
        """Tell whether a store of the engine has arguments of a map's *items*.

        Raises:
            TypeError: If there are such, and the pool takes none.
        """
        values = chain.from_iterable(items) if star else items
        return self.stored is not None and bool(self.stored.are_in(values))

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
        while self._is_full and self._has_agents:
            self._changed.clear()
            await self._changed.wait()

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
        if self.closed or self._max_queued is not None or not self.nodes:
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
            self.router.preparing[job.id] = None
            self.add(job, (function, args, kwargs))
            return job
        except BaseException as error:  # noqa: BLE001 - an argument's
            return self.registry.refuse(job, error)
        if (size := len(payload)) > MAX_PAYLOAD:
            return self.registry.refuse(job, too_large(size, MAX_PAYLOAD))
        job.payload = payload
        self._enter(job)
        self.queue(job)
        return job

    def _check(self, options: JobOptions) -> None:
        """Check that the client takes a job.

        Raises:
            PoolClosedError: If it is closed, or has no agent.
            PoolFullError: If too many jobs wait.
        """
        closed = self.closed and options.hold not in self._held
        if closed or not self._has_agents:
            raise self.no_agent()
        if self._is_full and options.session is None:
            if options.hold is None:
                self.registry.figures.refused += 1
            assert self._max_queued is not None
            raise PoolFullError(waiting=self.unassigned, max_queued=self._max_queued)

    @property
    def _is_full(self) -> bool:
        return self._max_queued is not None and self.unassigned >= self._max_queued

    def _enter(self, job: PoolJob[Any]) -> None:
        self.registry.enter(job)
        if job.options.timed:
            end = job.options.queue_end(self.loop.time())
            if end is not None:
                self._late[job.id] = self.loop.call_at(end, self._on_late, job)

    def queue(self, job: PoolJob[Any]) -> None:
        """Put a job into the queue, or send it to an agent."""
        options = job.options
        if options.session is not None:
            self.router.remove(job.id)
            self.sessions.enqueue(job, options.session.session)
            return
        if self._are_limited and self.loop.time() - self._looked_at > _LOOK_EVERY:
            self._look()
        number = self.router.submit(job.id, _traits_of(job), options.priority)
        if number is not None:
            self.send(self.nodes[number], [job.id])

    def again(self, job: PoolJob[Any]) -> None:
        """Have a job that has left its agent go to one again, before those that wait."""
        if self.agent_closes:
            self._fail_closed(job)
        else:
            self._send_pairs(self.router.requeue({job.id: _traits_of(job)}))

    def _send_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        for number, job in pairs:
            self.send(self.nodes[number], [job])

    def send(self, node: Node, jobs: list[int]) -> None:
        """Have an agent get *jobs*: at once if it has no others, else with the next batch."""
        if not jobs:
            return
        for number in jobs:
            node.send(self.registry.jobs[number])
        self._unsent += len(jobs)
        alone = len(node.window.jobs) + len(node.calls) <= 1 and not self._flush_is_due
        if alone or self._unsent >= _AT_ONCE:
            self._unsent = 0
            node.flush()
        else:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Send what was put for agents, at the end of this iteration of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due, self._unsent = False, 0
        for node in [*self.nodes.values()]:
            node.flush()

    def refused(self, job: PoolJob[Any], error: JobNotPicklableError) -> None:
        """End a job whose call cannot be pickled."""
        self.drop(job)
        self.fail(job, error)

    def on_unloaded(self, node: Node, job: PoolJob[Any], error: BaseException) -> None:
        """Fail a job whose arguments cannot be brought to an agent, which has not heard of it."""
        self._take_back(node, job.id)
        self.fail(job, error)

    def on_loaded(self) -> None:
        """Hear that a job goes to an agent whose large parts are there by now."""
        self.flush_soon()
        self.go_on()
        self.sessions.go_on()

    # What jobs need of their owner.

    def pid_of(self, _: PoolJob[Any]) -> None:
        """Tell nothing: it is a process of an agent."""

    def node_of(self, job: int) -> Node | None:
        """Return the agent that has *job*, or is about to get it, if any has."""
        return next((node for node in self.nodes.values() if node.has(job)), None)

    def is_running(self, job: PoolJob[Any]) -> bool:
        """Tell whether an agent has said that *job* began."""
        node = self.node_of(job.id)
        return node is not None and node.told.get(job.id, False)

    def on_cancel(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        if self.registry.remove_done(job):
            self.drop(job)
            self.look()

    async def stack_of(self, job: PoolJob[Any]) -> str:
        """Ask where a job is; the text is empty if it runs nowhere."""
        node = self.node_of(job.id)
        text: str = "" if node is None else await node.ask("stack", job=job.id)
        return text

    def give_credit(self, job: StreamJob) -> None:
        """Tell the agent how many items it may send in all."""
        node = self.node_of(job.id)
        if node is not None:
            node.put(Message(Kind.CREDIT, job.id, priority=job.credit))
            self.flush_soon()

    def _fence(self, job: PoolJob[Any], number: int, until: float) -> None:
        """Tell an agent until when it may run *job*, whose lease lapses then."""
        if number in self.nodes:
            self.nodes[number].fence(job, until)

    def fail(self, job: PoolJob[Any], error: BaseException) -> None:
        """End a job without an outcome."""
        self.registry.fail(job, error)
        self.look()

    def drop(self, job: PoolJob[Any]) -> None:
        """Take a job out of the queue, or off its agent."""
        self.waits_no_more(job.id)
        node = self.node_of(job.id)
        if node is None:
            self.router.remove(job.id)
            return
        if node.cancel(job.id):
            self._take_back(node, job.id)
        else:
            self.flush_soon()
        self.go_on()

    def _take_back(self, node: Node, job: int) -> None:
        """Note that an agent does not get *job*, of which it has not heard."""
        if job in node.calls:
            node.calls.discard(job)
            self.sessions.go_on()
        else:
            node.window.remove(job)
            self._refill(node)

    # How long jobs wait.

    def waits_no_more(self, number: int) -> None:
        """Hear that a job has begun, or ended."""
        if self._late:
            timer = self._late.pop(number, None)
            if timer is not None:
                timer.cancel()

    def _on_late(self, job: PoolJob[Any]) -> None:
        self._late.pop(job.id, None)
        if job.done() or self.is_running(job):
            return
        self.drop(job)
        if job.slot is not None:  # an agent has it, and has not begun it
            self.registry.unassign(job)
        self.fail(job, expired_error(job, self.loop.time()))

    # How jobs end, or come to another attempt: by the rules of a local pool.

    def on_end(self, job: PoolJob[Any], kind: Kind, found: Any) -> None:
        """Settle a job with what its agent says, or try it again.

        Args:
            job: The job.
            kind: How it has ended.
            found: The error of the agent's pool, or the frame of the outcome; ``None`` if it is
                in memory that cannot be mapped here.

        Raises:
            ProtocolError: If it cannot be read.
        """
        job.slot = None
        if kind is Kind.FAILED:
            self._on_failed(job, found)
        elif kind is Kind.DROPPED:
            # The agent's pool has dropped it, though nobody here has asked for that.
            why = PoolClosedError("the shared pool was closed before the job was done")
            self.registry.fail(job, why)
        elif found is None:
            name = job.function.name
            text = (
                f"the result of {name} is in memory that this process cannot map: it may open no "
                "more files, or has too many mappings"
            )
            error = JobNotPicklableError(text, direction="result", name=name)
            self.registry.fail(job, error)
        else:
            serializer = job.function.serializer
            if (size := len(found.payload)) > SURELY_QUICK:
                job.outcome_size += size
            if serializer.is_heavy(found.payload):
                # The client distrusts no worker: its agent does.
                unpack(self.threads, job, found, self._unpacked)
            elif self.registry.settle(job, load_outcome(serializer, found)):
                self.again(job)

    def _unpacked(self, job: PoolJob[Any], outcome: Any) -> None:
        """Settle a job whose outcome a thread has unpickled."""
        if self.registry.settle(job, outcome):
            self.again(job)
        self.look()

    def _on_failed(self, job: PoolJob[Any], error: object) -> None:
        """Decide about a job that the agent's pool has failed."""
        options, policy, again = job.options, job.attempt_policy, False
        worker = options.hold if options.session is not None else None
        if isinstance(error, WorkerCrashedError):
            job.crashes += tuple(with_job(job, crash, ()) for crash in error.crashes)
            if worker is None:
                again = policy.after_crash(error.kind, attempt=job.attempt)
            else:
                self.sessions.worker_gone(worker, job.crashes[-1])
            error = crash_error(job, error.delivery)
        elif isinstance(error, JobTimeoutError):
            if error.attempt:
                job.began = monotonic()
            else:  # it has waited in the agent's pool
                job.attempt -= 1
            job.exceeded = error.limit
            late = timeout_error(job, error.stack)
            if error.limit is TimeLimit.TIMEOUT:
                again = policy.after_exception(late, attempt=job.attempt)
            error = late
        elif isinstance(error, PoolFullError | WorkerGoneError):
            job.attempt -= 1
            if isinstance(error, WorkerGoneError) and worker is not None:
                self.sessions.worker_gone(worker, error.crash, job)
                return
        elif not isinstance(error, AsyncPoolError):
            raise ProtocolError(f"an agent sent {kind_of(error)} as an error")
        if again:
            self._lose_attempt(job, error)
            self.again(job)
        else:
            self.registry.fail(job, error)

    def _lose_attempt(self, job: PoolJob[Any], error: AsyncPoolError) -> None:
        """Note that an attempt has failed with *error*, and that the job waits for the next."""
        self.registry.lose_attempt(job)
        job.exceeded = None
        if isinstance(error, WorkerCrashedError):
            job.function.figures.takeovers += 1
            self.hub.publish(TakenOver(job.id, job.attempt))
        self.hub.attempt_failed(job, error)

    # Agents that come and go.

    def join(self, carrier: Carrier, about: dict[str, Any]) -> None:
        """Use the agent at the other end of *carrier*, which has told this *about* itself."""
        were_limited = self._are_limited
        node = Node(self, next(self._last_node), carrier, about)
        self.nodes[node.number] = node
        carrier.on_bytes, carrier.on_gone = node.hear, partial(self.lose, node)
        if self._listens:
            node.tell("events")
        is_ready = self.broadcasts.on_join(node)
        node.window.look(self.loop.time(), is_limited=self._are_limited)
        self._send_pairs(self.router.join(node.number, node.window, is_ready=is_ready))
        if self._are_limited and not were_limited:
            self._look()
        self.look()

    def ready(self, node: Node) -> None:
        """Hear that an agent may have jobs that was not ready when it joined."""
        if not node.gone:
            self.router.resume(node.number)
            self._refill(node)

    @property
    def _are_limited(self) -> bool:
        """Whether agents get no more than their windows allow: others may take the jobs."""
        return self._is_limited or self.expected or len(self.nodes) > 1

    def limit_ahead(self) -> None:
        """Let agents have only jobs that they can begin soon, so that others can be cancelled here."""
        self._is_limited = True
        self._look()

    def _look(self) -> None:
        self._looked_at = self.loop.time()
        for node in [*self.nodes.values()]:
            self._refill(node)

    def _refill(self, node: Node) -> None:
        """Give an agent the jobs that it may have now."""
        node.window.look(self.loop.time(), is_limited=self._are_limited)
        self.send(node, self.router.refill(node.number))

    def heard(self, node: Node) -> None:
        """Take note that an agent has said something."""
        if not node.gone:
            self._refill(node)
            node.flush()
        if self.closed or self._max_queued is not None:
            self.look()

    def on_closing(self, node: Node) -> None:
        """Hear that the only agent ends: it gets no more jobs, and finishes those that it has."""
        self.router.rest(node.number)
        if self.reconnects:
            return  # the others wait for the next one
        self.agent_closes = self.closed = True
        for job in [*self.registry.jobs.values()]:
            if self.node_of(job.id) is None:
                self.drop(job)
                self._fail_closed(job)

    def _fail_closed(self, job: PoolJob[Any]) -> None:
        """Fail a job that no agent will have."""
        error = PoolClosedError(f"{self.title} is closed")
        if job.crashes:
            error.__cause__ = crash_error(job, Delivery.STARTED)
        self.registry.fail(job, error)

    def _leave(self, node: Node) -> None:
        del self.nodes[node.number]
        node.carrier.abort()  # what is not sent by now is about jobs that are over
        node.leave()

    def lose(self, node: Node, why: Why = None) -> None:
        """Leave an agent that is gone, or of no use, and find what becomes of its jobs.

        Args:
            node: The agent.
            why: What is known of the reason, if it is not only silent, or its process gone.
        """
        if node.gone:
            return
        node.why = why
        reason = node.reason
        losses = {number: node.delivery_of(number) for number in node.jobs}
        self._leave(node)
        self.expected = self.on_lost() or self.expected
        pairs = self.router.lose(node.number)
        never = self.sessions.lost(node)
        self.figures.lost(node)
        names = Counter[str]()
        back: dict[int, JobTraits] = {}
        for number, delivery in losses.items():
            job = self.registry.jobs.get(number)
            if job is not None:
                names[job.title] += 1
                if self._goes_on(node, job, delivery):
                    back[number] = _traits_of(job)
        self._send_pairs([*pairs, *self.router.requeue(back)])
        if not self._has_agents:
            never = [*self.registry.jobs.values()]
        for job in never:
            self.drop(job)
            self.fail_lost(node, job, Delivery.NEVER_SENT)
        self.leases.worker_gone(node.number)
        self.look()
        if losses or not self.agent_closes:
            self.lost_nodes += 1
            extra = {
                "node": node.name,
                "reason": reason,
                "jobs": len(losses),
                "functions": list_functions(names),
                "begun": sum(each in _MAY_HAVE_BEGUN for each in losses.values()),
            }
            NamedLog(self.name, self.title).now(say.NODE_LOST, extra)

    def _goes_on(self, node: Node, job: PoolJob[Any], delivery: Delivery) -> bool:
        """Tell whether a job of a lost agent goes to another one; end it if not."""
        self.waits_no_more(job.id)
        again = self._has_agents and job.options.session is None
        if delivery in _MAY_HAVE_BEGUN:
            job.crashes += (_crash(node, job),)
            policy = job.attempt_policy
            again = again and policy.after_crash(CrashKind.CRASH, attempt=job.attempt)
            if again:
                self._lose_attempt(job, crash_error(job, delivery))
        elif delivery is Delivery.SENT:
            self.registry.unassign(job)
        if not again:
            self.fail_lost(node, job, delivery)
        return again

    def fail_lost(self, node: Node, job: PoolJob[Any], delivery: Delivery) -> None:
        """Fail a job whose agent is lost."""
        if delivery in _MAY_HAVE_BEGUN and isinstance(job, ChunkJob):
            job.assume_lost()  # no item is begun twice, and nobody knows which have begun
        error = NodeLostError(
            job_id=job.id,
            crashes=job.crashes or (_crash(node, job),),
            delivery=delivery,
            function=job.function.name,
            node=node.name,
            silence=self.loop.time() - node.carrier.heard_at,
            own_silence=node.carrier.own_silence,
            reason="" if node.why is None else node.reason,
        )
        if isinstance(node.why, Exception):
            error.__cause__ = node.why
        self.registry.fail(job, error)

    def give_up(self, why: str) -> None:
        """Lose all agents, and expect no other one: what has not begun fails for that, too."""
        self.expected = False
        for node in [*self.nodes.values()]:
            self.lose(node, why)
        for job in [*self.registry.jobs.values()]:
            self.drop(job)
            self.registry.fail(job, PoolClosedError(why))
        self.look()

    # What is asked of the agents.

    def no_agent(self) -> PoolClosedError:
        """Return the error of whoever comes too late."""
        return PoolClosedError(f"{self.title} is closed, or its agent is gone")

    def usual_nodes(self) -> list[Node]:
        """Return the agents.

        Raises:
            PoolClosedError: If there is none, or the client is closed.
        """
        if not self.nodes or self.closed:
            raise self.no_agent()
        return [*self.nodes.values()]

    def with_slot(self, slot: int) -> Node | None:
        """Return the agent whose worker may have that slot."""
        nodes = [*self.nodes.values()]
        return next((it for it in nodes if 0 <= slot - it.first_slot < SLOTS), None)

    def listen(self) -> None:
        """Have the agents tell of events."""
        self._listens = True
        for node in self.nodes.values():
            node.tell("events")

    # The end.

    def hold(self, hold: object) -> None:
        """Let *hold* keep the client open, unless it closes already."""
        if not self.closed:
            self._held.add(hold)

    def release(self, hold: object) -> None:
        """Let the client close, whatever is left of *hold*."""
        self._held.discard(hold)
        self.look()

    def look(self) -> None:
        """Wake those who wait for room, or until nothing is left to do."""
        self._changed.set()

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
        self.closed = True
        while self.registry.jobs or self._held:
            self._changed.clear()
            await self._changed.wait()

    def close(
        self, finish: Finish = Finish.NOTHING, timeout: float | None = 0.0
    ) -> None:
        """Give up every job and leave the agents; called as that of a local pool's engine."""
        del finish, timeout
        if self.left:
            return
        self.left = self.closed = True
        self._held.clear()
        self.registry.fail_all(
            PoolClosedError(f"{self.title} was left before the job was done")
        )
        for number in [*self._late]:
            self.waits_no_more(number)
        self.hub.end()  # a trace ends with the figures of the nodes
        self.figures.close()
        for node in [*self.nodes.values()]:
            self._leave(node)
        self.leases.worker_gone()
        self.look()


def _traits_of(job: PoolJob[Any]) -> JobTraits:
    """Return the traits of a job, by those of its function and the hash of its key."""
    traits, key = job.function.traits, job.options.key
    return traits if key is None else KeyedTraits(traits, key)


def _crash(node: Node, job: PoolJob[Any]) -> Crash:
    crash = Crash(
        slot=0,
        generation=node.number,
        pid=None,
        exit_code=None,
        signal=None,
        kind=CrashKind.CRASH,
        uptime=0.0,
        job_id=None,
        attempt=0,
        detail=f"its agent {node.name} is lost: {node.reason}",
        stderr_tail=(),
        next_step=NextStep.CLOSE,
    )
    return with_job(job, crash, ())


class _Lent:
    """A worker that an agent has lent, the calls that it has got, and those that wait for it."""

    def __init__(self, node: Node, worker: SessionWorker) -> None:
        self.node, self.worker = node, worker
        self.waiting: deque[PoolJob[Any]] = deque()
        self.sent: set[int] = set()


class ClientSessions:
    """The sessions of one client; it has the methods of a local pool's.

    The calls of a session wait with the client, in their order.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lent: dict[int, _Lent] = {}  # also those that were asked for

    async def take(
        self,
        worker: SessionWorker,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
    ) -> None:
        """Wait for a *worker*; see :meth:`asyncpool.Pool.worker`."""
        # The agent with the most workers to spare, as far as this client knows.
        node = min(self._client.usual_nodes(), key=self._share_taken)
        number = next(self._client.questions)
        self._client.hold(worker)
        self._lent[number] = _Lent(node, worker)
        try:
            slot, pid = await node.ask("session", number=number, timeout=timeout)
        except BaseException:
            del self._lent[number]
            self._client.release(worker)
            raise
        worker.session, worker.slot, worker.pid = number, node.first_slot + slot, pid

    def _share_taken(self, node: Node) -> float:
        lent = sum(one.node is node for one in self._lent.values())
        return lent / max(1, node.window.lanes)

    def check(self, worker: SessionWorker) -> None:
        """Check that a session still has its worker.

        Raises:
            WorkerGoneError: If it has not.
        """
        if worker.gone:
            raise worker.error()

    def enqueue(self, job: PoolJob[Any], session: int) -> None:
        """Let a call wait for its turn."""
        self._lent[session].waiting.append(job)
        self.go_on()

    def go_on(self) -> None:
        """Send the next calls: an agent is done with one, or has got its large parts."""
        for lent in self._lent.values():
            node = lent.node
            lent.sent &= node.calls
            # No call overtakes another one whose large parts are on their way.
            while (
                lent.waiting
                and len(lent.sent) < _AHEAD
                and lent.sent.isdisjoint(node.loading)
            ):
                job = lent.waiting.popleft()
                if not job.done():
                    lent.sent.add(job.id)
                    node.calls.add(job.id)
                    self._client.send(node, [job.id])

    def worker_gone(
        self, hold: object, crash: Crash | None, job: PoolJob[Any] | None = None
    ) -> None:
        """Note that the worker of a session is gone, and fail *job*, which it has not begun."""
        assert isinstance(hold, SessionWorker)
        hold.gone, hold.crash = True, crash or hold.crash
        if job is not None:
            # The call that ran has an error, too, which is the cause, and must be known first.
            loop = self._client.loop
            loop.call_soon(loop.call_soon, self._fail, job, hold)

    def _fail(self, job: PoolJob[Any], worker: SessionWorker) -> None:
        if isinstance(worker.cause, WorkerCrashedError):
            worker.crash = worker.cause.crashes[-1]  # which knows the call
        self._client.fail(job, worker.error())

    def lost(self, node: Node) -> list[PoolJob[Any]]:
        """Note that an agent is gone, and its workers with it; return calls that it has not got."""
        lost = [lent for lent in self._lent.values() if lent.node is node]
        calls = [job for lent in lost for job in lent.waiting if not job.done()]
        for lent in lost:
            lent.worker.gone = True
            lent.waiting.clear()
        return calls

    def give_back(self, session: int, *, fresh: bool) -> None:
        """Return the worker of *session* to its agent, or have it replaced by a *fresh* one."""
        node = self._lent.pop(session).node
        node.put(Message(Kind.LEAVE, session, options=int(fresh)))
        node.flush()


# Calls that every worker of all agents makes: also those of an agent that comes later.


class ClientBroadcasts(Broadcasts):
    """The broadcasts of one client.

    Args:
        client: The client.
        data: What calls may be, if the pool is data only.
    """

    _abroad = True

    def __init__(self, client: Client, data: DataOnly | None) -> None:
        super().__init__(client.threads, data)
        self._client = client
        self._preparing: set[asyncio.Task[None]] = set()

    def _targets(self) -> list[Node]:
        return self._client.usual_nodes()

    async def _results(self, broadcast: Broadcast) -> dict[int, Any]:
        answers, succeeded = broadcast.calls, False
        self._client.hold(broadcast)
        try:
            # Also for agents that join meanwhile.
            while waiting := [one for one in answers.values() if not one.done()]:
                await asyncio.wait(waiting)
            results = await self._read(broadcast, _found(answers))
            # An agent that comes later has no time of its caller's.
            broadcast.options = replace(
                broadcast.options, queue_timeout=None, deadline=None
            )
            succeeded = True
            return results
        finally:
            self._end(broadcast, remember=succeeded)
            self._client.release(broadcast)
            if not succeeded:
                for answer in answers.values():
                    answer.cancel()

    def _call(self, target: Node, broadcast: Broadcast) -> asyncio.Task[Any]:
        """Ask an agent, after all that it was asked before."""
        options = write_options(broadcast.options, self._client.loop.time())
        question = target.ask(
            "broadcast", broadcast.payload, name=broadcast.name, options=options
        )
        task = self._client.loop.create_task(question, name="asyncpool broadcast")
        task.add_done_callback(error_of)  # the caller may be cancelled
        return task

    def _read(
        self, broadcast: Broadcast, answers: list[tuple[int, object]]
    ) -> asyncio.Future[dict[int, Any]]:
        next_id = self._client.registry.next_id
        return self._threads.pickle(
            read_broadcast, broadcast, answers, next_id, unwanted=lambda: False
        )

    def give_up(self) -> None:
        """Take back those that are under way: their callers get a ``PoolClosedError``."""
        for broadcast in self.open:
            for answer in broadcast.calls.values():
                answer.cancel()

    # Agents that come later.

    def on_join(self, node: Node) -> bool:
        """Hear of another agent; return whether it may have jobs at once.

        Else its workers have calls to make first.
        """
        asked = {call: self._call(node, call) for call in self.remembered}
        for call in self.open:
            call.calls[node] = self._call(node, call)
        under_way = [call.calls[node] for call in self.open]
        if not asked and not under_way:
            return True
        task = self._client.loop.create_task(
            self._prepare(node, asked, under_way), name="asyncpool start of an agent"
        )
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return False

    async def _prepare(
        self,
        node: Node,
        asked: dict[Broadcast, asyncio.Task[Any]],
        under_way: list[asyncio.Future[Any]],
    ) -> None:
        await asyncio.wait([*under_way, *asked.values()])
        try:
            # The callers of those that are under way hear of their errors.
            for call, answer in asked.items():
                await self._read(call, [(node.first_slot, answer.result())])
        except PoolClosedError:
            return  # the agent is lost, or the client is closed
        except AsyncPoolError as error:
            self._client.lose(node, error)
        else:
            self._client.ready(node)


def _found(answers: Mapping[Node, asyncio.Future[Any]]) -> list[tuple[int, object]]:
    """Return the answers of the agents that are not lost, each with their first slot.

    Raises:
        PoolClosedError: If all are lost, or the question was taken back.
        AsyncPoolError: That of an agent that has refused the call.
    """
    found: list[tuple[int, object]] = []
    lost: AsyncPoolError | None = None
    for node, task in answers.items():
        if task.cancelled():
            raise PoolClosedError
        error = task.exception()
        if error is None:
            found.append((node.first_slot, task.result()))
        elif isinstance(error, PoolClosedError):
            lost = error
        else:
            raise error
    if lost is not None and not found:
        raise lost
    return found


def read_broadcast(
    broadcast: Broadcast,
    answers: list[tuple[int, object]],
    next_id: Callable[[], int],
    pause: Callable[[], None] | None = None,
) -> dict[int, Any]:
    """Return the result of each worker, by slot; a thread does it.

    Args:
        broadcast: The broadcast.
        answers: Those of the agents, each with the first slot of that.
        next_id: Returns the number of a job of the client.  Agents have numbers of their own.
        pause: Called now and then.

    Raises:
        BroadcastError: If some of the calls have failed.
        ProtocolError: If an answer is none.
    """
    load_value = broadcast.serializer.load_value
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    for first, answer in answers:
        match answer:
            case (dict() as results, dict() as errors):
                for slot, it in results.items():
                    values[first + slot] = load_value(load_parts(it), pause)
                for slot, it in errors.items():
                    failed[first + slot] = _read_error(broadcast, it, next_id, pause)
            case _:
                raise ProtocolError(
                    f"an agent answered a broadcast by {kind_of(answer)}"
                )
    if failed:
        raise BroadcastError(broadcast.name, results=values, errors=failed)
    return values


def _read_error(
    broadcast: Broadcast,
    found: object,
    next_id: Callable[[], int],
    pause: Callable[[], None] | None,
) -> BaseException:
    """Return the error of a call that has no job at the client.

    The agent has not read what a function has raised, and knows a deadline by its own clock.
    """
    name = broadcast.name
    match found:
        case bytes():
            error = broadcast.serializer.load_error(found, pause)
            if isinstance(error, JobError):
                attribute_by_number(error, next_id(), 1, name)
            return error
        case JobTimeoutError():
            seconds = _limit_of(broadcast.options, found.limit)
            return JobTimeoutError(
                job_id=next_id(),
                attempt=found.attempt,
                limit=found.limit,
                seconds=seconds,
                stack=found.stack,
                function=name,
            )
        case WorkerCrashedError():
            number = next_id()
            crashes = tuple(
                replace(crash, job_id=number, attempt=1, function=name)
                for crash in found.crashes
            )
            return type(found)(
                job_id=number, crashes=crashes, delivery=found.delivery, function=name
            )
        case AsyncPoolError():
            return found
        case _:
            raise ProtocolError(f"an agent sent {kind_of(found)} as an error")


def _limit_of(options: JobOptions, limit: object) -> float:
    seconds = getattr(options, limit) if isinstance(limit, TimeLimit) else None
    if seconds is None:
        raise ProtocolError("an agent sent a time limit that was not set")
    found: float = seconds
    return found
