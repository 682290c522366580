"""What clients that watch a pool or a cluster are told: figures, events, ended jobs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from asyncpool._core.control.control_protocol import Request
from asyncpool._observe.control.job_feed import JobFeed
from asyncpool._observe.control.plain import clock_offset, plain
from asyncpool.events import Event

# Events that a line has at most, the newest ones.
_MOST_EVENTS = 200

# Seconds that figures are good for another client that watches.
_FRESH = 0.05


class Source(Protocol):
    """What tells the events of a pool or a cluster."""

    def add_listener(self, listener: Callable[[Event], object], /) -> None:
        """Have *listener* called with each event."""
        ...

    def remove_listener(self, listener: Callable[[Event], object], /) -> object:
        """Call *listener* no more."""
        ...


class Watching:
    """Lets clients watch one pool or cluster.

    Args:
        source: What tells its events.
        status: Returns how it stands, in plain data.
        jobs: Tells of its ended jobs; ``None`` if it has none.
    """

    def __init__(
        self,
        source: Source,
        status: Callable[[], dict[str, Any]],
        jobs: JobFeed | None = None,
    ) -> None:
        self.source = source
        self.jobs = jobs
        self._read = status
        self._status: dict[str, Any] = {}
        self._read_at = -_FRESH

    def watch(self, request: Request) -> LiveWatcher:
        """Return what tells a client how it goes."""
        return LiveWatcher(self, request)

    def status(self) -> dict[str, Any]:
        """Return how it stands, or stood a moment ago: many may watch."""
        now = time.monotonic()
        if now - self._read_at >= _FRESH:
            self._status, self._read_at = self._read(), now
        return self._status


class LiveWatcher:
    """Tells one client.

    Args:
        watching: What is watched.
        request: What the client wants.
    """

    def __init__(self, watching: Watching, request: Request) -> None:
        self._watching = watching
        self._most_jobs = request.jobs
        self._events: deque[tuple[float, Event]] = deque(maxlen=_MOST_EVENTS)
        self._seen = 0
        self._ended: int | None = None
        watching.source.add_listener(self._hear)
        if (jobs := watching.jobs) is not None:
            _, self._seen = jobs.since(0, 0)
            jobs.add(self, request.jobs, request.every)

    def look(self) -> dict[str, Any]:
        """Return how it stands, and what has happened since the last call."""
        status, offset = self._watching.status(), clock_offset()
        events = [
            {"type": type(event).__name__, "at": at + offset, **plain(event)}
            for at, event in self._events
        ]
        self._events.clear()
        rows: list[Any] = []
        if (jobs := self._watching.jobs) is not None:
            rows, self._seen = jobs.since(self._seen, self._most_jobs)
        return {
            "at": time.monotonic() + offset,
            "status": status,
            "events": events,
            "jobs": rows,
            "ended": self._count_ended(status),
        }

    def close(self) -> None:
        """Take note that the client is gone."""
        self._watching.source.remove_listener(self._hear)
        if self._watching.jobs is not None:
            self._watching.jobs.remove(self)

    def _hear(self, event: Event) -> None:
        self._events.append((time.monotonic(), event))

    def _count_ended(self, status: dict[str, Any]) -> int:
        kinds = ("completed", "failed", "cancelled")
        ended: int = sum(status.get(kind, 0) for kind in kinds)
        before, self._ended = self._ended, ended
        return 0 if before is None else ended - before
