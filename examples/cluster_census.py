"""Count what is in the standard library on three nodes of a Ray cluster, and kill one meanwhile.

The nodes are on this machine.  What they find must be what a serial run finds.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any

import ray
from ray.cluster_utils import Cluster

import asyncpool.ray
from census.library import Library, standard_library
from census.measure import Finding, measure
from census.totals import add_up

NODES = 3
ATTEMPTS = 3  # for the files that the lost node was reading
START = 120.0  # seconds until all nodes must be there

# The least that Ray takes.
STORE = 80 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the census twice, and return the exit status: 1 if the two differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="so many files, drawn at random")
    library = standard_library(parser.parse_args(arguments).limit, seed=1)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # nodes tell how they die
    print(f"{len(library.paths)} files, {NODES} nodes of one worker each")
    began = time.monotonic()
    serial = [measure(library.root, path) for path in library.paths]
    print(f"serial: {time.monotonic() - began:.1f} s")
    cluster = Cluster(
        initialize_head=True, head_node_args=node(include_dashboard=False)
    )
    try:
        others = [cluster.add_node(**node()) for _ in range(NODES - 1)]
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        try:
            killed = asyncio.to_thread(cluster.remove_node, others[0], False)
            findings = asyncio.run(take_census(cluster.address, library, killed))
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()
    if add_up(findings) != add_up(serial):
        print("the findings differ from those of the serial run", file=sys.stderr)
        return 1
    print("equal to the serial run:")
    for name, count in add_up(findings).counts.items():
        print(f"  {count:9,} {name}")
    return 0


def node(**more: Any) -> dict[str, Any]:
    """Return what Ray needs to know of a node."""
    return {"num_cpus": 1, "object_store_memory": STORE, **more}


async def take_census(
    address: str, library: Library, kill_node: Awaitable[object]
) -> list[Finding]:
    """Measure all files; when a third of them is done, have a node be killed."""
    third = len(library.paths) // 3
    async with asyncpool.ray.Pool(address, workers_per_node=1, resources={}) as pool:
        async with asyncio.timeout(START):
            while len(await pool.nodes()) < NODES:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.1)
        began = time.monotonic()
        stubborn = pool.options(max_attempts=ATTEMPTS)
        jobs = [stubborn.submit(measure, library.root, path) for path in library.paths]
        await asyncio.gather(*jobs[:third])
        done = sum(job.done() for job in jobs)
        await kill_node
        print(f"a node was killed when {done} files were done")
        findings = await asyncio.gather(*jobs)
        print(f"cluster: {time.monotonic() - began:.1f} s")
    tried = Counter(job.attempt for job in jobs)
    print(f"files by attempts: {dict(sorted(tried.items()))}")
    return findings


if __name__ == "__main__":
    raise SystemExit(main())
