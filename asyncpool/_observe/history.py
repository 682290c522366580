"""What is known of one program: its figures over time, a sample of its jobs, its crashes.

A history is made of the lines that a control socket sends to who watches the program.  It has
bounds for all of it, and forgets what is old.

Whoever shows it remembers a *cursor*, and asks for what is newer.  So a slow reader costs
nothing: it gets more at once the next time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from asyncpool._dataclass import dataclass
from asyncpool.stats import Histogram

# What is shown of a crash; all of its text comes from a process that has failed.

# Characters: of a text that may be anything, and of a stack.
_MOST_TEXT = 500
_MOST_STACK = 20_000
_MOST_LINES = 80
_PLAIN = ("slot", "generation", "pid", "exit_code", "uptime", "job_id", "attempt")
_TEXTS = ("kind", "signal", "detail", "function", "next_step")


def crash_row(at: float, crash: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a crash.

    Args:
        at: When it was, in Unix time.
        crash: The fields of an :class:`asyncpool.events.Crash`.
    """
    lines = [clip(line) for line in crash["stderr_tail"][-_MOST_LINES:]]
    return {
        "at": at,
        **{name: crash[name] for name in _PLAIN},
        **{name: clip(crash[name] or "") for name in _TEXTS},
        "stack": clip(crash["stack"], _MOST_STACK),
        "stderr": lines,
    }


def clip(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text, or its beginning if it is longer than *most* characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


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


# The figures of a program at one time, and what has happened between two of them.

# The outcomes for which somebody should look at the function.
FAILURES = frozenset(("raised", "crashed", "timeout"))

_GAUGES = ("queued", "oldest_queued", "busy", "workers")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a program has told at one time.

    Attributes:
        at: When, in Unix time.
        pid: The program's process.
        counts: What only grows while the process lives: ``ok``, ``failed`` and ``other``
            jobs, or ``handed`` connections.
        gauges: What goes up and down.
        cpu: Seconds of CPU time of each worker, by slot and generation.
        memory: Bytes of memory of each worker, by slot.
    """

    at: float
    pid: int
    counts: Mapping[str, float]
    gauges: Mapping[str, float]
    cpu: Mapping[tuple[int, int], float] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)


def snapshot_of(at: float, status: Mapping[str, Any]) -> Snapshot:
    """Read the status of a pool or of a cluster.

    Raises:
        KeyError: If a figure is missing.
        TypeError: If one is no number.
    """
    slots: list[dict[str, Any]] = status["slots"]
    if status.get("kind") == "cluster":
        counts: dict[str, float] = {"handed": status["handed"] + 0}
        connections = sum(slot["connections"] for slot in slots)
        ready = sum(1 for slot in slots if slot["ready"])
        gauges = {"connections": connections, "ready": ready}
    else:
        counts = _outcomes(status["functions"])
        gauges = {name: status[name] + 0 for name in _GAUGES}
    gauges["workers"] = status["workers"] + 0
    living = [slot for slot in slots if slot["pid"] is not None]
    return Snapshot(
        at=at + 0,
        pid=status["pid"],
        counts=counts,
        gauges=gauges,
        cpu={
            (slot["slot"], slot["generation"]): slot.get("cpu", 0.0) for slot in living
        },
        memory={slot["slot"]: slot["memory"] for slot in living},
    )


def _outcomes(functions: list[dict[str, Any]]) -> dict[str, float]:
    counts: dict[str, float] = {"ok": 0, "failed": 0, "other": 0}
    for function in functions:
        for outcome, jobs in function["jobs"].items():
            counts[outcome_group(outcome)] += jobs
    return counts


def outcome_group(outcome: str) -> str:
    """Return whether an outcome is ``"ok"``, ``"failed"``, or ``"other"``: nobody's fault."""
    if outcome == "ok":
        return outcome
    return "failed" if outcome in FAILURES else "other"


def point_between(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return what a chart shows for the time between two snapshots.

    Rates are per second; ``cpu`` is by slot, where 1 is one whole core.  What a new process
    tells has begun at 0.
    """
    seconds = after.at - before.at
    is_same = before.pid == after.pid
    counts_before: Mapping[str, float] = before.counts if is_same else {}
    cpu_before: Mapping[tuple[int, int], float] = before.cpu if is_same else {}
    return {
        "at": round(after.at, 3),
        **{
            name: _rate(count, counts_before.get(name, 0), seconds)
            for name, count in after.counts.items()
        },
        **{name: round(value, 3) for name, value in after.gauges.items()},
        "cpu": {
            slot: _rate(used, cpu_before.get((slot, generation), 0.0), seconds)
            for (slot, generation), used in after.cpu.items()
        },
        "memory": dict(after.memory),
    }


def _rate(after: float, before: float, seconds: float) -> float:
    """Return by how much a figure has grown in a second; one that has fallen began anew."""
    if seconds <= 0:
        return 0.0
    rate = (after - before if after >= before else after) / seconds
    return round(rate, 3) if math.isfinite(rate) else 0.0


# The functions of a pool, one row each: how often, how they ended, how long they took.

_SHARES = (0.5, 0.95, 0.99)

Figures = Mapping[str, Any]


def function_rows(
    now: Sequence[Figures], before: Sequence[Figures], seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each function, those first whose jobs took most time.

    Args:
        now: The functions in the status of a pool.
        before: The same some time ago; empty means at the pool's start.
        seconds: How long ago that was.
    """
    known = {_key(each): each for each in before}
    rows = [_row(each, known.get(_key(each)), seconds) for each in now]
    return sorted(rows, key=lambda row: (not row["recent"], -row["busy"], row["name"]))


def histogram_of(told: Figures) -> Histogram:
    """Return the histogram that a line tells of."""
    return Histogram(
        bounds=tuple(told["bounds"]), counts=tuple(told["counts"]), total=told["total"]
    )


def _key(figures: Figures) -> tuple[str, str]:
    return figures["function"], figures["via"]


def _row(now: Figures, before: Figures | None, seconds: float) -> dict[str, Any]:
    jobs = _grown(now["jobs"], before["jobs"] if before else {})
    run = _between(now["run"], before and before["run"])
    wait = _between(now["wait"], before and before["wait"])
    # An idle function shows what its jobs took when there were some.
    recent = any(jobs.values()) or run.count > 0
    if not recent:
        run, wait = histogram_of(now["run"]), histogram_of(now["wait"])
    return {
        "name": now["function"],
        "via": now["via"],
        "recent": recent,
        "jobs": sum(now["jobs"].values()),
        "failed": sum(now["jobs"].get(outcome, 0) for outcome in FAILURES),
        "failures": {
            outcome: jobs
            for outcome, jobs in now["jobs"].items()
            if jobs and outcome != "ok"
        },
        "rate": round(sum(jobs.values()) / seconds, 3) if seconds > 0 else 0.0,
        "busy": round(run.total / seconds, 4) if recent and seconds > 0 else 0.0,
        "run": [run.quantile(share) for share in _SHARES],
        "wait": [wait.quantile(share) for share in _SHARES],
    }


def _grown(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}


def _between(now: Figures, before: Figures | None) -> Histogram:
    """Return the durations that were counted since *before*."""
    known = dict(zip(before["bounds"], before["counts"], strict=True)) if before else {}
    counts = [
        max(0, count - known.get(bound, 0))
        for bound, count in zip(now["bounds"], now["counts"], strict=True)
    ]
    return Histogram(
        bounds=tuple(now["bounds"]),
        counts=tuple(counts),
        total=max(0.0, now["total"] - (before["total"] if before else 0.0)),
    )
