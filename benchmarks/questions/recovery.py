"""How long a pool in full use goes without all of its slots."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import NamedTuple

from benchmarks import work
from benchmarks.base import (
    WORKERS,
    Bench,
    Figure,
    Question,
    Reading,
    workers_of,
)
from benchmarks.peers import Call

NAP = 0.001
CLIENTS = 4 * WORKERS
PATIENCE, HOLD = 1.0, 600.0


class Healing(NamedTuple):
    """One kill: milliseconds until full, and what became of the calls."""

    taken: float
    failed: int
    silent: int


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
        self.failed_at: list[float] = []
        self._clients: list[asyncio.Task[None]] = []
        self.join()

    def join(self) -> None:
        """Let CLIENTS more come."""
        newcomers = (asyncio.ensure_future(self._client()) for _ in range(CLIENTS))
        self._clients += newcomers

    async def _client(self) -> None:
        while not self._leave:
            try:
                pid = await self._call(work.nap, NAP)
            except Exception:
                self.failed_at.append(perf_counter())
                await asyncio.sleep(NAP)
            else:
                self.last_seen[pid] = perf_counter()
                self._news.set()

    async def victim(self) -> int:
        """Send a job that holds its worker; return which, once it has begun."""
        file = Path(tempfile.mkdtemp(), "pid")
        self._clients.append(asyncio.ensure_future(self._hold(str(file))))
        while not (file.exists() and file.read_text("ascii").endswith("\n")):
            await asyncio.sleep(NAP)
        return int(file.read_text("ascii"))

    async def _hold(self, file: str) -> None:
        try:
            await self._call(work.hold, file, HOLD)
        except Exception:
            self.failed_at.append(perf_counter())

    async def until_full(self, since: float, without: int, limit: float) -> float:
        """Wait for results of WORKERS processes after *since*; return when."""
        async with asyncio.timeout(limit):
            while len(self.serving(since) - {without}) < WORKERS:
                self._news.clear()
                await self._news.wait()
        return perf_counter()

    def serving(self, since: float) -> set[int]:
        return {pid for pid, when in self.last_seen.items() if when > since}

    async def leave(self) -> int:
        """Send the clients home; return how many got no answer to their last job."""
        self._leave = True
        _, held = await asyncio.wait(self._clients, timeout=PATIENCE)
        return len(held)


def measure(bench: Bench) -> Reading:
    """Take the time from a worker's SIGKILL until the pool is full again.

    The pool has two workers and eight clients, each of which always has one job
    of 1 ms (asleep, so that two cores suffice) in the pool.  One more job holds a
    worker for ever and tells which; that one is killed, so that every kill strikes
    in mid-job.  The clock runs from the kill to the moment at which *as many
    different processes as there are slots*, without the dead one, have delivered
    results that arrived after it.  So the 1 ms of the replacement's first job is
    included.  Eight more clients come right after the kill, because a peer may
    never answer those who were there.

    A pool that is not full again within the limit **breaks** if its calls keep
    failing, **shrinks** if others still get results, and otherwise **hangs**.
    The other figures say how many calls failed for each kill, of which the one that
    held the worker has to, and how many never got any answer at all: such a pool
    **loses calls**, however soon it is full again.
    """
    limit = bench.scale.heal_limit

    async def body(call: Call) -> tuple[list[Healing], str]:
        healings: list[Healing] = []
        await workers_of(call, WORKERS)
        for _ in range(bench.scale.kills):
            crowd = Crowd(call)
            try:
                taken = await kill_one(crowd, limit)
            except TimeoutError:
                return healings, verdict(crowd, limit)
            silent = await crowd.leave()
            healings.append(Healing(taken * 1e3, len(crowd.failed_at), silent))
        return healings, "ok"

    healings, status = bench.run(body)
    return conclude(healings, status)


async def kill_one(crowd: Crowd, limit: float) -> float:
    """Return how many seconds the pool needed to be full again."""
    await crowd.until_full(0, 0, limit)
    async with asyncio.timeout(limit):
        victim = await crowd.victim()
    began = perf_counter()
    os.kill(victim, signal.SIGKILL)
    crowd.join()
    return await crowd.until_full(began, victim, limit) - began


def conclude(healings: list[Healing], status: str) -> Reading:
    if not healings:
        return Reading({}, status=status)
    taken = [healing.taken for healing in healings]
    figures = {
        "p50_ms": median(taken),
        "max_ms": max(taken),
        "failed": mean(healing.failed for healing in healings),
        "silent": mean(healing.silent for healing in healings),
    }
    note = "" if status == "ok" else f"at kill {len(healings) + 1}"
    if status == "ok" and figures["silent"]:
        status = "loses calls"
    return Reading(figures, taken, status, note)


def verdict(crowd: Crowd, limit: float) -> str:
    """Say what became of a pool that did not become full in time."""
    lately = perf_counter() - limit / 2
    if crowd.serving(lately):
        return "shrinks"
    return "breaks" if max(crowd.failed_at, default=0) > lately else "hangs"


QUESTION = Question(
    "recovery",
    "SIGKILL until the pool is full again",
    (
        Figure("p50_ms", "p50", "ms"),
        Figure("max_ms", "worst", "ms"),
        Figure("failed", "failed calls a kill", ""),
        Figure("silent", "never answered", ""),
    ),
    measure,
    limit=60,
)
