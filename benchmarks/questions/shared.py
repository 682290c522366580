"""What it costs that a pool is in another process, which several programs share."""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from time import perf_counter_ns

import numpy as np

import asyncpool
from benchmarks import work
from benchmarks.base import (
    MEGABYTE,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
    quantile,
    rate_of,
)
from benchmarks.peers import Call

IN_FLIGHT = 1000
ROUNDS = 5
ECHOES = 5
SIZE = 64 * MEGABYTE


def measure(bench: Bench) -> Reading:
    """Ask a local pool and a shared one in turns, each with one worker.

    The shared one belongs to ``asyncpool agent``.  One worker, since with the client and the
    agent there are three processes that work at the same time.  The figures are medians over
    five turns: a no-op call at a time, no-op jobs with 1000 in flight, and an array of 64 MB
    there and back.
    """

    async def life() -> dict[str, float]:
        async with asyncpool.Pool(1) as local, shared_pool() as shared:
            turns = [
                {
                    f"{what}_{where}": figure
                    for where, pool in (("local", local), ("shared", shared))
                    for what, figure in (await ask(pool.submit, bench)).items()
                }
                for _ in range(ROUNDS)
            ]
        return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}

    with asyncio.Runner(loop_factory=bench.make_loop) as runner:
        return Reading(runner.run(life()))


async def ask(call: Call, bench: Bench) -> dict[str, float]:
    seconds = bench.scale.seconds
    taken: list[float] = []
    watch = Stopwatch()
    while watch.seconds < seconds:
        began = perf_counter_ns()
        await call(work.noop)
        taken.append((perf_counter_ns() - began) / 1e3)
    rate = await rate_of(call, in_flight=IN_FLIGHT, seconds=seconds)
    array: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.ones(SIZE, np.uint8)
    bandwidths: list[float] = []
    for _ in range(ECHOES):
        echo = Stopwatch()
        back = await call(work.echo, array)
        bandwidths.append(2 * SIZE / echo.seconds / 1e9)
        del back
    return {
        "us": quantile(taken, 0.5),
        "rate": rate,
        "gb": statistics.median(bandwidths),
    }


@contextlib.asynccontextmanager
async def shared_pool() -> AsyncGenerator[asyncpool.SharedPool]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.sock"
        command = [sys.executable, "-m", "asyncpool", "agent", "--bind", f"unix:{path}"]
        process = subprocess.Popen([*command, "--workers", "1"])
        try:
            async with asyncio.timeout(10):
                while not path.exists():
                    await asyncio.sleep(0.05)
            async with asyncpool.connect(f"unix:{path}") as pool:
                yield pool
        finally:
            process.terminate()
            process.wait()


QUESTION = Question(
    "shared",
    "A pool in another process, and a local one, with one worker",
    (
        Figure("us_shared", "a call, shared", "µs"),
        Figure("us_local", "local", "µs"),
        Figure("rate_shared", "many, shared", "jobs/s", more_is_better=True),
        Figure("rate_local", "local", "jobs/s", more_is_better=True),
        Figure("gb_shared", "64 MB, shared", "GB/s", more_is_better=True),
        Figure("gb_local", "local", "GB/s", more_is_better=True),
    ),
    measure,
    limit=120,
    only=("asyncpool", "asyncpool+uvloop"),
    once=True,
)
