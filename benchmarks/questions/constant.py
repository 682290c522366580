"""Whether the memory of a map depends on how long its input is."""

from pathlib import Path

from benchmarks import work
from benchmarks.base import WORKERS, Bench, Figure, Question, Reading, workers_of
from benchmarks.peers import Call
from benchmarks.questions.memory import forget_peak, peak


def measure(bench: Bench) -> Reading:
    """Read the peak of this process's memory in a map, and in one ten times as long.

    The results, of the smallest function, are iterated over and dropped.  The peak is the
    resident set size, ``VmHWM``; what the interpreter, the loop and a pool that has run
    some jobs have already is in it, and a figure of its own.
    """
    peer, many = bench.peer, bench.scale.queue

    async def peak_of(count: int) -> float:
        forget_peak()
        await peer.sweep(work.echo, count, 0, listed=False)
        return peak("self")

    async def body(call: Call) -> dict[str, float]:
        await workers_of(call, WORKERS)
        forget_peak()
        before = peak("self")
        one, ten = await peak_of(many), await peak_of(10 * many)
        return {"ten_mb": ten, "one_mb": one, "before_mb": before}

    if not Path("/proc/self/clear_refs").exists():
        return Reading({}, status="unknown", note="needs Linux's clear_refs")
    return Reading(bench.run(body))


QUESTION = Question(
    "constant",
    "Peak memory of a map's own process",
    (
        Figure("ten_mb", "ten million", "MB"),
        Figure("one_mb", "a million", "MB"),
        Figure("before_mb", "before", "MB"),
    ),
    measure,
    limit=90,
    only=("asyncpool",),
    once=True,
)
