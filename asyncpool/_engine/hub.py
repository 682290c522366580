"""The events of a pool, and those of its jobs, which are many, for whoever asks for them."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from asyncpool._core import log_messages as say
from asyncpool._engine.loop import check_home
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobEnded, JobEvent

# Events to any number of listeners, none of which can hold up the pool.

E = TypeVar("E")


class EventStream(Generic[E]):
    """The events of a pool from here on, for one listener; an async iterator.

    It ends when the pool is closed.  If the listener is slower than the pool, the
    oldest events are dropped and counted.  A lease keeper's events come in such a stream too.

    Attributes:
        dropped: How many events this listener has missed.
    """

    def __init__(self, size: int) -> None:
        self.dropped: int = 0
        self._home = asyncio._get_running_loop()  # noqa: SLF001 - a lease keeper's may have none yet
        self._events: deque[E] = deque(maxlen=size)
        self._news = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """Wait for the next event.

        Raises:
            RuntimeError: In another event loop than the one in which the stream was made.

        Cancellation:
            Safe: no event is lost.
        """
        check_home(self._home, "an iterator over events")
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def put(self, event: E) -> bool:
        """Add an event, and return whether none had to be dropped for it."""
        full = len(self._events) == self._events.maxlen
        self.dropped += full
        self._events.append(event)
        self._news.set()
        return not full

    def end(self) -> None:
        """End the iteration after the events that are still here."""
        self._ended = True
        self._news.set()


class EventHub(Generic[E]):
    """Hands each event to all listeners that somebody still holds.

    Attributes:
        dropped: How many events listeners have missed.
        ended: Whether there will be no more events.
    """

    def __init__(self) -> None:
        self.dropped: int = 0
        self._streams: weakref.WeakSet[EventStream[E]] = weakref.WeakSet()
        self.ended = False

    def listen(self, size: int) -> EventStream[E]:
        """Return a stream of the events from now on."""
        stream: EventStream[E] = EventStream(size)
        if self.ended:
            stream.end()
        self._streams.add(stream)
        return stream

    def publish(self, event: E) -> None:
        """Hand *event* to every listener."""
        for stream in self._streams:
            self.dropped += not stream.put(event)

    def end(self) -> None:
        """End all streams."""
        self.ended = True
        for stream in self._streams:
            stream.end()


# What follows some of the jobs of a pool itself, not through events, such as for spans.


class Attempt(NamedTuple):
    """An attempt at a job.

    Attributes:
        slot: The slot of its worker.
        queued: Since when the job had waited for it, by :func:`time.monotonic`.
        began: When it began, on the same clock.
        run: How many seconds its function ran; ``None`` if the worker has not said that.
    """

    slot: int
    queued: float
    began: float
    run: float | None


def waited_since(job: Any, attempt: Attempt | None) -> float:
    """Return since when a job has waited for *attempt*, or waits if that has not begun."""
    since: float = job.queued_at if attempt is None else attempt.queued
    return since


class JobTracer(Protocol):
    """Something that follows some of the jobs.

    It is called in the loop, for each new job, for each step of those that any tracer follows,
    and for each failure of the others, so that it can tell of these too.  It raises nothing.  If
    it begins to follow a job, it says so by :meth:`PoolHub.follow`.  A job is a
    :class:`asyncpool.Job`.
    """

    def queued(self, job: Any, /) -> None:
        """Take note of a new job; it may set the trace context of the job."""
        ...

    def sending(self, job: Any, slot: int, /) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        ...

    def given_back(self, job: Any, /) -> None:
        """Take note that a worker has not begun a job, which waits again."""
        ...

    def again(self, job: Any, error: BaseException, attempt: Attempt | None, /) -> None:
        """Take note that an attempt has failed, and that the job waits for the next one.

        *attempt* is ``None`` if it had not begun.
        """
        ...

    def ended(
        self,
        job: Any,
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Take note of the end of a job; *error* is what its caller gets."""
        ...


_LOGGER = logging.getLogger("asyncpool")

Listener: TypeAlias = (
    Callable[[Event], object]
    | Callable[[Event | JobEvent], object]
    | Callable[[JobEnded], object]
)


class PoolHub(EventHub[Event]):
    """Hands the events of a pool to streams and to listeners, which are called.

    Attributes:
        listened: Whether anybody may listen to jobs.  Nothing is done for their events while
            nobody does.
        followed: Whether to more than their ends.
        tracers: What traces them.
        traced: The numbers of the open jobs that tracers follow.
        telling: Whether there are jobs of which each step is told, and not only a failure: all
            if somebody listens, else the traced ones.
        on_new: What hears of each new job, if anything does.
        companions: Close what lives beside the pool, before anybody hears of its end.
        ends: Called at the end of the pool.
        on_look: Called when *on_new* may have changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.telling = False
        self.listened = self.followed = False
        self.on_new: Callable[[Any], object] | None = None
        self.on_look: Callable[[], object] = _nothing
        self.tracers: tuple[JobTracer, ...] = ()
        self.traced: set[int] = set()
        self._on_queued: Callable[[Any], object] = _nothing
        self._on_unwatched: Callable[[], object] = _nothing
        # To iterate over a WeakSet takes 2 us, for each event of each job.
        self._job_streams: list[weakref.ref[EventStream[Event | JobEvent]]] = []
        self._listeners: list[Callable[[Event], object]] = []
        self._job_listeners: list[Callable[[Event | JobEvent], object]] = []
        self.ends: list[Callable[[], object]] = []
        self._end_listeners: list[Callable[[JobEnded], object]] = []
        self.companions: list[Callable[[], Awaitable[object]]] = []

    def listen_to_jobs(self, size: int) -> EventStream[Event | JobEvent]:
        """Return a stream of the events from now on, those of jobs among them."""
        stream: EventStream[Event | JobEvent] = EventStream(size)
        if self.ended:
            stream.end()
        self._job_streams.append(weakref.ref(stream, self._on_stream_gone))
        self._look()
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Have *listener* called with each event."""
        self._listeners.append(listener)

    def add_job_listener(self, listener: Callable[[Event | JobEvent], object]) -> None:
        """Have *listener* called with each event, those of jobs among them."""
        self._job_listeners.append(listener)
        self._look()

    def add_end_listener(self, listener: Callable[[JobEnded], object]) -> None:
        """Have *listener* called with the end of each job, and with nothing else."""
        # A new list, since an event may be on its way through the old one.
        self._end_listeners = [*self._end_listeners, listener]
        self._look()

    async def close_companions(self) -> None:
        """Close what lives beside the pool; what that raises is logged.

        Cancellation:
            Leaves some of them open.
        """
        while self.companions:
            close = self.companions.pop()
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                say.READER_FAILED.log(_LOGGER, {}, error=error, reader=close)

    def set_watch(
        self, queued: Callable[[Any], object], unwatched: Callable[[], object]
    ) -> None:
        """Have *queued* called with each new job while somebody listens to more than ends.

        And *unwatched* when nobody listens to jobs any more.
        """
        self._on_queued, self._on_unwatched = queued, unwatched
        self._look()

    def add_tracer(self, tracer: JobTracer) -> None:
        """Have *tracer* told of the jobs that come from now on."""
        self.tracers = (*self.tracers, tracer)
        self._look()

    def remove_tracer(self, tracer: JobTracer) -> None:
        """Tell *tracer* nothing any more."""
        self.tracers = tuple(each for each in self.tracers if each is not tracer)
        self._look()

    def follow(self, number: int) -> None:
        """Take note that a tracer follows a job, up to its end."""
        self.traced.add(number)
        self.telling = True

    def forget(self, number: int) -> None:
        """Take note that a job has ended."""
        self.traced.discard(number)
        self.telling = self.listened or bool(self.traced)

    def remove_listener(self, listener: Listener) -> int:
        """Call *listener* no more, and return how often it was there."""
        before = self._count_listeners()
        self._listeners = [it for it in self._listeners if it != listener]
        self._job_listeners = [it for it in self._job_listeners if it != listener]
        self._end_listeners = [it for it in self._end_listeners if it != listener]
        self._look()
        return before - self._count_listeners()

    def _count_listeners(self) -> int:
        several = len(self._job_listeners) + len(self._end_listeners)
        return len(self._listeners) + several

    def publish(self, event: Event) -> None:
        """Hand *event* to everybody who listens."""
        super().publish(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                _report(listener, event, error)
        if self.followed:
            self.publish_job(event)

    # These two say the same again, since a call takes 60 ns, for each event of each job.

    def publish_job(self, event: Event | JobEvent) -> None:
        """Hand *event* to everybody who listens to jobs."""
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                self.dropped += not stream.put(event)
        for listener in self._job_listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                _report(listener, event, error)

    def publish_end(self, event: JobEnded) -> None:
        """Hand the end of a job to everybody who listens to jobs, or to their ends."""
        if self.followed:
            self.publish_job(event)
        for listener in self._end_listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                _report(listener, event, error)

    def end(self) -> None:
        """End all streams, tell that to whoever asked for it, and call nobody any more."""
        super().end()
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                stream.end()
        ends = self.ends
        self._listeners, self._job_listeners, self.ends = [], [], []
        self._end_listeners = []
        for callback in ends:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                say.READER_FAILED.log(_LOGGER, {}, error=error, reader=callback)

    def _on_stream_gone(self, ref: weakref.ref[Any]) -> None:
        # A new list, since an event may be on its way through the old one.
        self._job_streams = [other for other in self._job_streams if other is not ref]
        self._look()

    def _look(self) -> None:
        before = self.listened
        self.followed = bool(self._job_listeners or self._job_streams)
        self.listened = self.followed or bool(self._end_listeners)
        if not self.tracers:
            self.traced.clear()
        self.telling = self.listened or bool(self.traced)
        new: list[Callable[[Any], object]] = [each.queued for each in self.tracers]
        if self.followed:
            new.append(self._on_queued)
        self.on_new = None if not new else new[0] if len(new) == 1 else _in_turn(new)
        if before and not self.listened:
            self._on_unwatched()
        self.on_look()


def _nothing(*_: object) -> None:
    pass


def _in_turn(listeners: list[Callable[[Any], object]]) -> Callable[[Any], object]:
    """Return what calls each of *listeners*."""

    def call(job: Any) -> None:
        for listener in listeners:
            listener(job)

    return call


def _report(listener: object, event: object, error: Exception) -> None:
    """Log what *listener* has raised."""
    say.LISTENER_FAILED.log(_LOGGER, {}, error=error, listener=listener, event=event)
