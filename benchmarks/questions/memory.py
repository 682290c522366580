"""How much memory an idle worker costs."""

import asyncio
import os
from pathlib import Path
from statistics import median

import psutil

from benchmarks.base import MEGABYTE, Bench, Figure, Question, Reading, workers_of
from benchmarks.peers import Call

WORKERS = 4
SETTLE = 0.3


def measure(bench: Bench) -> Reading:
    """Read the proportional set size (PSS) of four workers that have run a job.

    PSS shares out the pages that several processes map, so that the sum over all
    processes is what the machine really spends.  The second figure adds what the
    pool needs besides workers (fork servers, trackers), shared out among them.
    """

    async def body(call: Call) -> tuple[list[float], float]:
        pids = await workers_of(call, WORKERS)
        await asyncio.sleep(SETTLE)
        everyone = psutil.Process().children(recursive=True)
        whole = sum(pss(process.pid) for process in everyone)
        return [pss(pid) for pid in pids], whole / WORKERS

    if not Path("/proc/self/smaps_rollup").exists():
        return Reading({}, status="unknown", note="needs Linux's smaps_rollup")
    own, whole = bench.run(body, workers=WORKERS)
    return Reading({"worker_mb": median(own), "whole_mb": whole}, own)


def pss(pid: int) -> float:
    """Return the proportional set size of process *pid*, in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    raise ProcessLookupError(os.strerror(3))


def peak(pid: str) -> float:
    """Return the most memory that a process, or ``"self"``, had resident so far, in MB.

    It is 0 for one that has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 / MEGABYTE if found else 0.0


def forget_peak() -> None:
    """Have this process's :func:`peak` begin at what it has now."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")


QUESTION = Question(
    "memory",
    "Memory of an idle worker (PSS)",
    (
        Figure("worker_mb", "worker", "MB"),
        Figure("whole_mb", "with helpers", "MB"),
    ),
    measure,
    limit=30,
    once=True,
    extra=("asyncpool-numpy",),
)
