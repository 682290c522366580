"""An initializer that fails in every worker."""

import functools
import time
from pathlib import Path

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.outcomes import Outcome
from benchmarks.torture.trial import WORKERS, Trial

WATCHED = 3.0
"""Seconds from opening the pool in which its attempts to start are counted."""

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
