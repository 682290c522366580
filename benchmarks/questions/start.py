"""How long it takes from no pool to its first result, and to all of them."""

import asyncio
from statistics import median

from benchmarks import work
from benchmarks.base import Bench, Figure, Question, Reading
from benchmarks.peers import Call

WORKERS = 4


def measure(bench: Bench) -> Reading:
    """Make a pool of four, send four no-op jobs at once, and await them.

    The clock starts before the pool is made and after everything that it needs
    was imported.  The first pool of a process pays for helper processes (fork
    servers, trackers) that the next ones find running; both are told.
    """

    async def body(call: Call) -> tuple[float, float]:
        jobs = [asyncio.ensure_future(call(work.noop)) for _ in range(WORKERS)]
        await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        first = bench.opening.seconds
        await asyncio.gather(*jobs)
        return first * 1e3, bench.opening.seconds * 1e3

    first, every = bench.run(body, workers=WORKERS, close=True)
    later = [
        bench.run(body, workers=WORKERS, close=True)[1]
        for _ in range(bench.scale.next_pools)
    ]
    return Reading(
        {"first_ms": first, "all_ms": every, "next_ms": median(later)}, later
    )


QUESTION = Question(
    "start",
    "Start of a pool of four",
    (
        Figure("first_ms", "first result", "ms"),
        Figure("all_ms", "4 results", "ms"),
        Figure("next_ms", "next pool", "ms"),
    ),
    measure,
    limit=30,
)
