"""How many small items a second a map takes."""

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    workers_of,
)
from benchmarks.peers import Call

CHUNKS = (10, 100, 1000)
# As many go through the slowest in some seconds, one by one.
FEWEST = 20_000


def measure(bench: Bench) -> Reading:
    """Map the smallest function over a million numbers, and take the results in order.

    asyncpool finds by itself how many go together.  Of the others the best of four ways
    counts: 1, 10, 100 or 1000 of them, with fewer items where fewer go together.  The
    other figure is for one by one.
    """
    peer, many = bench.peer, bench.scale.queue

    async def rate(chunk: int) -> float:
        count = min(many, FEWEST * max(chunk, 1)) if chunk else many
        watch = Stopwatch()
        await peer.sweep(work.echo, count, chunk)
        return count / watch.seconds

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        alone = await rate(1)
        best = max([await rate(chunk) for chunk in ((0,) if peer.fast else CHUNKS)])
        return {"best": best, "alone": alone}

    return Reading(bench.run(body))


QUESTION = Question(
    "map",
    "A map over a million small items",
    (
        Figure("best", "together", "items/s", more_is_better=True),
        Figure("alone", "one by one", "items/s", more_is_better=True),
    ),
    measure,
    limit=90,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool"),
    once=True,
)
