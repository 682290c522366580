"""How the jobs of clients get to the agent's pool, and their outcomes back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from asyncpool._core.functions import STREAM_TRAITS, Function, JobTraits
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.engine import Engine
from asyncpool._engine.hub import Attempt, PoolHub
from asyncpool._engine.job import Chunk, PoolJob, StreamJob
from asyncpool._engine.sessions import SessionWorker
from asyncpool._remote.messages import (
    PLAIN,
    Kind,
    Message,
    pack_end,
    pack_followed_end,
    pack_parts,
    split_parts,
)
from asyncpool._remote.objects import pack_log, pack_own, pack_result
from asyncpool._remote.stored_calls import PackedError, PackedFunctions, StoredPayloads
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.messages import with_parts
from asyncpool._wire.page import Beat
from asyncpool.enums import JobOutcome
from asyncpool.errors import AsyncPoolError, JobNotPicklableError
from asyncpool.events import Via

if TYPE_CHECKING:
    from asyncpool._engine.page import WorkerPage
    from asyncpool._remote.agent_client import AgentClient


class RelayedJob(PoolJob[Any]):
    """Tells of its end in the step that ends it.

    A callback of the future would come in the next turn of the loop.  That is 20 us more for a
    call that is awaited, and 2 us of CPU time for each of many.

    Attributes:
        client: The agent's client that it belongs to.
        number: The client's number of it.
        relay: Hears of its end, once it is set.
    """

    # They are set when the pool has taken the job: to set them before costs 0.4 us for each.
    __slots__ = ("client", "number", "relay")

    client: Any
    number: int
    relay: Relay

    @property
    def _awaited(self) -> bool:
        """Its client waits for it."""
        return True

    def set_result(self, result: Any, /) -> None:
        """End with a result."""
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """End with an error."""
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        """End without either."""
        if not super().cancel(msg):
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        relay = getattr(self, "relay", None)
        if relay is not None:
            relay.on_end(self)


class RelayedChunk(Chunk, RelayedJob):
    """A chunk of a client's map.

    Attributes:
        found: What tells the client which items are done; ``None`` if it has not begun.
    """

    __slots__ = ("found", "rounds")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: bytes | None = None
        self.rounds = 0

    def salvage(self, page: WorkerPage) -> bool:
        """Find what its worker has noted; return whether it has begun with its first item."""
        log = page.copy_log(self.id, self.attempt)
        self.found = None if log is None else pack_log(log)
        return log is not None

    def find_in_result(self, result: Any) -> None:
        """Find it in a result that came after the time was over."""
        self.found = pack_result(result)

    def assume_lost(self) -> None:
        """Take it that each item may have begun."""
        self.found = b""


class FollowedJobs:
    """Follows jobs from the moment when the pool has taken them; a :class:`JobTracer`.

    Args:
        hub: That of the pool.

    Attributes:
        trace: The trace context of the job that the pool is about to take, or nothing.
    """

    def __init__(self, hub: PoolHub) -> None:
        self._hub = hub
        self._traces = False
        self.trace = b""
        # The last packed context that got a trace, that trace, and both together: many are equal.
        self._traced = (b"", b"", b"")
        self._attempts: dict[int, Attempt] = {}  # of jobs that end in this very step

    def follow(self, job: PoolJob[Any]) -> None:
        """Follow a job that has just come."""
        if job.done():
            return
        self._begin()
        self._hub.trace(job.id)

    def hand_on(self, trace: bytes) -> None:
        """Have the job that the pool takes next get a trace context."""
        self._begin()
        self.trace = trace

    def _begin(self) -> None:
        if not self._traces:
            # For good: to look at every job costs 60 ns, and only agents that are followed do.
            self._hub.add_tracer(self)
            self._traces = True

    def pack_end(self, kind: Kind, number: int, payload: bytes, job: int = 0) -> bytes:
        """Return what tells a client of the end of its job.

        Args:
            kind: How it ended.
            number: The client's number of it.
            payload: What comes of it.
            job: The pool's number of it.
        """
        if not self._attempts:
            return pack_end(kind, number, payload)
        attempt = self._attempts.pop(job, None)
        if attempt is None:
            return pack_end(kind, number, payload)
        slot, _, began, known = attempt
        run = monotonic() - began if known is None else known
        return pack_followed_end(
            kind, number, payload, slot=slot, began=began, run=max(0.0, run)
        )

    # What the pool tells.

    def queued(self, job: Any, /) -> None:
        """Give a job the trace context that has come with it."""
        trace, context = self.trace, job.context
        if not trace:
            return
        if self._traced[:2] != (context, trace):
            self._traced = context, trace, with_parts(context, trace=trace)
        job.context = self._traced[2]

    def sending(self, job: Any, slot: int, /) -> None:
        """Do nothing: the end tells it."""

    def given_back(self, job: Any, /) -> None:
        """Do nothing: the job waits again."""

    def attempt_failed(self, job: Any, error: BaseException, attempt: Any, /) -> None:
        """Do nothing: the client decides about attempts."""

    def ended(
        self,
        job: Any,
        _outcome: JobOutcome,
        _error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Note the last attempt of a job, whose end is told next."""
        # Of one that its client has cancelled the end is told already.
        if attempt is not None and job.id in self._hub.traced and not job.done():
            self._attempts[job.id] = attempt


_PLAIN_SIZE = len(PLAIN)
_NO_KWARGS: dict[str, Any] = {}
_EVER = math.inf

# The class of jobs for each way to call a function that a client may choose.
JOB_TYPES: dict[Via, type[PoolJob[Any]]] = {
    "submit": RelayedJob,
    "map": RelayedChunk,
    "stream": StreamJob,
}


# A call as its client has packed it; None if it cannot be had here.
Payload: TypeAlias = bytes | OutOfBandPickle | None


class Call(NamedTuple):
    """A job that the pool has not got.

    Attributes:
        function: Its function.
        options: Its options.
        message: The client's message.
        details: The last heartbeat of an earlier attempt.
        payload: The call itself.
        trace: Its trace context, or nothing.
    """

    function: Function
    options: JobOptions
    message: Message
    details: bytes
    payload: Payload
    trace: bytes = b""


class Relay:
    """Brings the jobs of all clients of an agent to its pool.

    Args:
        supervisor: What runs the pool.
        functions: The functions of the clients.
        stored: The calls that the engine brings, if it has a store.

    Attributes:
        functions: As above.
        stored: As above.
    """

    def __init__(
        self,
        supervisor: Engine,
        functions: PackedFunctions,
        stored: StoredPayloads | None = None,
    ) -> None:
        self.stored = stored
        self._supervisor = supervisor
        self._traffic = supervisor.traffic
        self.functions = functions
        functions.job_types = JOB_TYPES
        self._loop = asyncio.get_running_loop()
        self._followed = FollowedJobs(supervisor.hub)
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[PoolJob[Any], tuple[AgentClient, int]] = {}

    def submit(self, client: AgentClient, call: Call) -> None:
        """Give a job to the pool."""
        message = call.message
        number = message.job
        if call.trace:
            self._followed.hand_on(call.trace)
        try:
            job = self._submit(client, call)
        except AsyncPoolError as error:
            end = self._followed.pack_end(Kind.FAILED, number, pack_own(error))
            client.ended(number, end)
            return
        finally:
            self._followed.trace = b""
        client.jobs[number] = job
        if message.kind is Kind.FOLLOWED:
            self._followed.follow(job)
        if isinstance(job, RelayedJob):
            job.client, job.number, job.relay = client, number, self
            if job.done():
                self.on_end(job)
        else:
            assert isinstance(job, StreamJob)
            self._streams[job] = client, number
            self._spawn(self._pass_items(client, number, job), "asyncpool stream")

    def _submit(self, client: AgentClient, call: Call) -> PoolJob[Any]:
        function: Any = call.function
        options, message, payload = call.options, call.message, _call_of(call)
        if message.begun or call.details or min(message.deadline, message.wait) < _EVER:
            options = _limited(call, self._loop.time())
        if options.session is None and options.lease is None:
            return self._traffic.submit(function, (payload,), _NO_KWARGS, options)
        if options.session is not None:
            worker = client.workers[options.session.session]
            return worker.call(self._supervisor, (function, (payload,), {}), options)
        return self._supervisor.leases.submit(
            message.job, self._traffic.submit, function, (payload,), {}, options
        )

    # What comes of them.

    def on_end(self, job: RelayedJob) -> None:
        """Tell the client of a job how that has ended."""
        client: AgentClient = job.client
        number = job.number
        value = None if job.cancelled() or job.exception() else job.result()
        if type(value) is bytes:
            pack_end = self._followed.pack_end
            client.ended(number, pack_end(Kind.VALUE, number, PLAIN + value, job.id))
        elif type(value) is ReceivedPickle and client.lent is not None:
            self._on_large(client, job, value)
        else:
            if isinstance(job, RelayedChunk) and job.found is not None:
                client.put(Message(Kind.FOUND, number, payload=job.found))
            client.ended(number, self._end_of(number, job))

    def _on_large(
        self, client: AgentClient, job: RelayedJob, value: ReceivedPickle
    ) -> None:
        number = job.number
        assert client.lent is not None
        packed = OutOfBandPickle([value.stream], value.buffers)
        payload = client.lent.lend_at_once(packed)
        if payload is None:
            self._spawn(self._lend(client, job, packed), "asyncpool large result")
        else:
            end = self._followed.pack_end(Kind.VALUE, number, payload, job.id)
            client.ended(number, end)

    async def _lend(
        self, client: AgentClient, job: RelayedJob, packed: OutOfBandPickle
    ) -> None:
        number = job.number
        payload = await _lent(client, number, packed)
        end = self._followed.pack_end(Kind.VALUE, number, payload, job.id)
        client.ended(number, end)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_items(
        self, client: AgentClient, number: int, job: StreamJob
    ) -> None:
        """Send the items of a stream, and then its end."""
        while items := await job.pass_on():
            for frame in items:
                payload = frame.payload
                if isinstance(payload, ReceivedPickle):
                    packed = OutOfBandPickle([payload.stream], payload.buffers)
                    payload = await _lent(client, number, packed)
                else:
                    payload = pack_parts(payload)
                client.put(Message(Kind.ITEM, number, payload=payload))
            client.push()
        del self._streams[job]
        client.ended(number, self._end_of(number, job))

    def _end_of(self, number: int, job: PoolJob[Any]) -> bytes:
        """Return what tells the client how its job has ended."""
        kind, payload = _outcome_of(job)
        return self._followed.pack_end(kind, number, payload, job.id)

    def on_heartbeat(self, job: PoolJob[Any], beat: Beat) -> None:
        """Pass a heartbeat on, if it is that of a client's job."""
        if job.options.codec is not self.functions:
            return
        if job in self._streams:
            client, number = self._streams[job]
        elif isinstance(job, RelayedJob):
            client, number = job.client, job.number
        else:
            return  # that of a broadcast, which its client does not watch
        client.put_news(Message(Kind.HEARTBEAT, number, payload=beat.details))

    # Workers that belong to a client.

    def leave(self, worker: SessionWorker, *, fresh: bool, failed: bool) -> None:
        """Give a worker back to the pool when its calls are done, or at once."""
        leaving = worker.leave(self._supervisor, fresh=fresh, failed=failed)
        self._spawn(leaving, "asyncpool end of a session")


def traits_of(call: Call) -> JobTraits:
    """Return how long the function of *call* takes, as far as the pool knows."""
    return STREAM_TRAITS if call.options.via == "stream" else call.function.traits


def _outcome_of(job: PoolJob[Any]) -> tuple[Kind, bytes]:
    """Return how a job has ended, and what comes of it."""
    if job.cancelled():
        return Kind.DROPPED, b""
    error = job.exception()
    if error is None:
        return Kind.VALUE, pack_parts(job.result())
    if isinstance(error, PackedError):
        return Kind.ERROR, error.payload
    return Kind.FAILED, pack_own(error)


def _call_of(call: Call) -> bytes | OutOfBandPickle:
    """Return a call as the pool takes it.

    Raises:
        JobNotPicklableError: If it cannot be had here.
        ProtocolError: If it is none.
    """
    payload = call.payload
    if type(payload) is bytes and payload.startswith(PLAIN):
        return payload[_PLAIN_SIZE:]
    if payload is None:
        raise JobNotPicklableError(
            "the call is in memory that the agent cannot map: it may open no more files, or has "
            "too many mappings",
            direction="arguments",
            name="the call",
        )
    if isinstance(payload, OutOfBandPickle):
        return payload
    stream, buffers = split_parts(payload)
    packed = OutOfBandPickle([stream], buffers)
    return packed if packed.areas else packed.payload


async def _lent(client: AgentClient, number: int, packed: OutOfBandPickle) -> bytes:
    """Return what the client gets as a large value."""
    lent = client.lent
    if lent is not None:
        found = lent.lend_at_once(packed)
        found = found or await lent.lend(packed, lambda: number in client.jobs)
        if found is not None:
            return found
    return pack_parts(packed)


def _limited(call: Call, now: float) -> JobOptions:
    """Return the options of one job, with the limits that are its own, on this loop's clock."""
    options, message = call.options, call.message
    own: dict[str, Any] = {}
    if message.deadline < math.inf:
        own["deadline"] = now + message.deadline
    if message.wait < math.inf:
        own["queue_timeout"] = message.wait
    if call.details:
        own["details"] = call.details
    if message.begun:
        own["prior_attempts"] = message.begun
    return replace(options, **own) if own else options
