"""How fast large objects go to a worker and come back."""

import contextlib
from statistics import median
from typing import Any

from benchmarks import work
from benchmarks.base import (
    MEGABYTE,
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    Stopwatch,
)
from benchmarks.peers import Call

SIZE = 64 * MEGABYTE
OTHERS = (10_000, 100_000, MEGABYTE, 10 * MEGABYTE)
# A small array goes as often as it takes to see past the noise.
MOST_TURNS = 40


def make_array(size: int = SIZE) -> Any:
    """Make an array that no compression or shared zero page could shorten."""
    import numpy as np

    return np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)


async def rate(call: Call, value: Any, size: int, turns: int) -> float:
    """Send *value* again and again, and count the bytes of both ways, in GB/s.

    The first turns are not counted: whoever keeps memory for a worker has some of it then,
    whichever worker it is.
    """
    for _ in range(2 * WORKERS):
        await call(work.echo, value)
    rates = []
    for _ in range(turns):
        watch = Stopwatch()
        await call(work.echo, value)
        rates.append(2 * size / watch.seconds / 1e9)
    return median(rates)


async def rates_of_tables(call: Call, array: Any, turns: int) -> dict[str, float]:
    """Send tables made of *array*, of whichever package is installed."""
    rates: dict[str, float] = {}
    with contextlib.suppress(ImportError):
        import pandas as pd

        dates, floats = array.view("datetime64[s]"), array.view("float64")
        table = pd.DataFrame(
            {
                f"{name}{n}": column[n::8].copy()
                for n in range(4)
                for name, column in (("at", dates), ("what", floats))
            }
        )
        rates["table"] = await rate(call, table, SIZE, turns)
    with contextlib.suppress(ImportError):
        import pyarrow as pa

        columns = array.view("float64").reshape(8, -1)
        arrow = pa.table({f"column {n}": part for n, part in enumerate(columns)})
        rates["arrow"] = await rate(call, arrow, SIZE, turns)
    return rates


def measure(bench: Bench) -> Reading:
    """Send arrays of several sizes, a list of a hundred, and tables with their columns.

    What comes back is checked once.  The tables are one of pandas, of which every other
    column is dates, and one of pyarrow; whichever is installed, and none if quick.
    """
    array = make_array()

    async def body(call: Call) -> tuple[list[tuple[float, float]], dict[str, float]]:
        if (await call(work.echo, array)).tobytes() != array.tobytes():
            raise AssertionError("the array came back changed")
        turns, curve = bench.scale.echoes, list[tuple[float, float]]()
        for size in OTHERS:
            often = min(MOST_TURNS, turns * SIZE // size)
            curve.append((size, await rate(call, array[:size].copy(), size, often)))
        curve.append((SIZE, await rate(call, array, SIZE, turns)))
        hundred = [array[:MEGABYTE].copy() for _ in range(100)]
        more = {"list": await rate(call, hundred, 100 * MEGABYTE, turns)}
        if bench.scale.tables:
            more |= await rates_of_tables(call, array, turns)
        return curve, more

    curve, more = bench.run(body)
    return Reading(
        {"gb_per_s": curve[-1][1], "mb": dict(curve)[MEGABYTE], **more}, curve=curve
    )


QUESTION = Question(
    "bandwidth",
    "NumPy arrays there and back, both ways counted",
    (
        Figure("gb_per_s", "64 MB", "GB/s", more_is_better=True),
        Figure("mb", "1 MB", "GB/s", more_is_better=True),
        Figure("list", "100 of 1 MB", "GB/s", more_is_better=True),
        Figure("table", "DataFrame, 64 MB", "GB/s", more_is_better=True),
        Figure("arrow", "pyarrow, 64 MB", "GB/s", more_is_better=True),
    ),
    measure,
    limit=90,
)
