"""How many no-op jobs a second go through an executor, by who asks."""

import asyncio
import threading
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    rate_of,
    workers_of,
)

IN_FLIGHT = 1000
THREADS = 4


def measure(bench: Bench) -> Reading:
    """Keep 1000 jobs in flight: through ``run_in_executor``, and from four threads.

    The executors are those of ``concurrent.futures`` and those made like them.  Each
    thread has a quarter of the jobs, and always waits for its oldest one.
    """
    executor = bench.peer.executor(WORKERS)
    seconds = bench.scale.seconds

    async def through_loop() -> float:
        call = partial(asyncio.get_running_loop().run_in_executor, executor)
        await workers_of(call, WORKERS)
        return await rate_of(call, in_flight=IN_FLIGHT, seconds=seconds)

    with asyncio.Runner(loop_factory=bench.make_loop) as runner:
        loop = runner.run(through_loop())
    return Reading({"loop": loop, "threads": from_threads(executor, seconds)})


def from_threads(executor: Executor, seconds: float) -> float:
    counts = [0] * THREADS
    watch = Stopwatch()

    def go(number: int) -> None:
        futures: deque[Future[None]] = deque()
        for _ in range(IN_FLIGHT // THREADS):
            futures.append(executor.submit(work.noop))
        while watch.seconds < seconds:
            futures.popleft().result()
            futures.append(executor.submit(work.noop))
            counts[number] += 1
        for future in futures:
            future.result()
        counts[number] += len(futures)

    threads = [threading.Thread(target=go, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / watch.seconds


QUESTION = Question(
    "executor",
    "No-op jobs through an executor, 1000 in flight",
    (
        Figure("loop", "run_in_executor", "jobs/s", more_is_better=True),
        Figure("threads", "4 threads", "jobs/s", more_is_better=True),
    ),
    measure,
    limit=30,
    only=(
        "asyncpool",
        "asyncpool+uvloop",
        "asyncpool-spawn",
        "ppe-fork",
        "ppe-spawn",
        "ppe-forkserver",
        "loky",
    ),
)
