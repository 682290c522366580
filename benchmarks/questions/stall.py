"""How long the event loop stands still while the pool is at work."""

import asyncio

from benchmarks import work
from benchmarks.base import WORKERS, Bench, Figure, Question, Reading, pump, workers_of
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

    def stop(self) -> float:
        """Return the longest stall since the start, in milliseconds."""
        if self._timer is not None:
            self._timer.cancel()
        # What began after the last tick and is not over yet counts as well.
        longest = max(*self.late, self._loop.time() - self._due) * 1e3
        self.late.clear()
        return longest

    def _tick(self) -> None:
        self.late.append(self._loop.time() - self._due)
        self.start()


def measure(bench: Bench) -> Reading:
    """Watch 64 MB arrays go there and back, then 20 000 no-op jobs.

    The jobs (fewer if quick) are 1000 in flight.  Freeing a 64 MB result is the caller's own
    stall, which no pool can spare it; every peer's figure contains it.
    """
    array = make_array()

    async def body(call: Call) -> tuple[float, float]:
        await workers_of(call, WORKERS)
        ticker = Ticker()
        ticker.start()
        for _ in range(bench.scale.echoes):
            await call(work.echo, array)
        arrays = ticker.stop()
        ticker.start()
        await pump(
            call, in_flight=IN_FLIGHT, more=lambda sent: sent < bench.scale.flood
        )
        return arrays, ticker.stop()

    arrays, jobs = bench.run(body)
    return Reading(
        {"longest_ms": max(arrays, jobs), "arrays_ms": arrays, "jobs_ms": jobs}
    )


QUESTION = Question(
    "stall",
    "Longest stall of the event loop",
    (
        Figure("longest_ms", "longest", "ms"),
        Figure("arrays_ms", "64 MB arrays", "ms"),
        Figure("jobs_ms", "no-op jobs", "ms"),
    ),
    measure,
    limit=60,
)
