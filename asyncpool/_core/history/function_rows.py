"""The functions of a pool, one row each: how often, how they ended, how long they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncpool._core.history.snapshots import FAILURES
from asyncpool.stats import Histogram

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
