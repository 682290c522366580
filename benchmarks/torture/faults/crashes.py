"""Workers that die: while they run a job, while they wait for one, and politely."""

import os
import signal

import anyio

from benchmarks.torture import jobs, outcomes
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
    """Kill a worker that has answered and waits, and let the pool notice."""
    async with trial.opened():
        warm = [
            trial.start(jobs.sign_and_nap, trial.marker(f"{n}"), 0.2, n)
            for n in range(WORKERS)
        ]
        await trial.wait(warm, 0.45)
        os.kill(await trial.begun("0"), signal.SIGKILL)
        await anyio.sleep(UNNOTICED)
        calls = trial.start_sums(WORKERS)
        found = await trial.wait(calls, 0.25)
        trial.see("next", outcomes.together(found))
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
