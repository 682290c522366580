"""One client of an agent: what it says, and what it is told.

A client may be none, so all that it says is checked, and has a bound.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._core.functions import BUDGET, STREAM_TRAITS, Function
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.job import Holder, PoolJob, StreamJob
from asyncpool._engine.loop import Alarm
from asyncpool._engine.sessions import Broadcast, SessionWorker
from asyncpool._remote.carrier import Carrier, Why, ignore
from asyncpool._remote.messages import (
    LENT,
    PLAIN,
    STORED,
    Kind,
    Message,
    pack_batches,
    pack_end,
    pack_followed_end,
    pack_numbers,
    pack_parts,
    split_parts,
    unpack_batch,
    unpack_headers,
    unpack_question,
)
from asyncpool._remote.objects import pack_own
from asyncpool._remote.options import read_call, read_options
from asyncpool._remote.relayed import (
    JOB_TYPES,
    PACKED,
    PackedError,
    RelayedChunk,
    RelayedJob,
)
from asyncpool._remote.router import CREDITS
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.frames import MAX_ATTEMPTS
from asyncpool._wire.messages import FunctionCache
from asyncpool._wire.text import MAX_NAME, printable_name
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobNotPicklableError,
    ProtocolError,
)
from asyncpool.events import Event, JobEnded, TakenOver

if TYPE_CHECKING:
    from asyncpool._remote.agent import Agent

_MICRO = 1e6

# What a client's false message leads to; RecursionError is that of JSON in very many brackets, and
# JSON has ints that are too large for a clock.
_MISTAKES = (ProtocolError, LookupError, ValueError, TypeError, RecursionError)
_FALSE_QUESTIONS = (ValueError, TypeError, TimeoutError, LookupError, OverflowError)

# How many results may wait for a client: it has those of all jobs but those for which it has
# credits, and of a few calls of sessions, which take none.  While so many pieces wait for it, it is
# told neither of events nor of heartbeats.
_MOST_ENDS = 2 * CREDITS
_MOST_BEHIND = 64

# How many questions may be open at once: some last as long as a broadcast does.
_MOST_QUESTIONS = 256

# How much time a function takes, in microseconds, so that its client is told that a job begins.
# One that is shorter is over by the time at which the client has read that; of one that is not, it
# is told after so many seconds.
_LONG = BUDGET / 8
_LONG_AFTER_ALL = 0.02


class Call(NamedTuple):
    """A job that the pool has not got.

    Attributes:
        function: Its function.
        options: Its options.
        message: The client's message.
        details: The last heartbeat of an earlier attempt.
        payload: The call as its client has packed it; ``None`` if it cannot be had here.
        trace: Its trace context, or nothing.
    """

    function: Function
    options: JobOptions
    message: Message
    details: bytes
    payload: bytes | OutOfBandPickle | None
    trace: bytes


class ClientKeeper:
    """A lease keeper for the pool of an agent; a lease is the client's number of the job.

    Args:
        on_free: Called with the number of each job that no worker has any more.
    """

    def __init__(self, on_free: Callable[[int], object]) -> None:
        self._on_free = on_free
        self._until: dict[int, float] = {}
        self._holders: dict[int, Holder] = {}

    def keep(self, lease: Hashable, holder: Holder, /) -> None:
        """Keep a lease until *holder* is done."""
        assert isinstance(lease, int)
        self._holders[lease] = holder
        holder.add_done_callback(partial(self._done, lease))
        holder.until = self._until.pop(lease, None)

    def extend(self, number: int, until: float, *, is_coming: bool) -> None:
        """Hear until when the lease of a job lasts, on this loop's clock.

        Nothing is kept of a job that no worker has any more: it has none unless it *is coming*.
        """
        if number in self._holders:
            self._holders[number].extended(until)
        elif is_coming:
            self._until[number] = until

    def forget(self, number: int) -> None:
        """Forget a job that the pool never got."""
        self._until.pop(number, None)
        self._on_free(number)

    def _done(self, number: int, _: asyncio.Future[None]) -> None:
        del self._holders[number]
        self._on_free(number)


class AgentClient:
    """One client of an agent.

    Args:
        agent: The agent.
        number: Its number there.
        carrier: Brings batches.

    Attributes:
        number: As above.
        carrier: As above.
        jobs: Those of its jobs that the pool has, by the client's numbers.
        follows: Whether it asks where and when jobs run.
    """

    def __init__(self, agent: Agent, number: int, carrier: Carrier) -> None:
        self.number, self.carrier = number, carrier
        self._agent, self._engine = agent, agent.engine
        self._loop = asyncio.get_running_loop()
        self.jobs: dict[int, PoolJob[Any]] = {}
        self._waiting: dict[int, Call] = {}  # those that the pool has not got
        self._calls: set[int] = set()  # those of sessions
        # By the questions that asked for them.
        self._workers: dict[int, SessionWorker] = {}
        self._keeper = ClientKeeper(self._on_free)
        # The client knows by the same rules what is forgotten here.
        self._functions, self._options = FunctionCache(), FunctionCache()
        self._details: tuple[int, bytes] = (0, b"")
        self._trace = b""
        self._put: list[bytes] = []
        # The jobs of which it will hear that they wait, and those that have begun without a word.
        self._untold: dict[int, None] = {}
        self._quiet: dict[int, None] = {}
        self._look_at_quiet = Alarm(self._loop, self._on_quiet)
        # How many ends are in the next piece, and in each that it has not taken.
        self._ends, self._ends_behind = 0, deque[int]()
        self._questions: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.follows = self._listens = self._over = False
        self._handlers: dict[Kind, Callable[[Message], object]] = {
            Kind.JOB: self._on_job,
            Kind.FOLLOWED: self._on_job,
            Kind.CANCEL: self._on_cancel,
            Kind.FUNCTION: self._on_function,
            Kind.OPTIONS: self._on_options,
            Kind.DETAILS: self._on_details,
            Kind.TRACE: self._on_trace,
            Kind.CREDIT: self._on_credit,
            Kind.FENCE: self._on_fence,
            Kind.ASK: self._on_ask,
            Kind.FORGET: self._on_forget,
            Kind.LEAVE: self._on_leave,
        }
        carrier.on_bytes, carrier.on_gone = self._on_bytes, self._on_gone

    @property
    def busy(self) -> bool:
        """Whether jobs of the client are here."""
        return bool(self.jobs or self._waiting)

    def functions(self) -> list[str]:
        """Return the name of the function of each job of the client that is here."""
        names = [call.function.name for call in self._waiting.values()]
        return names + [job.title for job in self.jobs.values()]

    # What goes to the client.

    def put(self, message: Message) -> None:
        """Have *message* sent with the next batch."""
        self._put.append(message.pack())

    def _put_news(self, message: Message) -> None:
        """Do the same with a message that the client can do without, if it does not keep up."""
        if self.carrier.unsent < _MOST_BEHIND:
            self.put(message)
            self._agent.turn_soon()

    def _put_end(self, number: int, message: bytes) -> None:
        """Tell how a job has ended: at once, if the client waits for no other."""
        if self._over:
            return
        self.jobs.pop(number, None)
        self._calls.discard(number)
        self._agent.turns.ended(self.number, number)
        self._put.append(message)
        self._ends += 1
        self._agent.settled(self)

    def flush(self) -> None:
        """Send what was put."""
        if self._untold:
            waiting, self._untold = self._untold, {}
            self.put(Message(Kind.WAITS, payload=pack_numbers(waiting)))
        if self._put:
            messages, self._put = self._put, []
            for batch in pack_batches(messages, int(monotonic() * _MICRO)):
                self.carrier.send(batch)
            self._ends_behind.append(self._ends)
            self._ends = 0

    # The end.

    def close(self) -> None:
        """Give up what the client has here."""
        self._over = True
        self._look_at_quiet.cancel()
        if self._listens:
            self._agent.pool.remove_listener(self._tell)
        for task in self._questions.values():
            task.cancel()
        for worker in self._workers.values():
            self._leave(worker, fresh=True, failed=True)
        for job in [*self.jobs.values()]:
            job.cancel()
        self.carrier.on_gone = ignore
        self.carrier.close()

    def _on_gone(self, why: Why) -> None:
        self._agent.end(self, why or "its process has ended, or it has left")

    # What the client says.

    def _on_bytes(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._agent.look()
            for message in unpack_batch(data)[1]:
                handler = self._handlers.get(message.kind)
                if handler is None:
                    raise ProtocolError(f"a client sent a {message.kind.name}")
                handler(message)
        except _MISTAKES as error:
            self._agent.end(self, error)
            return
        self._agent.turn()

    def _on_function(self, message: Message) -> None:
        name, _, reference = message.payload.partition(b"\0")
        # A client that is none may call it anything, and logs and figures show it.
        shown = printable_name(name.decode())[:MAX_NAME]
        function = self._agent.functions.named(shown, reference)
        self._functions.add(message.function, function)

    def _on_options(self, message: Message) -> None:
        told = json.loads(message.payload)
        options = read_options(told, self._keeper, self._agent.functions)
        if options.via not in JOB_TYPES:
            raise ProtocolError(f"the client sent a job for {options.via!r}")
        self._options.add(message.options, options)

    def _on_details(self, message: Message) -> None:
        self._details = message.job, message.payload

    def _on_trace(self, message: Message) -> None:
        self._trace = unpack_headers(message.payload)

    def _check_ends(self) -> None:
        """Check that the client takes the results of its jobs before it sends many others."""
        while len(self._ends_behind) > self.carrier.unsent:
            self._ends_behind.popleft()
        behind = sum(self._ends_behind)
        if behind > _MOST_ENDS:
            raise ProtocolError(f"the client has taken none of {behind} results")

    def _on_job(self, message: Message) -> None:
        self._check_ends()
        number, payload = message.job, message.payload
        # Here, where it costs this client alone: the pool gets the job in a turn of all clients.
        # A comparison with NaN is false.
        is_timed = message.wait > 0 and message.deadline >= -math.inf
        if message.begun >= MAX_ATTEMPTS or not is_timed:
            raise ProtocolError(f"the client sent job {number} with false numbers")
        if payload == STORED:
            if number not in self._agent.stored:
                text = f"the client sent job {number}, whose call nobody brings"
                raise ProtocolError(text)
            payload = self._agent.stored.pop(number)
        elif payload.startswith(LENT):
            # At once: whoever drops what was lent gives it back by that.
            payload = self._borrow(payload)
        if number in self.jobs or number in self._waiting:
            raise ProtocolError(f"the client sent job {number} twice")
        function: Function = self._functions[message.function]
        options: JobOptions = self._options[message.options]
        details = b""
        if self._details[0] == number:
            details, self._details = self._details[1], (0, b"")
        call = Call(function, options, message, details, payload, self._trace)
        if options.session is not None:  # it waits for nothing here
            if len(self._calls) >= _MOST_ENDS:
                raise ProtocolError(f"the client sent more than {_MOST_ENDS} calls")
            self._calls.add(number)
            self._begin_first(call)
            return
        if len(self.jobs) + len(self._waiting) - len(self._calls) >= CREDITS:
            raise ProtocolError(f"the client sent more than {CREDITS} jobs")
        traits = STREAM_TRAITS if options.via == "stream" else function.traits
        may_begin = self.carrier.may_begin
        if may_begin and self._agent.turns.begins(self.number, number, traits):
            self._begin_first(call)
        else:
            self._agent.turns.add(self.number, number, message.priority, traits)
            self._waiting[number] = call
            self._untold[number] = None

    def _begin_first(self, call: Call) -> None:
        """Give the pool a job that has just come."""
        number = call.message.job
        if call.function.traits.cost > _LONG:
            self._tell_begun([number])
        else:
            self._quiet[number] = None
            if not self._look_at_quiet.is_set:
                self._look_at_quiet.set_in(_LONG_AFTER_ALL)
        self._submit(call)

    def _on_quiet(self, _: float) -> None:
        """Tell which jobs have begun and take longer than others of their functions."""
        quiet, self._quiet = self._quiet, {}
        if begun := [number for number in quiet if number in self.jobs]:
            self._tell_begun(begun)

    def begin(self, numbers: list[int]) -> None:
        """Give the pool jobs whose turn it is; the client hears before that they begin."""
        self._tell_begun(numbers)
        for number in numbers:
            self._submit(self._waiting.pop(number))

    def _tell_begun(self, numbers: list[int]) -> None:
        for number in numbers:
            self._untold.pop(number, None)
        self.put(Message(Kind.BEGAN, payload=pack_numbers(numbers)))
        self.flush()

    def _borrow(self, payload: bytes) -> OutOfBandPickle | None:
        borrowed = self.carrier.borrowed
        if borrowed is None:
            raise ProtocolError("a client lent memory on a carrier that has none")
        found = borrowed.read(payload)
        return None if found is None else OutOfBandPickle([found.stream], found.buffers)

    def _on_cancel(self, message: Message) -> None:
        number = message.job
        if number in self.jobs:
            self.jobs[number].cancel()
        elif self._agent.turns.cancel(self.number, number):
            call = self._waiting.pop(number)
            self._untold.pop(number, None)
            if call.options.lease is not None:
                self._keeper.forget(number)
            self.put(Message(Kind.DROPPED, number))
        else:
            self._agent.stored.pop(number, None)

    def _on_free(self, number: int) -> None:
        if not self._over:
            self.put(Message(Kind.FREE, number))
            self._agent.turn_soon()

    def _on_credit(self, message: Message) -> None:
        job = self.jobs.get(message.job)
        if isinstance(job, StreamJob):
            job.allow(message.priority)

    def _on_fence(self, message: Message) -> None:
        number, call = message.job, self._waiting.get(message.job)
        until = message.priority / _MICRO + message.deadline
        is_coming = call is not None and call.options.lease is not None
        self._keeper.extend(number, until, is_coming=is_coming)

    # Jobs in the pool.

    def _submit(self, call: Call) -> None:
        """Give a job to the pool."""
        number = call.message.job
        if call.message.kind is Kind.FOLLOWED:
            self.follows = True
            self._agent.follow()
        try:
            job = self._call(call)
        except AsyncPoolError as error:
            self._put_end(number, pack_end(Kind.FAILED, number, pack_own(error, {})))
            return
        self.jobs[number] = job
        if isinstance(job, RelayedJob):
            job.client, job.number = self, number
            if job.done():
                self.on_end(job)
        else:
            assert isinstance(job, StreamJob)
            self._spawn(self._pass_items(number, job), "asyncpool stream")

    def _call(self, call: Call) -> PoolJob[Any]:
        function: Any = call.function
        options, arguments = _options_of(call, self._loop.time()), (_call_of(call),)
        submit = self._engine.traffic.submit
        if options.session is not None:
            worker = self._workers[options.session.session]
            return worker.call(self._engine, (function, arguments, {}), options)
        if options.lease is None:
            return submit(function, arguments, {}, options)
        return self._engine.leases.submit(
            call.message.job, submit, function, arguments, {}, options
        )

    def on_end(self, job: RelayedJob) -> None:
        """Tell how a job has ended."""
        number, ended = job.number, self._agent.ends.pop(job.id, None)
        value = None if job.cancelled() or job.exception() else job.result()
        if type(value) is bytes:
            self._put_end(number, _packed_end(Kind.VALUE, number, PLAIN + value, ended))
        elif type(value) is ReceivedPickle:
            packed = OutOfBandPickle([value.stream], value.buffers)
            payload = self.carrier.pack_at_once(packed)
            if payload is None:
                lending = self._end_large(number, packed, ended)
                self._spawn(lending, "asyncpool large result")
            else:
                self._put_end(number, _packed_end(Kind.VALUE, number, payload, ended))
        else:
            if isinstance(job, RelayedChunk) and job.found is not None:
                self.put(Message(Kind.FOUND, number, payload=job.found))
            self._put_end(number, _packed_end(*_outcome_of(number, job), ended))

    async def _end_large(
        self, number: int, packed: OutOfBandPickle, ended: JobEnded | None
    ) -> None:
        payload = await self.carrier.pack(packed, lambda: number in self.jobs)
        self._put_end(number, _packed_end(Kind.VALUE, number, payload, ended))

    async def _pass_items(self, number: int, job: StreamJob) -> None:
        """Send the items of a stream, and then its end."""

        def wanted() -> bool:
            return number in self.jobs

        while items := await job.pass_on():
            for frame in items:
                payload = frame.payload
                if isinstance(payload, ReceivedPickle):
                    packed = OutOfBandPickle([payload.stream], payload.buffers)
                    payload = self.carrier.pack_at_once(packed)
                    payload = payload or await self.carrier.pack(packed, wanted)
                else:
                    payload = pack_parts(payload)
                self.put(Message(Kind.ITEM, number, payload=payload))
            self.flush()
        ended = self._agent.ends.pop(job.id, None)
        self._put_end(number, _packed_end(*_outcome_of(number, job), ended))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def beat(self, number: int, details: bytes) -> None:
        """Tell of a heartbeat of a job."""
        self._put_news(Message(Kind.HEARTBEAT, number, payload=details))

    # What the client asks.

    @property
    def _numbers(self) -> dict[int, int]:
        """The client's numbers of its jobs, by those of the pool."""
        return {job.id: number for number, job in self.jobs.items()}

    def _on_ask(self, message: Message) -> None:
        number = message.job
        if number in self._questions or len(self._questions) >= _MOST_QUESTIONS:
            raise ProtocolError(f"the client asked more than {_MOST_QUESTIONS} at once")
        task = self._questions[number] = self._loop.create_task(
            self._reply(message), name="asyncpool answer to a client"
        )
        task.add_done_callback(lambda _: self._questions.pop(number, None))

    async def _reply(self, message: Message) -> None:
        answer: object
        try:
            about, payload = unpack_question(message.payload)
            answer = True, await self._answer(message.job, about, payload)
        except AsyncPoolError as error:
            answer = False, error
        except _FALSE_QUESTIONS as error:
            answer = False, (type(error).__name__, str(error))
        payload = pack_own(answer, self._numbers)
        self.put(Message(Kind.ANSWER, message.job, payload=payload))
        self._agent.turn_soon()

    async def _answer(
        self, number: int, about: dict[str, Any], payload: bytes
    ) -> object:
        """Have the pool do what is asked, and return what comes of it."""
        pool = self._agent.pool
        match about["what"]:
            case "stats":
                return pool.stats()
            case "stacks":
                return await pool.stacks(slot=about["slot"])
            case "stack":
                job = self.jobs.get(about["job"])
                return "" if job is None else await job.stack()
            case "profile":
                slot, function, rate = about["slot"], about["function"], about["rate"]
                return await pool.profile(
                    about["seconds"], slot=slot, function=function, rate=rate
                )
            case "retire":
                return pool.retire(about["slot"])
            case "kill":
                return pool.kill(about["slot"])
            case "roll":
                return await pool.roll()
            case "resize":
                least, *most = about["workers"]
                return await pool.resize((least, *most) if most else least)
            case "events":
                if not self._listens:
                    self._listens = True
                    pool.add_listener(self._tell)
                return None
            case "session":
                worker = SessionWorker()
                await self._engine.sessions.take(worker, about["timeout"])
                self._workers[number] = worker
                return worker.slot, worker.pid
            case "broadcast":
                return await self._broadcast(about, payload)
            case unknown:
                raise ValueError(f"there is no {unknown!r} to ask for")

    async def _broadcast(self, about: dict[str, Any], payload: bytes) -> object:
        options = read_call(about["options"], self._loop.time())
        call = Broadcast(str(about["name"]), payload, options, PACKED)
        failed: dict[int, BaseException] = {}
        try:
            results = await self._engine.broadcasts.broadcast_packed(call)
        except BroadcastError as error:
            results, failed = error.results, error.errors
        return (
            {slot: pack_parts(value) for slot, value in results.items()},
            {
                slot: error.payload if isinstance(error, PackedError) else error
                for slot, error in failed.items()
            },
        )

    def _tell(self, event: Event) -> None:
        """Tell of an event of the pool, unless it is only about a job of another client."""
        numbers = self._numbers
        if not isinstance(event, TakenOver) or event.job_id in numbers:
            self._put_news(Message(Kind.EVENT, payload=pack_own(event, numbers)))

    def _on_forget(self, message: Message) -> None:
        task = self._questions.get(message.job)
        if task is not None:
            task.cancel()
        self._on_leave(message)

    def _on_leave(self, message: Message) -> None:
        worker = self._workers.pop(message.job, None)
        if worker is not None:
            self._leave(worker, fresh=bool(message.options), failed=False)

    def _leave(self, worker: SessionWorker, *, fresh: bool, failed: bool) -> None:
        """Give a worker back to the pool when its calls are done, or at once."""
        leaving = worker.leave(self._engine, fresh=fresh, failed=failed)
        self._agent.spawn(leaving, "asyncpool end of a session")


def _packed_end(
    kind: Kind, number: int, payload: bytes, ended: JobEnded | None
) -> bytes:
    if ended is None or ended.slot is None:
        return pack_end(kind, number, payload)
    ago = max(0.0, monotonic() - ended.at)
    return pack_followed_end(
        kind, number, payload, slot=ended.slot, ago=ago, run=max(0.0, ended.run)
    )


def _outcome_of(number: int, job: PoolJob[Any]) -> tuple[Kind, int, bytes]:
    """Return how a job has ended, its number, and what comes of it."""
    if job.cancelled():
        return Kind.DROPPED, number, b""
    error = job.exception()
    if error is None:
        return Kind.VALUE, number, pack_parts(job.result())
    if isinstance(error, PackedError):
        return Kind.ERROR, number, error.payload
    return Kind.FAILED, number, pack_own(error, {})


def _call_of(call: Call) -> bytes | OutOfBandPickle:
    """Return a call as the pool takes it.

    Raises:
        JobNotPicklableError: If it cannot be had here.
        ProtocolError: If it is none.
    """
    payload = call.payload
    if type(payload) is bytes and payload.startswith(PLAIN):
        return payload[len(PLAIN) :]
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


def _options_of(call: Call, now: float) -> JobOptions:
    """Return the options of one job, with what is its own, on this loop's clock."""
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
    if call.trace:
        own["trace"] = call.trace
    return replace(options, **own) if own else options
