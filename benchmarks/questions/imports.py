"""What importing a pool costs, besides asyncio."""

import subprocess
import sys
from statistics import median

from benchmarks.base import Bench, Figure, Question, Reading

TURNS = 5
CODE = (
    "import time, asyncio; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
)


def measure(bench: Bench) -> Reading:
    """Import in fresh interpreters, which have asyncio already.

    First the package alone, then what is used of it too; some load that only then.
    """
    package, names = f"import {bench.peer.package}", bench.peer.names
    taken = [(once(package), once(f"{package}; {names}")) for _ in range(TURNS)]
    alone, whole = zip(*taken, strict=True)
    return Reading({"ms": median(alone), "whole_ms": median(whole)}, whole)


def once(statement: str) -> float:
    command = [sys.executable, "-c", CODE.format(statement)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


QUESTION = Question(
    "imports",
    "Import, besides asyncio",
    (Figure("ms", "package", "ms"), Figure("whole_ms", "with what is used", "ms")),
    measure,
    limit=30,
    once=True,
)
