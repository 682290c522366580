"""An agent, as its client knows it: what it was told and asked, and what goes to it next."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

from asyncpool._core.functions import Function
from asyncpool._core.options import JobOptions
from asyncpool._engine.hub import Attempt
from asyncpool._engine.job import PoolJob
from asyncpool._remote.agent_jobs import AgentWindow
from asyncpool._remote.begun_page import open_page
from asyncpool._remote.carrier import Carrier, send_beat, send_new
from asyncpool._remote.client_jobs import MAX_CREDITS, SLOTS, SignsOfLife, first_slot
from asyncpool._remote.messages import (
    Kind,
    Message,
    pack_head,
    pack_headers,
    pack_question,
)
from asyncpool._remote.objects import kind_of, load_own
from asyncpool._remote.options import write_options
from asyncpool._remote.reliable_link import (
    Batch,
    ClockBounds,
    ReliableLink,
)
from asyncpool._wire.buffers import ReceivedPickle
from asyncpool._wire.messages import MOST_REMEMBERED, FunctionCache, JobContext
from asyncpool.errors import AsyncPoolError, PoolClosedError, ProtocolError

_MISTAKES: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "TimeoutError": TimeoutError,
}


class Questions:
    """The questions of a client that have no answer yet.

    Args:
        flush: Sends what was put.
    """

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Node, asyncio.Future[Any]]] = {}

    def next_number(self) -> int:
        """Return a number that no question has had."""
        return next(self._numbers)

    async def ask(
        self,
        node: Node,
        what: str,
        payload: bytes = b"",
        *,
        number: int = 0,
        **details: Any,
    ) -> Any:
        """Ask an agent, and return its answer.

        Raises:
            AsyncPoolError: What the agent's pool has raised.
            ValueError: If the agent has found the question wrong; or TypeError, TimeoutError.

        Cancellation:
            Takes the question back.
        """
        answer = asyncio.get_running_loop().create_future()
        number = self.send(node, what, payload, number=number, **details)
        self._open[number] = node, answer
        try:
            await asyncio.wait([answer])
        finally:
            del self._open[number]
            if not answer.done():
                node.put(Message(Kind.FORGET, number))
                self._flush()
            else:
                answer.exception()  # marks it as retrieved, if the caller was cancelled
        return _read(answer.result())

    def send(
        self,
        node: Node,
        what: str,
        payload: bytes = b"",
        *,
        number: int = 0,
        **details: Any,
    ) -> int:
        """Ask an agent, and return the number of the question; nobody waits for the answer."""
        number = number or self.next_number()
        question = pack_question(what, payload, details)
        node.put(Message(Kind.ASK, number, payload=question))
        self._flush()
        return number

    def answered(self, message: Message) -> None:
        """Hear an answer; it may come too late.

        Raises:
            ProtocolError: If it cannot be read.
        """
        _, answer = self._open.get(message.job, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(load_own(message.payload))

    def lost(self, node: Node) -> None:
        """Hear that an agent is gone."""
        for asked, answer in self._open.values():
            if asked is node and not answer.done():
                answer.set_exception(gone(node))


def gone(node: Node) -> PoolClosedError:
    """Return the error for asking an agent that is lost."""
    return PoolClosedError(f"the agent {node.name} is gone")


def _read(answer: object) -> Any:
    match answer:
        case (True, found):
            return found
        case (False, AsyncPoolError() as error):
            raise error
        case (False, (str(name), str(text))):
            raise _MISTAKES.get(name, ValueError)(text)
        case _:
            raise ProtocolError(f"an agent answered by {kind_of(answer)}")


_MICRO = 1e6

# Functions that travel with each call, and those that stand for others as that of a map's chunks
# does, have numbers from here on, made of their names.
_NAMES = 1 << 31


class Node:
    """One agent of a client.

    Args:
        number: Its number at the client.
        carrier: Brings batches there.
        about: What the agent has told about itself.
        signs: When it was heard.

    Attributes:
        clock: How far its clock is from the client's.
        fresh: Whether each job has a new worker.
        counts_jobs: Whether a worker begins a limited number of jobs.
        window: How many jobs it may have of each function, if that is limited.
        first_slot: What is added to the slots of its workers, so that no other agent has them.
    """

    def __init__(
        self, number: int, carrier: Carrier, about: dict[str, Any], signs: SignsOfLife
    ) -> None:
        self.number = number
        self.first_slot = first_slot(number)
        self.name = str(about["node"])
        self.window = AgentWindow(int(about["lanes"]))
        self.credits = min(int(about["credits"]), MAX_CREDITS)
        self.fresh = bool(about["fresh"])
        self.counts_jobs = bool(about["counts_jobs"])
        self.carrier = carrier
        self.link = ReliableLink(int(about["session"]), gapless=not carrier.loses)
        self.link.echo = int(about["stamp"])
        self.signs = signs
        self.clock = ClockBounds()
        # Where the agent notes that a job begins: the place of each job, and those that are free.
        self._places: dict[int, int] = {}
        self._free = [*range(self.credits, 0, -1)]
        self._page = open_page(carrier.process, int(about["page"]), 1 + self.credits)
        self.put(Message(Kind.PAGE, place=int(self._page is None)))
        # The agent forgets the oldest of these by the same rule.
        self._functions = FunctionCache()
        self._options: dict[bytes, int] = {}
        self._last_options = 0
        # The context of the last job that was looked at for a trace, and the trace that holds now.
        self._context = self._trace = b""
        # Many jobs have the same object, and to write it down takes 10 us.
        self._written: dict[int, tuple[JobOptions, int]] = {}

    @property
    def lanes(self) -> int:
        """How many jobs it can run at once."""
        return self.window.lanes

    def put(self, message: Message) -> None:
        """Have *message* sent with the next batch."""
        self.link.put(message.pack())

    def flush(self, now: float) -> None:
        """Send what was put."""
        if self.link.unsent:
            self.clock.sent(self.link.last, now)
        send_new(self.carrier, self.link)

    def heard(self, batch: Batch, now: float) -> None:
        """Take note of a sign of life, and of what it says about the agent's clock."""
        self.signs.heard(now)
        stamp, taken_at = batch.stamp / _MICRO, batch.taken_at / _MICRO
        self.clock.heard(stamp, taken_at, batch.acknowledged, now)

    def attempt_of(self, job: PoolJob[Any], message: Message, now: float) -> Attempt:
        """Return the attempt that the end of a followed job tells of, on the client's clock.

        It did not begin before the job waited for it, and has ended by now: so much is sure,
        however wrong the clocks are.

        Raises:
            ProtocolError: If it tells of none.
        """
        began, run, slot = message.deadline, message.wait, message.place - 1
        if not (math.isfinite(began) and 0.0 <= run < math.inf and slot < SLOTS):
            raise ProtocolError(f"an agent said that {job!r} ran for {run} s in {slot}")
        began -= self.clock.offset(now).ahead
        began = max(job.queued_at, min(began, now - run))
        return Attempt(self.first_slot + slot, job.queued_at, began, run)

    def beat(self) -> None:
        """Show that the client is alive, and send again what may be lost."""
        send_beat(self.carrier, self.link)

    def has_begun(self, job: int) -> bool:
        """Tell whether the page says that *job* has begun."""
        place = self._places.get(job)
        if place is None or self._page is None:
            return False
        return self._page.has_begun(place, job)

    def acknowledge_begins(self) -> None:
        """Answer at once that the client knows of begins: without a page the agent waits for it."""
        if self._page is None:
            self.link.owe()

    def begun(self) -> list[int]:
        """Return the jobs of which the page says that they have begun."""
        return [job for job in self._places if self.has_begun(job)]

    def ended(self, job: int) -> None:
        """Note that the agent has *job* no more."""
        place = self._places.pop(job, None)
        if place is not None:
            self._free.append(place)

    def borrow(self, payload: bytes) -> ReceivedPickle | None:
        """Return a value that the agent has lent; ``None`` if it cannot be had here.

        Raises:
            ProtocolError: If the agent has lent no such thing.
        """
        borrowed = self.carrier.borrowed
        if borrowed is None:
            raise ProtocolError("an agent lent memory on a carrier that has none")
        return borrowed.read(payload)

    def put_job(
        self,
        job: PoolJob[Any],
        payload: bytes,
        now: float,
        wait: float,
        *,
        followed: bool,
        traced: bool,
    ) -> None:
        """Give the agent a job and its call; the attempt is counted already.

        Args:
            job: The job.
            payload: The call.
            now: The time.
            wait: How many more seconds it may wait.
            followed: Whether its end is to say where and when it ran.
            traced: Whether it may have a trace context.
        """
        if traced or self._trace:
            self._tell_trace(job.context)
        options = job.options
        function = self._tell_function(job.function, renamed=bool(options.name))
        told = self._tell_options(options)
        if job.attempt > 1 and job.heartbeats is not None:
            details = JobContext.unpack(job.context).details
            self.put(Message(Kind.DETAILS, job.id, payload=details))
        deadline = job.options.deadline
        left = math.inf if deadline is None else deadline - now
        place = 0
        if self._page is not None and options.session is None:
            place = self._places[job.id] = self._free.pop()
        # The same as Message(...).pack(), in half of the time.
        head = pack_head(
            Kind.FOLLOWED if followed else Kind.JOB,
            job.id,
            function,
            told,
            job.attempt - 1,
            options.priority,
            left,
            wait,
            place,
        )
        self.link.put(head + payload)

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
