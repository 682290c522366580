"""How long short jobs take that share a pool with long ones."""

import asyncio
import random
from collections.abc import Callable
from functools import partial

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    quantile,
    quantiles,
    workers_of,
)
from benchmarks.peers import Call

SHORT, LONG, SHARE_OF_LONG = 0.00005, 0.2, 0.01
# A job takes 2 ms in the mean, so two workers are busy for a half of the time.
RATE = 500.0
SECONDS = 8


def measure(bench: Bench) -> Reading:
    """Send jobs of 50 µs at random moments, and 1 % of 200 ms among them.

    The long ones are of another function first, and then, in another pool, of the same
    one, so that nobody can know which they are.

    The jobs sleep, so that the cores stay out of it; they come 500 a second, whatever
    has become of those before, in the same order for every peer.  Time is taken from
    the call to the result, of the short ones only.
    """
    others = bench.run(partial(times_of, bench, work.snooze), close=True)
    bench.peer = bench.make_peer()
    same = bench.run(partial(times_of, bench, work.nap))
    figures = {
        "p99_ms": quantile(others, 0.99),
        "p50_ms": quantile(others, 0.5),
        "same_p99_ms": quantile(same, 0.99),
        "same_p50_ms": quantile(same, 0.5),
    }
    return Reading(figures, quantiles(others))


async def times_of(
    bench: Bench, long: Callable[[float], int], call: Call
) -> list[float]:
    """Return how long the short jobs took, in ms, among those of *long*."""
    await workers_of(call, WORKERS)
    for _ in range(20):
        await call(work.nap, SHORT)

    def note(watch: Stopwatch, _: object) -> None:
        taken.append(watch.seconds * 1e3)

    dice = random.Random(7)
    loop = asyncio.get_running_loop()
    taken: list[float] = []
    jobs: list[asyncio.Future[object]] = []
    due = loop.time()
    for number in range(int(RATE * SECONDS * bench.scale.seconds)):
        due += dice.expovariate(RATE)
        await asyncio.sleep(due - loop.time())
        if number % round(1 / SHARE_OF_LONG) == 50:
            jobs.append(asyncio.ensure_future(call(long, LONG)))
            continue
        job = asyncio.ensure_future(call(work.nap, SHORT))
        job.add_done_callback(partial(note, Stopwatch()))
        jobs.append(job)
    await asyncio.gather(*jobs)
    return taken


QUESTION = Question(
    "mixed",
    "Jobs of 50 µs among 1 % of 200 ms",
    (
        Figure("p99_ms", "p99 of the short", "ms"),
        Figure("p50_ms", "p50", "ms"),
        Figure("same_p99_ms", "of one function, p99", "ms"),
        Figure("same_p50_ms", "p50", "ms"),
    ),
    measure,
    limit=60,
    only=("asyncpool", "ppe-fork", "anyio"),
    once=True,
    extra=("asyncpool-single",),
)
