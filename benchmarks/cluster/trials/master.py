"""Until when somebody serves whose master was killed."""

import asyncio
import signal
from time import perf_counter

from benchmarks.base import Figure
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.load import load_on, under_load
from benchmarks.cluster.running import Running
from benchmarks.cluster.trials.reloads import BACK


def measure(row: str, scale: Scale) -> Finding:
    """Send SIGKILL to the master alone, and go on asking.

    Workers that go on serving are nobody's: they are not replaced and not reloaded, and
    keep the address from the next master.
    """
    with Running(row, WORKERS) as server:
        finding: Finding = under_load(lambda: orphan(server, scale.orphaned))
    return finding


async def orphan(server: Running, seconds: float) -> Finding:
    async with load_on(server.port) as load:
        await load.until(lambda: len(load.seen) >= WORKERS, BACK)
        killed_at = perf_counter()
        server.send_signal(signal.SIGKILL)
        await asyncio.sleep(seconds)
        alive = len(load.alive())
    last = max(load.seen.values()) - killed_at
    figures = {"served_s": max(0.0, last), "alive": alive}
    return Finding(figures, "goes on" if last > seconds / 2 else "ok")


TRIAL = Trial(
    "master",
    "SIGKILL of the master: how long anybody goes on to serve",
    (Figure("served_s", "last answer", "s"), Figure("alive", "workers left", "")),
    measure,
    once=True,
)
