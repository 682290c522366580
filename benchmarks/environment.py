"""What the figures were measured with: without it they say nothing."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

from benchmarks.base import MEGABYTE
from benchmarks.peers import DISTRIBUTIONS
from benchmarks.runner import ROOT


def describe(distributions: Iterable[str] = DISTRIBUTIONS) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "copy_gb_per_s": round(copy_rate(), 1),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": commit(),
        "versions": {
            "asyncpool": installed("asyncpool-supervised"),
            **{name: installed(name) for name in distributions},
        },
    }


def warn_if_busy() -> None:
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > cpus / 2:
        busy = f"the machine is busy (load {load:.1f} on {cpus} CPUs)"
        print(f"{busy}: expect noise, and use more rounds", file=sys.stderr)


def copy_rate(size: int = 64 * MEGABYTE, turns: int = 5) -> float:
    """Measure how fast one thread copies memory, in GB/s: no pool can be faster."""
    source, target = b"\x01" * size, memoryview(bytearray(size))
    target[:] = source  # memory that nobody has touched is slower
    taken = []
    for _ in range(turns):
        began = perf_counter()
        target[:] = source
        taken.append(perf_counter() - began)
    return size / median(taken) / 1e9


def processor() -> str:
    """Name the processor as Linux does; elsewhere as well as Python can."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip() or platform.processor()


def commit() -> str | None:
    """Return the commit, with a plus sign if more differs from it than earlier results."""
    head = git("rev-parse", "--short=12", "HEAD")
    measured = "benchmarks/*.py", "asyncpool", "pyproject.toml"
    return head and head + ("+" if git("status", "--porcelain", *measured) else "")


def git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
