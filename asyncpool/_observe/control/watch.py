"""What clients that watch a pool or a cluster are told: figures, events, ended jobs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, TypeAlias

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

_known: dict[type, tuple[str, ...]] = {}


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
        return {name: plain(getattr(value, name)) for name in _names(value)}
    return value if type(value) is bool else repr(value)


def _names(value: Any) -> tuple[str, ...]:
    # To ask a record for its fields takes longer than to read them.
    names = _known.get(type(value))
    if names is None:
        names = _known[type(value)] = tuple(field.name for field in fields(value))
    return names


def clock_offset() -> float:
    """Return what is to be added to a monotonic time, for clients that have another clock."""
    return time.time() - time.monotonic()  # noqa: TID251 - it measures nothing


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


# The ended jobs of a pool, for those who watch it: all of them, or a sample.
#
# The pool is listened to only while the budget lasts, and then again when it is filled.

# How many of the ended jobs of a pool its watchers may hear of.
#
# To hear of a job costs the pool a few microseconds.  A pool may end 100 000 jobs a second, and
# then its watchers hear of a sample, whose rate depends on none of them: a bucket of tokens is
# filled at a steady rate, and each job that is heard of takes one.  A pool that ends few jobs
# never empties it, so its watchers hear of all of them.

# Jobs a second, whatever the watchers ask for.  They cost the pool half a percent of a core.
MOST_PER_SECOND = 2000.0


class JobBudget:
    """The bucket of one pool.  The times come from outside."""

    def __init__(self) -> None:
        self._wishes: dict[object, tuple[int, float]] = {}
        self._rate = self._tokens = self._filled_at = 0.0
        self._size = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to hear of jobs."""
        return self._size > 0

    def add(self, watcher: object, jobs: int, every: float, now: float) -> None:
        """Let *watcher* hear of up to *jobs* jobs in each *every* seconds."""
        self.fill(now)
        self._wishes[watcher] = jobs, every
        before = self._size
        self._set()
        self._tokens += max(0, self._size - before)

    def remove(self, watcher: object) -> None:
        """Forget what *watcher* wants."""
        self._wishes.pop(watcher, None)
        self._set()

    def fill(self, now: float) -> bool:
        """Put in what has come until *now*; return whether there is one job's worth."""
        passed = max(0.0, now - self._filled_at)
        self._filled_at = now
        self._tokens = min(self._size, self._tokens + passed * self._rate)
        return self._tokens >= 1

    def take(self) -> bool:
        """Count a job that was heard of; return whether there may be another one."""
        self._tokens -= 1
        return self._tokens >= 1

    def _set(self) -> None:
        # All watchers hear of the same jobs, so the one that wants most decides.
        wanted = self._wishes.values()
        self._size = max((jobs for jobs, _ in wanted), default=0)
        rate = max((jobs / every for jobs, every in wanted), default=0.0)
        self._rate = min(rate, MOST_PER_SECOND)
        self._tokens = min(self._tokens, self._size)


# How many jobs are kept for a watcher that looks seldom.
_KEPT = 1000

# Seconds until the next look whether the pool may be listened to again.
_PAUSE = 0.1

# Number, function, slot, lane, when it ended, wait, run, outcome, attempts.
JobRow: TypeAlias = tuple[int, str, int | None, int, float, float, float, str, int]


class JobFeed:
    """The jobs of one pool.

    Args:
        hub: What tells of them.
        concurrency: How many jobs each worker runs at once.
    """

    def __init__(self, hub: PoolHub, concurrency: int) -> None:
        self._hub = hub
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._budget = JobBudget()
        self._heard: deque[JobEnded] = deque(maxlen=_KEPT)
        self._rows: deque[JobRow] = deque(maxlen=_KEPT)
        self._lanes: dict[int, SlotLanes] = {}
        self._count = 0
        self._listens = False
        self._alarm = Alarm(self._loop, lambda _: self._listen())

    def add(self, watcher: object, jobs: int, every: float) -> None:
        """Hear of up to *jobs* jobs in each *every* seconds for *watcher*."""
        self._budget.add(watcher, jobs, every, self._loop.time())
        self._listen()

    def remove(self, watcher: object) -> None:
        """Hear of nothing any more for *watcher*."""
        self._budget.remove(watcher)
        if not self._budget.wanted:
            self._alarm.cancel()
            self._stop()

    def since(self, seen: int, most: int) -> tuple[list[JobRow], int]:
        """Return the last jobs, at most *most*, and how many there were in all.

        Args:
            seen: How many there were at the last look.
            most: How many are wanted.
        """
        self._describe()
        new = min(self._count - seen, len(self._rows), most)
        rows = [self._rows[place] for place in range(-new, 0)]
        return rows, self._count

    def _listen(self) -> None:
        if self._listens:
            return
        if self._budget.fill(self._loop.time()):
            self._hub.add_end_listener(self._hear)
            self._listens = True
        elif self._budget.wanted:
            self._alarm.set_in(_PAUSE)

    def _hear(self, event: JobEnded) -> None:
        self._heard.append(event)
        self._count += 1
        if not self._budget.take() and not self._budget.fill(self._loop.time()):
            self._stop()
            self._alarm.set_in(_PAUSE)

    def _stop(self) -> None:
        if self._listens:
            self._hub.remove_listener(self._hear)
            self._listens = False

    def _describe(self) -> None:
        """Make rows of the jobs that were heard of since the last look."""
        offset = clock_offset()
        while self._heard:
            self._rows.append(self._row(self._heard.popleft(), offset))

    def _row(self, event: JobEnded, offset: float) -> JobRow:
        lane = 0
        if event.slot is not None and self._concurrency > 1:
            lanes = self._lanes.get(event.slot)
            if lanes is None:
                lanes = self._lanes[event.slot] = SlotLanes(self._concurrency)
            begin = int((event.at - event.run) * 1e6)
            lane, _ = lanes.put(begin, int(event.run * 1e6))
        return (
            event.job_id,
            event.function,
            event.slot,
            lane,
            event.at + offset,
            event.wait,
            event.run,
            event.outcome,
            event.attempts,
        )
