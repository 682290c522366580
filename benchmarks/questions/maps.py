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

    They are put into a list, or iterated over: in asyncpool that is ``async for``, which
    takes Python longer than ``for``.  asyncpool finds by itself how many go together.  Of
    the others the best of four ways counts: 1, 10, 100 or 1000 of them, with fewer items
    where fewer go together.  The last figure is for jobs of one item each.
    """
    peer, many = bench.peer, bench.scale.queue

    async def rate(chunk: int, *, listed: bool = False) -> float:
        count = min(many, FEWEST * max(chunk, 1)) if chunk else many
        watch = Stopwatch()
        await peer.sweep(work.echo, count, chunk, listed=listed)
        return count / watch.seconds

    async def best(*, listed: bool) -> float:
        chunks = (0,) if peer.fast else CHUNKS
        return max([await rate(chunk, listed=listed) for chunk in chunks])

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        alone = await rate(1)
        listed, iterated = await best(listed=True), await best(listed=False)
        return {"listed": listed, "iterated": iterated, "alone": alone}

    return Reading(bench.run(body))


QUESTION = Question(
    "map",
    "A map over a million small items",
    (
        Figure("listed", "into a list", "items/s", more_is_better=True),
        Figure("iterated", "iterated over", "items/s", more_is_better=True),
        Figure("alone", "one in each job", "items/s", more_is_better=True),
    ),
    measure,
    limit=90,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool"),
    once=True,
)
