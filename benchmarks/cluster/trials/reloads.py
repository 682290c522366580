"""What clients notice of reloads, of an application that takes its time to start."""

import asyncio
import signal
from time import perf_counter

from benchmarks.base import Figure
from benchmarks.cluster import tally
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.load import Load, load_on, under_load
from benchmarks.cluster.running import Running, is_alive

STEP = 0.1
"""Seconds of the timeline that become one point of it."""

GONE, BACK = 30.0, 10.0
"""Seconds until the old workers must be gone, and until all new ones must have answered,
beyond what the application takes to start in each."""


def measure(row: str, scale: Scale) -> Finding:
    """Reload again and again under load, each time when the one before is over.

    A reload is over when every worker that had answered before is gone, and as many new
    ones have answered as there are to be.  The load goes on for a second behind it.
    """
    with Running(row, WORKERS, start=scale.start) as server:
        finding: Finding = under_load(lambda: reload_all(server, scale))
    return finding


async def reload_all(server: Running, scale: Scale) -> Finding:
    marks, problem = [], ""
    async with load_on(server.port) as load:
        await load.until(lambda: len(load.seen) >= WORKERS, BACK)
        for number in range(scale.reloads):
            marks.append(perf_counter() - load.since)
            if problem := await reload(server, load, scale.start):
                problem += f", reload {number + 1}"
                break
        await asyncio.sleep(1.0)
    figures = tally.figures_of(load.requests)
    return Finding(
        {**figures, "seconds": marks[-1] - marks[0], "lag_ms": load.lag * 1e3},
        status_of(figures, problem),
        problem or tally.kinds_of(load.requests),
        tally.timeline(load.requests, load.since, STEP),
        marks,
    )


async def reload(server: Running, load: Load, start: float) -> str:
    """Reload once; return what is wrong if it does not come to its end."""
    old = load.alive()
    server.send_signal(signal.SIGHUP)
    patience = WORKERS * start
    if not await load.until(lambda: not any(map(is_alive, old)), GONE + patience):
        return "the old workers stay"
    new = await load.until(lambda: len(load.alive() - old) >= WORKERS, BACK + patience)
    return "" if new else "not all workers come back"


def status_of(figures: dict[str, float], problem: str = "") -> str:
    if problem:
        return "breaks"
    return "fails requests" if figures["failed"] + figures["refused"] else "ok"


TRIAL = Trial(
    "reloads",
    "Rolling reloads under load, of an application that starts slowly",
    (
        Figure("failed", "failed", ""),
        Figure("refused", "refused", ""),
        Figure("lost", "with one retry", ""),
        Figure("requests", "of", ""),
        Figure("max_ms", "longest", "ms"),
        Figure("p99_ms", "p99", "ms"),
    ),
    measure,
    once=True,
    quick=("handoff", "uvicorn", "gunicorn"),
)
