"""How the jobs of clients get to the agent's pool, and their outcomes back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from asyncpool._core.base.run_times import SessionProfile
from asyncpool._core.pickling.functions import Function
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, ReceivedPickle
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.remote.own_objects import pack_own
from asyncpool._core.remote.remote_messages import (
    PLAIN,
    Kind,
    Message,
    pack_parts,
    split_parts,
)
from asyncpool._core.wire.heartbeat_records import Beat
from asyncpool._runtime.agent.client_keeper import ClientKeeper
from asyncpool._runtime.job.job import Job, StreamJob
from asyncpool._runtime.pool.sessions import SessionWorker
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool._runtime.remote.lent_memory import LentMemory
from asyncpool._runtime.remote.packed_calls import PackedError, PackedFunctions
from asyncpool.errors import AsyncPoolError, JobNotPicklableError


class Call(NamedTuple):
    """A job that the pool has not got.

    Attributes:
        function: Its function.
        options: Its options.
        message: The client's message.
        details: The last heartbeat of an earlier attempt.
        payload: The call, as the client has packed it; ``None`` if it cannot be had here.
    """

    function: Function
    options: JobOptions
    message: Message
    details: bytes
    payload: bytes | OutOfBandPickle | None


class RelayClient(Protocol):
    """What the relay needs of a client of the agent."""

    jobs: dict[int, Job[Any]]
    workers: dict[int, SessionWorker]
    keeper: ClientKeeper
    lent: LentMemory | None

    def put(self, message: Message) -> None:
        """Have a message sent."""
        ...

    def put_news(self, message: Message) -> None:
        """Have a message sent that the client can do without."""
        ...

    def push(self) -> None:
        """Send what was put, now."""
        ...

    def ended(self, message: Message) -> None:
        """Tell how a job has ended."""
        ...


class Relay:
    """Brings the jobs of all clients of an agent to its pool.

    Args:
        supervisor: What runs the pool.
        functions: The functions of the clients.
        clients: The clients.

    Attributes:
        functions: As above.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        functions: PackedFunctions,
        clients: Mapping[int, RelayClient],
    ) -> None:
        self._supervisor = supervisor
        self._clients = clients
        self.functions = functions
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        # Whose jobs the pool's numbers stand for, of jobs that send heartbeats.
        self._owners: dict[Job[Any], tuple[RelayClient, int]] = {}

    def submit(self, client: RelayClient, call: Call) -> None:
        """Give a job to the pool."""
        number = call.message.job
        try:
            job = self._submit(client, call)
        except AsyncPoolError as error:
            client.ended(Message(Kind.FAILED, number, payload=pack_own(error)))
            return
        client.jobs[number] = job
        if isinstance(job, StreamJob):
            self._spawn(self._pass_items(client, number, job), "asyncpool stream")
        else:
            job.add_done_callback(partial(self._on_done, client, number))

    def _submit(self, client: RelayClient, call: Call) -> Job[Any]:
        function, message = cast("Any", call.function), call.message
        options = _limited(call, self._loop.time())
        payload = _call_of(call)
        if options.bound is not None:
            worker = client.workers[options.bound.session]
            return self._supervisor.sessions.call(
                worker, function, (payload,), {}, replace(options, bound=None)
            )
        submit: Callable[[], Job[Any]] = partial(
            self._supervisor.traffic.submit, function, (payload,), {}, options
        )
        if options.lease is None:
            return submit()
        return self._supervisor.leases.submit((client.keeper, message.job), submit)

    # What comes of them.

    def _on_done(
        self, client: RelayClient, number: int, job: asyncio.Future[Any]
    ) -> None:
        if self._owners:
            self._owners.pop(cast("Job[Any]", job), None)
        value = None if job.cancelled() or job.exception() else job.result()
        if client.lent is None or type(value) is not ReceivedPickle:
            client.ended(_end_of(number, job))
            return
        packed = OutOfBandPickle([value.stream], value.buffers)
        payload = client.lent.lend_at_once(packed)
        if payload is None:
            self._spawn(self._lend(client, number, packed), "asyncpool large result")
        else:
            client.ended(Message(Kind.VALUE, number, payload=payload))

    async def _lend(
        self, client: RelayClient, number: int, packed: OutOfBandPickle
    ) -> None:
        payload = await _lent(client, number, packed)
        client.ended(Message(Kind.VALUE, number, payload=payload))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_items(
        self, client: RelayClient, number: int, job: StreamJob
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
        self._on_done(client, number, job)

    def on_heartbeat(self, job: Job[Any], beat: Beat) -> None:
        """Pass a heartbeat on, if it is that of a client's job."""
        if job._options.codec is not self.functions:
            return
        owner = self._owners.get(job) or self._owner_of(job)
        if owner is not None:
            client, number = self._owners[job] = owner
            client.put_news(Message(Kind.HEARTBEAT, number, payload=beat.details))

    def _owner_of(self, job: Job[Any]) -> tuple[RelayClient, int] | None:
        # Few jobs send heartbeats, and the pool has few jobs of each client.
        for client in self._clients.values():
            for number, other in client.jobs.items():
                if other is job:
                    return client, number
        return None

    # Workers that belong to a client.

    @staticmethod
    def bound(session: int | None) -> SessionProfile | None:
        """Return what marks a call of that session."""
        return None if session is None else SessionProfile(session)

    def leave(self, worker: SessionWorker, *, fresh: bool, failed: bool) -> None:
        """Give a worker back to the pool when its calls are done, or at once."""
        leaving = self._supervisor.sessions.leave(worker, fresh=fresh, failed=failed)
        self._spawn(leaving, "asyncpool end of a session")


def _end_of(number: int, job: asyncio.Future[Any]) -> Message:
    """Return what tells the client how its job has ended."""
    if job.cancelled():
        return Message(Kind.DROPPED, number)
    error = job.exception()
    if error is None:
        return Message(Kind.VALUE, number, payload=pack_parts(job.result()))
    if isinstance(error, PackedError):
        return Message(Kind.ERROR, number, payload=error.payload)
    return Message(Kind.FAILED, number, payload=pack_own(error))


def _call_of(call: Call) -> bytes | OutOfBandPickle:
    """Return a call as the pool takes it.

    Raises:
        JobNotPicklableError: If it cannot be had here.
        ProtocolError: If it is none.
    """
    payload = call.payload
    if payload is None:
        raise JobNotPicklableError(
            "the call is in memory that the agent cannot map: it may open no more files, or has "
            "too many mappings",
            direction="arguments",
            name="the call",
        )
    if isinstance(payload, OutOfBandPickle):
        return payload
    if payload.startswith(PLAIN):
        return payload[len(PLAIN) :]
    stream, buffers = split_parts(payload)
    packed = OutOfBandPickle([stream], buffers)
    return packed.payload if packed.is_light else packed


async def _lent(client: RelayClient, number: int, packed: OutOfBandPickle) -> bytes:
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
    limits = options.limits
    if message.deadline < math.inf:
        limits = replace(limits, deadline=now + message.deadline)
    if message.wait < math.inf:
        limits = replace(limits, queue_timeout=message.wait)
    if call.details:
        limits = limits.with_details(call.details)
    if limits is options.limits and not message.begun:
        return options
    return replace(options, limits=limits, begun=message.begun)
