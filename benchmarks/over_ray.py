"""No-op jobs over a Ray cluster: ours, and what Ray has itself.

``python -m benchmarks.over_ray`` starts two nodes with a CPU each on this machine.  Each round asks
all of them, one after the other; the table has the medians.  CPU time is that of the client and
of the whole cluster, Ray's own processes too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import psutil

from benchmarks.work import same

ROWS = (
    "asyncpool.ray.Pool",
    "asyncpool.ray.Pool, functions of __main__",
    "Ray tasks",
    "Ray actors",
    "ray.util.multiprocessing.Pool",
    "asyncpool.ray.Pool.map",
    "ray.util.multiprocessing.Pool.map",
)

# Of a map, whose items travel together, so many times as many.
_MAPPED = 25


def same_of_main(number: int) -> int:
    """Return *number*; no node can import this function, which travels with each call."""
    return number


class Nothing:
    """Does nothing, as an actor."""

    def nothing(self, number: int) -> int:
        """Do nothing."""
        return number


class Found(NamedTuple):
    """What one row took in one round."""

    rate: float  # jobs a second
    call: float  # seconds of a call that is awaited; NaN if there is none
    cpu: float  # seconds of CPU time for a job


class Row(NamedTuple):
    """How a row makes a call that is awaited, if it can, and many calls."""

    one: Callable[[], Awaitable[Any]] | None
    many: Callable[[int], Awaitable[Any]]


async def measure(row: Row, jobs: int, calls: int) -> Found:
    """Measure one row once."""
    await row.many(50)
    jobs *= 1 if row.one else _MAPPED
    before, began = cpu_time(), time.perf_counter()
    await row.many(jobs)
    took, cpu = time.perf_counter() - began, cpu_time() - before
    samples = []
    if row.one is None:
        return Found(jobs / took, math.nan, cpu / jobs)
    for _ in range(calls):
        began = time.perf_counter()
        await row.one()
        samples.append(time.perf_counter() - began)
    return Found(jobs / took, statistics.median(samples), cpu / jobs)


def cpu_time() -> float:
    """Return the CPU time of this process, and of all that it has started."""
    total = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            total += sum(process.cpu_times()[:2])
    return total


def rows_of_ray(ray: Any, pool: Any) -> dict[str, Row]:
    """Return the rows that Ray has itself."""
    task = ray.remote(same)

    actor = ray.remote(Nothing)
    actors = [actor.remote() for _ in range(2)]

    async def tasks(count: int) -> None:
        await asyncio.gather(*(task.remote(number) for number in range(count)))

    async def calls(count: int) -> None:
        found = (actors[n % 2].nothing.remote(n) for n in range(count))
        await asyncio.gather(*found)

    async def mapped(count: int) -> None:
        await asyncio.to_thread(pool.map, same, range(count), 1)

    async def mapped_together(count: int) -> None:
        await asyncio.to_thread(pool.map, same, range(count))

    return {
        "Ray tasks": Row(lambda: task.remote(1), tasks),
        "Ray actors": Row(lambda: actors[0].nothing.remote(1), calls),
        "ray.util.multiprocessing.Pool": Row(
            lambda: asyncio.to_thread(pool.apply, same, (1,)), mapped
        ),
        "ray.util.multiprocessing.Pool.map": Row(None, mapped_together),
    }


async def run(address: str, ray: Any, pool: Any, args: Any) -> dict[str, list[Found]]:
    """Measure all rows, in as many rounds as *args* say."""
    from asyncpool.ray import Pool

    found: dict[str, list[Found]] = {name: [] for name in ROWS}
    rows = rows_of_ray(ray, pool)
    async with Pool(address, workers_per_node=1, resources={}) as ours:

        async def many(count: int) -> None:
            await asyncio.gather(*(ours.submit(same, n) for n in range(count)))

        async def many_of_main(count: int) -> None:
            await asyncio.gather(*(ours.submit(same_of_main, n) for n in range(count)))

        async def mapped(count: int) -> None:
            await ours.map(same, range(count))

        rows[ROWS[0]] = Row(lambda: ours.submit(same, 1), many)
        rows[ROWS[1]] = Row(lambda: ours.submit(same_of_main, 1), many_of_main)
        rows["asyncpool.ray.Pool.map"] = Row(None, mapped)
        for _ in range(args.rounds):
            for name in ROWS:
                found[name].append(await measure(rows[name], args.jobs, args.calls))
    return found


def table(found: dict[str, list[Found]]) -> str:
    """Return the medians as a table."""
    lines = ["| | no-op jobs a second | a call that is awaited | CPU time for a job |"]
    lines.append("|---|--:|--:|--:|")
    for name, rounds in found.items():
        rate, call, cpu = (
            statistics.median(each) for each in zip(*rounds, strict=True)
        )
        awaited = "" if math.isnan(call) else f"{call * 1e3:.2f} ms"
        lines.append(f"| `{name}` | {rate:,.0f} | {awaited} | {cpu * 1e6:.1f} µs |")
    return "\n".join(lines)


def main() -> None:
    """Start the nodes, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.multiprocessing import Pool as RayPool

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 1 << 28}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, object_store_memory=1 << 28)
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        found = asyncio.run(run(cluster.address, ray, RayPool(2), args))
        print(table(found))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
