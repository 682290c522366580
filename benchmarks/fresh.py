"""Jobs a second where each has a process of its own, beside bubblewrap.

    python -m benchmarks.fresh [--workers 1 2] [--jobs 500] [--rounds 5]

The job imports nothing and returns its pid.  A pool with ``fresh=True`` forks a worker for each,
also in ``Sandbox.parser()``.  With ``launcher="spawn"`` it starts an interpreter for each.
Bubblewrap starts an interpreter too, in namespaces of its own, with all files to read; as many
at once as there are workers.  A bare interpreter, without any sandbox, shows what of that the
interpreter costs.  They take turns, and the table has medians.  Containers are not measured: they
need a daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpool

INTERPRETER = [sys.executable, "-I", "-S", "-c", "import os; print(os.getpid())"]
BUBBLEWRAP = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc"]
BUBBLEWRAP += ["--dev", "/dev", "--die-with-parent", "--new-session"]


async def pool(workers: int, jobs: int, **options: object) -> float:
    """Return how many jobs a second a pool does."""
    async with asyncpool.Pool(workers, fresh=True, ready="all", **options) as it:  # type: ignore[arg-type]
        began = time.perf_counter()
        pids = await asyncio.gather(*(it.submit(os.getpid) for _ in range(jobs)))
        seconds = time.perf_counter() - began
    assert len(set(pids)) == jobs
    return jobs / seconds


async def programs(command: list[str], workers: int, jobs: int) -> float:
    """Return how often a second a program runs."""
    room = asyncio.Semaphore(workers)

    async def run() -> None:
        async with room:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE
            )
            assert int((await process.communicate())[0])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(run())
    return jobs / (time.perf_counter() - began)


async def measure(options: argparse.Namespace) -> None:
    for workers in options.workers:
        few = max(options.jobs // 10, 20)
        peers: dict[str, Callable[[], Awaitable[float]]] = {
            "fresh=True": partial(pool, workers, options.jobs),
            "fresh=True, parser": partial(
                pool, workers, options.jobs, sandbox=asyncpool.Sandbox.parser()
            ),
            "fresh=True, spawn": partial(pool, workers, few, launcher="spawn"),
            "an interpreter": partial(programs, INTERPRETER, workers, few),
        }
        if shutil.which("bwrap"):
            peers["bubblewrap"] = partial(
                programs, BUBBLEWRAP + INTERPRETER, workers, few
            )
        figures: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(options.rounds):
            for name, ask in peers.items():
                figures[name].append(await ask())
        for name, found in figures.items():
            median = statistics.median(found)
            print(
                f"{workers} at once, {name:18}: {median:5.0f}/s, {1000 / median:.1f} ms each"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
