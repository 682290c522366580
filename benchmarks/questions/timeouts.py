"""How punctual timeouts are, and what it costs to have them."""

import functools
import time
from collections.abc import Callable
from statistics import median

from benchmarks import work
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

TIMEOUT = 0.1
FOR_EVER = 3600.0
IN_FLIGHT = 1000
STUCK: dict[str, tuple[Callable[..., object], object]] = {
    "sleeping": (work.nap, 60.0),
    "computing": (work.spin, 60.0),
    "gil": (work.hog, 10**8),
}


def measure(bench: Bench) -> Reading:
    """Time out jobs that are stuck in three ways; run no-op jobs with and without limits.

    How late a timeout is counts up to the error in the caller's hands.
    """
    times = bench.scale.timeouts

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        timed = bench.peer.timed(TIMEOUT)
        found = {}
        for name, stuck in STUCK.items():
            samples = []
            for _ in range(times):
                samples.append(await late(timed, stuck))
                await call(work.noop)
            found[name] = median(samples)
        found["cost"] = await cost(bench, bench.peer.timed(FOR_EVER), call)
        both = await bench.peer.watched()
        if both is not None:
            found["watched"] = await cost(bench, *both)
        return found

    return Reading(bench.run(body))


async def late(call: Call, stuck: tuple[Callable[..., object], object]) -> float:
    """Return how many milliseconds after its time a job has ended."""
    began = time.perf_counter()
    try:
        await call(*stuck)
    except TimeoutError:
        return 1e3 * (time.perf_counter() - began - TIMEOUT)
    raise AssertionError("it was not stuck")


async def cost(bench: Bench, limited: Call, free: Call) -> float:
    """Return by how many percent no-op jobs are slower if they are *limited*.

    The two take turns, since a machine is not equally fast all the time.
    """
    seconds = bench.scale.seconds

    async def rate(call: Call) -> float:
        watch = Stopwatch()
        more = functools.partial(_before, watch, seconds)
        return await pump(call, in_flight=IN_FLIGHT, more=more) / watch.seconds

    for call in (limited, free):
        await workers_of(call, WORKERS)
    rates = [
        (await rate(free), await rate(limited)) for _ in range(bench.scale.timeouts)
    ]
    return 100 * (1 - max(b for _, b in rates) / max(a for a, _ in rates))


def _before(watch: Stopwatch, seconds: float, _: int) -> bool:
    return watch.seconds < seconds


QUESTION = Question(
    "timeouts",
    "How late a timeout is",
    (
        Figure("sleeping", "sleeping job", "ms"),
        Figure("computing", "computing job", "ms"),
        Figure("gil", "job that holds the GIL", "ms"),
        Figure("cost", "throughput that a timeout costs", "%"),
        Figure("watched", "that timeouts, heartbeats and pings cost", "%"),
    ),
    measure,
    limit=120,
    only=("asyncpool", "asyncpool+uvloop", "pebble"),
    once=True,
)
