"""What is known of one program: its figures over time, a sample of its jobs, its crashes.

A history is made of the lines that a control socket sends to who watches the program.  It has
bounds for all of it, and forgets what is old.

Whoever shows it remembers a *cursor*, and asks for what is newer.  So a slow reader costs
nothing: it gets more at once the next time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from asyncpool._core.history.crash_rows import clip, crash_row
from asyncpool._core.history.function_rows import function_rows
from asyncpool._core.history.snapshots import Snapshot, point_between, snapshot_of

T = TypeVar("T")

# Two a second are five minutes.
_MOST_SNAPSHOTS = 600
_MOST_JOBS = 12_000
_MOST_CRASHES = 50
_MOST_NAMES = 500
_MOST_RUNNING = 8  # jobs of one worker

# Seconds that the figures of functions are about, and between two looks at them.
_WINDOW = 60.0
_APART = 5.0

# The rest of the names share this one.
_OTHER = "other"

_SLOT = (
    *("slot", "generation", "pid", "state", "seconds", "jobs", "uptime", "memory"),
    *("connections", "handed", "ready"),
)
_SUMMARY = ("kind", "state", "pid", "workers", "busy", "queued")
_LEFT_OUT = frozenset(("functions", "slots", "loop_lag", "started"))


class _Earlier(NamedTuple):
    """The functions of a pool as they were some time ago."""

    at: float
    pid: int
    functions: list[dict[str, Any]]


class History:
    """The figures of one program of the last minutes, and a sample of its jobs."""

    def __init__(self) -> None:
        self._cursor = 0
        self._status: Mapping[str, Any] = {}
        self._at = 0.0
        self._snapshots: deque[tuple[int, Snapshot]] = deque(maxlen=_MOST_SNAPSHOTS)
        self._jobs: deque[tuple[int, list[Any]]] = deque(maxlen=_MOST_JOBS)
        self._earlier: deque[_Earlier] = deque()
        self._crashes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_CRASHES)
        self._names: dict[str, int] = {}
        self._named_at = 0
        self._shown = self._ended = self._lost = 0

    @property
    def cursor(self) -> int:
        """The number of the newest line."""
        return self._cursor

    def add(self, line: Mapping[str, Any]) -> None:
        """Take note of a line of a watched program.

        Raises:
            KeyError: If something is missing in it.
            TypeError: If something is of another type.
            ValueError: If a histogram has not as many bounds as counts.
        """
        at, status = line["at"], line["status"]
        snapshot = snapshot_of(at, status)
        jobs = [self._job(job) for job in line.get("jobs", ())]
        crashes = [
            crash_row(event.get("at", at), event["crash"])
            for event in line.get("events", ())
            if event["type"] == "Crashed"
        ]
        # Nothing of a line that cannot be read is kept.
        self._cursor += 1
        self._at, self._status = at, status
        self._snapshots.append((self._cursor, snapshot))
        self._jobs.extend((self._cursor, job) for job in jobs)
        self._crashes.extend((self._cursor, crash) for crash in crashes)
        self._shown += len(jobs)
        self._ended += line.get("ended", 0)
        self._lost += line.get("lost", 0)
        self._remember(at, snapshot.pid, status.get("functions", []))

    def summary(self) -> dict[str, Any]:
        """Return what a list of programs says of this one; empty if nothing is known."""
        status, kept = self._status, self._snapshots
        if not kept:
            return {}
        rate = 0.0
        if len(kept) > 1:
            point = point_between(kept[-2][1], kept[-1][1])
            rate = point.get("handed", 0) + point.get("ok", 0) + point.get("failed", 0)
        shown = {name: status[name] for name in _SUMMARY if name in status}
        return {**shown, "rate": round(rate, 1)}

    def since(self, cursor: int) -> dict[str, Any]:
        """Return what is newer than *cursor*, and all that has no history.

        Args:
            cursor: What ``"cursor"`` was the last time; 0 for everything.
        """
        if cursor > self._cursor:  # it is another history's
            cursor = 0
        status = self._status
        slots = [self._slot(slot) for slot in status.get("slots", ())]
        return {
            "cursor": self._cursor,
            "fresh": cursor == 0,
            "at": self._at,
            "program": {
                name: value for name, value in status.items() if name not in _LEFT_OUT
            },
            "points": self._points(cursor),
            "jobs": _newer(self._jobs, cursor),
            "sample": {
                "shown": self._shown,
                "ended": self._ended,
                "lost": self._lost,
            },
            "functions": self._functions(),
            "slots": slots,
            "crashes": _newer(self._crashes, cursor),
            # After all others, which may bring new names.
            "names": list(self._names) if self._named_at >= cursor else None,
        }

    def _points(self, cursor: int) -> list[dict[str, Any]]:
        kept = list(self._snapshots)
        pairs: list[tuple[Snapshot, Snapshot]] = []
        for (_, before), (number, after) in zip(
            reversed(kept[:-1]), reversed(kept[1:]), strict=True
        ):
            if number <= cursor:
                break
            pairs.append((before, after))
        return [point_between(*pair) for pair in reversed(pairs)]

    def _functions(self) -> list[dict[str, Any]]:
        now = self._status.get("functions", [])
        if not self._earlier:
            return []
        earlier = self._earlier[0]
        rows = function_rows(now, earlier.functions, self._at - earlier.at)
        for row in rows:
            row["index"] = self._index(row["name"])
            row["name"] = clip(row["name"])
        return rows

    def _remember(self, at: float, pid: int, functions: list[dict[str, Any]]) -> None:
        earlier = self._earlier
        if earlier and earlier[-1].pid != pid:
            earlier.clear()
        if not earlier or at - earlier[-1].at >= _APART:
            earlier.append(_Earlier(at, pid, functions))
        while len(earlier) > 1 and at - earlier[1].at >= _WINDOW:
            earlier.popleft()

    def _job(self, job: Iterable[Any]) -> list[Any]:
        job_id, function, slot, lane, ended_at, wait, run, outcome, attempts = job
        began_at, ended_at = round(ended_at - run, 6), round(ended_at, 6)
        index = self._index(function)
        return [job_id, index, slot, lane, began_at, ended_at, wait, outcome, attempts]

    def _slot(self, slot: Mapping[str, Any]) -> dict[str, Any]:
        row = {name: slot[name] for name in _SLOT if name in slot}
        row["running"] = [
            [
                job["job_id"],
                self._index(job["function"]),
                job["attempt"],
                job["seconds"],
            ]
            for job in slot.get("running", ())[:_MOST_RUNNING]
        ]
        return row

    def _index(self, name: str) -> int:
        """Return the number of a function's name, which is its colour too."""
        name = clip(name)
        if name not in self._names:
            if len(self._names) >= _MOST_NAMES:
                name = _OTHER
            self._named_at = self._cursor
        return self._names.setdefault(name, len(self._names))


def _newer(kept: deque[tuple[int, T]], cursor: int) -> list[T]:
    """Return what came after *cursor*, in order."""
    found: list[T] = []
    for number, item in reversed(kept):
        if number <= cursor:
            break
        found.append(item)
    return found[::-1]
