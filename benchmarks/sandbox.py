"""How long a worker takes to start in a sandbox, beside one without.

    python -m benchmarks.sandbox [--rounds 200]

Each round ends one worker of each kind in its job, in turns, and then its successor at once.  The
first successor comes from a spare process, which the launcher has forked ahead, as most do.  The
second comes from a fork, since there has been no time for another spare process.  The time is what
the pool's ``Ready`` event says: from the decision to start a worker until it takes jobs.  Each pool
has a launcher of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
from collections.abc import Iterator

from asyncpool import Pool, Sandbox, WorkerCrashedError
from asyncpool.events import Ready

# Seconds after which the launcher has certainly forked a spare process.
AHEAD = 0.03

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

Times = dict[str, tuple[list[float], list[float]]]


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
    found: Times = {kind: ([], []) for kind in KINDS}
    for pool in pools.values():
        await pool.start()
    for _ in range(rounds):
        for kind, pool in pools.items():
            await asyncio.sleep(AHEAD)
            for times in found[kind]:
                times.append(await _next_worker(pool))
    for pool in pools.values():
        await pool.close()
    return found


def _rows(found: Times) -> Iterator[str]:
    yield f"{'':30}{'from a spare process':>26}{'from a fork':>20}"
    bare = [statistics.median(times) for times in found["no sandbox"]]
    for kind, both in found.items():
        row = f"{kind:30}"
        for times, base in zip(both, bare, strict=True):
            median = statistics.median(times)
            row += f"{median * 1e3:12.2f} ms {(median - base) * 1e3:+6.2f}"
        yield row


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
