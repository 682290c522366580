"""How long it takes from no pool to its first result, and to all of them."""

import asyncio
from statistics import median

from benchmarks import work
from benchmarks.base import Bench, Figure, Question, Reading, Stopwatch
from benchmarks.peers import Call

WORKERS = 4


def measure(bench: Bench) -> Reading:
    """Make a pool of four, send four no-op jobs at once, and await them.

    The clock starts before the pool is made and after everything that it needs
    was imported.  The first pool of a process pays for helper processes (fork
    servers, trackers, launchers) that the next ones, which are opened beside it,
    find running; both are told.
    """

    async def body(call: Call) -> tuple[float, float, list[float]]:
        first = await results(call, bench.opening)
        every, later = bench.opening.seconds, []
        for _ in range(bench.scale.next_pools):
            watch = Stopwatch()
            call, close = await bench.another(WORKERS)
            await results(call, watch)
            later.append(watch.seconds * 1e3)
            await close()
        return first * 1e3, every * 1e3, later

    first, every, later = bench.run(body, workers=WORKERS, close=True)
    return Reading(
        {"first_ms": first, "all_ms": every, "next_ms": median(later)}, later
    )


async def results(call: Call, watch: Stopwatch) -> float:
    """Wait for as many results as there are workers; return when the first came."""
    jobs = [asyncio.ensure_future(call(work.noop)) for _ in range(WORKERS)]
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    first = watch.seconds
    await asyncio.gather(*jobs)
    return first


QUESTION = Question(
    "start",
    "Start of a pool of four",
    (
        Figure("all_ms", "4 results", "ms"),
        Figure("first_ms", "first result", "ms"),
        Figure("next_ms", "next pool", "ms"),
    ),
    measure,
    limit=30,
)
