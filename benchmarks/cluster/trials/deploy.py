"""What clients notice of a reload to code that cannot be imported."""

import asyncio
import signal
from time import perf_counter

from benchmarks.base import Figure
from benchmarks.cluster import tally
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.load import load_on, under_load
from benchmarks.cluster.running import Running
from benchmarks.cluster.trials.reloads import BACK, STEP, reload, status_of


def measure(row: str, scale: Scale) -> Finding:
    """Break the application, reload, wait under load, repair it, reload once more.

    A server that does not serve any more before the repair is **down**; one that does,
    but does not get to new workers after it, is **stuck**.
    """
    with Running(row, WORKERS) as server:
        finding: Finding = under_load(lambda: deploy(server, scale.deploying))
    return finding


async def deploy(server: Running, seconds: float) -> Finding:
    async with load_on(server.port) as load:
        await load.until(lambda: len(load.seen) >= WORKERS, BACK)
        marks = [perf_counter() - load.since]
        server.break_application()
        server.send_signal(signal.SIGHUP)
        await asyncio.sleep(seconds)
        serves = load.answered_since(perf_counter() - 1.0)
        is_stuck = ""
        if serves:
            server.repair_application()
            marks.append(perf_counter() - load.since)
            is_stuck = await reload(server, load, 0.0)
            await asyncio.sleep(1.0)
    figures = tally.figures_of(load.requests)
    status = status_of(figures)
    return Finding(
        figures,
        ("stuck" if is_stuck else status) if serves else "down",
        is_stuck or tally.kinds_of(load.requests),
        tally.timeline(load.requests, load.since, STEP),
        marks,
    )


TRIAL = Trial(
    "deploy",
    "Reload to code that cannot be imported, and to repaired code",
    (
        Figure("failed", "failed", ""),
        Figure("refused", "refused", ""),
        Figure("lost", "with one retry", ""),
        Figure("requests", "of", ""),
        Figure("max_ms", "longest", "ms"),
    ),
    measure,
    once=True,
    quick=("handoff", "uvicorn", "gunicorn"),
)
