"""How many no-op jobs a second go through, by how many of them are in flight."""

from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    rate_of,
    workers_of,
)
from benchmarks.peers import Call

IN_FLIGHT = 1000
OTHERS = (1, 3, 10, 30, 100, 300)
# Of the time for the main figure; the others only draw a curve.
SHARE = 0.3


def measure(bench: Bench) -> Reading:
    """Count the jobs sent in a fixed time, over the time until all have landed."""

    async def body(call: Call) -> list[tuple[float, float]]:
        await workers_of(call, WORKERS)
        seconds = bench.scale.seconds
        curve = [
            (n, await rate_of(call, in_flight=n, seconds=SHARE * seconds))
            for n in OTHERS
        ]
        last = await rate_of(call, in_flight=IN_FLIGHT, seconds=seconds)
        return [*curve, (IN_FLIGHT, last)]

    curve = bench.run(body)
    return Reading({"jobs_per_s": curve[-1][1]}, curve=curve)


QUESTION = Question(
    "throughput",
    "Throughput of no-op jobs, 1000 in flight",
    (Figure("jobs_per_s", "no-op", "jobs/s", more_is_better=True),),
    measure,
    limit=30,
)
