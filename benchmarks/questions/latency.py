"""How long one no-op call takes while nothing else goes on."""

from time import perf_counter_ns

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    quantile,
    quantiles,
    workers_of,
)
from benchmarks.peers import Call

WARM_UP = 100


def measure(bench: Bench) -> Reading:
    """Await no-op jobs one after the other, from the call to its result."""

    async def body(call: Call) -> list[float]:
        await workers_of(call, WORKERS)
        for _ in range(WARM_UP):
            await call(work.noop)
        watch, taken = Stopwatch(), []
        while watch.seconds < bench.scale.seconds:
            began = perf_counter_ns()
            await call(work.noop)
            taken.append((perf_counter_ns() - began) / 1e3)
        return taken

    taken = bench.run(body)
    p50, p99 = quantile(taken, 0.5), quantile(taken, 0.99)
    return Reading({"p50_us": p50, "p99_us": p99}, quantiles(taken))


QUESTION = Question(
    "latency",
    "Latency of one no-op call at a time",
    (Figure("p50_us", "p50", "µs"), Figure("p99_us", "p99", "µs")),
    measure,
    limit=30,
)
