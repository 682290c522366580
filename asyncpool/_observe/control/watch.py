"""What clients that watch a pool or a cluster are told: figures, events, ended jobs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from asyncpool._core.deadlines import RateLimit
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.loop import Alarm
from asyncpool._observe.control.protocol import Request, fields_of
from asyncpool._observe.traces import SlotLanes
from asyncpool.events import Event, JobEnded

# Events that a line has at most, the newest ones.
_MOST_EVENTS = 200

# Seconds that figures are good for another client that watches.
_FRESH = 0.05


def watching(
    source: Any, read: Callable[[], dict[str, Any]], feed: JobFeed | None = None
) -> Callable[[Request], Generator[dict[str, Any]]]:
    """Return what lets clients watch one pool or cluster.

    Args:
        source: What tells its events: a hub, or a cluster.
        read: Returns how it stands.
        feed: Tells of its ended jobs; ``None`` if it has none.
    """
    status: dict[str, Any] = {}
    read_at = -_FRESH

    def watch(request: Request) -> Generator[dict[str, Any]]:
        """Yield what one client is told: how it stands, and what has happened since the last."""
        nonlocal status, read_at
        heard: deque[tuple[float, Event]] = deque(maxlen=_MOST_EVENTS)
        jobs: Heard = deque(maxlen=request.jobs)
        before: int | None = None

        def hear(event: Event) -> None:
            heard.append((time.monotonic(), event))

        source.add_listener(hear)
        if feed is not None and request.jobs:
            feed.add(jobs, request.jobs, request.every)
        try:
            while True:
                now = time.monotonic()
                if now - read_at >= _FRESH:  # others may have asked a moment ago
                    status, read_at = read(), now
                # What is to be added to a monotonic time, for clients that have another clock.
                offset = time.time() - time.monotonic()  # noqa: TID251 - it measures nothing
                events = [
                    {"type": type(it).__name__, "at": at + offset, **fields_of(it)}
                    for at, it in heard
                ]
                rows = [_row(event, lane, offset) for event, lane in jobs]
                heard.clear()
                jobs.clear()
                kinds = ("completed", "failed", "cancelled")
                ended = sum(status.get(kind, 0) for kind in kinds)
                yield {
                    "at": time.monotonic() + offset,
                    "status": status,
                    "events": events,
                    "jobs": rows,
                    "ended": 0 if before is None else ended - before,
                }
                before = ended
        finally:
            source.remove_listener(hear)
            if feed is not None and request.jobs:
                feed.remove(jobs)

    return watch


# The ended jobs of a pool, for those who watch it: all of them, or a sample.
#
# To hear of a job costs the pool a few microseconds.  A pool may end 100 000 jobs a second, and
# then its watchers hear of a sample, whose rate depends on none of them: it is listened to only
# while there are tokens in a bucket, and then again.  A pool that ends few jobs never empties
# it, so its watchers hear of all of them.

# Jobs a second, whatever the watchers ask for.  They cost the pool half a percent of a core.
MOST_PER_SECOND = 2000.0

# Seconds until the pool is listened to again, at least.
_PAUSE = 0.1

# What a watcher has heard of since its last line, each with its lane: the newest ones.
Heard: TypeAlias = deque[tuple[JobEnded, int]]


def _row(event: JobEnded, lane: int, offset: float) -> tuple[Any, ...]:
    job, function, outcome, attempts, slot, wait, run, at = event
    return job, function, slot, lane, at + offset, wait, run, outcome, attempts


class JobFeed:
    """The jobs of one pool.

    Args:
        hub: What tells of them.
        concurrency: How many jobs each worker runs at once.
    """

    def __init__(self, hub: PoolHub, concurrency: int) -> None:
        self._hub, self._concurrency = hub, concurrency
        self._watchers: list[tuple[Heard, int, float]] = []
        self._limit = RateLimit(None)
        self._lanes = defaultdict[int, SlotLanes](lambda: SlotLanes(concurrency))
        self._listens = False
        self._alarm = Alarm(asyncio.get_running_loop(), lambda _: self._listen())

    def add(self, watcher: Heard, jobs: int, every: float) -> None:
        """Tell *watcher* of up to *jobs* jobs in each *every* seconds."""
        self._watchers.append((watcher, jobs, jobs / every))
        self._set_limit()
        self._listen()

    def remove(self, watcher: Heard) -> None:
        """Tell *watcher* of nothing any more."""
        self._watchers = [it for it in self._watchers if it[0] is not watcher]
        if self._watchers:
            self._set_limit()
        else:
            self._alarm.cancel()
            self._stop()

    def _set_limit(self) -> None:
        # All watchers hear of the same jobs, so the one that wants most decides.
        _, most, rates = zip(*self._watchers, strict=True)
        rate = min(max(rates), MOST_PER_SECOND)
        self._limit = RateLimit(rate, max(most) / rate)

    def _listen(self) -> None:
        if not self._listens:
            self._hub.add_end_listener(self._hear)
            self._listens = True

    def _hear(self, event: JobEnded) -> None:
        lane = 0
        if event.slot is not None and self._concurrency > 1:
            begin = int((event.at - event.run) * 1e6)
            lane, _ = self._lanes[event.slot].put(begin, int(event.run * 1e6))
        for watcher, *_ in self._watchers:
            watcher.append((event, lane))
        self._limit.spend(event.at, 1.0)
        wait = self._limit.next_at - event.at
        if wait > 0:
            self._stop()
            self._alarm.set_in(max(wait, _PAUSE))

    def _stop(self) -> None:
        if self._listens:
            self._hub.remove_listener(self._hear)
            self._listens = False
