"""The figures of a program at one time, and what has happened between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
