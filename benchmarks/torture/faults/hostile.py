"""Workers that hostile input has taken over, and that lie on all that connects them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.trial import Trial

RAN = "ran its code"
UNTOUCHED = "untouched"


async def garbage(trial: Trial) -> None:
    await lie(trial, jobs.send_garbage)


async def flood(trial: Trial) -> None:
    await lie(trial, jobs.send_flood)


async def lie(trial: Trial, fn: Callable[..., Any]) -> None:
    """Have one of two workers lie, with a bystander in the other and two jobs queued."""
    trial.peer.distrust()
    async with trial.opened():
        marker = trial.marker("bystander")
        bystander = trial.start(jobs.sign_and_nap, marker, 1.0, 41, expected=41)
        await trial.begun("bystander")
        asked_at = time.monotonic()
        culprit = trial.start_culprit(fn, trial.marker("culprit"))
        await trial.begun("culprit")
        queued = trial.start_sums(2)
        found = await trial.wait([culprit], 0.4)
        trial.see("culprit", outcomes.together(found))
        trial.seen["seconds"] = round(time.monotonic() - asked_at, 2)
        found = await trial.wait([bystander, *queued], 0.25)
        trial.see("bystander", outcomes.together(found[:1]))
        trial.see("queued", outcomes.together(found[1:]))
        await trial.see_later()
        trial.report()


async def evil_result(trial: Trial) -> None:
    """Return what runs code where it is unpickled."""
    trial.peer.distrust()
    async with trial.opened():
        path = trial.marker("evil")
        culprit = trial.start(jobs.make_evil, path)
        await trial.wait([culprit], 0.45)
        trial.seen["service"] = RAN if Path(path).exists() else UNTOUCHED
        await trial.see_later()
        trial.report()
