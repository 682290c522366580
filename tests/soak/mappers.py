"""Map functions over many items: to their end, or not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from asyncpool import Map, Outcome
from asyncpool.errors import (
    AsyncPoolError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from tests.soak import work
from tests.soak.era import BOUND, Era, Life
from tests.soak.oracle import Item
from tests.soak.plans import draw_options
from tests.soak.work import OwnError

__all__ = ["mapper"]

# The bad ends of items, and how often each is drawn among so many items.
_HOW = {"raise": 30, "exit": 5, "SIGKILL": 5}
_AMONG = 2000
_ENDS = {"raise": "raised", "exit": "crash", "SIGKILL": "crash"}


def mapper(rng: Random) -> Life:
    """Run maps, one after the other."""

    async def live(era: Era) -> None:
        while await era.pause(rng.choice((0.0, 0.05, 0.3))):
            await _draw_run(rng, era).run()

    return live


def _draw_run(rng: Random, era: Era) -> _Run:
    count, most = rng.choice((0, 1, 20, 200, 1000)), rng.choice((1, 1, 1, 3))
    good = rng.random() < 0.3  # all of it
    function = rng.choice(work.DOINGS)
    items, tasks = [], []
    for _ in range(count):
        until, how, seconds = 0, "", 0.0
        if not good and rng.randrange(_AMONG) < sum(_HOW.values()):
            [how] = rng.choices(list(_HOW), list(_HOW.values()))
            until = rng.choice((2, 9))
        if rng.random() < 0.01:
            seconds = rng.choice((0.002, 0.02, 0.1))
        end = "value" if until <= most else _ENDS[how]
        key = era.ledger.next_key()
        items.append(Item(key, frozenset((end,)), most, era.told))
        tasks.append(work.Task(str(era.book), key, until, how, seconds))
    options = draw_options(rng)
    options.update(max_attempts=most, retry_on=[OwnError, "crash", "hung"])
    sizes = {
        "chunksize": rng.choice((None, None, 1, 7)),
        "buffersize": rng.choice((None, 50)),
    }
    return _Run(
        era=era,
        function=function,
        items=items,
        tasks=tasks,
        options=options,
        sizes=sizes,
        ordered=rng.random() < 0.6,
        telling=rng.random() < 0.6,
        how=rng.choice(("all", "all", "await", "close", "break", "cancel")),
        enough=rng.randint(1, count + 1),
        patience=rng.choice((0.0, 0.01, 0.1)),
    )


@dataclass(slots=True, kw_only=True)
class _Run:
    """One map.

    Attributes:
        era: The pool.
        function: What is done with
        tasks: each of these; and what is known of them.
        items: As above.
        options: What each is to have.
        sizes: The arguments of the map itself.
        ordered: Whether results come in the order of the items.
        telling: Whether there is an outcome for each.
        how: How it is left: see ``readers.py``; or awaited for a list.
        enough: After how many results.
        patience: Or seconds.
        taken: How many results there were.
        complete: Whether that is all.
    """

    era: Era
    function: Any
    items: list[Item]
    tasks: list[work.Task]
    options: dict[str, Any]
    sizes: dict[str, int | None]
    ordered: bool
    telling: bool
    how: str
    enough: int
    patience: float
    taken: int = 0
    complete: bool = False
    broke: bool = False

    async def run(self) -> None:
        """Run it, and judge what comes of it."""
        era = self.era
        era.ledger.items += self.items
        task = asyncio.create_task(self._iterate())
        if self.how == "cancel":
            await asyncio.wait([task], timeout=self.patience)
            task.cancel()
        await asyncio.wait([task], timeout=BOUND)
        stats = era.pool.stats()
        era.demand(task.done(), f"a map does not end, {self.taken} taken: {stats}")
        if not task.cancelled():
            task.result()
        elif not self.taken:
            era.demand(self.how == "cancel", "nobody has cancelled the map")
        self._count()
        end = "complete" if self.complete else "broke" if self.broke else self.how
        era.tally.deed(era.name, f"map: {end}", f"{self.taken} of {len(self.items)}")

    def _count(self) -> None:
        """Say how many jobs that was."""
        era, drawn = self.era, sum(item.drawn for item in self.items)
        # Who could not be submitted was no job.
        jobs = sum(item.end not in {"", "closed", "broken"} for item in self.items)
        least, most = min(1, jobs), 3 * drawn
        if self.sizes["chunksize"] == 1:
            # With several lanes an item may go as a chunk of one, and then once more by itself.
            least, most = jobs, drawn * (1 + era.climate.several)
        cancelled = 0 if self.complete else most
        era.ledger.note_jobs(least=least, most=most, cancelled=cancelled)

    def _draw(self) -> Iterator[work.Task]:
        for item, task in zip(self.items, self.tasks, strict=True):
            item.drawn = True
            yield task

    async def _iterate(self) -> None:
        results: Map[Any] = self.era.view(self.options).map(
            self.function,
            self._draw(),
            **self.sizes,
        )
        if not self.ordered:
            results = results.unordered()
        if self.telling:
            results = results.outcomes()
        try:
            if self.how == "await":
                for result in await results:
                    self._take(result)
            elif await self._leave(results):
                return
        except (AsyncPoolError, OwnError) as error:
            self.broke = True
            self._judge_first(error)
        else:
            self.complete = True
            whole = self.taken == len(self.items)
            self.era.demand(whole, f"{self.taken} results of {len(self.items)}")

    async def _leave(self, results: Map[Any]) -> bool:
        """Take results, and tell whether they were left before their end."""
        iteration: AsyncIterator[Any] = aiter(results)
        async for result in iteration:
            self._take(result)
            if self.how in {"close", "break"} and self.taken == self.enough:
                break
        else:
            return False
        if self.how == "close":
            await results.aclose()
        return True

    def _take(self, result: Any) -> None:
        if self.telling:
            assert isinstance(result, Outcome)
            place = result.index
            same = result.item == self.tasks[place]
            self.era.demand(same, f"{result} is of another item")
            if self.ordered:
                self.era.demand(place == self.taken, f"{result} is not the next")
            self._judge(place, result.error, None if result.error else result.result())
        else:
            place = self._place_of(result)
            self._judge(place, None, result)
        self.taken += 1

    def _place_of(self, result: Any) -> int:
        """Return which item a result is of."""
        if self.ordered:
            return self.taken
        double = result if isinstance(result, int) else result[1]
        return double // 2 - self.items[0].key

    def _judge_first(self, error: BaseException) -> None:
        """Judge the error that has ended it."""
        if self.telling:
            raise error
        [note] = [note for note in error.__notes__ if "of a map" in note]
        [place] = map(int, re.findall(r"item (\d+) of", note))
        if self.ordered and self.how != "await":
            next_one = place == self.taken
            self.era.demand(next_one, f"{self.taken} taken before {error!r}: {note}")
        self._judge(place, error, None)

    def _judge(self, place: int, error: BaseException | None, value: Any) -> None:
        era, item = self.era, self.items[place]
        where = f"item {place} of a map of {self.function.__name__}, {item}"
        era.demand(not item.end, f"it is there twice: {where}")
        item.end = _name(error)
        if error is None and isinstance(value, int):
            era.demand(value == 2 * item.key, f"got {value}: {where}")
        elif error is None:
            (key, item.attempt), double = value
            good = (key, double) == (item.key, 2 * item.key)
            era.demand(good, f"got {value}: {where}")
        elif isinstance(error, OwnError):
            era.demand(error.key == item.key, f"got {error!r}: {where}")
        # It may have come too late to be submitted.
        late = {"closed"} if era.closing.is_set() else set[str]()
        allowed = item.ends | era.climate.ambient | late
        era.demand(
            item.end in allowed, f"it must not end like this: {where}, {error!r}"
        )
        era.tally.ends["item of a map", item.end] += 1


def _name(error: BaseException | None) -> str:
    match error:
        case None:
            return "value"
        case OwnError():
            return "raised"
        case WorkerCrashedError():
            return error.kind
        case PoolClosedError():
            return "closed"
        case PoolBrokenError():
            return "broken"
        case _:
            return repr(error)
