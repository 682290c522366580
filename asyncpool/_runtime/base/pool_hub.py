"""The events of a pool, and those of its jobs, which are many, for whoever asks for them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from asyncpool._core.base import pool_messages as say
from asyncpool._runtime.base.event_hub import EventHub, EventStream
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobEnded, JobEvent

_LOGGER = logging.getLogger("asyncpool")

Listener: TypeAlias = (
    Callable[[Event], object]
    | Callable[[Event | JobEvent], object]
    | Callable[[JobEnded], object]
)


class Reader(Protocol):
    """Something that hears all that a pool tells, up to its end, such as a trace."""

    def hear(self, event: Event | JobEvent) -> None:
        """Take note of an event."""
        ...

    def end(self) -> None:
        """Take note that the pool has ended."""
        ...


class JobTracer(Protocol):
    """Something that follows some of the jobs itself, not through events, such as for spans.

    It is called in the loop, for each new job, and for each step of those that it follows.  It
    raises nothing.  A job is a :class:`asyncpool.Job`, which this room does not know.

    Attributes:
        traced: The open jobs that it follows, by number.
    """

    traced: dict[int, Any]

    def queued(self, job: Any, /) -> None:
        """Take note of a new job; it may set the trace context of the job."""
        ...

    def sending(self, job: Any, slot: int, /) -> None:
        """Take note that an attempt is about to be sent to the worker in *slot*."""
        ...

    def ran(self, job: Any, run: float, /) -> None:
        """Take note that an attempt has just come to an outcome, after *run* seconds."""
        ...

    def given_back(self, job: Any, /) -> None:
        """Take note that a worker has not begun a job, which waits again."""
        ...

    def again(self, job: Any, error: BaseException, /) -> None:
        """Take note that an attempt has failed, and that the job waits for the next one."""
        ...

    def ended(
        self, job: Any, outcome: JobOutcome, error: BaseException | None, /
    ) -> None:
        """Take note of the end of a job; *error* is what its caller gets."""
        ...


class Companion(Protocol):
    """Something that lives beside a pool, and must have ended before the pool has."""

    async def close(self) -> None:
        """End it."""
        ...


class PoolHub(EventHub[Event]):
    """Hands the events of a pool to streams and to listeners, which are called.

    Attributes:
        watched: Whether anybody may listen to jobs, or traces them.  Nothing is done for
            events of jobs while nobody does.
        listened: Whether anybody may listen to jobs.
        followed: Whether to more than their ends.
        on_unwatched: Called when nobody listens to jobs any more.
        tracer: What traces them, if anything does.
        traced: Which of the open jobs it follows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.listened = self.followed = False
        self.on_unwatched: Callable[[], object] = _nothing
        self.tracer: JobTracer | None = None
        self.traced: dict[int, Any] = {}
        # To iterate over a WeakSet takes 2 us, for each event of each job.
        self._job_streams: list[weakref.ref[EventStream[Event | JobEvent]]] = []
        self._listeners: list[Callable[[Event], object]] = []
        self._job_listeners: list[Callable[[Event | JobEvent], object]] = []
        self._ends: list[Callable[[], object]] = []
        self._end_listeners: list[Callable[[JobEnded], object]] = []
        self._companions: list[Companion] = []

    def listen_to_jobs(self, size: int) -> EventStream[Event | JobEvent]:
        """Return a stream of the events from now on, those of jobs among them."""
        stream: EventStream[Event | JobEvent] = EventStream(size)
        if self._ended:
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

    def add_companion(self, companion: Companion) -> None:
        """Have *companion* closed when the pool has ended, before anybody hears of that."""
        self._companions.append(companion)

    async def close_companions(self) -> None:
        """Close what lives beside the pool; what that raises is logged.

        Cancellation:
            Leaves some of them open.
        """
        while self._companions:
            companion = self._companions.pop()
            try:
                await companion.close()
            except Exception as error:  # noqa: BLE001 - nobody else's concern
                say.READER_FAILED.log(_LOGGER, {}, error=error, reader=companion)

    def add_reader(self, reader: Reader) -> None:
        """Have *reader* hear each event, those of jobs among them, and the end."""
        self.add_end(reader.end)
        self.add_job_listener(reader.hear)

    def add_end(self, callback: Callable[[], object]) -> None:
        """Have *callback* called at the end of the pool."""
        self._ends.append(callback)

    def set_tracer(self, tracer: JobTracer | None) -> None:
        """Have *tracer* follow the jobs that come from now on, or nothing."""
        self.tracer = tracer
        self.traced = {} if tracer is None else tracer.traced
        self._look()

    def remove_reader(self, reader: Reader) -> None:
        """Tell *reader* nothing any more but the end."""
        self.remove_listener(reader.hear)

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
            _call(listener, event)
        if self.followed:
            self.publish_job(event)

    def publish_job(self, event: Event | JobEvent) -> None:
        """Hand *event* to everybody who listens to jobs."""
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                self.dropped += not stream.put(event)
        for listener in self._job_listeners:
            _call(listener, event)

    def publish_end(self, event: JobEnded) -> None:
        """Hand the end of a job to everybody who listens to jobs, or to their ends."""
        if self.followed:
            self.publish_job(event)
        for listener in self._end_listeners:
            _call(listener, event)

    def end(self) -> None:
        """End all streams, tell the readers, and call nobody any more."""
        super().end()
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                stream.end()
        ends = self._ends
        self._listeners, self._job_listeners, self._ends = [], [], []
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
        self.watched = self.listened or self.tracer is not None
        if before and not self.listened:
            self.on_unwatched()


def _nothing() -> None:
    pass


def _call(listener: Callable[[Any], object], event: object) -> None:
    """Call *listener*; what it raises is logged, and nobody else's concern."""
    try:
        listener(event)
    except Exception as error:  # noqa: BLE001 - see above
        say.LISTENER_FAILED.log(
            _LOGGER, {}, error=error, listener=listener, event=event
        )
