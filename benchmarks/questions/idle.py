"""What a pool does when there is nothing to do."""

import asyncio
import re
import time
from pathlib import Path

import psutil

from benchmarks.base import Bench, Figure, Question, Reading, workers_of
from benchmarks.peers import Call

WORKERS = 16
SETTLE = 1.0


def measure(bench: Bench) -> Reading:
    """Leave an idle pool of sixteen alone, and count how often anybody wakes up.

    A wake-up is a voluntary context switch, of any thread of this process, or of its
    children; the one that ends the wait is taken off.
    """

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS, limit=30)
        await asyncio.sleep(SETTLE)
        children = [p.pid for p in psutil.Process().children(recursive=True)]
        before = [switches("self"), *map(switches, children)]
        cpu = time.process_time()
        await asyncio.sleep(bench.scale.idle)
        cpu = time.process_time() - cpu
        after = [switches("self"), *map(switches, children)]
        own, *others = (b - a for a, b in zip(before, after, strict=True))
        scale = 10 / bench.scale.idle
        return {
            "own": max(0, own - 1) * scale,
            "others": sum(others) * scale,
            "cpu": cpu * 1e3 * scale,
        }

    if not Path("/proc/self/task").exists():
        return Reading({}, status="unknown", note="needs Linux's /proc")
    return Reading(bench.run(body, workers=WORKERS))


def switches(pid: int | str) -> int:
    """Count the voluntary context switches of all threads of a process."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text("ascii", "replace")
        found += int(
            re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)[0]
        )
    return found


QUESTION = Question(
    "idle",
    "An idle pool of 16, in ten seconds",
    (
        Figure("own", "wake-ups of the service", ""),
        Figure("others", "of its children", ""),
        Figure("cpu", "CPU of the service", "ms"),
    ),
    measure,
    limit=90,
    only=("asyncpool", "ppe-fork", "mp-pool", "anyio"),
    once=True,
)
