"""Ways to kill a worker, from within a job and from outside."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil, log
from random import Random

import asyncpool
from asyncpool.events import Crashed
from census.measure import Finding, measure

WAYS: tuple[Callable[[], object], ...] = (
    partial(os._exit, 0),
    partial(os._exit, 3),
    partial(signal.raise_signal, signal.SIGKILL),
    partial(signal.raise_signal, signal.SIGSEGV),
    partial(signal.raise_signal, signal.SIGABRT),
)

# Somebody who kills workers for sport is no sign of a broken program, which is
# what the default policy protects from: restart at once, however often.


def measure_or_die(root: str, path: str, rate: float, seed: int) -> Finding:
    """Do what :func:`measure` does, unless the dice want this worker to die.

    Each attempt throws them anew, so that the next one can succeed; and the same
    *seed* lets the same attempts die in every run.
    """
    dice = Random(f"{seed}/{path}/{asyncpool.current_job().attempt}")
    doomed = dice.random() < rate
    die = dice.choice(WAYS)
    if doomed and dice.choice((True, False)):  # otherwise with its work done
        die()
    finding = measure(root, path)
    if doomed:
        die()
    return finding


def outside_kills(rate: float, jobs: int) -> int:
    """Return how many workers the saboteur may kill one by one."""
    return ceil(rate * jobs)


def attempts_needed(rate: float, jobs: int) -> int:
    """Return how many attempts make it certain that each job gets through.

    In the worst case the saboteur, who also kills all workers at once twice, meets
    the same long job every time.  The dice are as good as sure not to.
    """
    by_dice = ceil(log(1e-12, rate)) if rate else 0
    return 1 + by_dice + outside_kills(rate, jobs) + 2


class Saboteur:
    """Kills workers of *pool* from outside with SIGKILL.

    Args:
        pool: Whose workers.
        rate: The chaos rate; one worker is killed about every *0.01 / rate* seconds.
        jobs: How many jobs there will be.
        seed: Makes the choice of the victims repeatable, as far as time allows.
    """

    def __init__(self, pool: asyncpool.Pool, rate: float, jobs: int, seed: int) -> None:
        self.kills = 0
        self._pool = pool
        self._pause = 0.01 / rate
        self._budget = outside_kills(rate, jobs)
        self._dice = Random(seed)

    async def run(self) -> None:
        """Kill one worker after another, at random moments, until cancelled."""
        for _ in range(self._budget):
            await asyncio.sleep(self._dice.uniform(0, 2 * self._pause))
            if pids := self._pids():
                self._kill(self._dice.choice(pids))

    def kill_all(self) -> set[int]:
        """Kill every worker at once, and return which they were."""
        pids = self._pids()
        for pid in pids:
            self._kill(pid)
        return set(pids)

    async def kill_all_and_wait(self) -> None:
        """Kill every worker at once, and return when the pool knows."""
        news = self._pool.events()
        unnoticed = self.kill_all()
        while unnoticed:
            event = await anext(news)
            if isinstance(event, Crashed) and event.crash.pid is not None:
                unnoticed.discard(event.crash.pid)

    def _pids(self) -> list[int]:
        slots = self._pool.stats().slots
        return [slot.pid for slot in slots if slot.pid is not None]

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # it was faster
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
