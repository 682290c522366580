"""How fast a 64 MB NumPy array goes to a worker and comes back."""

from statistics import median
from typing import Any

from benchmarks import work
from benchmarks.base import MEGABYTE, Bench, Figure, Question, Reading, Stopwatch
from benchmarks.peers import Call

SIZE = 64 * MEGABYTE


def make_array() -> Any:
    """Make 64 MB that no compression or shared zero page could shorten."""
    import numpy as np

    return np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)


def measure(bench: Bench) -> Reading:
    """Send the same array again and again, and count the bytes of both ways.

    The first turn is not counted, but checked: what came back is what was sent.
    """
    array = make_array()

    async def body(call: Call) -> list[float]:
        if (await call(work.echo, array)).tobytes() != array.tobytes():
            raise AssertionError("the array came back changed")
        rates = []
        for _ in range(bench.scale.echoes):
            watch = Stopwatch()
            await call(work.echo, array)
            rates.append(2 * SIZE / watch.seconds / 1e9)
        return rates

    rates = bench.run(body)
    return Reading({"gb_per_s": median(rates)}, rates)


QUESTION = Question(
    "bandwidth",
    "A 64 MB NumPy array there and back",
    (Figure("gb_per_s", "both ways", "GB/s", more_is_better=True),),
    measure,
    limit=60,
)
