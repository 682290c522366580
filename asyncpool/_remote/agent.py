"""The agent: it lets clients in other processes use a pool, of which it is an ordinary caller.

A client may be none, so all that it says is checked, and has a bound.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncpool import __version__
from asyncpool._core import log_messages as say
from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import BUDGET, STREAM_TRAITS, Function, FunctionTable
from asyncpool._core.options import JobOptions
from asyncpool._dataclass import replace
from asyncpool._engine.admission import list_functions
from asyncpool._engine.engine import Engine
from asyncpool._engine.job import ChunkJob, Holder, PoolJob, StreamJob
from asyncpool._engine.loop import Alarm
from asyncpool._engine.sessions import Broadcast, SessionWorker
from asyncpool._observe.control.protocol import carry_out
from asyncpool._remote.carrier import Carrier, Connection, Why
from asyncpool._remote.messages import (
    PLAIN,
    STORED,
    Kind,
    Message,
    difference,
    greeting,
    pack_batches,
    pack_end,
    pack_greeting,
    pack_parts,
    read_call,
    read_options,
    split_parts,
    unpack_batch,
    unpack_greeting,
    unpack_headers,
    unpack_question,
)
from asyncpool._remote.objects import pack_log, pack_own, pack_result
from asyncpool._remote.router import CREDITS
from asyncpool._remote.turns import Turns
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.frames import MAX_ATTEMPTS
from asyncpool._wire.log_records import LogMessage
from asyncpool._wire.messages import FunctionCache, pack_numbers
from asyncpool._wire.page import Beat
from asyncpool._wire.pickling import Serializer
from asyncpool._wire.text import MAX_NAME, printable_name
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobNotPicklableError,
    ProtocolError,
)
from asyncpool.events import Event, JobEnded, Resized, TakenOver, Via
from asyncpool.stats import ClientStats

if TYPE_CHECKING:
    from asyncpool._engine.page import WorkerPage

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


# The jobs of clients in the pool: calls that are packed already, and outcomes that stay packed.
# To the pool each function of a client is one of its own, whose serializer does nothing.


class PackedError(Exception):
    """What a job has raised, as its worker has packed it."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("an error of a job that its client reads")
        self.payload = payload


def _pack(
    function: object, args: tuple[Any, ...], kwargs: object, **_: Any
) -> bytes | OutOfBandPickle:
    del function, kwargs
    packed: bytes | OutOfBandPickle = args[0]
    return packed


def _keep(payload: Any, pause: object = None) -> Any:
    del pause
    return payload


def _error(payload: Any, pause: object = None) -> PackedError:
    del pause
    return PackedError(bytes(payload))


def _is_light(payload: object) -> bool:
    del payload
    return False  # it is passed on as it is


class PackedSerializer(Serializer):
    """Leaves all as it is."""

    pack_job = staticmethod(_pack)
    load_value = load_item = load_details = staticmethod(_keep)
    load_error: Callable[..., BaseException] = staticmethod(_error)
    is_heavy = staticmethod(_is_light)


PACKED = PackedSerializer()


class RelayedJob(PoolJob[Any]):
    """Tells of its end in the step that ends it.

    A callback of the future would come in the next iteration of the loop.  That is 20 us more for a
    call that is awaited, and 2 us of CPU time for each of many.

    Attributes:
        client: The agent's client that it belongs to, and which hears of its end.
        number: The client's number of it.
    """

    # They are set when the pool has taken the job: to set them before costs 0.4 us for each.
    __slots__ = ("client", "number")

    client: AgentClient
    number: int

    @property
    def awaited(self) -> bool:
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
        client = getattr(self, "client", None)
        if client is not None:
            client.on_end(self)


class RelayedChunk(RelayedJob, ChunkJob[Any]):
    """A chunk of a client's map.

    Attributes:
        found: What tells the client which items are done; ``None`` if it has not begun.
    """

    __slots__ = ()

    found: bytes | None

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


# The class of jobs for each way to call a function that a client may choose.
JOB_TYPES: dict[Via, type[PoolJob[Any]]] = {
    "submit": RelayedJob,
    "map": RelayedChunk,
    "stream": StreamJob,
}


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


class PackedFunctions(FunctionTable):
    """The functions of all clients of an agent.

    Args:
        totals: Where their jobs are counted.
        numbers: The pool's own table, whose numbers these continue.
    """

    job_types: dict[Via, Any] | None = JOB_TYPES

    def __init__(self, totals: FunctionTotals, numbers: FunctionTable) -> None:
        super().__init__(totals)
        self._numbers = numbers._numbers  # noqa: SLF001 - of its own class

    def named(self, name: str, reference: bytes) -> Function:
        """Return the function that a client calls *name*.

        Args:
            name: Its name.
            reference: What a worker makes it of; empty if it travels with each call.
        """
        found = self.known.get((name, reference))
        if found is not None:
            return found
        number = next(self._numbers) if reference else 0
        new = Function(number, reference, name, self._totals.of(name, "submit"), PACKED)
        return self._enter((name, reference), new)

    def find(
        self, function: Callable[..., Any], name: str = "", via: Via = "submit"
    ) -> Function:
        """Return *function*, which is one of :meth:`named`."""
        del name
        known: Any = function
        assert isinstance(known, Function)
        if via == "submit":
            return known
        return known.known_as(known.name, self._totals.of(known.name, via))


# One client.

# A job that the pool has not got: its function, its options, the call as its client has packed it
# (``None`` if it cannot be had here), and whether the client asks where and when it runs.
_Payload: TypeAlias = bytes | OutOfBandPickle | ReceivedPickle | None
_Call: TypeAlias = tuple[Function, JobOptions, _Payload, bool]


class AgentClient(Connection):
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
        super().__init__(carrier, "a client")
        self.number = number
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
        # The jobs of which it will hear that they wait, and those that have begun without a word.
        self._untold: dict[int, None] = {}
        self._quiet: dict[int, None] = {}
        self._look_at_quiet = Alarm(self._loop, self._on_quiet)
        # How many ends are in the next piece, and in each that it has not taken.
        self._ended, self._ends, self._ends_behind = 0, 0, deque[int]()
        self._questions: dict[int, asyncio.Task[None]] = {}
        self.follows = self._listens = self._over = False
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

    def _put_news(self, message: Message) -> None:
        """Do the same with a message that the client can do without, if it does not keep up."""
        if self.carrier.unsent < _MOST_BEHIND:
            self.put(message)
            self._agent.turn_soon()

    def _put_end(
        self, number: int, kind: Kind, payload: bytes, job: PoolJob[Any] | None = None
    ) -> None:
        """Tell how a job has ended: at once, if the client waits for no other."""
        ended = None if job is None else self._agent.ends.pop(job.id, None)
        if self._over:
            return
        self.jobs.pop(number, None)
        self._calls.discard(number)
        self._agent.turns.ended(self.number, number)
        if ended is None or ended.slot is None:
            message = pack_end(kind, number, payload)
        else:
            ago, run = max(0.0, monotonic() - ended.at), max(0.0, ended.run)
            end = Message(kind, number, place=ended.slot + 1, payload=payload)
            message = end._replace(deadline=ago, wait=run).pack()
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
        self.carrier.close()

    def _on_gone(self, why: Why) -> None:
        self._agent.end(self, why or "its process has ended, or it has left")

    # What the client says.

    def _on_bytes(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._agent.look()
            self._hear(unpack_batch(data)[1])
        except _MISTAKES as error:
            self._agent.end(self, error)
            return
        self._agent.turn()

    def _hear_function(self, message: Message) -> None:
        name, _, reference = message.payload.partition(b"\0")
        # A client that is none may call it anything, and logs and figures show it.
        shown = printable_name(name.decode())[:MAX_NAME]
        function = self._agent.functions.named(shown, reference)
        self._functions.add(message.function, function)

    def _hear_options(self, message: Message) -> None:
        told = json.loads(message.payload)
        options = read_options(told, self._keeper, self._agent.functions)
        if options.via not in JOB_TYPES:
            raise ProtocolError(f"the client sent a job for {options.via!r}")
        self._options.add(message.options, options)

    def _hear_details(self, message: Message) -> None:
        self._details = message.job, message.payload

    def _hear_trace(self, message: Message) -> None:
        self._trace = unpack_headers(message.payload)

    def _hear_job(self, message: Message) -> None:
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

    _hear_followed = _hear_job

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

    def _hear_cancel(self, message: Message) -> None:
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

    def _hear_credit(self, message: Message) -> None:
        job = self.jobs.get(message.job)
        if isinstance(job, StreamJob):
            job.allow(message.priority)

    def _hear_fence(self, message: Message) -> None:
        number, call = message.job, self._waiting.get(message.job)
        until = message.priority / _MICRO + message.deadline
        is_coming = call is not None and call[1].lease is not None
        self._keeper.extend(number, until, is_coming=is_coming)

    # Jobs in the pool.

    def _submit(self, number: int, call: _Call) -> None:
        """Give a job to the pool."""
        function, options, payload, is_followed = call
        if is_followed:
            self.follows = True
            self._agent.follow()
        engine = self._engine
        submit: Any = engine.traffic.submit
        try:
            # The functions of clients stand for ones that can be called.
            whole: Any = function, (_packed_call(payload),), {}
            if options.session is not None:
                worker = self._workers[options.session.session]
                job = worker.call(engine, whole, options)
            elif options.lease is not None:
                job = engine.leases.submit(number, submit, *whole, options)
            else:
                job = submit(*whole, options)
        except AsyncPoolError as error:
            self._put_end(number, Kind.FAILED, pack_own(error, {}))
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
        number = job.number
        value = None if job.cancelled() or job.exception() else job.result()
        if type(value) is bytes:
            self._put_end(number, Kind.VALUE, PLAIN + value, job)
        elif type(value) is ReceivedPickle:
            payload = self.carrier.pack_at_once(_sent_on(value))
            if payload is None:
                lending = self._end_large(job, _sent_on(value))
                self._agent.spawn(lending, "asyncpool large result")
            else:
                self._put_end(number, Kind.VALUE, payload, job)
        else:
            if isinstance(job, RelayedChunk) and job.found is not None:
                self.put(Message(Kind.FOUND, number, payload=job.found))
            self._put_end(number, *_outcome_of(job), job)

    async def _end_large(self, job: RelayedJob, value: OutOfBandPickle) -> None:
        wanted = partial(self.jobs.__contains__, job.number)
        payload = await self.carrier.pack(value, wanted)
        self._put_end(job.number, Kind.VALUE, payload, job)

    async def _pass_items(self, number: int, job: StreamJob) -> None:
        """Send the items of a stream, and then its end."""
        wanted = partial(self.jobs.__contains__, number)
        while items := await job.pass_on():
            for frame in items:
                payload = frame.payload
                if isinstance(payload, ReceivedPickle):
                    payload = await self.carrier.pack(_sent_on(payload), wanted)
                else:
                    payload = pack_parts(payload)
                self.put(Message(Kind.ITEM, number, payload=payload))
            self.flush()
        self._put_end(number, *_outcome_of(job), job)

    def beat(self, number: int, details: bytes) -> None:
        """Tell of a heartbeat of a job."""
        self._put_news(Message(Kind.HEARTBEAT, number, payload=details))

    # What the client asks.

    @property
    def _numbers(self) -> dict[int, int]:
        """The client's numbers of its jobs, by those of the pool."""
        return {job.id: number for number, job in self.jobs.items()}

    def _hear_ask(self, message: Message) -> None:
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

    def _hear_forget(self, message: Message) -> None:
        task = self._questions.get(message.job)
        if task is not None:
            task.cancel()
        self._hear_leave(message)

    def _hear_leave(self, message: Message) -> None:
        worker = self._workers.pop(message.job, None)
        if worker is not None:
            self._leave(worker, fresh=bool(message.options), failed=False)

    def _leave(self, worker: SessionWorker, *, fresh: bool, failed: bool) -> None:
        """Give a worker back to the pool when its calls are done, or at once."""
        leaving = worker.leave(self._engine, fresh=fresh, failed=failed)
        self._agent.spawn(leaving, "asyncpool end of a session")


def _outcome_of(job: PoolJob[Any]) -> tuple[Kind, bytes]:
    """Return how a job has ended, and what comes of it."""
    if job.cancelled():
        return Kind.DROPPED, b""
    error = job.exception()
    if error is None:
        return Kind.VALUE, pack_parts(job.result())
    if isinstance(error, PackedError):
        return Kind.ERROR, error.payload
    return Kind.FAILED, pack_own(error, {})


def _sent_on(received: ReceivedPickle) -> OutOfBandPickle:
    """Return what has come as what is to be sent."""
    return OutOfBandPickle([received.stream], received.buffers)


def _packed_call(payload: _Payload) -> bytes | OutOfBandPickle:
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
    if isinstance(payload, ReceivedPickle):
        return _sent_on(payload)
    stream, buffers = split_parts(payload)
    packed = OutOfBandPickle([stream], buffers)
    return packed if packed.areas else packed.payload


class Agent:
    """Lets clients use a pool; carriers bring them.

    Args:
        pool: The :class:`asyncpool.Pool`, which has been started.
        name: What clients call this node.
        most_clients: How many there may be at a time.

    Attributes:
        pool: As above.
        engine: What runs it.
        turns: Whose job is next.
        functions: The functions of the clients.
        stored: Calls that the client's engine has brought ahead of their jobs, by job.
        ends: How jobs have ended of which their clients will be told, by the pool's number.
    """

    def __init__(
        self, pool: Any, name: str, *, most_clients: int = MOST_CLIENTS
    ) -> None:
        self.pool = pool
        engine: Engine = pool._running_engine()  # noqa: SLF001 - Pool's own
        self.engine = engine
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
        self._greeting = greeting(__version__, codec) | {
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
