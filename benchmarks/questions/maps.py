"""How many small items a second a map takes."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

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
from benchmarks.peers import Call, Peer
from benchmarks.questions.stall import Ticker

CHUNKS = (10, 100, 1000)
# As many go through the slowest in some seconds, one by one.
FEWEST = 20_000
# Of dictionaries one for so many numbers.
RECORDS = 5


def measure(bench: Bench) -> Reading:
    """Map the smallest function over a million numbers, and take the results in order.

    They are put into a list, or iterated over: in asyncpool that is ``async for``, which
    takes Python longer than ``for``.  asyncpool finds by itself how many go together.  Of
    the others the best of four ways counts: 1, 10, 100 or 1000 of them, with fewer items
    where fewer go together.  The third figure is for jobs of one item each.  The last one
    is how long the event loop stands still while small dictionaries are iterated over; in
    a thread of their own, 100 at a time, where there is no other way to have a loop beside.
    The garbage collector, which takes 10 to 20 ms to find none, has a rest meanwhile.
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

    async def stall() -> float:
        count = many // RECORDS
        ticker = Ticker()
        gc.disable()
        ticker.start()
        if peer.fast:
            await peer.sweep(work.record, count, 0, listed=False)
        else:
            await asyncio.to_thread(_sweep, peer, work.record, count)
        gc.enable()
        return max(ticker.stop())

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        alone = await rate(1)
        listed, iterated = await best(listed=True), await best(listed=False)
        return {
            "listed": listed,
            "iterated": iterated,
            "alone": alone,
            "stall_ms": await stall(),
        }

    return Reading(bench.run(body))


def _sweep(peer: Peer, fn: Callable[[int], Any], count: int) -> None:
    asyncio.run(peer.sweep(fn, count, 100, listed=False))


QUESTION = Question(
    "map",
    "A map over a million small items",
    (
        Figure("listed", "into a list", "items/s", more_is_better=True),
        Figure("iterated", "iterated over", "items/s", more_is_better=True),
        Figure("alone", "one in each job", "items/s", more_is_better=True),
        Figure("stall_ms", "longest stall of the loop", "ms"),
    ),
    measure,
    limit=90,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool"),
    once=True,
)
