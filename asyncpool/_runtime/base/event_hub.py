"""Events to any number of listeners, none of which can hold up the pool."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Generic, Self, TypeVar

from asyncpool._runtime.base.event_loop import check_home

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
    """Hands each event to all listeners that somebody still holds."""

    def __init__(self) -> None:
        self.dropped: int = 0
        self._streams: weakref.WeakSet[EventStream[E]] = weakref.WeakSet()
        self._ended = False

    def listen(self, size: int) -> EventStream[E]:
        """Return a stream of the events from now on."""
        stream: EventStream[E] = EventStream(size)
        if self._ended:
            stream.end()
        self._streams.add(stream)
        return stream

    def publish(self, event: E) -> None:
        """Hand *event* to every listener."""
        for stream in self._streams:
            self.dropped += not stream.put(event)

    @property
    def ended(self) -> bool:
        """Whether there will be no more events."""
        return self._ended

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        for stream in self._streams:
            stream.end()
