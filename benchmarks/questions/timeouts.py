"""How punctual timeouts are, and what it costs to have them."""

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
    """Time out jobs that are stuck in three ways; run no-op jobs with and without a limit.

    How late a timeout is counts up to the error in the caller's hands.  The two kinds of
    no-op jobs take turns, since a machine is not equally fast all the time.
    """
    seconds, times = bench.scale.seconds, bench.scale.timeouts

    def until(watch: Stopwatch) -> Callable[[int], bool]:
        return lambda _: watch.seconds < seconds

    async def rate(call: Call) -> float:
        watch = Stopwatch()
        jobs = await pump(call, in_flight=IN_FLIGHT, more=until(watch))
        return jobs / watch.seconds

    async def late(call: Call, stuck: tuple[Callable[..., object], object]) -> float:
        began = time.perf_counter()
        try:
            await call(*stuck)
        except TimeoutError:
            return 1e3 * (time.perf_counter() - began - TIMEOUT)
        raise AssertionError("it was not stuck")

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
        free, limited = [], []
        for _ in range(times):
            free.append(await rate(call))
            limited.append(await rate(bench.peer.timed(FOR_EVER)))
        found["cost"] = 100 * (1 - max(limited) / max(free))
        return found

    return Reading(bench.run(body))


QUESTION = Question(
    "timeouts",
    "How late a timeout is",
    (
        Figure("sleeping", "sleeping job", "ms"),
        Figure("computing", "computing job", "ms"),
        Figure("gil", "job that holds the GIL", "ms"),
        Figure("cost", "throughput that limits cost", "%"),
    ),
    measure,
    limit=120,
    only=("asyncpool", "asyncpool+uvloop", "pebble"),
    once=True,
)
