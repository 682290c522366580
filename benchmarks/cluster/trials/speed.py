"""Requests a second, and how long they take, on connections that are kept."""

from benchmarks.base import Figure
from benchmarks.cluster import wrk
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.running import Running

WARM_UP = 1.0


def measure(row: str, scale: Scale) -> Finding:
    """Have wrk ask on 32 connections, after a second of it that does not count."""
    with Running(row, WORKERS) as server:
        wrk.run(server.port, WARM_UP)
        figures = wrk.run(server.port, scale.seconds)
    status = "fails requests" if figures["errors"] else "ok"
    return Finding(figures, status)


TRIAL = Trial(
    "speed",
    f"Requests on {wrk.CONNECTIONS} connections that are kept, {WORKERS} workers",
    (
        Figure("rate", "all", "1/s", more_is_better=True),
        Figure("p50_ms", "p50", "ms"),
        Figure("p99_ms", "p99", "ms"),
    ),
    measure,
    loops=("uvloop", "asyncio"),
)
