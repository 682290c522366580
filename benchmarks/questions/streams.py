"""How fast come the items of a stream."""

from benchmarks.base import (
    MEGABYTE,
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    workers_of,
)
from benchmarks.peers import Call

LARGE = 1000
SMALL = 50_000


def measure(bench: Bench) -> Reading:
    """Take arrays of 1 MB, and then numbers, that one worker makes and sends.

    The peers have no streams.  What comes nearest is ``multiprocessing.Pool.imap``, which
    has all workers make them and collects as many as are not taken.
    """
    share = bench.scale.queue / 1_000_000

    async def rate(count: int, size: int) -> float:
        watch = Stopwatch()
        await bench.peer.take(count, size)
        return count / watch.seconds

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        await rate(20, MEGABYTE)
        large = await rate(max(50, int(LARGE * share)), MEGABYTE)
        return {
            "bandwidth": large * MEGABYTE / 1e9,
            "small": await rate(int(SMALL * share), 0),
        }

    return Reading(bench.run(body))


QUESTION = Question(
    "stream",
    "A stream of items from one generator",
    (
        Figure("bandwidth", "1 MB each", "GB/s", more_is_better=True),
        Figure("small", "numbers", "items/s", more_is_better=True),
    ),
    measure,
    limit=60,
    only=("asyncpool", "asyncpool+uvloop", "mp-pool"),
)
