"""How many items a second the command line maps, with a journal of what is done."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.base import WORKERS, Bench, Figure, Question, Reading
from benchmarks.questions.memory import peak

EVERY = 0.05  # s


def measure(bench: Bench) -> Reading:
    """Run ``asyncpool map --journal`` with a file of numbers, and with a tenth of them.

    The function is the smallest one.  The rate is what the command itself says, from the
    start of its pool to the last result in the output; the peak is that of its own process,
    as last seen.  The results alone are written, and the journal has them, too.
    """
    many = bench.scale.queue
    with tempfile.TemporaryDirectory() as folder:
        rate, one = mapped(Path(folder), many)
        _, tenth = mapped(Path(folder), many // 10)
    return Reading({"rate": rate, "mb": one, "tenth_mb": tenth})


def mapped(folder: Path, count: int) -> tuple[float, float]:
    """Return the items a second of a run, and its peak."""
    source = folder / f"{count}.jsonl"
    source.write_text("".join(f"{number}\n" for number in range(count)), "ascii")
    command = [sys.executable, "-m", "asyncpool", "map", "benchmarks.work:echo"]
    command += [str(source), "--output", str(folder / f"{count}.out"), "--bare"]
    command += ["--journal", str(folder / f"{count}.db")]
    command += ["--workers", str(WORKERS), "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    most = 0.0
    while process.poll() is None:
        most = max(most, peak(str(process.pid)))
        time.sleep(EVERY)
    assert process.stderr is not None
    summary = json.loads(process.stderr.read())
    if summary["exit_code"] or summary["done"] != count:
        raise RuntimeError(f"it went wrong: {summary}")
    return summary["per_second"], most


QUESTION = Question(
    "journal",
    "asyncpool map, the command, with a journal, over a million numbers",
    (
        Figure("rate", "rate", "items/s", more_is_better=True),
        Figure("mb", "peak", "MB"),
        Figure("tenth_mb", "of a tenth", "MB"),
    ),
    measure,
    limit=120,
    only=("asyncpool",),
    once=True,
)
