"""How many no-op jobs a second go through with 1000 of them in flight."""

from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    pump,
    workers_of,
)
from benchmarks.peers import Call

IN_FLIGHT = 1000


def measure(bench: Bench) -> Reading:
    """Count the jobs sent in a fixed time, over the time until all have landed."""

    async def body(call: Call) -> float:
        await workers_of(call, WORKERS)
        await pump(call, in_flight=IN_FLIGHT, more=lambda _: False)
        watch = Stopwatch()
        jobs = await pump(
            call,
            in_flight=IN_FLIGHT,
            more=lambda _: watch.seconds < bench.scale.seconds,
        )
        return jobs / watch.seconds

    return Reading({"jobs_per_s": bench.run(body)})


QUESTION = Question(
    "throughput",
    "Throughput of no-op jobs, 1000 in flight",
    (Figure("jobs_per_s", "no-op", "jobs/s", more_is_better=True),),
    measure,
    limit=30,
)
