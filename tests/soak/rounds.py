"""One event loop after the other, with pools in each, and what they must not leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.helpers.guards import Snapshot
from tests.helpers.loops import loop_factories
from tests.soak.climates import draw_climate
from tests.soak.era import Era
from tests.soak.lives import draw_lives
from tests.soak.oracle import FailureError
from tests.soak.tally import Tally

__all__ = ["run_round", "watch"]

# What this process said where nobody catches it.
_troubles: list[str] = []


class _Listener(logging.Handler):
    """Writes into the diary what the pools log; takes note of what must not be."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == "tests.soak.job":
            self._tally.deeds["records of jobs"] += 1
        elif record.name == "asyncpool.worker":
            self._tally.deeds["lines of workers"] += 1
        else:
            self._tally.note("log", text)
            ours = not record.name.startswith("asyncpool")
            if record.exc_info or (ours and record.levelno >= logging.WARNING):
                _troubles.append(f"{record.name} logged: {text} {record.exc_info}")


def watch(tally: Tally) -> None:
    """Have everything noted that is said where nobody catches it."""
    warnings.simplefilter("error")
    sys.unraisablehook = lambda what: _troubles.append(f"unraisable: {what}")
    threading.excepthook = lambda what: _troubles.append(f"in a thread: {what}")
    logging.getLogger().addHandler(_Listener(tally))
    logging.getLogger().setLevel(logging.INFO)


def run_round(rng: Random, number: int, tally: Tally, folder: Path) -> None:
    """Run one loop, with a pool in it, or two at once."""
    factories = loop_factories()
    loop_name = rng.choice(sorted(factories))
    eras = [
        (f"{number}{letter}", draw_climate(rng), rng.getrandbits(64))
        for letter in "ab"[: rng.choice((1, 1, 2))]
    ]
    if any(climate.launcher for _, climate, _ in eras):  # which they may share
        eras = [
            (name, replace(climate, orphans=True), seed) for name, climate, seed in eras
        ]
    tally.setups = [f"{name}: {loop_name}, {climate}" for name, climate, _ in eras]
    tally.deed("round", loop_name, f"number {number}")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: _troubles.append(f"{context}"))
        before = Snapshot()
        async with asyncio.TaskGroup() as tasks:
            for name, climate, seed in eras:
                era = Era(name, climate, tally, folder)
                tasks.create_task(era.run(*draw_lives(Random(seed), era)))
        _check_leaks(before)

    with asyncio.Runner(loop_factory=factories[loop_name]) as runner:
        runner.run(main())
    gc.collect()
    if _troubles:
        raise FailureError("; ".join(_troubles))


def _check_leaks(before: Snapshot) -> None:
    stray = asyncio.all_tasks() - {asyncio.current_task()}
    found = [f"task {task!r}" for task in stray]
    found += before.leaks()
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text().splitlines()
        found += [f"map {line}" for line in maps if "memfd:asyncpool" in line]
    if found:
        raise FailureError("left behind: " + "; ".join(found))
