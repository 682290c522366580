"""How long a pool in full use goes without all of its slots."""

import asyncio
import os
import signal
from statistics import median
from time import perf_counter

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    quantile,
    workers_of,
)
from benchmarks.peers import Call

NAP = 0.001
CLIENTS = 2 * WORKERS


class Crowd:
    """Clients that keep a pool full: each sends its next job after a result.

    A job that a kill has lost for ever holds its client for ever, and cancelling
    it might cost a worker more.  So every kill gets a fresh crowd, and those of
    the old one that can still leave do so.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._leave = False
        self._news = asyncio.Event()
        self.last_seen: dict[int, float] = {}
        self.last_error: tuple[float, Exception] | None = None
        self._clients = [asyncio.ensure_future(self._client()) for _ in range(CLIENTS)]

    async def _client(self) -> None:
        while not self._leave:
            try:
                pid = await self._call(work.nap, NAP)
            except Exception as error:
                self.last_error = perf_counter(), error
                await asyncio.sleep(NAP)
            else:
                self.last_seen[pid] = perf_counter()
                self._news.set()

    async def until_full(self, since: float, without: int, limit: float) -> float:
        """Wait for results of WORKERS processes after *since*; return when."""
        async with asyncio.timeout(limit):
            while len(self.serving(since) - {without}) < WORKERS:
                self._news.clear()
                await self._news.wait()
        return perf_counter()

    def serving(self, since: float) -> set[int]:
        return {pid for pid, when in self.last_seen.items() if when > since}

    def leave(self) -> None:
        self._leave = True


def measure(bench: Bench) -> Reading:
    """Take the time from a worker's SIGKILL until the pool is full again.

    The pool has two workers and four clients, each of which always has one job
    of 1 ms (asleep, so that two cores suffice) in the pool.  The clock runs from
    the kill of the worker that was heard of least recently, and so is likely to
    be in mid-job, to the moment at which *as many different processes as there
    are slots* have delivered results that arrived after the kill.  The dead one
    does not count.  So the 1 ms of the replacement's first job is included.

    A pool that is not full again within the limit **breaks** if its calls keep
    failing, **shrinks** if others still get results, and otherwise **hangs**.
    The job that the killed worker had is lost, and no peer is blamed for that.
    """

    async def body(call: Call) -> tuple[list[float], str]:
        healed: list[float] = []
        await workers_of(call, WORKERS)
        for _ in range(bench.scale.kills):
            crowd = Crowd(call)
            try:
                await crowd.until_full(0, 0, bench.scale.heal_limit)
                victim = min(crowd.last_seen, key=crowd.last_seen.__getitem__)
                began = perf_counter()
                os.kill(victim, signal.SIGKILL)
                full = await crowd.until_full(began, victim, bench.scale.heal_limit)
            except TimeoutError:
                return healed, verdict(crowd, bench.scale.heal_limit)
            healed.append((full - began) * 1e3)
            crowd.leave()
        return healed, "ok"

    healed, status = bench.run(body)
    if not healed:
        return Reading({}, status=status)
    note = "" if status == "ok" else f"{status} at kill {len(healed) + 1}"
    figures = {"p50_ms": median(healed), "max_ms": quantile(healed, 1)}
    return Reading(figures, healed, status, note)


def verdict(crowd: Crowd, limit: float) -> str:
    """Say what became of a pool that did not become full in time."""
    lately = perf_counter() - limit / 2
    if crowd.serving(lately):
        return "shrinks"
    failing = crowd.last_error is not None and crowd.last_error[0] > lately
    return "breaks" if failing else "hangs"


QUESTION = Question(
    "recovery",
    "SIGKILL of a worker until the pool is full again",
    (Figure("p50_ms", "p50", "ms"), Figure("max_ms", "worst", "ms")),
    measure,
    limit=60,
)
