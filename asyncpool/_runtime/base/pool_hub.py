"""The events of a pool, and those of its jobs, which are many, for whoever asks for them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from asyncpool._runtime.base.event_hub import EventHub, EventStream
from asyncpool.events import Event, JobEvent

_LOGGER = logging.getLogger("asyncpool")

Listener: TypeAlias = Callable[[Event], object] | Callable[[Event | JobEvent], object]


class Reader(Protocol):
    """Something that hears all that a pool tells, up to its end, such as a trace."""

    def hear(self, event: Event | JobEvent) -> None:
        """Take note of an event."""
        ...

    def end(self) -> None:
        """Take note that the pool has ended."""
        ...


class PoolHub(EventHub[Event]):
    """Hands the events of a pool to streams and to listeners, which are called.

    Attributes:
        watched: Whether anybody may listen to jobs.  Nothing is done for events of jobs
            while nobody does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        # To iterate over a WeakSet takes 2 us, for each event of each job.
        self._job_streams: list[weakref.ref[EventStream[Event | JobEvent]]] = []
        self._listeners: list[Callable[[Event], object]] = []
        self._job_listeners: list[Callable[[Event | JobEvent], object]] = []
        self._readers: list[Reader] = []

    def listen_to_jobs(self, size: int) -> EventStream[Event | JobEvent]:
        """Return a stream of the events from now on, those of jobs among them."""
        stream: EventStream[Event | JobEvent] = EventStream(size)
        if self._ended:
            stream.end()
        self._job_streams.append(weakref.ref(stream, self._on_stream_gone))
        self.watched = True
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        """Have *listener* called with each event."""
        self._listeners.append(listener)

    def add_job_listener(self, listener: Callable[[Event | JobEvent], object]) -> None:
        """Have *listener* called with each event, those of jobs among them."""
        self._job_listeners.append(listener)
        self.watched = True

    def add_reader(self, reader: Reader) -> None:
        """Have *reader* hear each event, those of jobs among them, and the end."""
        self._readers.append(reader)
        self.add_job_listener(reader.hear)

    def remove_reader(self, reader: Reader) -> None:
        """Tell *reader* nothing any more but the end."""
        self.remove_listener(reader.hear)

    def remove_listener(self, listener: Listener) -> int:
        """Call *listener* no more, and return how often it was there."""
        before = len(self._listeners) + len(self._job_listeners)
        self._listeners = [other for other in self._listeners if other != listener]
        self._job_listeners = [
            other for other in self._job_listeners if other != listener
        ]
        self._look()
        return before - len(self._listeners) - len(self._job_listeners)

    def publish(self, event: Event) -> None:
        """Hand *event* to everybody who listens."""
        super().publish(event)
        for listener in self._listeners:
            _call(listener, event)
        if self.watched:
            self.publish_job(event)

    def publish_job(self, event: Event | JobEvent) -> None:
        """Hand *event* to everybody who listens to jobs."""
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                self.dropped += not stream.put(event)
        for listener in self._job_listeners:
            _call(listener, event)

    def end(self) -> None:
        """End all streams, tell the readers, and call nobody any more."""
        super().end()
        for ref in self._job_streams:
            stream = ref()
            if stream is not None:
                stream.end()
        readers = self._readers
        self._listeners, self._job_listeners, self._readers = [], [], []
        for reader in readers:
            try:
                reader.end()
            except Exception:
                _LOGGER.exception("%r failed at the end of the pool", reader)

    def _on_stream_gone(self, ref: weakref.ref[Any]) -> None:
        # A new list, since an event may be on its way through the old one.
        self._job_streams = [other for other in self._job_streams if other is not ref]
        self._look()

    def _look(self) -> None:
        self.watched = bool(self._job_listeners or self._job_streams)


def _call(listener: Callable[[Any], object], event: object) -> None:
    """Call *listener*; what it raises is logged, and nobody else's concern."""
    try:
        listener(event)
    except Exception:
        _LOGGER.exception("the listener %r failed at %r", listener, event)
