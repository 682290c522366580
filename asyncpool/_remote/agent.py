"""The agent: it lets clients in other processes use a pool, of which it is an ordinary caller.

A client may be none, so all that it says is checked, and has a bound.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeAlias

from asyncpool._core import log_messages as say
from asyncpool._core.functions import BUDGET, STREAM_TRAITS, Function
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.admission import list_functions
from asyncpool._engine.engine import Engine
from asyncpool._engine.job import PoolJob, StreamJob
from asyncpool._engine.loop import Alarm
from asyncpool._engine.sessions import Broadcast, SessionWorker
from asyncpool._observe.control.protocol import carry_out
from asyncpool._remote.carrier import Carrier, Why, ignore
from asyncpool._remote.messages import (
    LENT,
    PLAIN,
    STORED,
    Kind,
    Message,
    difference,
    greeting,
    pack_batches,
    pack_end,
    pack_followed_end,
    pack_greeting,
    pack_numbers,
    pack_parts,
    split_parts,
    unpack_batch,
    unpack_greeting,
    unpack_headers,
    unpack_question,
)
from asyncpool._remote.objects import pack_own
from asyncpool._remote.options import read_call, read_options
from asyncpool._remote.relayed import (
    JOB_TYPES,
    PACKED,
    ClientKeeper,
    PackedError,
    PackedFunctions,
    RelayedChunk,
    RelayedJob,
)
from asyncpool._remote.router import CREDITS
from asyncpool._remote.turns import Turns
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.frames import MAX_ATTEMPTS
from asyncpool._wire.log_records import LogMessage
from asyncpool._wire.messages import FunctionCache
from asyncpool._wire.page import Beat
from asyncpool._wire.text import MAX_NAME, printable_name
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobNotPicklableError,
    ProtocolError,
)
from asyncpool.events import Event, JobEnded, Resized, TakenOver
from asyncpool.stats import ClientStats

# How many clients an agent has.
MOST_CLIENTS = 64


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


# A job that the pool has not got: its function, its options, the call as its client has packed it
# (``None`` if it cannot be had here), and whether the client asks where and when it runs.
_Call: TypeAlias = tuple[Function, JobOptions, bytes | OutOfBandPickle | None, bool]


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
        self._waiting: dict[int, _Call] = {}  # those that the pool has not got
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
        self._ended, self._ends, self._ends_behind = 0, 0, deque[int]()
        self._questions: dict[int, asyncio.Task[None]] = {}
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

    def stats(self) -> ClientStats:
        """Return the figures of the client, in any thread."""
        pid = self.carrier.process
        return ClientStats(
            name=f"{pid or '?'}/{self.number}",
            pid=pid,
            waiting=len(self._waiting),
            jobs=len(self.jobs),
            ended=self._ended,
        )

    def functions(self) -> list[str]:
        """Return the name of the function of each job of the client that is here."""
        names = [function.name for function, *_ in self._waiting.values()]
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
        self._ended += 1
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
            if not self.carrier.unsent:  # as nearly always
                self._ends_behind.clear()

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

    def _on_job(self, message: Message) -> None:
        number, payload = message.job, message.payload
        if self._ends_behind:  # it takes its results before it sends many other jobs
            while len(self._ends_behind) > self.carrier.unsent:
                self._ends_behind.popleft()
            if (behind := sum(self._ends_behind)) > _MOST_ENDS:
                text = f"the client has taken none of {behind} results"
                raise ProtocolError(text)
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
        options = self._options_of(message)
        call = function, options, payload, message.kind is Kind.FOLLOWED
        if options.session is not None:  # it waits for nothing here
            if len(self._calls) >= _MOST_ENDS:
                raise ProtocolError(f"the client sent more than {_MOST_ENDS} calls")
            self._calls.add(number)
            self._begin_first(number, call)
            return
        if len(self.jobs) + len(self._waiting) - len(self._calls) >= CREDITS:
            raise ProtocolError(f"the client sent more than {CREDITS} jobs")
        traits = STREAM_TRAITS if options.via == "stream" else function.traits
        turns = self._agent.turns
        if self.carrier.may_begin and turns.begins(self.number, number, traits):
            self._begin_first(number, call)
        else:
            turns.add(self.number, number, message.priority, traits)
            self._waiting[number] = call
            self._untold[number] = None

    def _options_of(self, message: Message) -> JobOptions:
        """Return the options of a job, with what is its own, on this loop's clock."""
        options: JobOptions = self._options[message.options]
        own: dict[str, Any] = {}
        if message.deadline < math.inf:
            own["deadline"] = self._loop.time() + message.deadline
        if message.wait < math.inf:
            own["queue_timeout"] = message.wait
        if self._details[0] == message.job:
            own["details"], self._details = self._details[1], (0, b"")
        if message.begun:
            own["prior_attempts"] = message.begun
        if self._trace:
            own["trace"] = self._trace
        return replace(options, **own) if own else options

    def _begin_first(self, number: int, call: _Call) -> None:
        """Give the pool a job that has just come."""
        if call[0].traits.cost > _LONG:
            self._tell_begun([number])
        else:
            self._quiet[number] = None
            if not self._look_at_quiet.is_set:
                self._look_at_quiet.set_in(_LONG_AFTER_ALL)
        self._submit(number, call)

    def _on_quiet(self, _: float) -> None:
        """Tell which jobs have begun and take longer than others of their functions."""
        quiet, self._quiet = self._quiet, {}
        if begun := [number for number in quiet if number in self.jobs]:
            self._tell_begun(begun)

    def begin(self, numbers: list[int]) -> None:
        """Give the pool jobs whose turn it is; the client hears before that they begin."""
        self._tell_begun(numbers)
        for number in numbers:
            self._submit(number, self._waiting.pop(number))

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
            _, options, *_ = self._waiting.pop(number)
            self._untold.pop(number, None)
            if options.lease is not None:
                self._keeper.forget(number)
            self._ended += 1
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
        is_coming = call is not None and call[1].lease is not None
        self._keeper.extend(number, until, is_coming=is_coming)

    # Jobs in the pool.

    def _submit(self, number: int, call: _Call) -> None:
        """Give a job to the pool."""
        function: Any  # which the functions of clients stand for
        function, options, payload, is_followed = call
        if is_followed:
            self.follows = True
            self._agent.follow()
        engine, submit = self._engine, self._engine.traffic.submit
        try:
            arguments = (_packed_call(payload),)
            if options.session is not None:
                worker = self._workers[options.session.session]
                whole: Any = function, arguments, {}
                job = worker.call(engine, whole, options)
            elif options.lease is not None:
                job = engine.leases.submit(
                    number, submit, function, arguments, {}, options
                )
            else:
                job = submit(function, arguments, {}, options)
        except AsyncPoolError as error:
            self._put_end(number, pack_end(Kind.FAILED, number, pack_own(error, {})))
            return
        self.jobs[number] = job
        if isinstance(job, StreamJob):
            self._agent.spawn(self._pass_items(number, job), "asyncpool stream")
            return
        assert isinstance(job, RelayedJob)
        job.client, job.number = self, number
        if job.done():
            self.on_end(job)

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
                self._agent.spawn(lending, "asyncpool large result")
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
        what = about.pop("what")
        match what:
            case "stack":
                job = self.jobs.get(about["job"])
                return "" if job is None else await job.stack()
            case "events":
                if not self._listens:
                    self._listens = True
                    self._agent.pool.add_listener(self._tell)
                return None
            case "session":
                worker = SessionWorker()
                await self._engine.sessions.take(worker, about["timeout"])
                self._workers[number] = worker
                return worker.slot, worker.pid
            case "broadcast":
                return await self._broadcast(about, payload)
            case _:
                return await carry_out(self._agent.pool, what, **about)

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


def _packed_call(
    payload: bytes | OutOfBandPickle | None,
) -> bytes | OutOfBandPickle:
    """Return a call as the pool takes it.

    Raises:
        JobNotPicklableError: If it cannot be had here.
        ProtocolError: If it is none.
    """
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


class Agent:
    """Lets clients use a pool; carriers bring them.

    Args:
        pool: The :class:`asyncpool.Pool`, for what is asked about it.
        engine: What runs it.
        name: What clients call this node.
        version: That of asyncpool.
        most_clients: How many there may be at a time.

    Attributes:
        pool: As above.
        engine: As above.
        turns: Whose job is next.
        functions: The functions of the clients.
        stored: Calls that the client's engine has brought ahead of their jobs, by job.
        ends: How jobs have ended of which their clients will be told, by the pool's number.
    """

    def __init__(
        self,
        pool: Any,
        engine: Engine,
        name: str,
        version: str,
        *,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        self.pool, self.engine = pool, engine
        self._loop = asyncio.get_running_loop()
        self._most_clients = most_clients
        self.turns = Turns()
        self.functions = engine.traffic.functions.packed(PackedFunctions)
        self.stored: dict[int, bytes | OutOfBandPickle] = {}
        self.ends: dict[int, JobEnded] = {}
        self._clients: dict[int, AgentClient] = {}
        self._numbers = 0
        data = engine.config.data
        codec = "pickle" if data is None else data.how.name
        self._greeting = greeting(version, codec) | {
            "node": name,
            "credits": CREDITS,
            "fresh": engine.fresh,
            "counts_jobs": engine.counts_jobs,
        }
        self._told_lanes = self._lanes
        self._turn_is_due = self._follows = self._closing = False
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        engine.figures.agents.append(self._client_stats)
        engine.heartbeats.listeners.append(self._on_heartbeat)
        engine.hub.add_listener(self._on_event)

    # Clients that come and go.

    def welcome(self, carrier: Carrier, hello: bytes) -> None:
        """Begin a session with the client at the other end of *carrier*, or say why not."""
        refused = difference(self._greeting, unpack_greeting(hello))
        if self._closing:
            refused = "it is closing"
        elif not refused and len(self._clients) >= self._most_clients:
            refused = f"{self._most_clients} clients use this pool already"
        if refused:
            self.refuse(refused, carrier.process)
            carrier.send(pack_greeting({"refused": refused}))
            carrier.close()
            return
        self._numbers += 1
        client = self._clients[self._numbers] = AgentClient(
            self, self._numbers, carrier
        )
        self.turns.open(client.number)
        told = {"lanes": self._lanes, "stamp": int(self._loop.time() * 1e6)}
        carrier.send(pack_greeting(self._greeting | told))

    async def drain(self) -> None:
        """Take no more clients and jobs, and wait for those jobs that are here.

        Cancellation:
            Safe.
        """
        self._closing = True
        for client in self._clients.values():
            client.put(Message(Kind.CLOSING))
            client.flush()
        while any(client.busy for client in self._clients.values()):
            self._idle.clear()
            await self._idle.wait()
        for client in self._clients.values():
            client.flush()  # what has ended in this iteration of the loop

    def close(self) -> None:
        """End all sessions, whose jobs are cancelled."""
        self.engine.figures.agents.remove(self._client_stats)
        self.engine.heartbeats.listeners.remove(self._on_heartbeat)
        self.engine.hub.remove_listener(self._on_event)
        for client in [*self._clients.values()]:
            self._forget(client)

    def refuse(self, why: str, process: int | None, jobs: Sequence[str] = ()) -> None:
        """Count and log that a client does not come in, or is cut off, with the names of its jobs."""
        self.engine.figures.refused_clients += 1
        self._say(say.CLIENT_REFUSED, why, process, jobs)

    def _say(
        self, record: LogMessage, why: str, process: int | None, jobs: Sequence[str]
    ) -> None:
        about = {"pid": process, "reason": why, "jobs": len(jobs)}
        about["functions"] = list_functions(Counter(jobs))
        self.engine.log.now(record, about)

    def end(self, client: AgentClient, why: Exception | str) -> None:
        """Give up the jobs of a client that is gone (a text), or has broken the rules."""
        if client.number not in self._clients:
            return
        jobs, process = client.functions(), client.carrier.process
        if isinstance(why, Exception):
            kind = "" if isinstance(why, ProtocolError) else f"{type(why).__name__}: "
            self.refuse(f"{kind}{why}", process, jobs)
        elif jobs:
            self.engine.figures.lost_clients += 1
            self._say(say.CLIENT_LOST, why, process, jobs)
        self._forget(client)
        self.turn_soon()

    def _forget(self, client: AgentClient) -> None:
        del self._clients[client.number]
        self.turns.close(client.number)
        client.close()
        if self._follows and not any(one.follows for one in self._clients.values()):
            self._follows = False
            self.engine.hub.remove_listener(self._note_end)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have something done that may outlast its client."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _client_stats(self) -> list[ClientStats]:
        return [client.stats() for client in self._clients.values()]

    # What happens in the pool.

    def follow(self) -> None:
        """Note where and when jobs run from now on, since a client asks for it."""
        if not self._follows:
            self._follows = True
            self.engine.hub.add_end_listener(self._note_end)

    def _note_end(self, event: JobEnded) -> None:
        if len(self.ends) >= _MOST_ENDS:
            del self.ends[next(iter(self.ends))]
        self.ends[event.job_id] = event

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Resized):
            self.turn_soon()

    def _on_heartbeat(self, job: PoolJob[Any], beat: Beat) -> None:
        if isinstance(job, RelayedJob):
            job.client.beat(job.number, beat.details)
        elif job.options.codec is self.functions:  # a stream of a client
            for client in self._clients.values():
                for number, one in client.jobs.items():
                    if one is job:
                        client.beat(number, beat.details)

    # What the pool gets.

    def look(self) -> None:
        """Look whether the pool has room for jobs that come now."""
        self.turns.look(self.engine.unserved, self._lanes)

    def turn_soon(self) -> None:
        """Have a turn with what else happens in this iteration of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self.turn)

    def settled(self, client: AgentClient) -> None:
        """Hear that a job has ended; tell its client at once if that waits for no other one.

        The pool may be in the middle of a decision, so it gets no job now.
        """
        if client.jobs or self.turns.waiting or self._closing:
            self.turn_soon()
        else:
            client.flush()

    def turn(self) -> None:
        """Give the pool what it has room for, and say what there is to say."""
        self._turn_is_due = False
        while self.turns.waiting:
            self.look()
            begun: dict[int, list[int]] = {}
            for number, job in self.turns.release(self._may_begin):
                begun.setdefault(number, []).append(job)
            if not begun:
                break
            for number, jobs in begun.items():
                self._clients[number].begin(jobs)
        lanes = self._lanes
        for client in self._clients.values():
            if lanes != self._told_lanes:
                client.put(Message(Kind.LANES, priority=lanes))
            client.flush()
        self._told_lanes = lanes
        if self._closing:
            self._idle.set()

    def _may_begin(self, client: int) -> bool:
        return self._clients[client].carrier.may_begin

    @property
    def _lanes(self) -> int:
        return self.engine.most_workers * self.engine.concurrency
