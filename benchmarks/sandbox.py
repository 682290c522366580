"""How long a worker takes to start in a sandbox, beside one without.

    python -m benchmarks.sandbox [--rounds 200]

Each round ends one worker of each kind in its job, in turns.  The time is what the pool's ``Ready``
event says of its successor: from the decision to start a worker until it takes jobs.  Each pool has
a launcher of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
from collections.abc import Iterator

from asyncpool import Pool, Sandbox
from asyncpool.errors import WorkerCrashedError
from asyncpool.events import Ready

_ENV = "LAUNCHER"  # pools whose workers inherit the same would share one

KINDS: dict[str, Sandbox | None] = {
    "no sandbox": None,
    "Sandbox.parser()": Sandbox(imports=False, memory=1 << 30, env={_ENV: "1"}),
    "Sandbox.generated_code()": Sandbox(memory=1 << 30, env={_ENV: "2"}),
    "network=[443]": Sandbox(network=[443], env={_ENV: "3"}),
    "network=True, processes=None": Sandbox(
        network=True, processes=None, env={_ENV: "4"}
    ),
}

Times = dict[str, list[float]]


async def _next_worker(pool: Pool) -> float:
    """End the worker of a pool; return how many seconds the next one has taken."""
    events = pool.events()
    try:
        await pool.submit(os._exit, 3)
    except WorkerCrashedError:
        await pool.submit(abs, -1)
    async for event in events:
        if isinstance(event, Ready):
            return event.seconds
    raise AssertionError("the pool has ended")


async def _measure(rounds: int) -> Times:
    pools = {kind: Pool(1, sandbox=sandbox) for kind, sandbox in KINDS.items()}
    found: Times = {kind: [] for kind in KINDS}
    for pool in pools.values():
        await pool.start()
    for _ in range(rounds):
        for kind, pool in pools.items():
            found[kind].append(await _next_worker(pool))
    for pool in pools.values():
        await pool.close()
    return found


def _rows(found: Times) -> Iterator[str]:
    bare = statistics.median(found["no sandbox"])
    for kind, times in found.items():
        median = statistics.median(times)
        yield f"{kind:30}{median * 1e3:12.2f} ms {(median - bare) * 1e3:+6.2f}"


def main() -> None:
    """Print one line for each kind: medians, and what its sandbox adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds: int = parser.parse_args().rounds
    logging.disable()  # each death would be logged
    for row in _rows(asyncio.run(_measure(rounds))):
        print(row)


if __name__ == "__main__":
    main()
