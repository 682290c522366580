"""What an agent keeps of one client, and what the client says."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncpool._core.functions import Function
from asyncpool._core.options import JobOptions
from asyncpool._engine.job import Holder, PoolJob, StreamJob
from asyncpool._remote.agent_answers import Answers
from asyncpool._remote.agent_jobs import CREDITS, AgentJobs
from asyncpool._remote.begun_page import BegunPage
from asyncpool._remote.carrier import Carrier, ignore, send_beat, send_new
from asyncpool._remote.client_questions import ClientQuestions
from asyncpool._remote.lent_parts import LENT
from asyncpool._remote.messages import Kind, Message, pack_numbers, unpack_headers
from asyncpool._remote.options import read_options
from asyncpool._remote.relay import JOB_TYPES, Call, Payload, Relay, traits_of
from asyncpool._remote.reliable_link import Batch, ReliableLink
from asyncpool._remote.stored_calls import STORED, StoredPayloads
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.frames import MAX_ATTEMPTS
from asyncpool._wire.messages import FunctionCache
from asyncpool._wire.text import MAX_NAME, printable_name
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._remote.agent import Agent


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

    def keeps(self, number: int) -> bool:
        """Tell whether a worker has, or may get, the job with that number."""
        return number in self._holders

    def extend(self, number: int, until: float) -> None:
        """Hear until when the lease of a job lasts, on this loop's clock."""
        holder = self._holders.get(number)
        if holder is None:
            self._until[number] = until
        else:
            holder.extended(until)

    def forget(self, number: int) -> None:
        """Forget a job that the pool never got."""
        self._until.pop(number, None)

    def _done(self, number: int, _: asyncio.Future[None]) -> None:
        del self._holders[number]
        self._on_free(number)


class ComingCalls:
    """Waits for calls.

    Args:
        stored: The calls that the engine brings, if it has a store.
        accept: Called with a call that has come.

    Attributes:
        calls: What is known of those that have not come.
    """

    def __init__(
        self, stored: StoredPayloads | None, accept: Callable[[Call], object]
    ) -> None:
        self._stored = stored
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self.calls: dict[int, Call] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def wait_for(self, call: Call) -> None:
        """Wait for the call of a job.

        Raises:
            ProtocolError: If nobody brings it, or the job is here already.
        """
        number = call.message.job
        if self._stored is None or number in self.calls:
            raise ProtocolError(
                f"the client sent job {number}, whose call nobody brings"
            )
        self.calls[number] = call
        self._tasks[number] = self._loop.create_task(
            self._bring(call, self._stored), name="asyncpool stored call"
        )

    async def _bring(self, call: Call, stored: StoredPayloads) -> None:
        message, since = call.message, self._loop.time()
        payload = await stored.get(message.job)
        del self.calls[message.job], self._tasks[message.job]
        waited = self._loop.time() - since
        deadline, wait = message.deadline - waited, message.wait - waited
        message = message._replace(deadline=max(0.0, deadline), wait=max(0.0, wait))
        self._accept(call._replace(message=message, payload=payload))

    def cancel(self, number: int) -> Call | None:
        """Wait no more for the call of a job; return what is known of it, if it was awaited."""
        call = self.calls.pop(number, None)
        if call is not None:
            self._tasks.pop(number).cancel()
        return call

    def forget(self, number: int) -> None:
        """Note that nobody wants the call of a job any more."""
        if self._stored is not None:
            self._stored.forget(number)

    def close(self) -> None:
        """Wait for nothing more."""
        for number in [*self.calls]:
            self.cancel(number)


class ClientCalls:
    """Reads the calls of one client.

    The client knows by the same rules what is forgotten here.

    Args:
        relay: Knows the functions of all clients.
        keeper: Keeps the leases of the client's jobs.
    """

    def __init__(self, relay: Relay, keeper: ClientKeeper) -> None:
        self._relay = relay
        self._keeper = keeper
        self._functions = FunctionCache()
        self._options = FunctionCache()
        self._details: tuple[int, bytes] = (0, b"")
        self._trace = b""

    def on_function(self, message: Message) -> None:
        """Remember a function."""
        name, _, reference = message.payload.partition(b"\0")
        # A client that is none may call it anything, and logs and figures show it.
        shown = printable_name(name.decode())[:MAX_NAME]
        function = self._relay.functions.named(shown, reference)
        self._functions.add(message.function, function)

    def on_options(self, message: Message) -> None:
        """Remember options.

        Raises:
            ProtocolError: If they are none.
            ValueError: If a value is out of range.
            TypeError: If a value has the wrong type.
        """
        told, codec = json.loads(message.payload), self._relay.functions
        options = read_options(told, self._keeper, codec)
        if options.via not in JOB_TYPES:
            raise ProtocolError(f"the client sent a job for {options.via!r}")
        self._options.add(message.options, options)

    def on_details(self, message: Message) -> None:
        """Remember the last heartbeat of an earlier attempt of the next job."""
        self._details = message.job, message.payload

    def on_trace(self, message: Message) -> None:
        """Remember the trace context of the next jobs."""
        self._trace = unpack_headers(message.payload)

    def read(self, message: Message, payload: Payload) -> Call:
        """Return the call that *message* names.

        Raises:
            LookupError: If its function or its options are not known.
        """
        function: Function = self._functions[message.function]
        options: JobOptions = self._options[message.options]
        details = b""
        if self._details[0] == message.job:
            details, self._details = self._details[1], (0, b"")
        return Call(function, options, message, details, payload, self._trace)


_MICRO = 1e6

# What a client's false message leads to; RecursionError is that of JSON in very many brackets.
_MISTAKES = (ProtocolError, LookupError, ValueError, TypeError, RecursionError)

# A client has the ends of all jobs but those for which it has credits, and of a few calls of
# sessions, which take none.
_MOST_ENDS = 2 * CREDITS

# Events and heartbeats are dropped while so many messages wait for a client.
_MOST_NEWS = 1024


class AgentClient:
    """One client of an agent.

    Args:
        number: The number of its session.
        carrier: Brings batches there.
        jobs: Whose job is next.
        relay: Brings jobs to the pool, and outcomes back.
        answers: Answers questions.
        turns: Hears when there is something to do, and that the client is gone or is to go.
        page: Where it may see which jobs begin.

    Attributes:
        number: As above.
        jobs: The jobs that the pool has.
        workers: The workers that belong to the client, by the number that it has given them.
        keeper: Keeps the leases of its jobs.
        lent: Memory that the client sees, if there is such.
        process: The process of the client, if that is known.
    """

    def __init__(
        self,
        number: int,
        carrier: Carrier,
        *,
        jobs: AgentJobs,
        relay: Relay,
        answers: Answers,
        turns: Agent,
        page: BegunPage | None,
    ) -> None:
        self.number = number
        self.lent, self.process = carrier.lent, carrier.process
        self._carrier = carrier
        self._jobs = jobs
        self._relay = relay
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._link = ReliableLink(number, gapless=not carrier.loses)
        self._calls: dict[int, Call] = {}  # of jobs that the pool has not got
        # The numbers of the messages that tell of ends, and that may be unacknowledged.
        self._ends: deque[int] = deque()
        self.jobs: dict[int, PoolJob[Any]] = {}
        self._coming = ComingCalls(relay.stored, self._on_come)
        self.keeper = ClientKeeper(self._on_free)
        self._told = ClientCalls(relay, self.keeper)
        self._questions = ClientQuestions(self, answers, relay)
        self.workers = self._questions.workers
        self._over = False
        self._page = page
        self._page_fd = -1
        self._page_is_used = False
        carrier.on_bytes = self._on_bytes
        carrier.on_gone = self._on_gone
        self._handlers = self._by_kind()

    def _by_kind(self) -> dict[Kind, Callable[[Message], object]]:
        """Return what hears each kind of message."""
        return {
            Kind.JOB: self._on_job,
            Kind.FOLLOWED: self._on_job,
            Kind.CANCEL: self._on_cancel,
            Kind.FUNCTION: self._told.on_function,
            Kind.OPTIONS: self._told.on_options,
            Kind.DETAILS: self._told.on_details,
            Kind.TRACE: self._told.on_trace,
            Kind.CREDIT: self._on_credit,
            Kind.FENCE: self._on_fence,
            Kind.ASK: self._questions.on_ask,
            Kind.FORGET: self._questions.on_forget,
            Kind.LEAVE: self._questions.on_leave,
            Kind.PAGE: self._on_page,
        }

    @property
    def _tells_begins(self) -> bool:
        """Whether the client hears of begins by messages, and not by the page alone."""
        return not self._page_is_used or self._questions.listens

    @property
    def busy(self) -> bool:
        """Whether jobs of the client are here."""
        return bool(self.jobs or self._calls or self._coming.calls)

    def functions(self) -> list[str]:
        """Return the name of the function of each job of the client that is here."""
        waiting = *self._calls.values(), *self._coming.calls.values()
        names = [call.function.name for call in waiting]
        return names + [job.title for job in self.jobs.values()]

    # What goes to the client.

    def put(self, message: Message) -> None:
        """Have *message* sent with the next batch."""
        self._link.put(message.pack())

    def put_news(self, message: Message) -> None:
        """Do the same with a message that the client can do without, if it does not keep up."""
        if self._link.unacknowledged < _MOST_NEWS:
            self._link.put(message.pack())
            self._turns.turn_soon()

    def send_soon(self) -> None:
        """Have what was put sent in the next turn of the loop."""
        self._turns.turn_soon()

    def push(self) -> None:
        """Send what was put, now."""
        self.flush(self._loop.time())

    def flush(self, now: float) -> None:
        """Send what was put."""
        send_new(self._carrier, self._link, int(now * _MICRO))

    def beat(self, now: float) -> None:
        """Show that the agent is alive, and send again what may be lost."""
        send_beat(self._carrier, self._link, int(now * _MICRO))

    # The end.

    def close(self) -> None:
        """Give up what the client has here."""
        self._over = True
        self._close_page()
        self._questions.close()
        self._coming.close()
        for job in [*self.jobs.values()]:
            job.cancel()
        self._carrier.on_gone = ignore
        self._carrier.close()

    # What the client says.

    def _on_bytes(self, data: bytes) -> None:
        if self._over:
            return
        try:
            batch = Batch.unpack(data)
            if batch.session != self.number:
                return
            # No later than now, whatever it says: else it would have its lease for ever.
            now = self._loop.time()
            self._jobs.heard(self.number, min(batch.echo / _MICRO, now))
            self._turns.look()
            for packed in self._link.receive(batch, int(now * _MICRO)):
                self._on_message(Message.unpack(packed))
            self._begin_pending()
        except _MISTAKES as error:
            self._turns.end(self, error)
            return
        self._turns.turn()

    def _on_gone(self, error: Exception | None) -> None:
        self._turns.end(self, error or "its process has ended, or it has left")

    def _on_message(self, message: Message) -> None:
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise ProtocolError(f"a client sent a {message.kind.name}")
        handler(message)

    def _check_ends(self) -> None:
        """Check that the client takes the results of its jobs before it sends many others.

        A job has credit again when its client has its end, which the same batch acknowledges.
        """
        ends, known = self._ends, self._link.acknowledged
        while ends and ends[0] <= known:
            ends.popleft()
        if len(ends) > _MOST_ENDS:
            raise ProtocolError(f"the client has taken none of {len(ends)} results")

    def _on_job(self, message: Message) -> None:
        self._check_ends()
        # Here, where it costs this client alone: the pool gets the job in a turn of all clients.
        # A comparison with NaN is false.
        is_timed = message.wait > 0 and message.deadline >= -math.inf
        if message.begun >= MAX_ATTEMPTS or not is_timed:
            raise ProtocolError(f"the client sent job {message.job} with false numbers")
        payload = message.payload
        if payload.startswith(LENT):
            # At once: whoever drops what was lent gives it back by that.
            payload = self._borrow(payload)
        call = self._told.read(message, payload)
        if payload == STORED:
            self._coming.wait_for(call)
        else:
            self._accept(call)

    def _on_come(self, call: Call) -> None:
        """Hear that the engine has brought the call of a job."""
        try:
            self._accept(call)
        except _MISTAKES as error:
            self._turns.end(self, error)
        else:
            self._turns.turn()

    def _accept(self, call: Call) -> None:
        """Give a job to the pool, or let it wait for its turn."""
        message = call.message
        if call.options.session is None:
            if message.place > CREDITS:
                raise ProtocolError(f"the client put a job at {message.place}")
            if not self._begin_at_once(call):
                traits = traits_of(call)
                self._jobs.accept(self.number, message.job, message.priority, traits)
                self._calls[message.job] = call
            return
        self._jobs.accept_call(self.number, message.job)
        if self._carrier.loses:
            self._calls[message.job] = call
            self._tell([message.job], self._loop.time())
            return
        # Nobody else has its worker, so it is never sent again, and may save the time of an answer.
        self.put(Message(Kind.BEGAN, payload=pack_numbers([message.job])))
        self.flush(self._loop.time())
        self._submit(call)

    def _borrow(self, payload: bytes) -> OutOfBandPickle | None:
        borrowed = self._carrier.borrowed
        if borrowed is None:
            raise ProtocolError("a client lent memory on a carrier that has none")
        found = borrowed.read(payload)
        return None if found is None else OutOfBandPickle([found.stream], found.buffers)

    def _begin_at_once(self, call: Call) -> bool:
        """Give a job to the pool that has just come, if none waits and the page can tell of it."""
        if self._tells_begins:
            return False
        assert self._page is not None
        place, number = call.message.place, call.message.job
        now = self._loop.time()
        if not self._jobs.accept_at_once(self.number, number, traits_of(call), now):
            return False
        self._page.mark(place, number)
        self._submit(call)
        return True

    def begin(self, numbers: list[int], now: float) -> None:
        """Give jobs to the pool; the client knows before that they begin."""
        if not self._page_is_used:
            self._tell(numbers, now)
            return
        assert self._page is not None
        for number in numbers:
            self._page.mark(self._calls[number].message.place, number)
        if self._tells_begins:
            self.put(Message(Kind.BEGAN, payload=pack_numbers(numbers)))
            self.flush(now)
        self._give_to_pool(numbers)

    def _tell(self, numbers: list[int], now: float) -> None:
        """Tell the client that jobs begin, which they do when it has acknowledged that."""
        message = Message(Kind.BEGAN, payload=pack_numbers(numbers))
        self._jobs.told(self.number, numbers, self._link.put(message.pack()))
        self.flush(now)

    def _begin_pending(self) -> None:
        """Give the pool the jobs of which the client knows by now that they begin."""
        known, now = self._link.acknowledged, self._loop.time()
        self._give_to_pool(self._jobs.may_begin(self.number, known, now))

    def _give_to_pool(self, numbers: list[int]) -> None:
        for number in numbers:
            self._submit(self._calls.pop(number))

    def _submit(self, call: Call) -> None:
        self._relay.submit(self, call)
        if self._relay.stored is not None:
            self._relay.stored.taken(call.message.job)

    def lend_page(self, fd: int) -> None:
        """Keep the descriptor of the page open until the client has opened it."""
        self._page_fd = fd

    def _close_page(self) -> None:
        fd, self._page_fd = self._page_fd, -1
        if fd >= 0:
            os.close(fd)

    def _on_page(self, message: Message) -> None:
        self._close_page()
        if message.place:
            return  # the client cannot open it
        self._page_is_used = self._page is not None

    def ended(self, number: int, message: bytes) -> None:
        """Tell how a job has ended: at once, if the client waits for no other."""
        if self._jobs.ended(self.number, number):
            self.jobs.pop(number, None)
            if self.workers:
                self._questions.tell_workers()
            self._ends.append(self._link.put(message))
            self._turns.settled(self)

    def _on_cancel(self, message: Message) -> None:
        number = message.job
        job = self.jobs.get(number)
        call = self._coming.cancel(number)
        if job is not None:
            job.cancel()
        elif call is None and self._jobs.cancel(self.number, number):
            call = self._calls.pop(number)
        if call is not None:
            self._coming.forget(number)
            if call.options.lease is not None:
                self.keeper.forget(number)
                self._on_free(number)
            self.put(Message(Kind.DROPPED, number))

    def _on_free(self, number: int) -> None:
        if not self._over:
            self.put(Message(Kind.FREE, number))
            self._turns.turn_soon()

    def _on_credit(self, message: Message) -> None:
        job = self.jobs.get(message.job)
        if isinstance(job, StreamJob):
            job.allow(message.priority)

    def _on_fence(self, message: Message) -> None:
        number = message.job
        call = self._calls.get(number) or self._coming.calls.get(number)
        # It may come when no worker has the job any more, and is for nothing then.
        if self.keeper.keeps(number) or (call and call.options.lease):
            self.keeper.extend(number, message.priority / _MICRO + message.deadline)
