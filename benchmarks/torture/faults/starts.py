"""An initializer that fails in every worker: for good, and until somebody mends it."""

import contextlib
import functools
import os
import signal
import time
from pathlib import Path

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import HANG, OK, Outcome
from benchmarks.torture.trial import WORKERS, Trial

WATCHED = 3.0
"""Seconds from opening the pool in which its attempts to start are counted."""

AGAIN = 0.1
"""Seconds after which a refused caller tries again."""

TOLD = "error with cause"
UNAWARE = "ran anyway"


async def initializer(trial: Trial) -> None:
    """See whether the caller hears why, and count the processes it took."""
    diary = Path(trial.marker("diary"))
    diary.touch()
    until = time.monotonic() + WATCHED
    trial.last_look = lambda: count_starts(trial, diary, until)
    fail = functools.partial(jobs.fail_to_start, str(diary))
    try:
        async with trial.peer.open(WORKERS, fail):
            with anyio.move_on_after(trial.timeout * 0.5):
                trial.see("caller", await heard(trial))
            await anyio.sleep(max(0.0, until - time.monotonic()))
            trial.report()  # before the pool is left, which may hang
    except BaseException as error:
        if trial.is_reported:
            raise
        trial.see("caller", judged(error))
        await anyio.sleep(max(0.0, until - time.monotonic()))
        trial.report()


async def heard(trial: Trial) -> Outcome:
    try:
        await trial.peer.call(jobs.add, 1, 2)
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        return judged(error)
    return Outcome(UNAWARE)


def judged(error: BaseException) -> Outcome:
    outcome = outcomes.of_error(error, is_culprit=True)
    is_told = jobs.TOKEN in outcomes.printed(error)
    return Outcome(TOLD if is_told else outcome.word, outcome.note)


def count_starts(trial: Trial, diary: Path, until: float) -> None:
    times = [float(line) for line in diary.read_text().splitlines()]
    trial.seen["starts"] = sum(at <= until for at in times)


async def mended(trial: Trial) -> None:
    """Break the initializer under a pool that runs and kill its workers; then mend it.

    As a licence server does that is gone for a while. See whether a caller hears of it
    meanwhile, and whether calls succeed within two seconds of the cure.
    """
    broken = Path(trial.marker("broken"))
    async with trial.opened(functools.partial(jobs.start_unless, str(broken))):
        names = [f"worker-{n}" for n in range(WORKERS)]
        first = [trial.start(jobs.sign_and_nap, trial.marker(n), 0.1, 0) for n in names]
        await trial.wait(first, 0.25)
        broken.touch()
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                os.kill(await trial.begun(name), signal.SIGKILL)
        with anyio.move_on_after(trial.timeout * 0.25):
            trial.see("caller", await heard(trial))
        broken.unlink()
        mended_at = time.monotonic()
        found = Outcome(HANG)
        with anyio.move_on_after(trial.timeout * 0.25):
            while (found := await attempt(trial)).word != OK:
                await anyio.sleep(AGAIN)
        trial.see("mended", found)
        trial.seen["seconds"] = round(time.monotonic() - mended_at, 2)
        trial.report()


async def attempt(trial: Trial) -> Outcome:
    try:
        value = await trial.peer.call(jobs.add, 1, 2)
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        return outcomes.of_error(error, is_culprit=True)
    return outcomes.of_value(value, 3)
