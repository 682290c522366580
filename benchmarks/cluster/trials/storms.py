"""Whether anybody is refused while workers are killed: one or all at once, idle or not."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.base import Figure
from benchmarks.cluster import tally
from benchmarks.cluster.base import WORKERS, Finding, Scale, Trial
from benchmarks.cluster.load import (
    FRESH,
    KEPT,
    PERIOD as BEAT,
    load_on,
    under_load,
)
from benchmarks.cluster.running import Running, is_alive
from benchmarks.cluster.trials.reloads import BACK

PERIOD = 0.5
"""Seconds from kill to kill."""

AFTER = 2.0
"""Seconds in which the server must answer once more when the storm is over."""


@dataclass(frozen=True)
class Storm:
    """*victims* are those that die together, of the workers that are alive."""

    key: str
    title: str
    kept: int
    fresh: int
    victims: Callable[[list[int], random.Random], list[int]]


def one(alive: list[int], chance: random.Random) -> list[int]:
    return [chance.choice(alive)] if alive else []


def everybody(alive: list[int], _: random.Random) -> list[int]:
    return alive


def launchers(alive: list[int], _: random.Random) -> list[int]:
    """Return the processes between the master and its workers, if there are any."""
    return sorted({parent_of(pid) for pid in alive} - {0, 1})


STORMS = (
    Storm("idle", "one, idle", 0, 1, one),
    Storm("idle_all", "all, idle", 0, 1, everybody),
    Storm("one", "one", KEPT, FRESH, one),
    Storm("all", "all", KEPT, FRESH, everybody),
    Storm("launcher", "launcher", KEPT, FRESH, launchers),
)
"""Idle is a server with one client, which opens a connection twenty times a second."""


def measure(row: str, scale: Scale) -> Finding:
    """Put a server through all storms, each time anew.

    A server that **ends** takes one of them for its own end.
    """
    figures: dict[str, float] = {}
    ended: list[str] = []
    for storm in STORMS:
        found = weather(row, storm, scale.storm)
        if found["kills"]:  # not all have processes between master and workers
            figures |= {f"{storm.key}_{name}": value for name, value in found.items()}
        if not found["after"]:
            ended.append(storm.title)
    figures["lives"] = len(STORMS) - len(ended)
    refused = sum(value for key, value in figures.items() if key.endswith("_refused"))
    status = "ends" if ended else "refuses" if refused else "ok"
    return Finding(figures, status, f"after: {', '.join(ended)}" if ended else "")


def weather(row: str, storm: Storm, seconds: float) -> dict[str, float]:
    """Put one server through one storm; *after* tells whether it lives and answers."""
    with Running(row, WORKERS) as server:
        found: dict[str, float]
        found = under_load(lambda: kill_all(server.port, storm, seconds, server.pid))
        found["after"] = found["after"] and not server.has_ended()
    return found


async def kill_all(
    port: int, storm: Storm, seconds: float, master: int
) -> dict[str, float]:
    """Kill again and again, and count what clients notice."""
    chance, kills = random.Random(1), 0
    async with load_on(port, kept=storm.kept, fresh=storm.fresh) as load:
        await load.until(lambda: len(load.seen) >= WORKERS, BACK)
        since = perf_counter()
        for number in range(int(seconds / PERIOD)):
            due = since + number * PERIOD + chance.uniform(0, BEAT)
            await asyncio.sleep(due - perf_counter())
            for victim in storm.victims(sorted(load.alive()), chance):
                if victim != master:
                    with suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                        kills += 1
        over = perf_counter()
        after = await load.until(lambda: load.answered_since(over), AFTER)
    counted = tally.figures_of(load.requests)
    names = ("requests", "refused", "failed", "lost")
    return {"kills": kills, "after": after, **{name: counted[name] for name in names}}


def parent_of(pid: int) -> int:
    """Return the parent of a process that may have ended; 0 if it has."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0
    return int(fields[1]) if is_alive(pid) else 0


TRIAL = Trial(
    "storms",
    f"Workers are killed every {PERIOD:g} s: connections refused, requests lost after one retry",
    (
        *(
            Figure(f"{storm.key}_{name}", f"{storm.title}: {name}", "")
            for storm in STORMS
            for name in ("refused", "lost")
        ),
        Figure("lives", f"alive after, of {len(STORMS)}", ""),
    ),
    measure,
    once=True,
    quick=("handoff", "shared", "uvicorn", "gunicorn"),
)
