"""What clients notice of workers that are killed."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from time import perf_counter

from benchmarks.base import Figure
from benchmarks.cluster import tally
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.load import PERIOD as BEAT, Load, load_on, under_load
from benchmarks.cluster.running import Running
from benchmarks.cluster.tally import Whose
from benchmarks.cluster.trials.reloads import BACK, STEP, status_of

PERIOD = 0.5
"""Seconds from kill to kill."""


def measure(row: str, scale: Scale) -> Finding:
    """Send SIGKILL to a random worker of those that have answered, twice a second.

    If none of those is left then, nobody is killed.  The application keeps a journal of
    which worker has begun which request, so that the failed ones can be told apart.  A
    server that **ends** takes this for its own end.
    """
    with Running(row, WORKERS, journal=True) as server:
        load, marks = under_load(lambda: kill_all(server.port, scale.killing))
        begun, last_words = server.begun(), server.last_words()
        is_down = server.has_ended()
    killed = set(marks)
    bad = [r for r in load.requests if not r.is_answered]
    sent = [r for r in bad if r.outcome is not tally.Outcome.REFUSED]
    places = Counter(tally.whose(request, killed, begun) for request in sent)
    figures = tally.figures_of(load.requests)
    figures |= {
        "kills": len(killed),
        "there": places[Whose.BEGUN] + places[Whose.CONNECTED],
        "new": places[Whose.NEW],
        "other": places[Whose.OTHER],
        "percent": 100 * len(bad) / len(load.requests),
        "lag_ms": load.lag * 1e3,
    }
    where = ", ".join(f"{places[kind]} {kind}" for kind in Whose if places[kind])
    return Finding(
        figures,
        "ends" if is_down else status_of(figures),
        last_words if is_down else where,
        tally.timeline(load.requests, load.since, STEP),
        [when - load.since for when in marks.values()],
    )


async def kill_all(port: int, seconds: float) -> tuple[Load, dict[int, float]]:
    """Return the load, and when each process was killed."""
    marks: dict[int, float] = {}
    chance = random.Random(1)
    async with load_on(port) as load:
        await load.until(lambda: len(load.seen) >= WORKERS, BACK)
        since = perf_counter()
        for number in range(int(seconds / PERIOD)):
            # The clients have a beat of their own, and no kill is to keep time with it.
            due = since + number * PERIOD + chance.uniform(0, BEAT)
            await asyncio.sleep(due - perf_counter())
            kill_one(load.alive, chance, marks)
        await asyncio.sleep(PERIOD)
    return load, marks


def kill_one(
    alive: Callable[[], set[int]], chance: random.Random, marks: dict[int, float]
) -> None:
    if there := sorted(alive()):
        victim = chance.choice(there)
        os.kill(victim, signal.SIGKILL)
        marks[victim] = perf_counter()


TRIAL = Trial(
    "kills",
    f"A worker is killed every {PERIOD:g} s",
    (
        Figure("failed", "failed", ""),
        Figure("refused", "refused", ""),
        Figure("percent", "together", "%"),
        Figure("lost", "with one retry", ""),
        Figure("requests", "of", ""),
        Figure("kills", "kills", ""),
        Figure("there", "in killed worker", ""),
        Figure("new", "in new connection", ""),
        Figure("other", "elsewhere", ""),
        Figure("max_ms", "longest", "ms"),
    ),
    measure,
    once=True,
    quick=("handoff", "shared", "uvicorn", "gunicorn"),
)
