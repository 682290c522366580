"""What clients that watch a pool or a cluster are told: figures, events, ended jobs."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

from asyncpool._core.deadlines import RateLimit
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.loop import Alarm
from asyncpool._observe.control.protocol import Request
from asyncpool._observe.traces import SlotLanes
from asyncpool.events import Event, JobEnded

# Figures and events as JSON has them.
#
# The same as ``dataclasses.asdict``, which copies each number of each histogram: for a pool with
# 200 functions that takes 30 ms.

_NUMBERS: frozenset[type] = frozenset((int, float))


def plain(value: Any) -> Any:
    """Return *value* in dicts, lists, texts and numbers; it is not to be changed then."""
    if isinstance(value, str) or value is None or type(value) in _NUMBERS:
        return value
    if isinstance(value, tuple | list):
        if value and type(value[0]) in _NUMBERS:  # a histogram's, or numbers of jobs
            return value
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: plain(getattr(value, name)) for name in _names(kind)}
    return value if type(value) is bool else repr(value)


# To ask a record for its fields takes longer than to read them.
@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def clock_offset() -> float:
    """Return what is to be added to a monotonic time, for clients that have another clock."""
    return time.time() - time.monotonic()  # noqa: TID251 - it measures nothing


# Events that a line has at most, the newest ones.
_MOST_EVENTS = 200

# Seconds that figures are good for another client that watches.
_FRESH = 0.05


class Watching:
    """Lets clients watch one pool or cluster.

    Args:
        source: What tells its events: a hub, or a cluster.
        status: Returns how it stands, in plain data.
        jobs: Tells of its ended jobs; ``None`` if it has none.
    """

    def __init__(
        self,
        source: Any,
        status: Callable[[], dict[str, Any]],
        jobs: JobFeed | None = None,
    ) -> None:
        self._source = source
        self._jobs = jobs
        self._read = status
        self._status: dict[str, Any] = {}
        self._read_at = -_FRESH

    def watch(self, request: Request) -> Generator[dict[str, Any]]:
        """Yield what one client is told: how it stands, and what has happened since the last."""
        heard: deque[tuple[float, Event]] = deque(maxlen=_MOST_EVENTS)

        def hear(event: Event) -> None:
            heard.append((time.monotonic(), event))

        jobs, seen, before = self._jobs, 0, None
        self._source.add_listener(hear)
        if jobs is not None:
            seen = jobs.count
            jobs.add(hear, request.jobs, request.every)
        try:
            while True:
                status, offset = self._status_now(), clock_offset()
                events = [
                    {"type": type(event).__name__, "at": at + offset, **plain(event)}
                    for at, event in heard
                ]
                heard.clear()
                rows: list[JobRow] = []
                if jobs is not None:
                    rows = jobs.since(seen, request.jobs)
                    seen = jobs.count
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
            self._source.remove_listener(hear)
            if jobs is not None:
                jobs.remove(hear)

    def _status_now(self) -> dict[str, Any]:
        """Return how it stands, or stood a moment ago: many may watch."""
        now = time.monotonic()
        if now - self._read_at >= _FRESH:
            self._status, self._read_at = self._read(), now
        return self._status


# The ended jobs of a pool, for those who watch it: all of them, or a sample.
#
# To hear of a job costs the pool a few microseconds.  A pool may end 100 000 jobs a second, and
# then its watchers hear of a sample, whose rate depends on none of them: it is listened to only
# while there are tokens in a bucket, and then again.  A pool that ends few jobs never empties
# it, so its watchers hear of all of them.

# Jobs a second, whatever the watchers ask for.  They cost the pool half a percent of a core.
MOST_PER_SECOND = 2000.0

# How many jobs are kept for a watcher that looks seldom.
_KEPT = 1000

# Seconds until the pool is listened to again, at least.
_PAUSE = 0.1

# Number, function, slot, lane, when it ended, wait, run, outcome, attempts.
JobRow: TypeAlias = tuple[int, str, int | None, int, float, float, float, str, int]


class JobFeed:
    """The jobs of one pool.

    Args:
        hub: What tells of them.
        concurrency: How many jobs each worker runs at once.

    Attributes:
        count: How many were heard of.
    """

    def __init__(self, hub: PoolHub, concurrency: int) -> None:
        self._hub, self._concurrency = hub, concurrency
        self._wishes: dict[object, tuple[int, float]] = {}
        self._limit = RateLimit(None)
        self._heard: deque[tuple[JobEnded, int]] = deque(maxlen=_KEPT)
        self._lanes = defaultdict[int, SlotLanes](lambda: SlotLanes(concurrency))
        self.count = 0
        self._listens = False
        self._alarm = Alarm(asyncio.get_running_loop(), lambda _: self._listen())

    def add(self, watcher: object, jobs: int, every: float) -> None:
        """Hear of up to *jobs* jobs in each *every* seconds for *watcher*."""
        if jobs:
            self._wishes[watcher] = jobs, jobs / every
            self._set_limit()
            self._listen()

    def remove(self, watcher: object) -> None:
        """Hear of nothing any more for *watcher*."""
        if self._wishes.pop(watcher, None) is not None and self._wishes:
            self._set_limit()
        elif not self._wishes:
            self._alarm.cancel()
            self._stop()

    def since(self, seen: int, most: int) -> list[JobRow]:
        """Return the last jobs, at most *most*, after so many that were *seen*."""
        new, offset = min(self.count - seen, len(self._heard), most), clock_offset()
        rows: list[JobRow] = []
        for place in range(-new, 0):
            event, lane = self._heard[place]
            job, function, outcome, attempts, slot, wait, run, at = event
            at += offset
            rows.append((job, function, slot, lane, at, wait, run, outcome, attempts))
        return rows

    def _set_limit(self) -> None:
        # All watchers hear of the same jobs, so the one that wants most decides.
        most, rate = (
            max(wishes) for wishes in zip(*self._wishes.values(), strict=True)
        )
        rate = min(rate, MOST_PER_SECOND)
        self._limit = RateLimit(rate, most / rate)

    def _listen(self) -> None:
        if not self._listens:
            self._hub.add_end_listener(self._hear)
            self._listens = True

    def _hear(self, event: JobEnded) -> None:
        self.count += 1
        lane = 0
        if event.slot is not None and self._concurrency > 1:
            begin = int((event.at - event.run) * 1e6)
            lane, _ = self._lanes[event.slot].put(begin, int(event.run * 1e6))
        self._heard.append((event, lane))
        self._limit.spend(event.at, 1.0)
        wait = self._limit.next_at - event.at
        if wait > 0:
            self._stop()
            self._alarm.set_in(max(wait, _PAUSE))

    def _stop(self) -> None:
        if self._listens:
            self._hub.remove_listener(self._hear)
            self._listens = False
