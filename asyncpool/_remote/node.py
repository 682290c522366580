"""An agent, as its client knows it: what goes there, and what it says."""

from __future__ import annotations

import asyncio
import json
import math
from time import monotonic
from typing import TYPE_CHECKING, Any

from asyncpool._core.functions import Function
from asyncpool._core.options import JobOptions
from asyncpool._engine.hub import Attempt
from asyncpool._engine.job import ChunkJob, PoolJob, StreamJob
from asyncpool._remote import objects
from asyncpool._remote.carrier import Carrier, Connection, Why
from asyncpool._remote.messages import (
    PLAIN,
    Kind,
    Message,
    load_parts,
    pack_batches,
    pack_head,
    pack_headers,
    pack_question,
    unpack_batch,
    write_options,
)
from asyncpool._remote.objects import kind_of, load_own
from asyncpool._remote.router import MAX_CREDITS, Window
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import (
    MOST_REMEMBERED,
    FunctionCache,
    JobContext,
    unpack_numbers,
)
from asyncpool._wire.page import Beat
from asyncpool.enums import Delivery
from asyncpool.errors import AsyncPoolError, PoolClosedError, ProtocolError
from asyncpool.events import Event

if TYPE_CHECKING:
    from asyncpool._remote.client import Client

# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000

# Functions that travel with each call, and those that stand for others as that of a map's chunks
# does, have numbers from here on, made of their names.
_NAMES = 1 << 31

_MISTAKES: dict[str, type[Exception]] = {
    it.__name__: it for it in (ValueError, TypeError, TimeoutError)
}

_KINDS = {it: FrameKind[it.name] for it in (Kind.VALUE, Kind.ERROR, Kind.ITEM)}


class Node(Connection):
    """One agent of a client.

    Args:
        client: The client.
        number: Its number there.
        carrier: Brings batches to it.
        about: What the agent has told about itself.

    Attributes:
        number: As above.
        carrier: As above.
        name: What it is called.
        first_slot: What is added to the slots of its workers, so that no other agent has them.
        fresh: Whether each job has a new worker.
        counts_jobs: Whether a worker begins a limited number of jobs.
        window: The jobs that it has, but for calls of sessions.
        calls: Those calls.
        told: The jobs of which it has told that they wait (false) or begin.
        loading: The jobs that it is about to get, when their large parts are there.
        stamp: Its newest time that came, in microseconds.
        gone: Whether it is lost, or left.
        why: What is known of the reason, if it is not only silent, or its process gone.
    """

    def __init__(
        self, client: Client, number: int, carrier: Carrier, about: dict[str, Any]
    ) -> None:
        super().__init__(carrier, "an agent")
        self.number, self.name = number, about["node"]
        self.first_slot = (number - 1) * SLOTS
        self.fresh, self.counts_jobs = about["fresh"], about["counts_jobs"]
        self.window = Window(min(about["credits"], MAX_CREDITS), about["lanes"])
        self.calls: set[int] = set()
        self.told: dict[int, bool] = {}
        self.loading: dict[int, asyncio.Task[None]] = {}
        self.gone = False
        self.why: Why = None
        self._client, self._registry = client, client.registry
        self._hub, self._loop = client.hub, client.loop
        self.stamp, self._stamp_at = about["stamp"], self._loop.time()
        self._questions: dict[int, asyncio.Future[Any]] = {}
        # The agent forgets the oldest of these by the same rule.
        self._functions = FunctionCache()
        self._options: dict[bytes, int] = {}
        self._last_options = 0
        # Many jobs have the same object, and to write it down takes 10 us.
        self._written: dict[int, tuple[JobOptions, int]] = {}
        # The context of the last job that was looked at for a trace, and the trace that holds now.
        self._context = self._trace = b""

    @property
    def suspected(self) -> bool:
        """Whether it has been silent for a third of the time after which it is lost."""
        return self._loop.time() - self.carrier.heard_at > self.carrier.patience / 3

    @property
    def jobs(self) -> list[int]:
        """The jobs that it has, or is about to get."""
        return [*self.window.jobs, *self.calls]

    def has(self, job: int) -> bool:
        """Tell whether it has *job*, or is about to get it."""
        return job in self.window.jobs or job in self.calls

    def delivery_of(self, job: int) -> Delivery:
        """Tell how far *job*, which is one of those, has got, now that the agent is lost."""
        if job in self.loading:
            return Delivery.NEVER_SENT
        begun = self.told.get(job)
        if begun:
            return Delivery.STARTED
        # It may have said since that the job begins, and nobody has heard it.
        if begun is None or not self.carrier.certain:
            return Delivery.UNKNOWN
        return Delivery.SENT

    @property
    def reason(self) -> str:
        """Why it was given up, for people."""
        if self.why is not None:
            return str(self.why).partition("\n")[0]  # Ray's go on for many lines
        if own := self.carrier.own_silence:
            return f"it is gone, or has given this client up, which was silent for {own:.1f} s"
        silent = self._loop.time() - self.carrier.heard_at
        return f"it is gone, or silent: it was heard last {silent:.1f} s before"

    # What goes there.

    def flush(self) -> None:
        """Send what was put."""
        if self._put:
            messages, self._put = self._put, []
            for batch in pack_batches(messages):
                self.carrier.send(batch)

    def send(self, job: PoolJob[Any]) -> None:
        """Have the agent get a job with the next batch, or when its large parts are there."""
        payload = job.payload
        if type(payload) is bytes:
            self._put_job(job, PLAIN + payload)
            return
        if isinstance(payload, OutOfBandPickle):
            packed = self.carrier.pack_at_once(payload)
            if packed is not None:
                self._put_job(job, packed)
                self._client.go_on()
                return
        self.loading[job.id] = self._loop.create_task(
            self._load(job, payload), name="asyncpool large call"
        )

    async def _load(self, job: PoolJob[Any], payload: Any) -> None:
        """Bring the large parts of a call to the agent, and then have it get the job."""
        number = job.id
        if isinstance(payload, OutOfBandPickle):
            packed = await self.carrier.pack(payload, lambda: number in self.loading)
        else:  # it has arguments in a store, and is a RayCall
            try:
                packed = await payload.bring(self.carrier, self.name, job)
            except AsyncPoolError as error:
                if self.loading.pop(number, None) is not None:
                    self._client.on_unloaded(self, job, error)
                return
        if self.loading.pop(number, None) is None:
            if not self.gone:  # nobody wants it any more, and the agent may keep it
                self.put(Message(Kind.CANCEL, number))
                self._client.flush_soon()
        else:
            self._put_job(job, packed)
            self._client.on_loaded()

    def cancel(self, job: int) -> bool:
        """Tell the agent that nobody wants *job*; return true if it has not heard of it."""
        if self.loading.pop(job, None) is not None:
            return True
        self.put(Message(Kind.CANCEL, job))
        return False

    def _put_job(self, job: PoolJob[Any], payload: bytes) -> None:
        hub, options = self._hub, job.options
        followed = hub.job_listeners or job.id in hub.traced
        limit, wait = options.queue_timeout, math.inf
        if limit is not None and not job.attempt:  # it waits for its first attempt
            wait = max(1e-3, limit - (monotonic() - job.queued_at))
        job.begin_attempt(self.number)  # it may begin from now on
        if hub.traced:
            hub.sending(job, self.first_slot)
        if hub.tracers or self._trace:
            self._tell_trace(job.context)
        function = self._tell_function(job.function, renamed=bool(options.name))
        told = self._tell_options(options)
        if job.attempt > 1 and job.heartbeats is not None:
            details = JobContext.unpack(job.context).details
            self.put(Message(Kind.DETAILS, job.id, payload=details))
        left = math.inf
        if options.deadline is not None:
            left = options.deadline - self._loop.time()
        # The same as Message(...).pack(), in half of the time.
        kind = Kind.FOLLOWED if followed else Kind.JOB
        begun, urgency = job.attempt - 1, options.priority
        head = pack_head(kind, job.id, function, told, begun, urgency, left, wait, 0)
        self._put.append(head + payload)
        if self._registry.leases.holders:
            self._registry.leases.before_sending(job, self.number)

    def _tell_trace(self, context: bytes) -> None:
        if context == self._context:
            return  # as for nearly all jobs
        self._context = context
        trace = JobContext.unpack(context).trace
        if trace != self._trace:
            self._trace = trace
            self.put(Message(Kind.TRACE, payload=pack_headers(trace)))

    def _tell_function(self, function: Function, *, renamed: bool) -> int:
        number = function.number
        if renamed or not number:
            number = _NAMES + hash((number, function.name)) % (_NAMES >> 1)
        if number not in self._functions:
            self._functions.add(number)
            payload = function.name.encode() + b"\0" + function.payload
            self.put(Message(Kind.FUNCTION, function=number, payload=payload))
        return number

    def _tell_options(self, options: JobOptions) -> int:
        found = self._written.get(id(options))
        if found is not None:
            return found[1]
        text = json.dumps(write_options(options)).encode()
        number = self._options.get(text)
        if number is None:
            if len(self._options) >= MOST_REMEMBERED:
                del self._options[next(iter(self._options))]
                self._written.clear()
            self._last_options += 1
            number = self._options[text] = self._last_options
            self.put(Message(Kind.OPTIONS, options=number, payload=text))
        if len(self._written) >= MOST_REMEMBERED:
            self._written.clear()
        self._written[id(options)] = options, number
        return number

    def fence(self, job: PoolJob[Any], until: float) -> None:
        """Tell the agent until when it may run *job*, whose lease lapses then.

        The time is told from the agent's newest time on, which is older than this word, however
        long that is on its way.
        """
        left = until - self._stamp_at
        fence = Message(Kind.FENCE, job.id, priority=self.stamp, deadline=left)
        self.put(fence)
        self._client.flush_soon()

    # Questions.

    def tell(self, what: str) -> None:
        """Ask the agent something whose answer nobody waits for."""
        number = next(self._client.questions)
        self.put(Message(Kind.ASK, number, payload=pack_question(what, b"", {})))
        self._client.flush_soon()

    async def ask(
        self, what: str, payload: bytes = b"", *, number: int = 0, **details: Any
    ) -> Any:
        """Ask the agent, and return its answer.

        Raises:
            AsyncPoolError: What the agent's pool has raised; a PoolClosedError if it is lost.
            ValueError: If the agent has found the question wrong; or TypeError, TimeoutError.

        Cancellation:
            Takes the question back.
        """
        if self.gone:
            raise self._is_gone()
        number = number or next(self._client.questions)
        answer = self._questions[number] = self._loop.create_future()
        question = pack_question(what, payload, details)
        self.put(Message(Kind.ASK, number, payload=question))
        self._client.flush_soon()
        try:
            await asyncio.wait([answer])
        finally:
            del self._questions[number]
            if not answer.done():
                self.put(Message(Kind.FORGET, number))
                self._client.flush_soon()
            else:
                answer.exception()  # marks it as retrieved, if the caller was cancelled
        match answer.result():
            case (True, found):
                return found
            case (False, AsyncPoolError() as error):
                raise error
            case (False, (str(name), str(text))):
                raise _MISTAKES.get(name, ValueError)(text)
            case other:
                raise ProtocolError(f"an agent answered by {kind_of(other)}")

    def _is_gone(self) -> PoolClosedError:
        return PoolClosedError(f"the agent {self.name} is gone")

    def leave(self) -> None:
        """Say and hear nothing more."""
        self.gone = True
        self.loading.clear()
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(self._is_gone())

    # What it says.

    def hear(self, data: bytes) -> None:
        """Hear a batch."""
        if self.gone:
            return
        try:
            self.stamp, messages = unpack_batch(data)
            self._stamp_at = self.carrier.heard_at
            self._hear(messages)
        except ProtocolError as error:
            self._client.lose(self, error)
            return
        self._client.heard(self)

    def _own(self, message: Message) -> PoolJob[Any] | None:
        """Return the job of a message, if it is open and this agent has it."""
        job = self._registry.jobs.get(message.job)
        return job if job is not None and self.has(job.id) else None

    def _hear_end(self, message: Message) -> None:
        number = message.job
        if number in self.loading:
            return
        if number in self.window.jobs:
            self.window.note_end(number)
        elif number in self.calls:
            self.calls.discard(number)
            self._client.sessions.go_on()
        else:
            return
        self.told.pop(number, None)
        job = self._registry.jobs.get(number)
        if job is None:
            return  # its caller has given it up
        self._client.waits_no_more(number)
        try:
            self._note_attempt(job, message)
            found: object = None
            if message.kind is Kind.FAILED:
                found = load_own(message.payload, self.first_slot)
            elif message.kind in _KINDS and message.payload is not None:
                found = _frame_of(job, message)
            self._client.on_end(job, message.kind, found)
        except BaseException as error:
            # The agent is lost for that, and its jobs with it, of which this is none any more.
            if not job.done():
                self.why = error if isinstance(error, Exception) else None
                self._client.fail_lost(self, job, Delivery.STARTED)
            if isinstance(error, ProtocolError) or not isinstance(error, Exception):
                raise
            # An error of asyncpool's own may have attributes that no agent gives it.
            raise ProtocolError(f"the end of {job!r} cannot be read") from error

    _hear_value = _hear_error = _hear_failed = _hear_dropped = _hear_end

    def _note_attempt(self, job: PoolJob[Any], message: Message) -> None:
        """Note where and when a job ran that has ended, if somebody wants to know.

        It did not begin before the job waited for it, whatever the agent says.
        """
        hub = self._hub
        if message.place and (hub.job_listeners or hub.tracers):
            ago, run, slot = message.deadline, message.wait, message.place - 1
            if not (0.0 <= ago < math.inf and 0.0 <= run < math.inf and slot < SLOTS):
                text = f"an agent said that {job!r} ran for {run} s in {slot}"
                raise ProtocolError(text)
            began = max(job.queued_at, self._loop.time() - ago - run)
            slot += self.first_slot
            hub.attempted(job, Attempt(slot, job.queued_at, began, run))
        elif hub.job_listeners and message.kind in {Kind.VALUE, Kind.ERROR}:
            # It was on its way before anybody listened.
            hub.running([job], self.first_slot, self._loop.time())

    def _hear_waits(self, message: Message) -> None:
        for number in unpack_numbers(message.payload):
            if self.has(number):
                self.told[number] = False

    def _hear_began(self, message: Message) -> None:
        now = self._loop.time()
        for number in unpack_numbers(message.payload):
            if not self.has(number):
                continue
            self.told[number] = True
            self._client.waits_no_more(number)
            job = self._registry.jobs.get(number)
            if job is not None and self._hub.job_listeners:
                # Its end tells which slot of the node it is in.
                self._hub.running([job], self.first_slot, now)

    def _hear_item(self, message: Message) -> None:
        job = self._own(message)
        if job is None:
            return
        if not isinstance(job, StreamJob):
            raise ProtocolError(f"an agent sent an item of {job!r}")
        job.receive(_frame_of(job, message))

    def _hear_heartbeat(self, message: Message) -> None:
        job = self._own(message)
        if job is not None and not job.done():
            log, now = job.listen(), self._loop.time()
            beat = Beat(log.heard + 1, job.id, job.attempt, now, message.payload)
            log.add(beat, now)

    def _hear_answer(self, message: Message) -> None:
        answer = self._questions.get(message.job)
        if answer is not None and not answer.done():
            answer.set_result(load_own(message.payload, self.first_slot))

    def _hear_free(self, message: Message) -> None:
        self._registry.leases.left_worker(message.job)

    def _hear_closing(self, _: Message) -> None:
        self._client.on_closing(self)

    def _hear_lanes(self, message: Message) -> None:
        if message.priority < 1:
            raise ProtocolError(f"an agent said that it has {message.priority} lanes")
        self.window.lanes = message.priority

    def _hear_found(self, message: Message) -> None:
        job = self._own(message)
        if job is None:
            return
        if not isinstance(job, ChunkJob):
            raise ProtocolError(f"an agent told which items of {job!r} are done")
        objects.find(job, message.payload)

    def _hear_event(self, message: Message) -> None:
        event: Any = load_own(message.payload, self.first_slot)
        if not isinstance(event, Event):
            raise ProtocolError(f"an agent told of {kind_of(event)} as an event")
        self._hub.publish(event)


def _frame_of(job: PoolJob[Any], message: Message) -> Frame:
    """Return what a local worker would have sent.

    Raises:
        ProtocolError: If its parts do not fit together.
    """
    payload: bytes | ReceivedPickle = message.payload
    if message.kind is Kind.ERROR or not isinstance(payload, bytes):
        pass
    elif payload.startswith(PLAIN):
        payload = payload[len(PLAIN) :]
    else:
        payload = load_parts(payload)
    return Frame(_KINDS[message.kind], job.id, job.attempt, 0, payload)
