"""Workers that die: while they run a job, while they wait for one, one by one, in bursts."""

import contextlib
import os
import signal
import time

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.trial import WORKERS, Trial

UNNOTICED = 0.5
"""Seconds between an idle worker's death and the next call: not a race but a test."""

FLOOD = 40
"""Crashing jobs in front of an honest one."""

BURSTS = 10
BETWEEN = 0.2
"""Seconds that the workers wait for a job between two bursts of kills."""


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


async def flood(trial: Trial) -> None:
    """Submit jobs that kill their workers, and an honest one behind them."""
    async with trial.opened():
        await trial.wait(trial.start_sums(WORKERS), 0.25)
        culprits = [trial.start_culprit(jobs.die, 0.0) for _ in range(FLOOD)]
        submitted_at = time.monotonic()
        honest = await trial.wait(trial.start_sums(1), 0.45)
        trial.seen["seconds"] = round(time.monotonic() - submitted_at, 2)
        trial.see("honest", outcomes.together(honest))
        trial.see("culprit", outcomes.together(await trial.wait(culprits, 0.1)))
        await trial.see_later()
        trial.report()


async def storm(trial: Trial) -> None:
    """Kill all workers at once while they wait, again and again, with calls in between."""
    longest = 0.0
    async with trial.opened():
        for burst in range(BURSTS):
            names = [f"burst-{burst}-{n}" for n in range(WORKERS)]
            asked_at = time.monotonic()
            found = await trial.wait(
                [
                    trial.start(jobs.sign_and_nap, trial.marker(n), 0.1, 0)
                    for n in names
                ],
                0.25,
            )
            longest = max(longest, time.monotonic() - asked_at)
            between = outcomes.together(found)
            trial.see("between", between)
            if between.word != outcomes.OK:
                break
            for name in names:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(await trial.begun(name), signal.SIGKILL)
            await anyio.sleep(BETWEEN)
        trial.seen["longest, s"] = round(longest, 2)
        await trial.see_later()
        trial.report()
