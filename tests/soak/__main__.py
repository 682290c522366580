"""``python -m tests.soak --seed N --minutes M``."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

from tests.helpers.guards import Snapshot, mark_descendants, marked_processes
from tests.helpers.loops import loop_factories, warm_up
from tests.soak.climates import draw_climate
from tests.soak.era import Era
from tests.soak.lives import draw_lives
from tests.soak.oracle import FailureError
from tests.soak.tally import Tally

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


# Seconds that a round may take before the stacks are shown, and the soak ends.
_STUCK = 300.0


def main() -> int:
    """Soak, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="which choices; drawn if not given")
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long")
    parser.add_argument("--round", type=int, help="only this one of the seed's rounds")
    args = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    say(f"soak: seed {seed}, {args.minutes:g} minutes")
    mark_descendants()
    warm_up()
    tally = Tally()
    watch(tally)
    done, ends_at = 0, time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        while time.monotonic() < ends_at and not (args.round and done):
            number = args.round or done + 1
            faulthandler.dump_traceback_later(_STUCK, exit=True)
            try:
                run_round(Random(f"{seed}/{number}"), number, tally, Path(folder))
            except Exception:  # noqa: BLE001 - it is told, whatever it is
                fail(seed, number, tally)
                return 1
            done += 1
    faulthandler.cancel_dump_traceback_later()
    say(tally.table())
    missing = tally.missing() if args.minutes >= 1 and not args.round else []
    for line in missing:
        say(f"soak: too little happened: {line}")
    say(f"soak: seed {seed}, {done} rounds, {'bad' if missing else 'all good'}")
    return 1 if missing else 0


def fail(seed: int, number: int, tally: Tally) -> None:
    """Tell what has failed, and how to see it again; leave no process behind."""
    say(tally.diary())
    say("\n".join(tally.setups))
    traceback.print_exc(file=sys.stdout)
    say(
        f"soak: failed in round {number} of seed {seed}; the same choices again, of that "
        f"round or of all:\n"
        f"    python -m tests.soak --seed {seed} --round {number}\n"
        f"    python -m tests.soak --seed {seed} --minutes {tally.minutes() + 1:.0f}"
    )
    for pid in marked_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def say(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
