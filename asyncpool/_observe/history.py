"""What is known of one program: its figures over time, a sample of its jobs, its crashes.

A history is made of the lines that a control socket sends to who watches the program.  It has
bounds for all of it, and forgets what is old.

Whoever shows it remembers a *cursor*, and asks for what is newer.  So a slow reader costs
nothing: it gets more at once the next time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from asyncpool.stats import Histogram

Figures = Mapping[str, Any]
Key = TypeVar("Key")

# What is shown of a crash; all of its text comes from a process that has failed.

# Characters: of a text that may be anything, and of a stack.
_MOST_TEXT = 500
_MOST_STACK = 20_000
_MOST_LINES = 80
_PLAIN = ("slot", "generation", "pid", "exit_code", "uptime", "job_id", "attempt")
_TEXTS = ("kind", "signal", "detail", "function", "next_step")


def crash_row(at: float, crash: Figures) -> dict[str, Any]:
    """Return what is shown of a crash.

    Args:
        at: When it was, in Unix time.
        crash: The fields of an :class:`asyncpool.events.Crash`.
    """
    return {
        "at": at,
        **{name: crash[name] for name in _PLAIN},
        **{name: clip(crash[name] or "") for name in _TEXTS},
        "stack": clip(crash["stack"], _MOST_STACK),
        "stderr": [clip(line) for line in crash["stderr_tail"][-_MOST_LINES:]],
    }


def clip(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text, or its beginning if it is longer than *most* characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


# Two a second are five minutes.
_MOST_POINTS = 600
_MOST_JOBS = 12_000
_MOST_CRASHES = 50
_MOST_NAMES = 500
_MOST_RUNNING = 8  # jobs of one worker

# Seconds that the figures of functions are about, and between two looks at them.
_WINDOW = 60.0
_APART = 5.0

_SLOT = (
    *("slot", "generation", "pid", "state", "seconds", "jobs", "uptime", "memory"),
    *("connections", "handed", "ready"),
)
_SUMMARY = ("kind", "state", "pid", "workers", "busy", "queued")
_LEFT_OUT = frozenset(("functions", "slots", "loop_lag", "started"))


class History:
    """The figures of one program of the last minutes, and a sample of its jobs.

    Attributes:
        cursor: The number of the newest line.
    """

    def __init__(self) -> None:
        self.cursor = 0
        self._status: Figures = {}
        self._last: Snapshot | None = None
        self._points: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_POINTS)
        self._jobs: deque[tuple[int, list[Any]]] = deque(maxlen=_MOST_JOBS)
        # When, the program's process, and its functions.
        self._earlier: deque[tuple[float, int, list[dict[str, Any]]]] = deque()
        self._crashes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_CRASHES)
        self._names: dict[str, int] = {}
        self._named_at = 0
        self._shown = self._ended = self._lost = 0

    def add(self, line: Figures) -> None:
        """Take note of a line of a watched program.

        Raises:
            KeyError: If something is missing in it.
            TypeError: If something is of another type.
            ValueError: If a histogram has not as many bounds as counts.
        """
        at, status = line["at"], line["status"]
        now, last = snapshot_of(at, status), self._last
        told = line.get("jobs", ())
        jobs = [self._job(job) for job in told]
        crashes = [
            crash_row(event.get("at", at), event["crash"])
            for event in line.get("events", ())
            if event["type"] == "Crashed"
        ]
        # Nothing of a line that cannot be read is kept.
        self.cursor += 1
        self._status, self._last = status, now
        if last is not None:
            # From their submit on.
            took = sorted(wait + run for *_, wait, run, _outcome, _attempts in told)
            self._points.append((self.cursor, point_between(last, now, took)))
        self._jobs.extend((self.cursor, job) for job in jobs)
        self._crashes.extend((self.cursor, crash) for crash in crashes)
        self._shown += len(jobs)
        self._ended += line.get("ended", 0)
        self._lost += line.get("lost", 0)
        self._remember(at, now.pid, status.get("functions", []))

    def points(self, cursor: int = 0) -> list[dict[str, Any]]:
        """Return what charts show of the lines that are newer than *cursor*."""
        return [point for number, point in self._points if number > cursor]

    def crashes(self, cursor: int = 0) -> list[dict[str, Any]]:
        """Return the crashes that are newer than *cursor*, oldest first."""
        return [crash for number, crash in self._crashes if number > cursor]

    def summary(self) -> dict[str, Any]:
        """Return what a list of programs says of this one; empty if nothing is known."""
        if not self.cursor:
            return {}
        shown = {name: self._status[name] for name in _SUMMARY if name in self._status}
        return {**shown, "rate": self._points[-1][1]["rate"] if self._points else 0.0}

    def since(self, cursor: int) -> dict[str, Any]:
        """Return what is newer than *cursor*, and all that has no history.

        Args:
            cursor: What ``"cursor"`` was the last time; 0 for everything.
        """
        if cursor > self.cursor:  # it is another history's
            cursor = 0
        return {
            "cursor": self.cursor,
            "fresh": cursor == 0,
            "at": 0.0 if self._last is None else self._last.at,
            "program": {
                name: figure
                for name, figure in self._status.items()
                if name not in _LEFT_OUT
            },
            "points": self.points(cursor),
            "jobs": [job for number, job in self._jobs if number > cursor],
            "sample": {"shown": self._shown, "ended": self._ended, "lost": self._lost},
            "functions": self._functions(),
            "slots": [self._slot(slot) for slot in self._status.get("slots", ())],
            "crashes": self.crashes(cursor),
            # After all others, which may bring new names.
            "names": list(self._names) if self._named_at >= cursor else None,
        }

    def _functions(self) -> list[dict[str, Any]]:
        if self._last is None:
            return []
        at, _, earlier = self._earlier[0]
        now = self._status.get("functions", [])
        rows = function_rows(now, earlier, self._last.at - at)
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
        row["running"] = [
            [it["job_id"], self._index(it["function"]), it["attempt"], it["seconds"]]
            for it in slot.get("running", ())[:_MOST_RUNNING]
        ]
        return row

    def _index(self, name: str) -> int:
        """Return the number of a function's name, which is its colour too."""
        name = clip(name)
        if name not in self._names:
            if len(self._names) >= _MOST_NAMES:
                name = "other"  # the rest of the names share this one
            self._named_at = self.cursor
        return self._names.setdefault(name, len(self._names))


# The figures of a program at one time, and what has happened between two of them.

# The outcomes for which somebody should look at the function.
FAILURES = frozenset(("raised", "crashed", "timeout"))

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
        took: How many responses took how long, by the bounds of their histogram.
    """

    at: float
    pid: int
    counts: Mapping[str, float]
    gauges: Mapping[str, float]
    cpu: Mapping[tuple[int, int], float]
    memory: Mapping[int, int]
    took: Mapping[float, int]


def snapshot_of(at: float, status: Figures) -> Snapshot:
    """Read the status of a pool or of a cluster.

    Raises:
        KeyError: If a figure is missing.
        TypeError: If one is no number.
    """
    slots: list[dict[str, Any]] = status["slots"]
    counts: Counter[str] = Counter()
    took: Counter[float] = Counter()
    if status.get("kind") == "cluster":
        counts["handed"] = status["handed"] + 0
        responses = status.get("requests", {}).get("responses", {})
        took = _by_bounds(responses.values())
        counts.update({name: sum(told["counts"]) for name, told in responses.items()})
        gauges = {
            "connections": sum(slot["connections"] for slot in slots),
            "ready": sum(1 for slot in slots if slot["ready"]),
            "workers": status["workers"] + 0,
        }
    else:
        counts.update(ok=0, failed=0, other=0)
        for function in status["functions"]:
            for outcome, jobs in function["jobs"].items():
                group = "failed" if outcome in FAILURES else "other"
                counts["ok" if outcome == "ok" else group] += jobs
        gauges = {name: status[name] + 0 for name in _GAUGES}
    living = [slot for slot in slots if slot["pid"] is not None]
    cpu = {(it["slot"], it["generation"]): it.get("cpu", 0.0) for it in living}
    memory = {slot["slot"]: slot["memory"] for slot in living}
    return Snapshot(at + 0, status["pid"], counts, gauges, cpu, memory, took)


def point_between(
    before: Snapshot, after: Snapshot, took: Sequence[float] = ()
) -> dict[str, Any]:
    """Return what a chart shows for the time between two snapshots.

    Figures of what has happened are per second; ``rate`` is of jobs, of responses, or of the
    connections of a server that counts no responses.  ``cpu`` is by slot, where 1 is one whole
    core.  ``p50`` and ``p99`` are ``None`` where nothing has ended.

    Args:
        before: The first one.  What a new process tells has begun at 0.
        after: The second one.
        took: How long the jobs of a pool took that have ended, sorted.
    """
    seconds = after.at - before.at
    if before.pid != after.pid:
        before = before._replace(counts={}, cpu={}, took={})
    rates = _rates(after.counts, before.counts, seconds)
    told = [rate for name, rate in rates.items() if name != "handed"]
    times = _histogram(grown(after.took, before.took))
    shares: dict[str, float | None] = {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        shares[name] = times.quantile(share) if times.count else None
        if took:
            shares[name] = took[max(0, math.ceil(share * len(took)) - 1)]
    return {
        "at": round(after.at, 3),
        **rates,
        "rate": round(sum(told) if told else rates["handed"], 3),
        **{name: round(value, 3) for name, value in after.gauges.items()},
        "cpu": {
            slot: rate
            for (slot, _), rate in _rates(after.cpu, before.cpu, seconds).items()
        },
        "memory": dict(after.memory),
        **shares,
    }


def grown(now: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    """Return by how much each figure has grown; one that has fallen began anew."""
    return {
        key: figure - before.get(key, 0) if figure >= before.get(key, 0) else figure
        for key, figure in now.items()
    }


def _rates(
    now: Mapping[Key, float], before: Mapping[Key, float], seconds: float
) -> dict[Key, float]:
    if seconds <= 0:
        return dict.fromkeys(now, 0.0)
    rates = {key: more / seconds for key, more in grown(now, before).items()}
    return {it: round(rate, 3) for it, rate in rates.items() if math.isfinite(rate)}


# The functions of a pool, one row each: how often, how they ended, how long they took.

_SHARES = (0.5, 0.95, 0.99)
_NOTHING: Figures = {"bounds": (), "counts": (), "total": 0.0}


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


def histogram_of(told: Figures, before: Figures = _NOTHING) -> Histogram:
    """Return the histogram that a line tells of; of the durations since *before*, if given."""
    total = max(0.0, told["total"] - before["total"])
    return _histogram(grown(_by_bounds([told]), _by_bounds([before])), total)


def times_of(told: Iterable[Figures]) -> Histogram:
    """Return the sum of histograms that a line tells of."""
    return _histogram(_by_bounds(told))


def _by_bounds(told: Iterable[Figures]) -> Counter[float]:
    found: Counter[float] = Counter()
    for each in told:
        found.update(dict(zip(each["bounds"], each["counts"], strict=True)))
    return found


def _histogram(counts: Mapping[float, float], total: float = 0.0) -> Histogram:
    bounds = sorted(counts)
    found = tuple(int(counts[bound]) for bound in bounds)
    return Histogram(bounds=tuple(bounds), counts=found, total=total)


def _row(now: Figures, before: Figures | None, seconds: float) -> dict[str, Any]:
    old: Figures = before or {"jobs": {}, "run": _NOTHING, "wait": _NOTHING}
    new = sum(grown(now["jobs"], old["jobs"]).values())
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
        "failures": {
            it: jobs for it, jobs in now["jobs"].items() if jobs and it != "ok"
        },
        "rate": round(new / seconds, 3) if seconds > 0 else 0.0,
        "busy": round(run.total / seconds, 4) if recent and seconds > 0 else 0.0,
        "run": [run.quantile(share) for share in _SHARES],
        "wait": [wait.quantile(share) for share in _SHARES],
    }
