"""What is left when the supervising process ends: the runner sees to that.

The functions here only bring the pool into the state in which its process is to
be killed or interrupted, and say that it is reached.
"""

import anyio

from benchmarks.torture import jobs
from benchmarks.torture.trial import WORKERS, Trial

LONG = 60.0


async def idle(trial: Trial) -> None:
    """Stay with workers that have all worked and now wait."""
    async with trial.opened():
        calls = [trial.start(jobs.nap, 0.2) for _ in range(WORKERS)]
        for call in calls:
            await call.settled.wait()
        trial.report()
        await anyio.sleep_forever()


async def busy(trial: Trial) -> None:
    """Stay with workers in the middle of a computation."""
    async with trial.opened():
        for name in ("left", "right"):
            trial.start(jobs.spin, trial.marker(name), LONG)
            await trial.begun(name)
        trial.report()
        await anyio.sleep_forever()


async def asleep(trial: Trial) -> None:
    """Stay with workers in the middle of a job that sleeps."""
    async with trial.opened():
        for name in ("left", "right"):
            trial.start(jobs.sign_and_nap, trial.marker(name), LONG, 0)
            await trial.begun(name)
        trial.report()
        await anyio.sleep_forever()
