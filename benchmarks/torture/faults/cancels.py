"""What cancelling a call really stops, seen in the process table."""

import time

import anyio
import psutil

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.trial import Call, Trial

STOPPED = "stopped"
RUNS_ON = "runs on"

WINDOW = 0.3
"""Seconds over which a worker's CPU time is compared."""

BUSY_SHARE = 0.1
"""Of a core: an idle worker uses nothing, a computing one a fair share at least."""


async def python_loop(trial: Trial) -> None:
    async with trial.opened():
        await cancel(trial, trial.start(jobs.spin, trial.marker("victim"), 60.0))


async def c_call(trial: Trial) -> None:
    iterations = 200_000_000  # about a minute
    async with trial.opened():
        await cancel(
            trial, trial.start(jobs.digest, trial.marker("victim"), iterations)
        )


async def cancel(trial: Trial, victim: Call) -> None:
    marker = trial.marker("bystander")
    bystander = trial.start(jobs.sign_and_nap, marker, 1.0, 41, expected=41)
    pid = await trial.begun("victim")
    await trial.begun("bystander")
    victim.scope.cancel()
    trial.see("job", await stopping(pid, trial.timeout * 0.5))
    found = await trial.wait([bystander], 0.25)
    trial.see("bystander", outcomes.together(found))
    await trial.see_later()
    trial.report()


async def stopping(pid: int, limit: float) -> Outcome:
    """Watch the worker until it is gone or computes no more."""
    cancelled_at = time.monotonic()
    before = cpu_seconds(pid)
    while time.monotonic() - cancelled_at < limit:
        since = time.monotonic()
        await anyio.sleep(WINDOW)
        now = cpu_seconds(pid)
        if now is None or before is None or now - before < WINDOW * BUSY_SHARE:
            return Outcome(STOPPED, f"after {since - cancelled_at:.1f} s")
        before = now
    return Outcome(RUNS_ON, f"after {limit:.1f} s")


def cpu_seconds(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return None
    return float(times.user + times.system)
