"""Workers that die: while they run a job, while they wait for one, and politely."""

import contextlib
import os
import signal

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.trial import WORKERS, Trial

UNNOTICED = 0.5
"""Seconds between an idle worker's death and the next call: not a race but a test."""


async def kill_running(trial: Trial) -> None:
    """Kill one of two workers, with a bystander in the other and two jobs queued."""
    async with trial.opened():
        marker = trial.marker("bystander")
        bystander = trial.start(jobs.sign_and_nap, marker, 1.0, 41, expected=41)
        await trial.begun("bystander")
        culprit = trial.start_culprit(jobs.die, 0.3)
        await anyio.sleep(0.05)  # the others are to be queued behind it
        queued = trial.start_sums(2)
        found = await trial.wait([culprit, bystander, *queued], 0.45)
        trial.see("culprit", outcomes.together(found[:1]))
        trial.see("bystander", outcomes.together(found[1:2]))
        trial.see("queued", outcomes.together(found[2:]))
        await trial.see_later()
        trial.report()


async def kill_idle(trial: Trial) -> None:
    """Kill each worker in turn while it waits, and let the pool notice.

    Each, since it matters to some pools which one it is: the worker that waits
    with the lock of a shared queue in its hands takes it to the grave.
    """
    nexts: list[Outcome | None] = []
    async with trial.opened():
        names = [f"worker-{n}" for n in range(WORKERS)]
        warm = [trial.start(jobs.sign_and_nap, trial.marker(n), 0.2, 0) for n in names]
        await trial.wait(warm, 0.45)
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                os.kill(await trial.begun(name), signal.SIGKILL)
            await anyio.sleep(UNNOTICED)
            nexts += await trial.wait(trial.start_sums(WORKERS), 0.25)
            trial.see("next", outcomes.together(nexts))
            if None in nexts:
                break
        await trial.see_later()
        trial.report()


async def exit_zero(trial: Trial) -> None:
    """Lose one worker more than there are, each with an exit status of success."""
    async with trial.opened():
        culprits = [trial.start_culprit(jobs.leave) for _ in range(WORKERS + 1)]
        found = await trial.wait(culprits, 0.45)
        trial.see("culprit", outcomes.together(found))
        await trial.see_later()
        trial.report()
