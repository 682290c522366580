"""How long the event loop stands still while the pool is at work."""

import asyncio
import math

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    pump,
    quantile,
    workers_of,
)
from benchmarks.peers import Call
from benchmarks.questions.bandwidth import make_array

TICK = 0.001
IN_FLIGHT = 1000


class Ticker:
    """Ask the loop for a callback every millisecond, and note how late it comes.

    On two cores that three busy processes share, some of the lateness is the
    scheduler's; it is the same for every peer.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late: list[float] = []

    def start(self) -> None:
        self._due = self._loop.time() + TICK
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> list[float]:
        """Return how late it was each time since the start, in milliseconds."""
        if self._timer is not None:
            self._timer.cancel()
        # What began after the last tick and is not over yet counts as well.
        late = [1e3 * late for late in (*self.late, self._loop.time() - self._due)]
        self.late.clear()
        return late

    def _tick(self) -> None:
        self.late.append(self._loop.time() - self._due)
        self.start()


def waits(late: float) -> list[float]:
    """Return how long callers would wait that come once a millisecond.

    One tick that is late by a second stands for a thousand callers, the last of whom
    waits for a millisecond: else the longer a loop stands still, the less it would
    count ("coordinated omission").
    """
    return [late - passed for passed in range(max(1, math.ceil(late)))]


def measure(bench: Bench) -> Reading:
    """Watch arrays of 64 MB, 100 000 no-op jobs and a dict of 100 MB go through.

    The dict holds four million small objects; the jobs are 1000 in flight; all of it is
    less if quick.  What goes out and comes back lives as long as its part, since to free
    it, or to have the garbage collector walk through it, is the caller's own stall.
    """
    array = make_array()

    async def body(call: Call) -> list[list[float]]:
        await workers_of(call, WORKERS)
        ticker, found = Ticker(), []
        ticker.start()
        kept = [await call(work.echo, array) for _ in range(bench.scale.echoes)]
        found.append(ticker.stop())
        del kept
        ticker.start()
        await pump(
            call, in_flight=IN_FLIGHT, more=lambda sent: sent < bench.scale.flood
        )
        found.append(ticker.stop())
        entries = {f"key {number}": number / 2 for number in range(bench.scale.entries)}
        ticker.start()
        answer = await call(work.echo, entries)
        found.append(ticker.stop())
        if answer != entries:
            raise AssertionError("the dict came back changed")
        return found

    parts = bench.run(body)
    whole = [wait for part in parts for late in part for wait in waits(late)]
    names = ("arrays_ms", "jobs_ms", "dict_ms")
    longest = dict(zip(names, map(max, parts), strict=True))
    return Reading(
        {"p999_ms": quantile(whole, 0.999), "longest_ms": max(whole), **longest}
    )


QUESTION = Question(
    "stall",
    "Stalls of the event loop",
    (
        Figure("p999_ms", "p99.9", "ms"),
        Figure("longest_ms", "longest", "ms"),
        Figure("arrays_ms", "64 MB arrays", "ms"),
        Figure("jobs_ms", "no-op jobs", "ms"),
        Figure("dict_ms", "100 MB dict", "ms"),
    ),
    measure,
    limit=120,
    only=("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool", "loky", "anyio"),
    once=True,
)
