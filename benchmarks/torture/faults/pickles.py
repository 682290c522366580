"""Values that cannot make the journey, and exceptions that are no Exception.

Each culprit is called once more than there are workers, with an unrelated call
after each: a worker that is lost or left with half a message shows there.
"""

import threading
from collections.abc import Callable
from typing import Any

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.trial import WORKERS, Trial


async def result_unpicklable(trial: Trial) -> None:
    await torture(trial, jobs.make_lock)


async def argument_unpicklable(trial: Trial) -> None:
    await torture(trial, jobs.echo, threading.Lock())


async def error_unloadable(trial: Trial) -> None:
    await torture(trial, jobs.raise_awkward)


async def result_unloadable(trial: Trial) -> None:
    await torture(trial, jobs.make_grenade)


async def argument_unloadable(trial: Trial) -> None:
    await torture(trial, jobs.echo, jobs.Grenade())


async def keyboard_interrupt(trial: Trial) -> None:
    await torture(trial, jobs.interrupt)


async def sys_exit(trial: Trial) -> None:
    await torture(trial, jobs.leave_politely)


async def torture(trial: Trial, fn: Callable[..., Any], *args: Any) -> None:
    culprits: list[Outcome | None] = []
    bystanders: list[Outcome | None] = []
    async with trial.opened():
        for _ in range(WORKERS + 1):
            culprits += await trial.wait([trial.start_culprit(fn, *args)], 0.25)
            trial.see("culprit", outcomes.together(culprits))
            bystanders += await trial.wait(trial.start_sums(1), 0.25)
            trial.see("bystander", outcomes.together(bystanders))
            if None in culprits or None in bystanders:
                break  # it hangs; more of the same would only cost time
        await trial.see_later()
        trial.report()
