"""How much of its input a map swallows before anybody takes a result."""

import threading
from collections.abc import Iterator

import anyio

from benchmarks.torture import jobs, outcomes
from benchmarks.torture.trial import Trial

ITEMS = 200_000
PAUSE = 1.0
"""Seconds in which nobody takes a second result."""


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
    async with trial.opened():
        first = await trial.peer.first_of_map(jobs.echo, iter(source))
        trial.see("first", outcomes.of_value(first, 0))
        trial.notes["first"] = f"after {source.drawn} items"
        await anyio.sleep(PAUSE)
        trial.report()
