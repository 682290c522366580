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
from itertools import pairwise
from typing import Any, NamedTuple

from asyncpool.stats import Histogram

Figures = Mapping[str, Any]

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


class History:
    """The figures of one program of the last minutes, and a sample of its jobs."""

    def __init__(self) -> None:
        self._cursor = 0
        self._status: Mapping[str, Any] = {}
        self._at = 0.0
        self._snapshots: deque[tuple[int, Snapshot]] = deque(maxlen=_MOST_SNAPSHOTS)
        self._jobs: deque[tuple[int, list[Any]]] = deque(maxlen=_MOST_JOBS)
        # When, the program's process, and its functions.
        self._earlier: deque[tuple[float, int, list[dict[str, Any]]]] = deque()
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
        program, slots = dict(self._status), self._status.get("slots", ())
        for name in _LEFT_OUT:
            program.pop(name, None)
        return {
            "cursor": self._cursor,
            "fresh": cursor == 0,
            "at": self._at,
            "program": program,
            "points": [
                point_between(before, after)
                for (_, before), (number, after) in pairwise(self._snapshots)
                if number > cursor
            ],
            "jobs": [job for number, job in self._jobs if number > cursor],
            "sample": {
                "shown": self._shown,
                "ended": self._ended,
                "lost": self._lost,
            },
            "functions": self._functions(),
            "slots": [self._slot(slot) for slot in slots],
            "crashes": [crash for number, crash in self._crashes if number > cursor],
            # After all others, which may bring new names.
            "names": list(self._names) if self._named_at >= cursor else None,
        }

    def _functions(self) -> list[dict[str, Any]]:
        if not self._earlier:
            return []
        at, _, earlier = self._earlier[0]
        rows = function_rows(self._status.get("functions", []), earlier, self._at - at)
        for row in rows:
            row["index"] = self._index(row["name"])
            row["name"] = clip(row["name"])
        return rows

    def _remember(self, at: float, pid: int, functions: list[dict[str, Any]]) -> None:
        earlier = self._earlier
        if earlier and earlier[-1][1] != pid:
            earlier.clear()
        if not earlier or at - earlier[-1][0] >= _APART:
            earlier.append((at, pid, functions))
        while len(earlier) > 1 and at - earlier[1][0] >= _WINDOW:
            earlier.popleft()

    def _job(self, job: Iterable[Any]) -> list[Any]:
        job_id, function, slot, lane, ended_at, wait, run, outcome, attempts = job
        began_at, ended_at = round(ended_at - run, 6), round(ended_at, 6)
        index = self._index(function)
        return [job_id, index, slot, lane, began_at, ended_at, wait, outcome, attempts]

    def _slot(self, slot: Figures) -> dict[str, Any]:
        row = {name: slot[name] for name in _SLOT if name in slot}
        running = slot.get("running", ())[:_MOST_RUNNING]
        row["running"] = [
            [it["job_id"], self._index(it["function"]), it["attempt"], it["seconds"]]
            for it in running
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


# The figures of a program at one time, and what has happened between two of them.

# The outcomes for which somebody should look at the function.
FAILURES = frozenset(("raised", "crashed", "timeout"))

_NO_TIMES: Figures = {"bounds": (), "counts": ()}
_GAUGES = ("queued", "oldest_queued", "busy", "workers")


class Snapshot(NamedTuple):
    """What a program has told at one time.

    Attributes:
        at: When, in Unix time.
        pid: The program's process.
        counts: What only grows while the process lives: ``ok``, ``failed`` and ``other``
            jobs; or ``handed`` connections, and responses by their class.
        gauges: What goes up and down.
        cpu: Seconds of CPU time of each worker, by slot and generation.
        memory: Bytes of memory of each worker, by slot.
        took: How long responses took.
    """

    at: float
    pid: int
    counts: Mapping[str, float]
    gauges: Mapping[str, float]
    cpu: Mapping[tuple[int, int], float]
    memory: Mapping[int, int]
    took: Figures


def snapshot_of(at: float, status: Mapping[str, Any]) -> Snapshot:
    """Read the status of a pool or of a cluster.

    Raises:
        KeyError: If a figure is missing.
        TypeError: If one is no number.
    """
    slots: list[dict[str, Any]] = status["slots"]
    responses = status.get("requests", {}).get("responses", {})
    took: dict[float, int] = {}
    if status.get("kind") == "cluster":
        counts: dict[str, float] = {"handed": status["handed"] + 0}
        for name, told in responses.items():
            counts[name] = sum(told["counts"])
            for bound, count in zip(told["bounds"], told["counts"], strict=True):
                took[bound] = took.get(bound, 0) + count
        connections = sum(slot["connections"] for slot in slots)
        ready = sum(1 for slot in slots if slot["ready"])
        gauges = {"connections": connections, "ready": ready}
    else:
        counts = {"ok": 0, "failed": 0, "other": 0}
        for function in status["functions"]:
            for outcome, jobs in function["jobs"].items():
                group = "failed" if outcome in FAILURES else "other"
                counts["ok" if outcome == "ok" else group] += jobs
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
        took={"bounds": sorted(took), "counts": [took[it] for it in sorted(took)]},
    )


def point_between(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Return what a chart shows for the time between two snapshots.

    Rates are per second; ``cpu`` is by slot, where 1 is one whole core.  What a new process
    tells has begun at 0.
    """
    seconds = after.at - before.at
    if before.pid != after.pid:
        before = before._replace(counts={}, cpu={}, took=_NO_TIMES)
    return {
        "at": round(after.at, 3),
        **{
            name: _rate(count, before.counts.get(name, 0), seconds)
            for name, count in after.counts.items()
        },
        **{name: round(value, 3) for name, value in after.gauges.items()},
        "cpu": {
            which[0]: _rate(used, before.cpu.get(which, 0.0), seconds)
            for which, used in after.cpu.items()
        },
        "memory": dict(after.memory),
        "p99": histogram_of(after.took, before.took).quantile(0.99),
    }


def _rate(after: float, before: float, seconds: float) -> float:
    """Return by how much a figure has grown in a second; one that has fallen began anew."""
    if seconds <= 0:
        return 0.0
    rate = (after - before if after >= before else after) / seconds
    return round(rate, 3) if math.isfinite(rate) else 0.0


# The functions of a pool, one row each: how often, how they ended, how long they took.

_SHARES = (0.5, 0.95, 0.99)


def function_rows(
    now: Sequence[Figures], before: Sequence[Figures], seconds: float
) -> list[dict[str, Any]]:
    """Return a row for each function, those first whose jobs took most time.

    Args:
        now: The functions in the status of a pool.
        before: The same some time ago; empty means at the pool's start.
        seconds: How long ago that was.
    """
    known = {(it["function"], it["via"]): it for it in before}
    rows = [_row(it, known.get((it["function"], it["via"])), seconds) for it in now]
    return sorted(rows, key=lambda row: (not row["recent"], -row["busy"], row["name"]))


def histogram_of(told: Figures, before: Figures | None = None) -> Histogram:
    """Return the histogram that a line tells of; of the durations since *before*, if given."""
    counts, total, known = told["counts"], told.get("total", 0.0), {}
    if before is not None:
        known = dict(zip(before["bounds"], before["counts"], strict=True))
        total = max(0.0, total - before.get("total", 0.0))
    pairs = zip(told["bounds"], counts, strict=True)
    return Histogram(
        bounds=tuple(told["bounds"]),
        counts=tuple(max(0, count - known.get(bound, 0)) for bound, count in pairs),
        total=total,
    )


def _row(now: Figures, before: Figures | None, seconds: float) -> dict[str, Any]:
    old: Figures = before or {"jobs": {}, "run": None, "wait": None}
    ended = now["jobs"].items()
    new = sum(max(0, count - old["jobs"].get(outcome, 0)) for outcome, count in ended)
    run, wait = (histogram_of(now[it], old[it]) for it in ("run", "wait"))
    # An idle function shows what its jobs took when there were some.
    recent = new > 0 or run.count > 0
    if not recent:
        run, wait = histogram_of(now["run"]), histogram_of(now["wait"])
    return {
        "name": now["function"],
        "via": now["via"],
        "recent": recent,
        "jobs": sum(now["jobs"].values()),
        "failed": sum(now["jobs"].get(outcome, 0) for outcome in FAILURES),
        "failures": {it: jobs for it, jobs in ended if jobs and it != "ok"},
        "rate": round(new / seconds, 3) if seconds > 0 else 0.0,
        "busy": round(run.total / seconds, 4) if recent and seconds > 0 else 0.0,
        "run": [run.quantile(share) for share in _SHARES],
        "wait": [wait.quantile(share) for share in _SHARES],
    }
