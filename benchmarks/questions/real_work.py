"""How much of the cores real work gets."""

import multiprocessing
from collections.abc import Callable

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    pump,
    quantile,
    workers_of,
)
from benchmarks.peers import Call

JOB = 0.001
IN_FLIGHT = 100
TURNS = 3


def measure(bench: Bench) -> Reading:
    """Compare jobs of 1 ms of CPU in a pool with as many in bare processes.

    The bare ones, as many as there are workers, call the same function in a loop.  Both
    are measured in turns, since a machine is not equally fast all the time, and the best
    of each counts: whatever else the machine does only takes away.
    """
    seconds = bench.scale.seconds

    def until(watch: Stopwatch) -> Callable[[int], bool]:
        return lambda _: watch.seconds < seconds

    async def body(call: Call) -> tuple[list[float], list[float]]:
        await workers_of(call, WORKERS)
        bare, pooled = [], []
        for _ in range(TURNS):
            bare.append(without_pool(seconds))
            watch = Stopwatch()
            jobs = await pump(
                call, work.spin, JOB, in_flight=IN_FLIGHT, more=until(watch)
            )
            pooled.append(jobs / watch.seconds)
        return bare, pooled

    bare, pooled = bench.run(body)
    return Reading(
        {"share": 100 * quantile(pooled, 1) / quantile(bare, 1)},
        [100 * p / b for p, b in zip(pooled, bare, strict=True)],
    )


def without_pool(seconds: float) -> float:
    """Return how many calls a second as many bare processes make as there are workers."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS) as pool:
        pool.map(work.nap, [0.05] * WORKERS, chunksize=1)  # all are there
        calls = pool.starmap(work.count_spins, [(JOB, seconds)] * WORKERS, chunksize=1)
    return sum(calls) / seconds


QUESTION = Question(
    "work",
    "Jobs of 1 ms of CPU: share of what the cores give without a pool",
    (Figure("share", "of bare processes", "%", more_is_better=True),),
    measure,
    limit=60,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool", "anyio"),
    once=True,
)
