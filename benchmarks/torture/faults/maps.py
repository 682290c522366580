"""How much of its input a map swallows before anybody takes a result."""

import threading
from collections.abc import Iterator

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.trial import Trial

ITEMS = 200_000
PAUSE = 0.75
"""Seconds, twice, in which nobody takes a second result."""

AT_REST = "at rest"
STILL_DRAWN = "still drawn"


class Source:
    """A generator's items, counted as they are drawn by whichever thread."""

    def __init__(self) -> None:
        self.drawn = 0
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        for item in range(ITEMS):
            with self.lock:
                self.drawn += 1
            yield item


async def eagerness(trial: Trial) -> None:
    if not trial.peer.has_map:
        trial.skip("no map")
        return
    source = Source()
    trial.last_look = lambda: trial.seen.update(drawn=source.drawn)
    trial.seen["input"] = STILL_DRAWN
    async with trial.opened():
        first = await trial.peer.first_of_map(jobs.echo, iter(source))
        trial.see("first", outcomes.of_value(first, 0))
        trial.notes["first"] = f"after {source.drawn} items"
        await anyio.sleep(PAUSE)
        drawn = source.drawn
        await anyio.sleep(PAUSE)
        if source.drawn == drawn:
            trial.seen["input"] = AT_REST
        trial.report()
