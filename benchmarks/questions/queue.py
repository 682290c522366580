"""What a long queue costs: memory for each job, and speed."""

import asyncio

import psutil

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

SMALL = 10_000
# Peers would need minutes for a million.
MOST_OF_OTHERS = 20_000


def measure(bench: Bench) -> Reading:
    """Queue ten thousand no-op jobs at once, then a million, and wait for all.

    The rate is that of all from the first call to the last result.  Memory is what the
    process grows by until the last job is queued, for each of them, its future included.
    Other pools are asked for twenty thousand only, since a million takes them minutes.
    """
    large = bench.scale.queue if bench.peer.fast else MOST_OF_OTHERS
    process = psutil.Process()

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        await drain(SMALL)(call)
        small, _ = await drain(SMALL)(call)
        rate, grown = await drain(large)(call)
        return {"large": rate, "small": small, "bytes": grown / large}

    def drain(count: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        async def run(call: Call) -> tuple[float, int]:
            before, watch = process.memory_info().rss, Stopwatch()
            jobs = [asyncio.ensure_future(call(work.noop)) for _ in range(count)]
            grown = process.memory_info().rss - before
            for job in jobs:
                await job
            return count / watch.seconds, grown

        return run

    return Reading(bench.run(body))


QUESTION = Question(
    "queue",
    "A queue of a million jobs (20 000 for the others)",
    (
        Figure("large", "rate", "jobs/s", more_is_better=True),
        Figure("small", "with 10 000", "jobs/s", more_is_better=True),
        Figure("bytes", "memory", "B/job"),
    ),
    measure,
    limit=120,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool", "anyio"),
    once=True,
)
