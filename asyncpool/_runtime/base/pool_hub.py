"""The events of a pool, and those of its jobs, which are many, for whoever asks for them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.base.event_hub import EventHub, EventStream
from asyncpool._runtime.base.job_tracer import JobTracer
from asyncpool.events import Event, JobEnded, JobEvent

_LOGGER = logging.getLogger("asyncpool")

Listener: TypeAlias = (
    Callable[[Event], object]
    | Callable[[Event | JobEvent], object]
    | Callable[[JobEnded], object]
)


class Reader(Protocol):
    """Something that hears what a pool tells of its life, up to its end, such as a trace."""

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        ...

    def end(self) -> None:
        """Take note that the pool has ended."""
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
        tracers: What traces them.
        traced: The numbers of the open jobs that tracers follow.
        telling: Whether there are jobs of which each step is told, and not only a failure: all
            if somebody listens, else the traced ones.
        on_new: What hears of each new job, if anything does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watched = self.telling = False
        self.listened = self.followed = False
        self.on_new: Callable[[Any], object] | None = None
        self.tracers: tuple[JobTracer, ...] = ()
        self.traced: set[int] = set()
        self._on_queued: Callable[[Any], object] = _ignore
        self._on_unwatched: Callable[[], object] = _nothing
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
        """Have *reader* hear each event, and the end."""
        self.add_end(reader.end)
        self.add_listener(reader.hear)

    def add_end(self, callback: Callable[[], object]) -> None:
        """Have *callback* called at the end of the pool."""
        self._ends.append(callback)

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
        self.watched = self.listened or bool(self.tracers)
        if not self.tracers:
            self.traced.clear()
        self.telling = self.listened or bool(self.traced)
        new: list[Callable[[Any], object]] = [each.queued for each in self.tracers]
        if self.followed:
            new.append(self._on_queued)
        self.on_new = None if not new else new[0] if len(new) == 1 else _in_turn(new)
        if before and not self.listened:
            self._on_unwatched()


def _nothing() -> None:
    pass


def _ignore(_: object) -> None:
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
